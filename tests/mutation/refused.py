#!/usr/bin/python3
"""Usage: refused.py OUT: prints the sites, PATH:OFFSET, of the mutants in lines that the compiler refused in OUT/build.log."""
import json
import re
import sys

out = sys.argv[1]
place = re.compile(re.escape(f"{out}/source/") + r"([^:\s]+):(\d+)")
lines = {(match[1], int(match[2])) for match in place.finditer(open(f"{out}/build.log").read())}
for mutant in json.load(open(f"{out}/mutants.json")):
    first = mutant["line"]
    if any((mutant["path"], line) in lines for line in range(first, first + mutant["text"].count("\n") + 1)):
        print(f'{mutant["path"]}:{mutant["first"]}')
