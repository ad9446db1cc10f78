#!/usr/bin/env bash
# calibrate_test.sh CASE GDX: one case of gdx calibrate, checked by what it prints, keeps, and how it exits.
. "$(dirname "$0")/../program.sh"
gdx=$2
export XDG_CONFIG_HOME=$folder/config
unset GDX_CALIBRATION GDX_PATH_CLASS GDX_HCA
file=$XDG_CONFIG_HOME/gdx/calibration.json
quick=(--rounds 1 --max-bytes 65536)

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
    expect_failure
    expect "$file is no calibration"
    expect_no 'defaults serve'
    ;;
  bad_input)
    refused "path-class 'FAR': use PIX" "$gdx" calibrate --softhca --path-class FAR
    refused 'max-bytes 5000: use a power of two' "$gdx" calibrate --softhca --max-bytes 5000
    refused 'max-bytes 1024: use' "$gdx" calibrate --softhca --max-bytes 1024
    refused 'rounds 0: use 1' "$gdx" calibrate --softhca --rounds 0
    refused 'rounds' "$gdx" calibrate --softhca --rounds many
    refused 'no-such-option' "$gdx" calibrate --softhca --no-such-option
    refuses 1 'nosuch0.*gdx0' "$gdx" calibrate --softhca --hca nosuch0
    refused "GDX_PATH_CLASS = 'FAR'" env GDX_PATH_CLASS=FAR "$gdx" calibrate --softhca
    refused 'set XDG_CONFIG_HOME or HOME' env -u HOME -u XDG_CONFIG_HOME "$gdx" calibrate --softhca
    echo precious >"$folder/precious"
    refused 'precious is no calibration' "$gdx" calibrate --softhca --output "$folder/precious"
    [ "$(cat "$folder/precious")" = precious ] || fail "a file that is no calibration was overwritten"
    refused "$folder is no calibration: not a regular file" "$gdx" calibrate --softhca --output "$folder"
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
