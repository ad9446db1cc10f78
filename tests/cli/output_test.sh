#!/usr/bin/env bash
# output_test.sh CASE GDX: what commands do when their output cannot be written.
. "$(dirname "$0")/../program.sh"
gdx=$2

calibrate=(env GDX_ACK_TIMEOUT=20 "$gdx" calibrate --softhca)  # all tries fit into the minute that it gives a call

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
    lost "$gdx" bench put_lat --modes pull --size 8 --rounds 1 --iters 8
    lost "$gdx" demo --modes pull --max-bytes 512 --json
    lost "$gdx" model --help
    lost "$gdx" model --path PIX --size-bytes 64
    lost "${calibrate[@]}" --max-bytes 4096 --rounds 1 --output "$folder/table.json"
    ;;
  stderr)
    mute 2 "$gdx" rnu
    mute 127 "$gdx" run --ranks 2 -- /nonexistent/program
    mute 3 "$gdx" run --ranks 2 -- sh -c 'exit 3'
    mute 137 "$gdx" run --ranks 2 -- sh -c 'kill -9 $$'
    mute 124 "$gdx" run --timeout-s 0.1 -- sleep 600
    mute 0 env GDX_LOG=debug "$gdx" run -- "$gdx" info
    mute 0 "$gdx" run --label -- sh -c 'seq 100000 >&2'
    # Debian's ldconfig is a static program, of which there is a warning.
    "$gdx" run -- /sbin/ldconfig --version 2>&1 >/dev/null | grep 'linked statically' >/dev/null ||
      fail "no warning of a static program"
    mute 0 "$gdx" run -- /sbin/ldconfig --version
    mute 0 "$gdx" run --ranks 2 -- /sbin/ldconfig --version
    # On a slow machine the rank is given up before it dies, with status 1.
    status=1
    for ((trial = 0; trial < 10 && status == 1; ++trial)); do
      timeout --kill-after=5 120 env GDX_ACK_TIMEOUT=14 GDX_RETRY_COUNT=5 "$gdx" demo --kill-rank 1 --modes push \
        --min-bytes 16777216 >"$out" 2>/dev/full </dev/null
      status=$?
    done
    expect_status 137
    ;;
  progress)
    model=(model --path PIX --mode pull,push --size-bytes 64)
    measure=("${calibrate[@]}" --max-bytes 4096 --rounds 1 --output "$folder/table.json")
    # A terminal sees lines that overwrite one another, and none at the end. Any other stderr stays empty.
    python3 - "$gdx" "${model[@]}" -- "${measure[@]}" >"$out" 2>&1 <<'PYTHON' || fail "no progress"
import os, subprocess, sys
at = sys.argv.index("--")
for command, wanted in (sys.argv[1:at], ["modelling pull of 64 B", "modelling push of 64 B"]), \
                       (sys.argv[at + 1:], ["measuring 8 B, round 1 of 1", "measuring 4096 B, round 1 of 1"]):
    terminal, end = os.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=end) as shown:
        os.close(end)
        seen = b""
        try:
            while got := os.read(terminal, 65536):
                seen += got
        except OSError:
            pass  # a terminal that nobody has open any more
        printed = shown.stdout.read()
    assert shown.returncode == 0, seen
    lines = seen.decode().split("\r\x1b[K")
    assert lines[0] == lines[-1] == "" and set(wanted) <= set(lines), lines
    assert b"\x1b" not in printed
    piped = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    assert piped.returncode == 0 and piped.stderr == b"", piped.stderr
PYTHON
    ;;
  numbers)
    machine=$(dirname "$0")/../vectors/topology/two-sockets.xml
    # numbers COMMAND...: no text in its JSON is a number with a unit or without.
    numbers() {
      echo "+ $*"
      timeout --kill-after=5 200 "$@" >"$out" 2>"$folder/err" </dev/null
      python3 - "$out" <<'PYTHON' || fail "a number is a text"
import json, re, sys
def walk(path, value):
    if isinstance(value, dict):
        for name, one in value.items():
            if path + name not in ("environment", "gdx_version"):
                walk(path + name + ".", one)
    elif isinstance(value, list):
        for one in value:
            walk(path, one)
    elif isinstance(value, str):
        unit = re.fullmatch(r"-?(0|[1-9]\d{0,18})(\.\d+)?(e-?\d+)? ?([kKMGT]?i?B|[numk]?s|[GM]b/s|%)?", value)
        assert not unit, (path, value)
walk("", json.load(open(sys.argv[1])))
PYTHON
    }
    numbers "$gdx" run -- "$gdx" info --json
    numbers "$gdx" topo --json
    numbers "$gdx" topo --xml "$machine" --json
    numbers "$gdx" doctor --json
    numbers "$gdx" run -- "$gdx" doctor --hardware --json
    numbers "$gdx" bench put_lat --modes pull --size 8 --rounds 1 --iters 8 --json
    numbers "$gdx" demo --modes pull --max-bytes 512 --json
    numbers "$gdx" model --path PIX --size-bytes 64 --json
    numbers "${calibrate[@]}" --max-bytes 4096 --rounds 1 --output "$folder/table.json" --json
    ;;
esac
echo "ok ($case_name)"
