#!/usr/bin/env bash
# calibrate_test.sh CASE GDX: one case of gdx calibrate, checked by what it prints, keeps, and how it exits.
set -uo pipefail
case_name=$1
gdx=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
out=$folder/out
export XDG_CONFIG_HOME=$folder/config
unset GDX_CALIBRATION GDX_PATH_CLASS GDX_HCA
file=$XDG_CONFIG_HOME/gdx/calibration.json
quick=(--rounds 1 --max-bytes 65536)

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

expect() { grep -qE "$1" "$out" || fail "no line matches: $1"; }
expect_no() { ! grep -qE "$1" "$out" || fail "a line matches: $1"; }
expect_status() { [ "$status" -eq "$1" ] || fail "status $status, wanted $1"; }
# One clear line, and the status of bad usage or another failure.
refuses() {
  local wanted=$1 pattern=$2
  shift 2
  run 60 "$@"
  expect_status "$wanted"
  expect "$pattern"
  [ "$(grep -c . "$out")" -eq 1 ] || fail "more than one line"
}

case $case_name in
  calibrate)
    run 120 "$gdx" calibrate --softhca --path-class SYS "${quick[@]}"
    expect_status 0
    expect '^HCA gdx0, SYS path; measured on the software HCA, CPU kernels$'
    [ "$(grep -cE '^ +(8|16|28|32|64|128|220|256|512) B ' "$out")" -eq 9 ] || fail "a size below 1 KiB is missing"
    expect '^ +64 KiB +- +[0-9.]+ +[0-9.]+ +[0-9.]+$'
    expect '^auto: .*(pull|push|bounce|inline)'
    expect '^  (inline|push|pull|bounce) from 8 B: at .*; measured on the software HCA, CPU kernels$'
    expect "^stored in $file\$"
    # Another path class keeps its own table, in a file and as JSON.
    run 120 "$gdx" calibrate --softhca --json --path-class PIX --output "$folder/other.json" "${quick[@]}"
    expect_status 0
    python3 - "$out" "$file" "$folder/other.json" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
printed, first, second = (json.load(open(name)) for name in sys.argv[1:])
assert printed["path_class"] == "PIX" and len(printed["rows"]) == 16, printed
assert all(row["pull_ns"] > 0 and row["bounce_ns"] > 0 and row["push_ns"] > 0 for row in printed["rows"])
assert [t["path_class"] for t in first["tables"]] == ["SYS"]
table, = second["tables"]
assert table["measured_on"] == "the software HCA, CPU kernels" and table["why"] == printed["why"]
assert all(table[name] == printed[name] for name in ("inline_bytes", "push_bytes", "pull_bytes"))
PYTHON
    ;;
  chosen)
    run 60 "$gdx" run -- "$gdx" info
    expect 'auto +inline up to 28 B, push up to 4 KiB, then pull$'
    expect 'defaults for a path of unknown class: there is no calibration .*gdx calibrate'
    run 60 env GDX_PATH_CLASS=SYS "$gdx" run -- "$gdx" info
    expect 'auto +inline up to 28 B, push up to 16 KiB, then bounce$'
    run 120 "$gdx" calibrate --softhca "${quick[@]}"
    expect_status 0
    run 60 "$gdx" run -- "$gdx" info --json
    expect '"auto_why": "measured on the software HCA, CPU kernels, '"$file"'"'
    run 60 env GDX_CALIBRATION= "$gdx" run -- "$gdx" info
    expect 'unknown class: no calibration'
    # What a program says when its endpoint chooses.
    run 120 env GDX_LOG=info "$gdx" demo --modes auto --max-bytes 4096
    expect_status 0
    [ "$(grep -cE 'info: auto on HCA gdx0: .*; measured on the software HCA' "$out")" -eq 2 ] || fail "not one line a rank"
    # Rubbish at the default place: a warning, and defaults.
    echo rubbish >"$file"
    run 120 "$gdx" demo --modes auto --max-bytes 4096
    expect_status 0
    expect "warning: $file is no calibration: .*; defaults serve"
    # Where it was named, it is an error.
    run 60 env GDX_CALIBRATION="$file" "$gdx" demo --modes auto --max-bytes 4096
    [ "$status" -ne 0 ] || fail "status 0, wanted a failure"
    expect "$file is no calibration"
    expect_no 'defaults serve'
    ;;
  bad_input)
    refuses 2 "path-class 'FAR': use PIX" "$gdx" calibrate --softhca --path-class FAR
    refuses 2 'max-bytes 5000: use a power of two' "$gdx" calibrate --softhca --max-bytes 5000
    refuses 2 'max-bytes 1024: use' "$gdx" calibrate --softhca --max-bytes 1024
    refuses 2 'rounds 0: use 1' "$gdx" calibrate --softhca --rounds 0
    refuses 2 'rounds' "$gdx" calibrate --softhca --rounds many
    refuses 2 'no-such-option' "$gdx" calibrate --softhca --no-such-option
    refuses 1 'nosuch0.*gdx0' "$gdx" calibrate --softhca --hca nosuch0
    refuses 2 "GDX_PATH_CLASS = 'FAR'" env GDX_PATH_CLASS=FAR "$gdx" calibrate --softhca
    refuses 2 'set XDG_CONFIG_HOME or HOME' env -u HOME -u XDG_CONFIG_HOME "$gdx" calibrate --softhca
    echo precious >"$folder/precious"
    refuses 2 'precious is no calibration' "$gdx" calibrate --softhca --output "$folder/precious"
    [ "$(cat "$folder/precious")" = precious ] || fail "a file that is no calibration was overwritten"
    refuses 2 "$folder is no calibration: not a regular file" "$gdx" calibrate --softhca --output "$folder"
    [ -e "$file" ] && fail "something was stored"
    run 60 "$gdx" calibrate --help
    expect_status 0
    expect 'path-class'
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
