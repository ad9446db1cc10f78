# Shared by scripts that look at a program as its user does, by what it prints and how it exits. Source it with the
# script's arguments, the first of which is the name of the case. It makes $folder, which goes when the script ends.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ports.sh"
case_name=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Calls outlast a machine that stands still for seconds.
export GDX_CALL_TIMEOUT_S=${GDX_CALL_TIMEOUT_S:-60}
out=$folder/out

fail() {
  echo "FAIL ($case_name): $*"
  echo "--- output:"
  cat "$out"
  exit 1
}

# run SECONDS COMMAND...: leaves the output in $out and the exit status in $status.
run() {
  local limit=$1
  shift
  echo "+ $*"
  timeout --kill-after=5 "$limit" "$@" >"$out" 2>&1 </dev/null
  status=$?
  [ "$status" -eq 124 ] && fail "still running after $limit s: $*"
  [ "$status" -eq 139 ] || [ "$status" -eq 134 ] && fail "crashed with status $status: $*"
  grep -qE 'Sanitizer|runtime error' "$out" && fail "a sanitizer complained: $*"
  return 0
}

expect() { grep -qE -- "$1" "$out" || fail "no line matches: $1"; }
expect_no() { ! grep -qE -- "$1" "$out" || fail "a line matches: $1"; }
expect_status() { [ "$status" -eq "$1" ] || fail "status $status, wanted $1"; }
expect_failure() { [ "$status" -ne 0 ] || fail "status 0, wanted a failure"; }
# One clear line: nothing but it, from whichever ranks speak.
expect_one_line() { [ "$(sort -u "$out" | grep -c .)" -eq 1 ] || fail "more than one line"; }

# refuses STATUS PATTERN COMMAND...: that status and one line, once, whoever else runs. refused: status 2, bad usage.
refuses() {
  local wanted=$1 pattern=$2
  shift 2
  run 100 "$@"
  expect_status "$wanted"
  expect "$pattern"
  [ "$(grep -c . "$out")" -eq 1 ] || fail "not one line: $*"
}
refused() { refuses 2 "$@"; }
