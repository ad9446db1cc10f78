#!/usr/bin/env bash
# calibrate_test.sh CASE GDX: one case of gdx calibrate, checked by what it prints, keeps, and how it exits.
. "$(dirname "$0")/../program.sh"
gdx=$2
export XDG_CONFIG_HOME=$folder/config
unset GDX_CALIBRATION GDX_PATH_CLASS GDX_HCA
file=$XDG_CONFIG_HOME/gdx/calibration.json
quick=(--rounds 2 --max-bytes 65536)
demo=(env GDX_ACK_TIMEOUT="$GDX_ACK_TIMEOUT" GDX_LOG=info "$gdx" demo --modes auto --max-bytes 4096)
export GDX_ACK_TIMEOUT=18  # all tries fit into the minute that gdx calibrate gives a call

case $case_name in
  calibrate)
    run 120 "$gdx" calibrate --softhca "${quick[@]}"
    expect_status 0
    expect '^HCA gdx0, kernels on a CPU; measured on the software HCA, CPU kernels$'
    expect 'median of 2 rounds \(least-most\)$'
    [ "$(grep -cE '^ +(8|16|28|32|64|128|220|256|512) B ' "$out")" -eq 9 ] || fail "a size below 1 KiB is missing"
    cell='[0-9.]+ \([0-9.]+-[0-9.]+\)'
    expect "^ +64 KiB +- +$cell +$cell +$cell\$"
    expect "^stored in $file\$"
    expect "^ +220 B +$cell +$cell +$cell +$cell\$" && expect "^ +256 B +- +$cell +$cell +$cell\$"
    expect_no 'BlueFlame'
    # Endpoints with fewer slots, or another doorbell, have a table of their own.
    run 120 env GDX_DOORBELL=blueflame "$gdx" calibrate --softhca --json --slots 8 --slot-bytes 2048 "${quick[@]}"
    expect_status 0
    python3 - "$out" "$file" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
printed, kept = (json.load(open(name)) for name in sys.argv[1:])
assert printed["kernels"] == "cpu" and printed["payload"] == "host" and printed["path_class"] is None, printed
assert len(printed["rows"]) == 16 and printed["rounds"] == 2
for row in printed["rows"]:
    for mode in ("pull", "push", "bounce"):
        assert 0 < row[mode + "_least_ns"] <= row[mode + "_ns"] <= row[mode + "_most_ns"], row
