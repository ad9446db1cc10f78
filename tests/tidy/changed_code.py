"""What changed in the tree's code since a commit, and which source to compile to read it."""
import re
import subprocess

# Lines in which there is nothing to find: empty ones, comments, and those that only open or close a namespace.
EMPTY = re.compile(r"\+\s*(//|$|\}  // namespace|namespace [\w:]+ \{$)")
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
            if path.endswith((".h", ".cpp")) and not EMPTY.match(line):
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
