#!/usr/bin/env bash
# scale_test.sh RANKS_PROGRAM PAPERS_FOLDER [SANITIZER]: scale.sh serves, and what it writes that is no time or resident
# memory of a machine is what papers/ keeps; of the heap within 2 %, except under a sanitizer, whose heap nobody counts.
set -uo pipefail
sanitizer=${3-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "FAIL: $*"
  exit 1
}
timeout 200 "$2/scale.sh" "$1" "$folder" 1 || fail "scale.sh ended with $?"
# Kept and fresh rows, side by side.
same_heap() {
  [ -n "$sanitizer" ] && { echo "heap not compared: ${sanitizer}'s does not count itself; preset cpu compares"; return; }
  paste <(awk '$3 ~ /^[0-9]+$/ { print $1, $2, $3 }' "$1") <(awk '$3 ~ /^[0-9]+$/ { print $3 }' "$2") | awk '
    $4 < 0.98 * $3 || $4 > 1.02 * $3 { print $1 " ranks of " $2 ": " $3 " B of heap, now " $4; differs = 1 }
    END { exit differs || NR == 0 }'
}
for kept in "$2"/scale/*; do
  fresh=$folder/$(basename "$kept")
  [ -e "$fresh" ] || fail "scale.sh no longer writes $kept: delete it"
  case $kept in
    # Ranks, endpoints of each, rounds, looks, heap; the rest is measured.
    */growth.txt)
      diff <(awk '{ print $1, $2, $7, $8 }' "$kept") <(awk '{ print $1, $2, $7, $8 }' "$fresh") && same_heap "$kept" "$fresh"
      ;;
    *) diff "$kept" "$fresh" ;;
  esac || fail "$kept (<) is not what this code gives (>): run ./run papers, and say so in the page"
done
echo ok
