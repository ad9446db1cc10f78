#!/usr/bin/env python3
"""Usage: clang_tidy.py BUILD [COMMIT]

Runs clang-tidy on the sources that changed since COMMIT (HEAD~1) and fails on a warning in a changed line.
BUILD was configured with clang and holds compile_commands.json. Run it from the root of the tree.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys

FOLDERS = ("base", "demo", "device", "driver-shim", "examples", "host", "perf", "proto", "tests")


def changed_lines(base):
    """Returns {path: [[first, last], ...]} of the lines of code that the working tree adds to `base`."""
    diff = subprocess.run(["git", "diff", "-U0", "--src-prefix=a/", "--dst-prefix=b/", "--diff-filter=d", base, "--", *FOLDERS],
                          check=True, capture_output=True, text=True).stdout
    lines, path, number = {}, None, 0
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            path = line[6:]
        elif hunk := re.match(r"@@ -\S+ \+(\d+)", line):
            number = int(hunk[1])
        elif line.startswith("+"):
            if path.endswith((".h", ".cpp")) and not re.match(r"\+\s*(//|$)", line):
                ranges = lines.setdefault(path, [[number, number]])
                if ranges[-1][1] == number - 1:
                    ranges[-1][1] = number
                elif ranges[-1][1] != number:
                    ranges.append([number, number])
            number += 1
    return lines


def compiles(path, compiled, seen=()):
    """Returns the source itself, or for a header one that includes it, if need be through other headers."""
    if path in compiled:
        return [path]
    including = subprocess.run(["git", "grep", "-lF", f'#include "{path}"', "--", "*.cpp", "*.h"],
                               capture_output=True, text=True).stdout.split()
    for source in sorted(including, key=lambda name: name.endswith(".h")):
        found = [] if source in seen else compiles(source, compiled, (*seen, path))
        if found:
            return found
    return []


def main():
    build, base = sys.argv[1], (sys.argv[2:] or ["HEAD~1"])[0]
    lines = changed_lines(base)
    compiled = {os.path.relpath(entry["file"]) for entry in json.load(open(f"{build}/compile_commands.json"))}
    sources = sorted({source for path in lines for source in compiles(path, compiled)})
    for path in lines:
        if not compiles(path, compiled):
            print(f"== clang-tidy: not read: {path}, which no compiled source includes")
    line_filter = json.dumps([{"name": path, "lines": ranges} for path, ranges in lines.items()])
    print(f"== clang-tidy: {len(sources)} sources changed since {base}", flush=True)

    def check(source):
        return subprocess.run(["clang-tidy", "-p", build, "--quiet", "--warnings-as-errors=*",
                               f"--line-filter={line_filter}", source], capture_output=True, text=True)

    failed = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, result in zip(sources, pool.map(check, sources)):
            if result.returncode:
                failed = True
                print(f"{source}:\n{result.stdout}{result.stderr}", flush=True)
    return failed


sys.exit(main())
