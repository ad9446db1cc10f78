#!/usr/bin/env bash
# Usage: nightly.sh list | run [SHARD...] | next SECONDS | check | part | landed | take | flaky NAME | last NAME
# Runs shards of the nightly tier (table: shards) and keeps what passed (file: passed).
#   run     the named shards, or all but CI's parts
#   next    while SECONDS last: shards that near the age at which check fails, then those that the change since the last
#           landing touches, then the ones that passed longest ago
#   check   fails where a shard or a part passed more than ten landings ago, or a test was flaky twice in ten landings
#   part    the part of CI that passed longest ago
#   landed  records that .ci/run passed on this commit, and prints all that is recorded of it; fails where check would for a
#           flaky test
#   take    reads the output of a .ci/run that passed elsewhere, and takes over what it recorded
#   flaky   records that a realtime test passed at a second try only
#   last    the commit on which NAME last passed, for lint too; record NAME writes it
set -uo pipefail
root=${GDX_NIGHTLY_ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
shards=$root/tests/nightly/shards
passed=$root/tests/nightly/passed
max_age=10
# From this age on a shard comes before those that a change touches.
due_age=8
never=1000000
# A shard that takes this many times its minutes hangs.
patience=4
cd "$root" || exit 1

say() { printf '== nightly: %s\n' "$*" >&2; }
field() { awk -F' +[|] +' -v name="$1" -v n="$2" '$1 == name { print $n }' "$shards"; }
# names KIND: shard or part.
names() { awk -F' +[|] +' -v part="$([ "$1" = part ] && echo 1 || echo 0)" '!/^#/ && NF && ($2 == "part") == part { print $1 }' "$shards"; }
of_pass() { awk -v name="$1" -v n="$2" '$1 == name { print $n }' "$passed" 2>/dev/null; }
landing() { of_pass landing 2 | grep . || echo 0; }

# commit: the newest that changes more than the file of passes, so that a commit of passes counts as the one before it.
commit() { git log -1 --format=%H -- . ':!tests/nightly/passed'; }
clean_tree() {
  local changes
  changes=$(git status --porcelain -- . ':!tests/nightly/passed') && [ -z "$changes" ] && [ -n "$(commit)" ]
}

# age NAME: landings since it last passed.
age() {
  local at
  at=$(of_pass "$1" 2)
  [ -n "$at" ] || { echo $never; return; }
  # A .ci/run that failed has recorded passes of the landing that did not come.
  at=$(($(landing) - at))
  echo $((at < 0 ? 0 : at))
}

# write NAME [LANDING]: that NAME passed on this commit, in the landing that is under way in CI, or after the last one.
write() {
  local at=${2:-${GDX_LANDING:-$(landing)}}
  (
    flock 9
    { awk -v name="$1" '$1 != name' "$passed" 2>/dev/null; echo "$1 $at $(commit) $(git log -1 --format=%cs "$(commit)")"; } |
      LC_ALL=C sort >"$passed.new" && mv "$passed.new" "$passed"
  ) 9<"$shards"
}

# record NAME COMMIT: COMMIT is that of the tree when NAME began.
record() {
  if ! clean_tree || [ "$(commit)" != "$2" ]; then
    say "$1 passed; not recorded, because the tree has changes that no commit holds, or its commit is another by now"
    return
  fi
  write "$1"
  say "$1 passed; commit tests/nightly/passed, alone or with your next change"
}

# run_shard NAME. Exit: 77 where it was skipped.
run_shard() {
  local command minutes before began=$SECONDS
  command=$(field "$1" 3)
  [ -n "$command" ] || { say "no shard '$1': use one of $( (names shard; names part) | paste -sd' ')"; return 2; }
  command=${command//\{seed\}/$(git rev-list --count HEAD)}
  minutes=$(field "$1" 2)
  [ "$minutes" != part ] || minutes=30
  before=$(commit)
  clean_tree || before=
  say "$1: $command"
  timeout --kill-after=30 $((minutes * patience))m bash -c "$command"
  case $? in
    0) record "$1" "$before" ;;
    77) say "$1 was skipped here, for the reason above"; return 77 ;;
    124) say "$1 FAILED: it hung for $((minutes * patience)) min; repeat it: $command"; return 1 ;;
    *) say "$1 FAILED; repeat it: $command"; return 1 ;;
  esac
  say "$1 took $((SECONDS - began)) s of $((60 * minutes))"
}

