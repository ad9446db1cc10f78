#!/usr/bin/env bash
# Usage: nightly.sh list | run [SLICE...] | next [MINUTES] | check | last NAME | record NAME
# Runs slices of the nightly tier (slices) and records the commit that each last passed on (passed).
#   run    the named slices, or all
#   next   the slice that the change touches most, then within MINUTES (7) the one that passed longest ago. A slice of more
#          than 7 minutes is left to people. The change is what came since the slice last passed, or where it never did
#          since the commits of the last four hours before HEAD; or since the commit GDX_NIGHTLY_BASE.
#   check  fails where a slice last passed more than 30 commits ago
#   last, record  the commit on which NAME last passed, for lint too
set -uo pipefail
root=${GDX_NIGHTLY_ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
slices=$root/tests/nightly/slices
passed=$root/tests/nightly/passed
max_age=30
longest_in_ci=7
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

# changed_share SLICE BASE: of 1000 files that the slice judges, how many differ from where it last passed, or else from
# BASE; at least 1 where any does.
changed_share() {
  local base=$2
  local -a paths
  [ -n "${GDX_NIGHTLY_BASE:-}" ] || [ "$(age "$1")" -eq $never ] || base=$(pass_of "$1")
  read -ra paths <<<"$(field "$1" 4)"
  local changed judged
  changed=$(git diff --name-only "$base" HEAD -- "${paths[@]}" | wc -l)
  judged=$(git ls-files -- "${paths[@]}" | wc -l)
  [ "$changed" -eq 0 ] && echo 0 || echo $((1 + 1000 * changed / (judged + 1)))
}

# commit_of_clean_tree: empty where the tree has changes that no commit holds.
commit_of_clean_tree() {
  [ -n "$(git status --porcelain -- . ":!tests/nightly/passed")" ] || git rev-parse HEAD
}

# record SLICE COMMIT
record() {
  if [ -z "$2" ] || [ "$(commit_of_clean_tree)" != "$2" ]; then
    say "$1 passed; not recorded, because the tree has changes that no commit holds, or its commit is another by now"
    return
  fi
  (
    flock 9
    { grep -v "^$1 " "$passed" 2>/dev/null; echo "$1 $2 $(git log -1 --format=%cs "$2")"; } |
      sort >"$passed.new" && mv "$passed.new" "$passed"
  ) 9<"$slices"
  say "$1 passed; commit tests/nightly/passed with your change"
}

# run_slice SLICE. Exit: 77 where it was skipped.
run_slice() {
  local command commit
  command=$(field "$1" 3)
  [ -n "$command" ] || { say "no slice '$1': use one of $(names | paste -sd' ')"; return 2; }
  command=${command//\{seed\}/$(git rev-list --count HEAD)}
  commit=$(commit_of_clean_tree)
  say "$1: $command"
  bash -c "$command"
  case $? in
    0) record "$1" "$commit" ;;
    77) say "$1 was skipped here, for the reason above"; return 77 ;;
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

# due BASE: lines of changed share, age and name: the slice that is touched most, then the others, oldest first.
due() {
  local slice lines
  lines=$(for slice in $(names); do
    [ "$(field "$slice" 2)" -gt $longest_in_ci ] || echo "$(changed_share "$slice" "$1") $(age "$slice") $slice"
  done)
  local most
  most=$(sort -k1,1nr -k2,2nr -s <<<"$lines" | sed -n '1{/^0 /!p}')
  [ -z "$most" ] || echo "$most"
  sort -k2,2nr -k1,1nr -s <<<"$lines" | grep -vxF "${most:-none}"
}

next() {
  local budget=${1:-7} spent=0 status=0 changed slice_age slice minutes result
  local -a left=()
  while read -r changed slice_age slice; do
    minutes=$(field "$slice" 2)
    if [ $spent -gt 0 ] && [ $((spent + minutes)) -gt "$budget" ]; then
      [ "$changed" -eq 0 ] || left+=("$slice")
      continue
    fi
    result=0
    run_slice "$slice" </dev/null || result=$?
    [ $result -ne 77 ] || continue
    [ $result -eq 0 ] || status=1
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
    for slice in "${chosen[@]}"; do run_slice "$slice" </dev/null || [ $? -eq 77 ] || status=1; done
    exit $status
    ;;
  next) next "$@" ;;
  check) check ;;
  last) pass_of "${1:?NAME}" ;;
  record) record "${1:?NAME}" "$(commit_of_clean_tree)" ;;
  *) sed -n '2,10s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
