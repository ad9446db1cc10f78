"""Runs a test in a process of its own, into which the software HCA is preloaded, and returns its reports.

LD_PRELOAD counts from exec on, and the process of pytest runs already. The other process is a pytest for this one test.
It writes its reports, as pytest-xdist's workers do, into a file of the pair's folder, and prints into two more, so that
whatever ends it leaves what it did until then.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from gdx.pytest_plugin import INSIDE, PAIR, annotate, make_pair, tell_left

if TYPE_CHECKING:
    from gdx._hca_pair import HcaPair

_BEGIN_LIMIT_S = 60.0
_ABORT_LIMIT_S = 2.0
_PHASES = ("setup", "call", "teardown")
_BEGIN = (
    "import json, sys; request = json.load(open(sys.argv[1])); sys.path[:] = request['path']; "
    "from gdx._pytest_apart import run_inside; sys.exit(run_inside(request, int(sys.argv[2])))"
)


def run_apart(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Runs the protocol of an item whose test has the mark gdx_hca."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    # Ends fixtures of earlier tests that the next one does not share, as the end of an ordinary test would.
    ended = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), "teardown")
    if ended.excinfo is not None:
        report = item.ihook.pytest_runtest_makereport(item=item, call=ended)
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _reports(item: pytest.Item) -> list[pytest.TestReport]:
    prepared = pytest.CallInfo.from_call(lambda: _prepare(item), "setup")
    if prepared.excinfo is not None:
        return [item.ihook.pytest_runtest_makereport(item=item, call=prepared)]
    pair, timeout_s = prepared.result
    item.stash[PAIR] = pair
    pair.failed = True  # until the reports are here: pytest may be interrupted
    try:
        fault = _run(item, pair, timeout_s)
        reports = _read_reports(item, pair, fault)
        pair.failed = any(report.failed for report in reports)
        return reports
    finally:
        pair.end_processes()
        pair.close()


def _prepare(item: pytest.Item) -> tuple[HcaPair, float]:
    """Returns the pair of the item's marks, the nearest of which counts, and the bound of its test in seconds."""
    options: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("gdx_hca"))):
        if mark.args:
            pytest.fail(f"gdx_hca: options have names, {mark.args[0]!r} has none: write loss=0.01", pytrace=False)
        options.update(mark.kwargs)
    callspec = getattr(item, "callspec", None)
    options.update(callspec.params.get("hca_pair", {}) if callspec is not None else {})
    given = (
        options.pop("timeout_s", None) or item.config.getoption("gdx_timeout_s") or item.config.getini("gdx_timeout_s")
    )
    return make_pair(item.config, options), float(given)


def _run(item: pytest.Item, pair: HcaPair, timeout_s: float) -> str | None:
    """Runs the process of the test. Returns how it ended, unless it ended well, with failed tests or without."""
    config = item.config
    path, _, inner = item.nodeid.partition("::")
    extra = ["--no-cov"] if hasattr(config.option, "no_cov") else []
    simple = (bool, int, float, str, type(None))
    request = {
        "path": sys.path,
        "args": [*map(str, config.invocation_params.args), "-p", "gdx.pytest_plugin", "-s", *extra],
        "node": item.nodeid,
        "file": f"{config.rootpath / path}::{inner}",
        "folder": str(pair.folder),
        "options": {name: value for name, value in vars(config.option).items() if isinstance(value, simple)},
        "worker": getattr(config, "workerinput", None),
    }
    (pair.folder / "request").write_text(json.dumps(request, default=str))
    # Without capture the test prints where pytest does.
    seen = config.getoption("capture") == "no"
    begun, tells_begin = os.pipe()
    with open(pair.folder / "stdout", "ab") as out, open(pair.folder / "stderr", "ab") as err, open(begun):
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, str(pair.folder / "request"), str(tells_begin)],
                cwd=config.invocation_params.dir,
                env=pair.environment_of_test(),
                stdin=subprocess.DEVNULL,
                stdout=None if seen else out,
                stderr=None if seen else err,
                pass_fds=[tells_begin],
                start_new_session=True,
            )
        except (OSError, RuntimeError) as error:
            return f"the test's process could not be started: {error}"
        finally:
            os.close(tells_begin)
        try:
            # The bound is the test's alone: the process closes the pipe when it begins, or ends.
            select.select([begun], [], [], _BEGIN_LIMIT_S)
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _abort(process)
            return (
                f"the test still ran after {timeout_s:g} s and was ended: where it stood is in its stderr; "
                "more time: @pytest.mark.gdx_hca(timeout_s=...) or --gdx-timeout-s"
            )
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if status < 0:
        name = signal.Signals(-status).name
        return f"the test's process was killed by {name} ({signal.strsignal(-status)})"
    return None if status in (0, 1) else f"the test's process ended with status {status}"


