#!/usr/bin/python3
"""Usage: judge.py reach BUILD OUT [--only REGEX] | judge BUILD OUT [--seconds S] [--numbers N,...] [--jobs J] | report OUT

reach   runs each test of BUILD's fast and full tiers without mutants and notes in OUT/reach.json which it reaches
judge   switches on one mutant of OUT/mutants.json after another, and runs the tests that reach it, those of its folder first
        and then the quickest, until one fails or S (60) seconds are over; a test that then fails without the mutant too tells
        nothing
report  prints the mutants that nothing has noticed, by file, and exits with 1 where there are any that tests/mutation/accepted
        does not list
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ON = 2
SWITCHES = 1 << 16
# Tests run programs that they write there.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) and not os.statvfs("/dev/shm").f_flag & os.ST_NOEXEC else None
# Judge the tree's text, or programs built from another copy of it.
LEFT_OUT = re.compile(r"^(tidy|install|matrix|papers|headers|Mutant|nightly|reference)")


def read_tests(build):
    """Returns {name: {"command", "environment", "folder", "timeout_s"}} of the fast and the full tier."""
    listed = json.loads(subprocess.run(["ctest", "--test-dir", build, "-L", "^(fast|full)$", "--show-only=json-v1"], check=True,
                                       capture_output=True, text=True).stdout)
    tests = {}
    for test in listed["tests"]:
        properties = {one["name"]: one["value"] for one in test["properties"]}
        if "command" in test and not LEFT_OUT.match(test["name"]):
            tests[test["name"]] = {
                "command": test["command"], "folder": properties["WORKING_DIRECTORY"],
                "environment": dict(word.split("=", 1) for word in properties.get("ENVIRONMENT", []) if "=" in word),
                "timeout_s": properties.get("TIMEOUT", 300)}
    return tests


def keep(path, value):
    """Writes a file whole, so that a run that is cut off can go on."""
    pathlib.Path(f"{path}.new").write_text(json.dumps(value))
    os.replace(f"{path}.new", path)


class Switches:
    """The file of switches of one test at a time."""

    def __init__(self):
        # Not in memory, over which the soak mounts its own.
        self.file = tempfile.NamedTemporaryFile(prefix="gdx-mutants-", dir="/var/tmp")

    def run(self, test, on=(), timeout_s=None):
        """Runs a test with mutants `on`. Returns (passed, seconds, mutants reached); a skip passes."""
        state = bytearray(SWITCHES)
        for number in on:
            state[number] = ON
        pathlib.Path(self.file.name).write_bytes(state)
        environment = {**os.environ, **test["environment"], "GDX_MUTATION": self.file.name}
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gdx-judge-", dir=MEMORY) as scratch:
            os.chmod(scratch, 0o1777)  # as /tmp: some tests become another user
            environment["TMPDIR"] = scratch
            child = subprocess.Popen(test["command"], cwd=test["folder"], env=environment, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                status = child.wait(timeout_s or test["timeout_s"])
            except subprocess.TimeoutExpired:
                status = -signal.SIGKILL
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        reached = [number for number, byte in enumerate(pathlib.Path(self.file.name).read_bytes()) if byte & 1]
        return status in (0, 77), time.monotonic() - start, reached


def pooled(jobs, work, items):
    """Calls work(switches, item) in `jobs` threads, each with switches of its own; yields results as they come."""
    local = threading.local()

    def call(item):
        if not hasattr(local, "switches"):
            local.switches = Switches()
        return work(local.switches, item)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(call, item) for item in items]):
            yield done.result()


def reach(build, out, only, jobs):
    tests = read_tests(build)

    def work(switches, name):
        for _ in range(2):  # a busy machine makes some tests fail
            passed, seconds, reached = switches.run(tests[name])
            if passed:
                break
        return name, passed, seconds, reached

    noted = json.load(open(f"{out}/reach.json")) if os.path.exists(f"{out}/reach.json") else {}
    names = [name for name in sorted(tests) if name not in noted and re.search(only, name)]
    for name, passed, seconds, reached in pooled(jobs, work, names):
        if passed:
            noted[name] = {"seconds": round(seconds, 2), "reached": reached}
        else:
            print(f"== mutation: {name} fails without a mutant, so it judges none", flush=True)
        keep(f"{out}/reach.json", noted)


def is_near(test, path):
    """Whether the folder of a mutant's file, such as host/programs/doctor, is a word of a test's command."""
    return path.split("/")[-2] in re.split(r"[/_.]", " ".join(test["command"]).replace(" ", "/"))


def judge(build, out, seconds, numbers, jobs):
    tests = read_tests(build)
    mutants = {one["number"]: one for one in json.load(open(f"{out}/mutants.json"))}
    noted = json.load(open(f"{out}/reach.json"))
    reaching = {number: [] for number in mutants}
    for name, note in sorted(noted.items(), key=lambda item: item[1]["seconds"]):
        for number in note["reached"] if name in tests else []:
            reaching[number].append(name)

    def work(switches, number):
        spent, failed, ran = 0.0, None, 0
        for name in sorted(reaching[number], key=lambda one: not is_near(tests[one], mutants[number]["path"])):
            if spent > seconds:
                break
            limit = 10 + 5 * noted[name]["seconds"]
            passed, took, _ = switches.run(tests[name], [number], limit)
            spent += took
            ran += 1
            if not passed and switches.run(tests[name], (), limit)[0]:
                failed = name
                break
        return number, {"noticed_by": failed, "tests": ran, "of": len(reaching[number]), "seconds": round(spent, 1)}

    path = f"{out}/judged.json"
    judged = json.load(open(path)) if os.path.exists(path) else {}
    wanted = numbers or [number for number in mutants if str(number) not in judged]
    for number, result in pooled(jobs, work, wanted):
        judged[str(number)] = result
        keep(path, judged)


def report(out):
    mutants = {one["number"]: one for one in json.load(open(f"{out}/mutants.json"))}
    judged = {int(number): result for number, result in json.load(open(f"{out}/judged.json")).items()}
    accepted = pathlib.Path(__file__).with_name("accepted").read_text().splitlines()
    counts = {"noticed": 0, "accepted": 0, "survives": 0, "unreached": 0}
    for number, result in sorted(judged.items()):
        mutant = mutants[number]
        text = " ".join(f'{mutant["text"]} => {mutant["replaced"]}'.split())
        line = f'{mutant["path"]}: {mutant["kind"]}: {text} | {mutant["source"]}'
        fate = "noticed" if result["noticed_by"] else "accepted" if line in accepted else \
            "survives" if result["of"] else "unreached"
        counts[fate] += 1
        if fate in ("survives", "unreached"):
            print(f'{fate} ({result["tests"]} of {result["of"]} tests) {number} line {mutant["line"]}: {line}')
    print("== mutation: " + ", ".join(f"{count} {fate}" for fate, count in counts.items()))
    return counts["survives"] + counts["unreached"] > 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("reach", "judge", "report"))
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--numbers", type=lambda text: [int(word) for word in text.split(",")], default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.step == "reach":
        return reach(*arguments.folders, arguments.only, arguments.jobs)
    if arguments.step == "judge":
        return judge(*arguments.folders, arguments.seconds, arguments.numbers, arguments.jobs)
    return report(*arguments.folders)


sys.exit(main())