assert [(t["slot_count"], t["slot_bytes"]) for t in kept["tables"]] == [(32, 4096), (8, 2048)]
table = kept["tables"][1]
assert printed["blueflame_copies"] == 200 >= printed["blueflame_copies_whole"] >= 100, printed
assert table["measured_on"] == "the software HCA, CPU kernels" and table["blueflame"] is True
assert set(table) - set(printed) == {"queue_layout_version"} and printed["file"] == sys.argv[2], (table, printed)
assert all(table[name] == printed[name] for name in table if name != "queue_layout_version"), (table, printed)
assert [row["bytes"] for row in printed["rows"]] == sorted([28, 220] + [8 << i for i in range(14)]), printed["rows"]
assert all(("inline_ns" in row) == (row["bytes"] <= 220) for row in printed["rows"]), printed["rows"]
assert (printed["queues"], printed["bounce_slot_count"], printed["bounce_slot_bytes"]) == ("host", 64, 65536), printed
PYTHON
    # Hardware has no probe of BlueFlame before this one.
    run 120 env GDX_DOORBELL=blueflame GDX_SOFTHCA_FAULT=disguised XDG_CONFIG_HOME="$folder/other" "$gdx" calibrate --softhca "${quick[@]}"
    expect_status 0
    expect 'measured on HCA gdx0 \(firmware '
    ;;
  chosen)
    run 100 "$gdx" run -- "$gdx" info
    expect 'auto +inline up to 28 B, push up to 4 KiB, then pull$'
    expect 'defaults for kernels on a CPU: there is no calibration .*gdx calibrate'
    run 100 "$gdx" run -- "$gdx" info --json
    expect '"inline_bytes": 28,$' && expect '"push_bytes": 4096,$' && expect '"pull_bytes": null$'
    run 100 env GDX_PATH_CLASS=SYS "$gdx" run -- "$gdx" info
    expect 'auto +inline up to 28 B, push up to 16 KiB, then bounce$'
    run 120 "$gdx" calibrate --softhca "${quick[@]}"
    expect_status 0
    run 100 "$gdx" run -- "$gdx" info --json
    expect '"auto_why": "measured on the software HCA, CPU kernels, '"$file"'"'
    run 100 env GDX_CALIBRATION= "$gdx" run -- "$gdx" info
    expect 'defaults for kernels on a CPU: no calibration'
    # It was measured by a CPU: for a GPU somewhere, defaults serve.
    run 100 env GDX_PATH_CLASS=SYS "$gdx" run -- "$gdx" info
    expect 'auto +inline up to 28 B, push up to 16 KiB, then bounce$'
    expect 'has no table for HCA gdx0, kernels on a GPU with payload in its memory, SYS path'
    # A program logs the choice of its endpoint.
    run 120 "${demo[@]}"
    expect_status 0
    [ "$(grep -cE 'info: auto on HCA gdx0: .*; measured on the software HCA' "$out")" -eq 2 ] || fail "not one line a rank"
    # An endpoint with fewer slots than it was measured with: a warning, and defaults.
    run 120 "${demo[@]}" --slots 1
    expect_status 0
    expect 'warning: .* measured with .*32 slots of 4 KiB.*, and this endpoint has .* 1 slots .*; defaults serve'
    expect_no 'measured on the software HCA'
    # Rubbish at the default place: a warning, and defaults.
    echo rubbish >"$file"
    run 120 "${demo[@]}"
    expect_status 0
    expect "warning: $file is no calibration: .*; defaults serve"
    # A named file that is no calibration is an error.
    run 100 env GDX_CALIBRATION="$file" "${demo[@]}"
    expect_failure
    expect "$file is no calibration"
    expect_no 'defaults serve'
    ;;
  bad_input)
    refused "path-class: 'FAR': use PIX" "$gdx" calibrate --softhca --path-class FAR
    refused 'path-class: it is between a GPU and the HCA.*add --gpu' "$gdx" calibrate --softhca --path-class SYS
    refused "payload: 'gpu': kernels on a CPU" "$gdx" calibrate --softhca --payload gpu
    refused "payload: 'disk': use host, gpu" "$gdx" calibrate --softhca --payload disk
    refused "max-bytes: '5000': use a power of two" "$gdx" calibrate --softhca --max-bytes 5000
    refused "max-bytes: '1024': use a whole number from 4096" "$gdx" calibrate --softhca --max-bytes 1024
    refused "max-bytes: '-1': use a whole number" "$gdx" calibrate --softhca --max-bytes -1
    refused "rounds: '0': use a whole number from 1" "$gdx" calibrate --softhca --rounds 0
    refused "rounds: 'many': use" "$gdx" calibrate --softhca --rounds many
    refused "slots: '0': use" "$gdx" calibrate --softhca --slots 0
    refused "slots: '33': use at most 32, which the pool has" "$gdx" calibrate --softhca --slots 33
    refused "bounce-slots: '65': use at most 64, which the pool has" "$gdx" calibrate --softhca --bounce-slots 65
    refused 'staging slots of 5000 bytes are impossible' "$gdx" calibrate --softhca --slot-bytes 5000
    refused "hca: '': use the name of an HCA" "$gdx" calibrate --softhca --hca ""
    refused 'no-such-option' "$gdx" calibrate --softhca --no-such-option
    refuses 1 'nosuch0.*gdx0' "$gdx" calibrate --softhca --hca nosuch0
    refused "GDX_PATH_CLASS = 'FAR'" env GDX_PATH_CLASS=FAR "$gdx" calibrate --softhca
    refused 'set XDG_CONFIG_HOME or HOME' env -u HOME -u XDG_CONFIG_HOME "$gdx" calibrate --softhca
    refused 'set XDG_CONFIG_HOME or HOME' env -u XDG_CONFIG_HOME HOME="$folder/nobody" "$gdx" calibrate --softhca
    [ -e "$folder/nobody" ] && fail "a home that did not exist was made"
    echo precious >"$folder/precious"
    refused 'precious is no calibration' "$gdx" calibrate --softhca --output "$folder/precious"
    [ "$(cat "$folder/precious")" = precious ] || fail "a file that is no calibration was overwritten"
    refused "$folder is no calibration: not a regular file" "$gdx" calibrate --softhca --output "$folder"
    refused "GDX_DOORBELL is 'loud': use plain or blueflame" env GDX_DOORBELL=loud "$gdx" calibrate --softhca
    run 100 env GDX_DOORBELL=blueflame GDX_SOFTHCA_FAULT=torn_blueflame "$gdx" calibrate --softhca
    expect_status 1
    expect 'probe of BlueFlame on HCA gdx0 failed: .*; use plain doorbells'
    [ -e "$file" ] && fail "something was stored"
    run 100 "$gdx" calibrate --help
    expect_status 0
    expect 'path-class'
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
