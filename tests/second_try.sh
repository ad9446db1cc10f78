#!/usr/bin/env bash
# Usage: second_try.sh BUILD CTEST...: after a run of the command CTEST in BUILD that failed. Where all that failed are
# realtime tests, and only because of elapsed time (realtime.sh), each is run alone, and must pass three times. Prints FLAKY
# and the name of each that did. Exit: 0 where all did.
set -uo pipefail
build=$1
shift
names=$(sed 's/^[0-9]*://' "$build/Testing/Temporary/LastTestsFailed.log") || exit 1
[ -n "$names" ] || exit 1
slow=$(awk '
  / start time: / { name = $0; sub(/^"/, "", name); sub(/" start time: .*/, "", name) }
  /^REALTIME: / { print name }' "$build/Testing/Temporary/LastTest.log")
others=$(comm -23 <(sort <<<"$names") <(sort -u <<<"$slow"))
[ -z "$others" ] || exit 1
for name in $names; do
  echo "== $name was too slow: it must pass three times alone"
  "$@" --no-tests=error --repeat until-fail:3 -L '^realtime$' -R "^${name//./\\.}\$" || exit 1
  echo "FLAKY $name"
done