def _abort(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that hangs. pytest's faulthandler prints where its threads stand."""
    process.send_signal(signal.SIGABRT)
    try:
        process.wait(_ABORT_LIMIT_S)
    except subprocess.TimeoutExpired:
        pass


def _read_reports(item: pytest.Item, pair: HcaPair, fault: str | None) -> list[pytest.TestReport]:
    """Returns the reports of the test's process, and one of its end, if that was no good one."""
    output = _Output(pair.folder)
    reports: list[pytest.TestReport] = []
    errors: list[str] = []
    for line in _read(pair.folder / "reports").decode().splitlines():
        entry = json.loads(line)
        if "error" in entry:
            errors.append(entry["error"])
            continue
        report: pytest.TestReport = item.config.hook.pytest_report_from_serializable(
            config=item.config, data=entry["report"]
        )
        report.user_properties = [(name, value) for name, value in report.user_properties]
        report.sections = [(title, content) for title, content in report.sections]
        output.move_to(report, entry["printed"])
        annotate(item, report)
        reports.append(report)
    if fault is None and not reports and not errors:
        fault = "the test was not found in its own process: its node id must be the same each time"
    left = pair.end_processes()
    failed = any(report.failed for report in reports)
    faults = [*([fault] if fault else []), *errors, *([tell_left(left)] if left and not failed else [])]
    if faults:
        # A test that goes on to its teardown has one of its own already.
        if reports and reports[-1].when == "teardown" and reports[-1].passed:
            reports.pop()
        reports.append(_failure(item, _PHASES[min(len(reports), 2)], "\n".join(faults)))
    if reports:
        output.move_to(reports[-1], None)
    return reports


def _failure(item: pytest.Item, when: Any, text: str) -> pytest.TestReport:
    call = pytest.CallInfo.from_call(lambda: pytest.fail(text, pytrace=False), when)
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


class _Output:
    """What a test's process printed, in the order of its phases."""

    def __init__(self, folder: Path) -> None:
        self._printed = {stream: _read(folder / stream) for stream in ("stdout", "stderr")}
        self._moved = {stream: 0 for stream in self._printed}

    def move_to(self, report: pytest.TestReport, until: dict[str, int] | None) -> None:
        """Adds to the report what was printed `until` these lengths, or all that is left."""
        for stream, whole in self._printed.items():
            end = len(whole) if until is None else until[stream]
            part = whole[self._moved[stream] : end].decode(errors="replace")
            self._moved[stream] = end
            if part:
                report.sections.append((f"Captured {stream} {report.when}", part))


def run_inside(request: dict[str, Any], tells_begin: int) -> int:
    """Runs the test of `request` in this process, which is made for it alone. Returns the exit status.

    Closes the descriptor `tells_begin` when the test begins.
    """
    from _pytest.config import _prepareconfig

    _end_with_parent()
    config = _prepareconfig(request["args"], None)
    config.args = [request["file"]]
    # Options have by now what plugins of the other pytest have drawn or found, such as pytest-randomly's seed.
    own = {"usepdb": False, "trace": False, "basetemp": os.path.join(request["folder"], "tmp"), "capture": "no"}
    vars(config.option).update({**request["options"], **own})
    if request["worker"] is not None:
        config.workerinput = request["worker"]  # type: ignore[attr-defined]
    config.stash[INSIDE] = True
    config.pluginmanager.register(_Inside(config, request, tells_begin), "gdx-inside")
    printed, sys.stdout = sys.stdout, open(os.devnull, "w")
    config.stash[_PRINTED] = printed
    return int(config.hook.pytest_cmdline_main(config=config))


def _end_with_parent() -> None:
    pr_set_pdeathsig = 1
    parent = os.getppid()
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


_PRINTED = pytest.StashKey[Any]()


class _Inside:
    """Hooks of the process of a test: it runs that test alone, and tells reports and errors to the other pytest."""

    def __init__(self, config: pytest.Config, request: dict[str, Any], tells_begin: int) -> None:
        self._config = config
        self._tells_begin = tells_begin
        self._node = request["node"]
        self._reports: IO[str] = open(os.path.join(request["folder"], "reports"), "a")
        # A test may turn descriptors 1 and 2 to other files meanwhile.
        self._streams = {"stdout": os.dup(1), "stderr": os.dup(2)}

    def pytest_sessionstart(self) -> None:
        # The reporter of the terminal has taken the stdout of before, which goes nowhere.
        sys.stdout = self._config.stash[_PRINTED]
        sys.stdout.reconfigure(line_buffering=True)  # so that a crash loses nothing

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid == self._node]

    def pytest_runtest_logstart(self) -> None:
        os.close(self._tells_begin)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
        printed = {stream: os.fstat(descriptor).st_size for stream, descriptor in self._streams.items()}
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._tell({"report": data, "printed": printed})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell({"error": f"the test's module failed in its own process:\n{report.longreprtext}"})

    def pytest_internalerror(self, excrepr: Any) -> None:
        self._tell({"error": f"pytest failed in the test's process:\n{excrepr}"})

    def _tell(self, entry: dict[str, Any]) -> None:
        self._reports.write(json.dumps(entry, default=str) + "\n")
        self._reports.flush()
