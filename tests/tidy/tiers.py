#!/usr/bin/env python3
"""Usage: tiers.py BUILD. Every CTest test of BUILD is in exactly one tier, and at most 15 are judged by elapsed time.
Prints how many are in each tier."""
import collections
import json
import subprocess
import sys

TIERS = {"fast", "full", "nightly"}
MAX_REALTIME = 15


def labels(test):
    return next((p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"), [])


def main():
    listing = subprocess.run(["ctest", "--test-dir", sys.argv[1], "--show-only=json-v1"],
                             check=True, capture_output=True, text=True).stdout
    tests = json.loads(listing)["tests"]
    counts = collections.Counter()
    wrong = []
    for test in tests:
        tiers = TIERS.intersection(labels(test))
        counts.update(tiers)
        if len(tiers) != 1:
            wrong.append(f"{test['name']}: tiers {sorted(tiers)}; add it by gdx_test or gdx_add_test")
    realtime = [test["name"] for test in tests if "realtime" in labels(test)]
    if len(realtime) > MAX_REALTIME:
        wrong.append(f"{len(realtime)} tests are judged by elapsed time, more than {MAX_REALTIME}: {' '.join(realtime)}")
    print(dict(counts), "realtime:", *realtime)
    print("\n".join(wrong))
    return bool(wrong) or not tests


sys.exit(main())
