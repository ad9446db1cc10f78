"""Two software HCAs on loopback addresses, for a test and the processes that it starts.

A process that gets an environment of these has HCAs of that address, those faults and that seed. docs/fixture.md is for
users.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdx._files import softhca_library

# Names the pair in the environments of all its processes, by which those that a test leaves behind are found.
_TOKEN = "GDX_HCA_PAIR"
# Describes the pair to the process of a test that opens verbs itself.
_INHERITED = "GDX_HCA_PAIR_INHERITED"
_ROCE_PORT = 4791
# Bound at both addresses while a pair lives: pairs of all processes and users find each other's by it.
_RESERVING_PORT = 4793
_START_LIMIT_S = 30.0
_END_LIMIT_S = 2.0
_RANGES: dict[str, tuple[float, float]] = {
    "rate_gbps": (0.001, 10_000),
    **dict.fromkeys(("loss", "corrupt", "duplicate", "reorder", "mark", "death"), (0, 1)),
}
_CHOICES = {
    "mtu": (256, 512, 1024, 2048, 4096),
    "wire": ("udp", "shm", "auto"),
    "congestion_control": ("dcqcn", "none"),
}
# Counters that say what a network did to a test.
_TELLING = (
    "softhca_packets_sent",
    "softhca_faults_lost",
    "softhca_faults_corrupted",
    "softhca_retransmitted_packets",
    "softhca_icrc_errors",
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "rnr_nak_retry_err",
    "out_of_buffer",
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What an HCA does to packets that it sends; names and ranges are those of `gdx run`."""

    loss: float = 0.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    mark: float = 0.0
    death: float = 0.0
    rate_gbps: float | None = None
    mtu: int | None = None
    wire: str | None = None
    congestion_control: str | None = None
    pcap: bool = True

    def changed(self, **changes: Any) -> Options:
        """Returns options with other values. Raises TypeError and ValueError, which name the option."""
        __tracebackhide__ = True  # a test that fails here is shown where it gave the option
        names = [field.name for field in dataclasses.fields(self)]
        for name, value in changes.items():
            if name not in names:
                raise TypeError(f"no option {name}: use {', '.join(names)}, seed, or in the mark timeout_s")
            if name in _CHOICES and value not in (None, *_CHOICES[name]):
                raise ValueError(f"{name}={value!r}: use one of {', '.join(map(str, _CHOICES[name]))}")
            low, high = _RANGES.get(name, (0, 0))
            if high > 0 and value is not None and not (isinstance(value, (int, float)) and low <= value <= high):
                raise ValueError(f"{name}={value!r}: use {low} to {high}")
        return dataclasses.replace(self, **changes)

    def variables(self) -> dict[str, str]:
        """Returns variables of the software HCA; an empty one means its default."""
        values = dataclasses.asdict(self)
        values.pop("pcap")
        return {f"GDX_SOFTHCA_{name.upper()}": str(value) if value else "" for name, value in values.items()}

    def __str__(self) -> str:
        pairs = dataclasses.asdict(self).items()
        return "".join(f", {name} {value}" for name, value in pairs if value and name != "pcap")


