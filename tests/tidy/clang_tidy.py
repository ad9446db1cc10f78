#!/usr/bin/env python3
"""Usage: clang_tidy.py BUILD [COMMIT]

Runs clang-tidy on the sources that changed since COMMIT (HEAD~1) and fails on a warning in a changed line.
BUILD was configured with clang and holds compile_commands.json. Run it from the root of the tree.
"""
import concurrent.futures
import json
import os
import subprocess
import sys

from changed_code import changed_lines, compiles


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
