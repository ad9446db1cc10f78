#!/usr/bin/env bash
# scale_test.sh RANKS_PROGRAM PAPERS_FOLDER: scale.sh serves, and what it writes that is no time or memory of a machine is
# what papers/ keeps.
set -uo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "FAIL: $*"
  exit 1
}
timeout 200 "$2/scale.sh" "$1" "$folder" 1 || fail "scale.sh ended with $?"
for kept in "$2"/scale/*; do
  fresh=$folder/$(basename "$kept")
  [ -e "$fresh" ] || fail "scale.sh no longer writes $kept: delete it"
  case $kept in
    # Ranks, endpoints of each, rounds; the rest is measured.
    */growth.txt) diff <(awk '{ print $1, $2, $7 }' "$kept") <(awk '{ print $1, $2, $7 }' "$fresh") ;;
    *) diff "$kept" "$fresh" ;;
  esac || fail "$kept (<) is not what this code gives (>): run ./run papers, and say so in the page"
done
echo ok