class Hca:
    """One of the two HCAs: for processes of `environment`, which have it alone, as gdx0."""

    def __init__(self, pair: HcaPair, index: int, address: str, options: Options) -> None:
        self._pair = pair
        self._index = index
        self.address = address
        self._options = options

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that has this HCA alone, as gdx0. One process at a time can have it."""
        return self._pair._environment(self._options, self.address, 1, f"hca{self._index}", self._index)

    def set(self, **options: Any) -> None:
        """Changes options for processes that start later: loss, corrupt, duplicate, reorder, mark, death, ..."""
        __tracebackhide__ = True
        self._pair._check_changeable()
        self._options = self._options.changed(**options)

    def start(
        self, command: Sequence[str], port: int | None = None, until: str | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts a process with this HCA, which the end of the test ends. `options` are those of subprocess.Popen.

        port: returns once somebody listens at that TCP port. until: returns once the process has printed what matches;
        all that it prints is shown at the end of the test. Raises RuntimeError if it ends before, or after 30 s.
        """
        __tracebackhide__ = True
        options.setdefault("env", self.environment)
        options.setdefault("start_new_session", True)
        printed = self._pair.folder / f"started{len(self._pair._started)}"
        if until is not None:
            with open(printed, "wb") as file:
                process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **options)
        else:
            process = subprocess.Popen(command, **options)
        self._pair._started.append(process)
        deadline = time.monotonic() + _START_LIMIT_S
        while not ((port is None or _listens(port)) and (until is None or re.search(until, _text(printed)))):
            waited = f"{shlex.join(command)} has not come to {f'port {port}' if until is None else repr(until)}"
            if process.poll() is not None:
                raise RuntimeError(f"{waited}, and ended with status {process.returncode}{_quoted(printed)}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{waited} after {_START_LIMIT_S:.0f} s{_quoted(printed)}")
            time.sleep(0.01)
        return process

    def run(self, command: Sequence[str], timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Runs a process with this HCA to its end. `options` are those of subprocess.run."""
        __tracebackhide__ = True
        options.setdefault("env", self.environment)
        checked = options.pop("check", False)
        done = subprocess.run(command, timeout=timeout, check=False, **options)
        if checked and done.returncode != 0:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done

    def counters(self) -> dict[str, int]:
        """Returns the sums of this HCA's counters over the processes that had it, by the names of their files.

        Those of a process that runs, or was killed, are up to 0.1 s old.
        """
        return self._pair._counters(self.address)


class HcaPair(Sequence[Hca]):
    """The fixture hca_pair: two HCAs, `one, other = hca_pair`, and one environment for a process that has both."""

    devices = ("gdx0", "gdx1")

    def __init__(self, addresses: Sequence[str], seed: int, options: Options, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.failed = False
        self._seed_is_fixed = False
        self._options = options
        self._hcas = [Hca(self, index, address, options) for index, address in enumerate(addresses)]
        self._started: list[subprocess.Popen[Any]] = []
        self._reserved: list[socket.socket] = []
        self._inside = False

    @classmethod
    def make(cls, options: Mapping[str, Any], seed: int | None, parent: str | None) -> HcaPair:
        """Reserves two addresses and makes a folder below `parent`. `seed`, if there is one, wins over that of options.

        Raises FileNotFoundError without a software HCA, OSError without room, TypeError and ValueError for options.
        """
        chosen = dict(options)
        given = chosen.pop("seed", None)
        checked = Options().changed(**chosen)
        softhca_library()
        reserved, addresses = _reserve()
        if parent is not None:
            os.makedirs(parent, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="gdx-hca-pair-", dir=parent))
        drawn = random.SystemRandom().getrandbits(31) if given is None else _checked_seed(given)
        pair = cls(addresses, drawn if seed is None else seed, checked, folder)
        pair._seed_is_fixed = seed is not None
        pair._reserved = reserved
        return pair

    @classmethod
    def inherited(cls) -> HcaPair:
        """Returns the pair that this process has itself, in the process of a test that opens verbs."""
        given = json.loads(os.environ[_INHERITED])
        pair = cls(given["addresses"], given["seed"], Options().changed(**given["options"]), Path(given["folder"]))
        pair._inside = True
        return pair

    def __len__(self) -> int:
        return len(self._hcas)

    def __getitem__(self, index: Any) -> Any:
        return self._hcas[index]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that has both HCAs, as gdx0 and gdx1. One process at a time can have it."""
        return self._environment(self._options, self[0].address, 2, "both", 0)

    def environment_of_test(self) -> dict[str, str]:
        """Returns `environment` for a test's own process, whose fixture is inherited()."""
        told = {
            "addresses": [hca.address for hca in self],
            "seed": self.seed,
            "options": dataclasses.asdict(self._options),
            "folder": str(self.folder),
        }
        return {**self.environment, _INHERITED: json.dumps(told)}

    def set(self, **options: Any) -> None:
        """Changes options of both HCAs for processes that start later, and with `seed` the seed of their faults."""
        __tracebackhide__ = True
        self._check_changeable()
        if "seed" in options:
            seed = _checked_seed(options.pop("seed"))
            self.seed = self.seed if self._seed_is_fixed else seed
        self._options = self._options.changed(**options)
        for hca in self._hcas:
            hca.set(**options)

    def free_port(self) -> int:
        """Returns a TCP port at which nobody listens now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def describe(self, node: str) -> str:
        """Returns what somebody needs to see a failed test again."""
        one, other = (f"{hca.address}{hca._options}" for hca in self)
        lines = [
            f"HCAs {one} and {other}; seed {self.seed}",
            f"replay: pytest {shlex.quote(node)} --gdx-seed {self.seed}",
        ]
        for hca in self:
            counted = [(name, value) for name, value in hca.counters().items() if value and name in _TELLING]
            if counted:
                lines.append(f"{hca.address}: " + ", ".join(f"{name} {value}" for name, value in counted))
        captures = sorted(str(path) for path in self.folder.glob("*.pcap"))
        return "\n".join(lines + [f"capture: {path}" for path in captures])

    def end_processes(self) -> list[str]:
        """Ends what still runs with these HCAs. Returns the names of processes that start() has not started."""
        own = {process.pid for process in self._started}
        for pid in self._processes():
            if _group_of(pid) in own:
                _send(pid, signal.SIGTERM)
        # Grants processes that are about to end the time for it, as those of a pipe.
        deadline = time.monotonic() + _END_LIMIT_S / 4
        while (found := self._processes()) and time.monotonic() < deadline:
            for process in self._started:
                process.poll()
            time.sleep(0.01)
        strangers = [f"{pid} ({name})" for pid, name in found.items() if _group_of(pid) not in own]
        for chosen in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _END_LIMIT_S
            for pid in self._processes():
                _send(pid, chosen)
            while self._processes() and time.monotonic() < deadline:
                for process in self._started:
                    process.poll()
                time.sleep(0.01)
        return strangers

    def close(self) -> None:
        """Shows what processes printed, gives the addresses back, and removes the folder unless the test has failed."""
        for printed in sorted(self.folder.glob("started*")):
            print(_text(printed), end="")
        for held in self._reserved:
            held.close()
        if not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self) -> dict[int, str]:
        token = f"{_TOKEN}={self.folder}".encode()
        return {pid: name for pid, name in _processes_with(token) if pid != os.getpid()}

    def _environment(self, options: Options, address: str, hcas: int, name: str, index: int) -> dict[str, str]:
        library = str(softhca_library())
        if " " in library or ":" in library:
            raise RuntimeError(f"the path {library} cannot be preloaded: move gdx to one without spaces and colons")
        # Keeps one of what an outer test or `gdx run` has preloaded already.
        preloaded = [path for path in os.environ.get("LD_PRELOAD", "").split(":") if path and path != library]
        variables = {
            **os.environ,
            **options.variables(),
            "LD_PRELOAD": ":".join([*preloaded, library]),
            "ASAN_OPTIONS": "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""),
            "GDX_DAEMON": "off",
            "GDX_SOFTHCA_HCAS": str(hcas),
            "GDX_SOFTHCA_ADDR": address,
            "GDX_SOFTHCA_SEED": str(self.seed + index),
            "GDX_SOFTHCA_COUNTERS": str(self.folder / f"{name}.%p.counters"),
            "GDX_SOFTHCA_PCAP": str(self.folder / f"{name}.%p.pcap") if options.pcap else "",
            _TOKEN: str(self.folder),
        }
        variables.pop(_INHERITED, None)
        return variables

    def _check_changeable(self) -> None:
        if self._inside:
            raise RuntimeError("this process has its HCAs already: give the options to @pytest.mark.gdx_hca(...)")

    def _counters(self, address: str) -> dict[str, int]:
        if self._inside:
            return _own_counters(self.devices[[hca.address for hca in self].index(address)])
        sums: dict[str, int] = {}
        for path in self.folder.glob("*.counters"):
            for line in path.read_text().splitlines():
                owner, _, name, value = line.split()
                if owner == address:
                    sums[name] = sums.get(name, 0) + int(value)
        return sums


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace") if path.exists() else ""


def _quoted(path: Path) -> str:
    return f":\n{_text(path)}" if path.exists() else ""


def _checked_seed(seed: Any) -> int:
    if not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise ValueError(f"seed={seed!r}: use a whole number from 0 to 2**63 - 1")
    return seed


def _own_counters(device: str) -> dict[str, int]:
    port = Path("/sys/class/infiniband") / device / "ports/1"
    values = {}
    for folder in ("hw_counters", "counters"):
        for name in os.listdir(port / folder):
            values[name] = int((port / folder / name).read_text())
    return values


def _reserve() -> tuple[list[socket.socket], list[str]]:
    """Returns two addresses that follow each other, with the sockets that keep other pairs from them.

    None is of 127.0.0.0/16, from which HCAs without a given address take theirs.
    """
    draw = random.SystemRandom()
    for _ in range(256):
        first = f"127.{draw.randrange(1, 255)}.{draw.randrange(256)}."
        last = draw.randrange(1, 127) * 2
        addresses = [f"{first}{last}", f"{first}{last + 1}"]
        held: list[socket.socket] = []
        try:
            for address in addresses:
                held.append(_bound(address, _RESERVING_PORT))
                _bound(address, _ROCE_PORT).close()
        except OSError as error:
            failure = error
            for one in held:
                one.close()
            continue
        return held, addresses
    raise OSError(
        failure.errno,
        f"no two free loopback addresses for HCAs ({failure.strerror}): raise the limit on open files (ulimit -n), or "
        f"end what has UDP port {_ROCE_PORT} or {_RESERVING_PORT} on all addresses (ss -ulpn)",
    )


def _bound(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made


def _listens(port: int) -> bool:
    end = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                fields = [line.split() for line in lines]
        except OSError:
            continue
        if any(len(row) > 3 and row[1].endswith(end) and row[3] == "0A" for row in fields):
            return True
    return False


def _processes_with(token: bytes) -> Iterator[tuple[int, str]]:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if token in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                words = Path("/proc", entry, "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                yield int(entry), b" ".join(words).decode(errors="replace")
        except OSError:  # ended, or another user's
            continue


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _send(pid: int, chosen: signal.Signals) -> None:
    try:
        os.kill(pid, chosen)
    except ProcessLookupError:
        pass
