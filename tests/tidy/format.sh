#!/usr/bin/env bash
# Usage: format.sh ROOT. Every C++ and CUDA source of the tree is as .clang-format gives it.
# Exit: 77 where clang-format is another release than the one whose output the tree keeps.
set -uo pipefail
cd "$1" || exit 1
wanted=14
found=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')
[ "$found" = $wanted ] || { echo "SKIPPED: format not checked: the tree is formatted by clang-format $wanted, here is ${found:-none}"; exit 77; }
git ls-files -z '*.h' '*.cpp' '*.cu' | xargs -0 clang-format --dry-run -Werror
