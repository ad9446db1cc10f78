# Shared by scripts that look at a program as its user does, by what it prints and how it exits. Source it with the
# script's arguments, the first of which is the name of the case. It makes $folder, which goes when the script ends.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ports.sh"
case_name=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Calls, peers (8 tries of 8.6 s) and ranks that meet outlast a machine that stands still for a minute.
export GDX_CALL_TIMEOUT_S=${GDX_CALL_TIMEOUT_S:-200} GDX_BOOTSTRAP_TIMEOUT_S=${GDX_BOOTSTRAP_TIMEOUT_S:-200}
export GDX_ACK_TIMEOUT=${GDX_ACK_TIMEOUT:-21} GDX_RETRY_COUNT=${GDX_RETRY_COUNT:-7}
out=$folder/out

fail() {
  echo "FAIL ($case_name): $*"
  echo "--- output:"
  cat "$out"
  exit 1
}

# run SECONDS COMMAND...: leaves the output in $out and the exit status in $status. SECONDS are for a hang; a slow machine or
# a sanitizer has twice as long.
run() {
  local limit=$((2 * $1))
  shift
  echo "+ $*"
  timeout --kill-after=5 "$limit" "$@" >"$out" 2>&1 </dev/null
  status=$?
  [ "$status" -eq 124 ] && fail "still running after $limit s: $*"
  [ "$status" -eq 139 ] || [ "$status" -eq 134 ] && fail "crashed with status $status: $*"
  grep -qE 'Sanitizer|runtime error' "$out" && fail "a sanitizer complained: $*"
  return 0
}

# share_secret: ranks that the script starts by itself have the secret that a user would give them.
share_secret() {
  export GDX_SECRET_FILE=$folder/secret
  (umask 077; head -c 32 /dev/urandom >"$GDX_SECRET_FILE")
}

# until_true COMMAND...: waits until it succeeds. Gives up after four minutes, which only end a hang.
until_true() {
  local end=$((SECONDS + 240))
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.05
  done
}

# tried FAIR COMMAND...: as run 100, and again until the command FAIR succeeds, because a slow machine may pass a limit that is
# the product's own. After three minutes the checks that follow judge the last trial.
tried() {
  local fair=$1 end=$((SECONDS + 180))
  shift
  run 100 "$@"
  until "$fair" || grep -q DAMAGED "$out" || [ $SECONDS -ge $end ]; do run 100 "$@"; done
}
# Succeeds if a rank was killed before another was given up, and the others ended within the 10 s that they then have.
others_told() { grep -q ' was killed: Killed' "$out" && ! grep -q 's have passed since that failure' "$out"; }

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
