#!/usr/bin/env python3
"""Runs a module of rdma-core's own tests and holds what it says against a table.

pyverbs_table.py TABLE FOLDER MODULE...   the tests of these modules; FOLDER holds the package `tests`, and in `version`
                                          that of rdma-core
pyverbs_table.py TABLE FOLDER --modules MODULE...   only: are these all the modules that are there?

Whatever the table does not name must pass. Its lines are

  VERDICT[@VERSION]  PATTERN  | what the test says, a regular expression | why that is right

VERSION: the line is about that rdma-core only. A line without it is about all.
skip   it must skip, and say so
host   it may skip and say so: that depends on this machine. If it runs, it must pass
fail   it must fail, and say so: the software HCA departs from a ConnectX on purpose. Or skip, as on any machine
       that lacks what the test needs
absent there is no such module; PATTERN is its name
PATTERN is MODULE.Class.test, with shell wildcards in what follows the module. The first line that matches
counts, and a line that matches no test of its module is wrong too.
"""

import ctypes
import fnmatch
import gc
import importlib
import os
import random
import re
import sys
import unittest

VERDICTS = ("skip", "host", "fail", "absent")


class Line:
    def __init__(self, number, text):
        columns = [column.strip() for column in text.split(" | ")]
        words = columns[0].split()
        verdict, _, self.version = words[0].partition("@")
        if len(columns) != 3 or len(words) != 2 or verdict not in VERDICTS or not all(columns):
            sys.exit(f"FAILED: line {number} of the table is not 'VERDICT PATTERN | WORDS | REASON': {text}")
        self.verdict, self.pattern = verdict, words[1]
        self.words, self.reason = columns[1:]
        self.module = self.pattern.split(".")[0]
        self.number = number
        self.used = False


def read_table(path, version):
    with open(path, encoding="utf-8") as file:
        texts = [(number, text.strip()) for number, text in enumerate(file, 1)]
    lines = [Line(number, text) for number, text in texts if text and not text.startswith("#")]
    return [line for line in lines if line.version in ("", version)]


class Outcomes(unittest.TextTestResult):
    """What each test came to: (its id, how it ended, what it said)."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.outcomes = []

    def note(self, test, how, words=""):
        self.outcomes.append((test.id().removeprefix("tests."), how, words))

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "pass")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skip", reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "fail", str(error[1]))

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "fail", str(error[1]))

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note(test, "fail", str(error[1]))


def objection(line, test, how, words):
    """Why an outcome is not what the table says, or None."""
    if line is None:
        return None if how == "pass" else f"{test}: {how}, which the table does not name: {words}"
    if how == "pass":
        return None if line.verdict == "host" else f"{test}: passes; take line {line.number} out of the table"
    if how == "fail" and line.verdict != "fail":
        return f"{test}: {how}, where line {line.number} of the table says {line.verdict}: {words}"
    if re.search(line.words, words):
        return None
    return f"{test}: says something else than line {line.number}: {words}"


def run(table, modules):
    suite = unittest.TestSuite()
    for module in modules:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromName("tests." + module))
    runner = unittest.TextTestRunner(verbosity=2, resultclass=Outcomes, stream=sys.stdout)
    outcomes = runner.run(suite).outcomes
    objections = [] if outcomes else ["there is no test"]
    for test, how, words in outcomes:
        line = next((line for line in table if fnmatch.fnmatchcase(test, line.pattern)), None)
        if line is not None:
            line.used = True
        objections.append(objection(line, test, how, words))
    for line in table:
        if line.module in modules and not line.used:
            objections.append(f"line {line.number} of the table matches no test: {line.pattern}")
    return [each for each in objections if each]


def compare_modules(table, folder, modules):
    there = {name[:-3] for name in os.listdir(os.path.join(folder, "tests"))
             if name.startswith("test_") and name.endswith(".py")}
    absent = {line.module for line in table if line.verdict == "absent"}
    named = {line.module for line in table}
    return ([f"{module}: nobody runs it" for module in sorted(there - (set(modules) - absent))] +
            [f"{module}: is not there" for module in sorted((set(modules) | named) - absent - there)])


def main():
    folder, modules = sys.argv[2], sys.argv[3:]
    with open(os.path.join(folder, "version"), encoding="utf-8") as file:
        version = file.read().strip()
    table = read_table(sys.argv[1], version)
    absent = [line.pattern for line in table if line.verdict == "absent" and line.pattern in modules]
    if modules[0] == "--modules":
        objections = compare_modules(table, folder, modules[1:])
    elif absent:
        print(f"SKIPPED: rdma-core {version} has no {absent[0]}; a newer python3-pyverbs has")
        sys.exit(77)
    else:
        sys.argv[1:] = []  # the suite reads its own options
        sys.path[:1] = [folder, os.path.join(folder, "tests")]
        seed = os.environ.get("GDX_TEST_SEED", "1")
        print("GDX_TEST_SEED =", seed)  # sizes and flags are drawn
        random.seed(int(seed))
        gc.disable()  # it would free likewise
        importlib.import_module("args_parser").parser.parse_args()
        objections = run(table, modules)
    for each in objections:
        print("FAILED:", each)
    # Without the interpreter's end: it frees contexts before the queues in them, and libmlx5 then crashes.
    sys.stdout.flush()
    ctypes.CDLL(None).exit(1 if objections else 0)


main()
