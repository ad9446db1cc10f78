#!/usr/bin/env bash
# output_test.sh CASE GDX: what commands do when their output cannot be written.
. "$(dirname "$0")/../program.sh"
gdx=$2

# lost COMMAND...: into a full device, and with no stdout at all: a failure, and one line that says so.
lost() {
  local way
  for way in '>/dev/full' '>&-'; do
    echo "+ $* $way"
    eval 'timeout --kill-after=5 120 "$@" 2>"$out" </dev/null' "$way"
    status=$?
    expect_failure
    [ "$status" -lt 124 ] || fail "status $status: $* $way"
    expect 'what it printed was lost'
    [ "$(grep -c . "$out")" -eq 1 ] || fail "not one line: $* $way"
  done
}

# mute STATUS COMMAND...: with a full stderr the status is that of the command.
mute() {
  local wanted=$1
  shift
  echo "+ $* 2>/dev/full"
  timeout --kill-after=5 120 "$@" >"$out" 2>/dev/full </dev/null
  status=$?
  expect_status "$wanted"
}

case $case_name in
  stdout)
    lost "$gdx" --help
    lost "$gdx" --version
    lost "$gdx" run --help
    lost "$gdx" topo
    lost "$gdx" topo --json
    lost "$gdx" run -- "$gdx" info
    lost "$gdx" run -- "$gdx" info --json
    lost "$gdx" demo --modes pull --max-bytes 512
    lost "$gdx" demo --modes pull --max-bytes 512 --json
    lost "$gdx" model --help
    lost "$gdx" model --path PIX --size-bytes 64
    lost "$gdx" calibrate --softhca --max-bytes 4096 --rounds 1 --output "$folder/table.json"
    ;;
  stderr)
    mute 2 "$gdx" rnu
    mute 127 "$gdx" run --ranks 2 -- /nonexistent/program
    mute 3 "$gdx" run --ranks 2 -- sh -c 'exit 3'
    mute 137 "$gdx" run --ranks 2 -- sh -c 'kill -9 $$'
    mute 124 "$gdx" run --timeout-s 0.1 -- sleep 60
    mute 0 env GDX_LOG=debug "$gdx" run -- "$gdx" info
    # Debian's ldconfig is a static program, of which there is a warning.
    "$gdx" run -- /sbin/ldconfig --version 2>&1 >/dev/null | grep -q 'linked statically' ||
      fail "no warning of a static program"
    mute 0 "$gdx" run -- /sbin/ldconfig --version
    mute 0 "$gdx" run --ranks 2 -- /sbin/ldconfig --version
    mute 137 "$gdx" demo --kill-rank 1 --modes push --min-bytes 16777216
    ;;
esac
echo "ok ($case_name)"