list() {
  local name last
  for name in $(names part) $(names shard); do
    last=$(age "$name")
    [ "$last" -eq $never ] && last="never passed" || last="passed $last landings ago"
    printf '%-12s %4s min, %s: %s\n' "$name" "$(field "$name" 2)" "$last" "$(field "$name" 3)"
  done
  echo "landings: $(landing); due next: $(due | paste -sd' ')"
}

# touched NAME: whether the change since the last landing touches what the shard judges.
touched() {
  local base
  local -a paths
  base=$(of_pass landing 3)
  read -ra paths <<<"$(field "$1" 4)"
  ! git diff --quiet "${base:-HEAD~1}" -- "${paths[@]}" 2>/dev/null
}

# due: names of shards: first those that near max_age, then those that the change touches, of each kind the oldest first.
due() {
  local name age class
  for name in $(names shard); do
    age=$(age "$name")
    class=2
    if [ "$age" -ge $due_age ]; then class=0; elif touched "$name"; then class=1; fi
    echo "$class $age $name"
  done | sort -k1,1n -k2,2nr -s | awk '{ print $3 }'
}

# next SECONDS: on a machine that has shown itself slow, a shard is thought to take as much longer.
next() {
  local end=$((SECONDS + $1)) status=0 name minutes result began slow=${GDX_SLOWNESS_PERCENT:-100}
  local -a left=()
  for name in $(due); do
    minutes=$(field "$name" 2)
    if [ $((SECONDS + 60 * minutes * slow / 100)) -gt $end ]; then
      left+=("$name")
      continue
    fi
    result=0
    run_shard "$name" </dev/null || result=$?
    [ $result -eq 0 ] || [ $result -eq 77 ] || status=1
  done
  [ ${#left[@]} -eq 0 ] || say "left out, beyond the time that was left: ${left[*]}"
  return $status
}

# check_flaky: each landing has a line of its own, flaky:NAME@LANDING.
check_flaky() {
  local name status=0
  while read -r name; do
    say "$name passed at a second try only, in two of $max_age landings: let it count by another clock, or mend it"
    status=1
  done < <(awk -v first=$((${GDX_LANDING:-$(landing)} - max_age)) \
    '/^flaky:/ && $2 > first { sub(/^flaky:/, ""); sub(/@.*/, ""); print $1 }' "$passed" 2>/dev/null | sort | uniq -d)
  return $status
}

check() {
  local name status=0
  for name in $(names part) $(names shard); do
    if [ "$(age "$name")" -gt $max_age ]; then
      say "$name passed more than $max_age landings ago, or never: ./run nightly run $name"
      status=1
    fi
  done
  check_flaky || status=1
  [ $status -ne 0 ] || say "every shard passed within $max_age landings"
  return $status
}

# take: of two passes of one name the later landing counts.
take() {
  local line name at
  while read -r line; do
    read -r name at _ <<<"$line"
    [ "$(of_pass "$name" 2 | grep . || echo -1)" -ge "$at" ] && continue
    { awk -v name="$name" '$1 != name' "$passed" 2>/dev/null; echo "$line"; } | LC_ALL=C sort >"$passed.new" && mv "$passed.new" "$passed"
    echo "took $line"
  done < <(sed -n 's/^passed: \([^ ]* [0-9]* [0-9a-f]\{40\} [0-9-]*\)$/\1/p')
}

landed() {
  local number=${GDX_LANDING:-$(($(landing) + 1))}
  check_flaky || return 1
  if ! clean_tree; then
    say "not recorded, because the tree has changes that no commit holds"
    return
  fi
  write landing "$number"
  awk -v number="$number" '$2 == number { print "passed: " $0 }' "$passed"
}

command=${1:-list}
[ $# -gt 0 ] && shift
case $command in
  list) list ;;
  run)
    status=0
    mapfile -t chosen < <([ $# -gt 0 ] && printf '%s\n' "$@" || names shard)
    for name in "${chosen[@]}"; do run_shard "$name" </dev/null || [ $? -eq 77 ] || status=1; done
    exit $status
    ;;
  next) next "${1:?SECONDS}" ;;
  check) check ;;
  # Without nvcc the part kernels is skipped.
  part)
    for name in $(names part); do
      [ "$name" = kernels ] && ! command -v nvcc >/dev/null || echo "$(age "$name") $name"
    done | sort -k1,1nr -s | awk 'NR == 1 { print $2 }'
    ;;
  landing) landing ;;
  landed) landed ;;
  take) take ;;
  flaky) ! clean_tree || write "flaky:${1:?NAME}@${GDX_LANDING:-$(landing)}" ;;
  last) of_pass "${1:?NAME}" 3 ;;
  record) record "${1:?NAME}" "$(commit)" ;;
  *) sed -n '2,15s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
