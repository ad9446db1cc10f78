#!/usr/bin/env bash
# Usage: nightly.sh list | run [SLICE...] | next [MINUTES] | check | last NAME | record NAME
# Runs slices of the nightly tier (slices) and records the commit that each last passed on (passed).
#   run    the named slices, or all
#   next   slices that the change touches, within MINUTES (8): those with the largest changed share first, then the oldest.
#          Where the change touches none: the one that passed longest ago. The change is the commits of the last four
#          hours before HEAD, or what came since the commit GDX_NIGHTLY_BASE.
#   check  fails where a slice last passed more than 30 commits ago
#   last, record  the commit on which NAME last passed, for lint too
set -uo pipefail
root=${GDX_NIGHTLY_ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
slices=$root/tests/nightly/slices
passed=$root/tests/nightly/passed
max_age=30
never=1000000
cd "$root" || exit 1

say() { printf '== nightly: %s\n' "$*" >&2; }
field() { awk -F' +[|] +' -v name="$1" -v n="$2" '$1 == name { print $n }' "$slices"; }
names() { awk -F' +[|] +' '!/^#/ && NF { print $1 }' "$slices"; }
pass_of() { awk -v name="$1" '$1 == name { print $2 }' "$passed" 2>/dev/null; }

# age SLICE: commits since it last passed; `never` where no such commit is an ancestor.
age() {
  local commit
  commit=$(pass_of "$1")
  if [ -n "$commit" ] && git merge-base --is-ancestor "$commit" HEAD 2>/dev/null; then
    git rev-list --count "$commit..HEAD"
  else
    echo $never
  fi
}

change_base() {
  local base=${GDX_NIGHTLY_BASE:-}
  [ -n "$base" ] || base=$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 4 * 3600))" HEAD)
  echo "${base:-$(git rev-list --max-parents=0 HEAD | tail -1)}"
}

# changed_share SLICE BASE: of 1000 files that the slice judges, how many differ from BASE, or from where it passed
# since; at least 1 where any does.
changed_share() {
  local base=$2 last
  local -a paths
  last=$(pass_of "$1")
  [ -n "$last" ] && git merge-base --is-ancestor "$base" "$last" 2>/dev/null &&
    git merge-base --is-ancestor "$last" HEAD 2>/dev/null && base=$last
  read -ra paths <<<"$(field "$1" 4)"
  local changed judged
  changed=$(git diff --name-only "$base" HEAD -- "${paths[@]}" | wc -l)
  judged=$(git ls-files -- "${paths[@]}" | wc -l)
  [ "$changed" -eq 0 ] && echo 0 || echo $((1 + 1000 * changed / (judged + 1)))
}

# record SLICE: only of a clean tree, because only a commit can be named.
record() {
  if [ -n "$(git status --porcelain -- . ":!tests/nightly/passed")" ]; then
    say "$1 passed; not recorded, because the tree has changes that no commit holds"
    return
  fi
  { grep -v "^$1 " "$passed" 2>/dev/null; echo "$1 $(git rev-parse HEAD) $(git log -1 --format=%cs)"; } |
    sort >"$passed.new" && mv "$passed.new" "$passed"
  say "$1 passed; commit tests/nightly/passed with your change"
}

run_slice() {
  local command
  command=$(field "$1" 3)
  [ -n "$command" ] || { say "no slice '$1': use one of $(names | paste -sd' ')"; return 2; }
  command=${command//\{seed\}/$(git rev-list --count HEAD)}
  say "$1: $command"
  bash -c "$command"
  case $? in
    0) record "$1" ;;
    77) say "$1 was skipped here, for the reason above" ;;
    *) say "$1 FAILED; repeat it: $command"; return 1 ;;
  esac
}

list() {
  local slice last
  for slice in $(names); do
    last=$(age "$slice")
    [ "$last" -eq $never ] && last="never passed" || last="passed $last commits ago"
    printf '%-10s %3s min, %s: %s\n' "$slice" "$(field "$slice" 2)" "$last" "$(field "$slice" 3)"
  done
  echo "due next: $(due "$(change_base)" | awk '$1 > 0 { print $3 }' | paste -sd' ')"
}

# due BASE: lines of changed share, age and name, in the order in which slices are due.
due() {
  local slice
  for slice in $(names); do
    echo "$(changed_share "$slice" "$1") $(age "$slice") $slice"
  done | sort -k1,1nr -k2,2nr -s
}

next() {
  local budget=${1:-8} spent=0 ran=0 status=0 changed slice_age slice minutes
  local -a left=()
  while read -r changed slice_age slice; do
    minutes=$(field "$slice" 2)
    if [ $((spent + minutes)) -gt "$budget" ] || { [ $ran -gt 0 ] && [ "$changed" -eq 0 ]; }; then
      [ "$changed" -eq 0 ] || left+=("$slice")
      continue
    fi
    run_slice "$slice" </dev/null || status=1
    ran=$((ran + 1))
    spent=$((spent + minutes))
  done < <(due "$(change_base)")
  [ ${#left[@]} -eq 0 ] || say "touched but beyond $budget min: ${left[*]}; run them: ./run nightly run ${left[*]}"
  return $status
}

check() {
  local slice status=0
  for slice in $(names); do
    if [ "$(age "$slice")" -gt $max_age ]; then
      say "$slice passed more than $max_age commits ago, or never: ./run nightly run $slice"
      status=1
    fi
  done
  [ $status -ne 0 ] || say "every slice passed within $max_age commits"
  return $status
}

command=${1:-list}
[ $# -gt 0 ] && shift
case $command in
  list) list ;;
  run)
    status=0
    mapfile -t chosen < <([ $# -gt 0 ] && printf '%s\n' "$@" || names)
    for slice in "${chosen[@]}"; do run_slice "$slice" </dev/null || status=1; done
    exit $status
    ;;
  next) next "$@" ;;
  check) check ;;
  last) pass_of "${1:?NAME}" ;;
  record) record "${1:?NAME}" ;;
  *) sed -n '2,9s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
