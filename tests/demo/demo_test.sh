#!/usr/bin/env bash
# demo_test.sh CASE GDX GDX_DEMO: one case of the demo, checked by what it prints and how it exits.
set -uo pipefail
case_name=$1
gdx=$2
gdx_demo=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
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

expect() { grep -qE "$1" "$out" || fail "no line matches: $1"; }
expect_status() { [ "$status" -eq "$1" ] || fail "status $status, wanted $1"; }
expect_failure() { [ "$status" -ne 0 ] || fail "status 0, wanted a failure"; }
# One clear line: nothing but it, from whichever ranks speak.
expect_one_line() { [ "$(sort -u "$out" | grep -c .)" -eq 1 ] || fail "more than one line"; }

# column N of the table's data rows, summed.
sum_column() { awk -v n="$1" '$1 ~ /^(pull|push|inline|bounce|auto)$/ { sum += $(NF - n) } END { print sum + 0 }' "$out"; }
rows() { grep -cE '^(pull|push|inline|bounce|auto) .* yes$' "$out"; }

case $case_name in
  clean)
    run 200 "$gdx" demo
    expect_status 0
    [ "$(rows)" -eq 32 ] || fail "$(rows) verified rows, wanted 4 modes of 8 sizes"
    expect '^push +16 MiB .* yes$'
    expect 'slots written without a credit: 0$'
    stalls=$(awk '$1 == "push" && $2 == 16 { print $(NF - 2) }' "$out")
    [ "$stalls" -gt 0 ] || fail "16 MiB through 128 KiB of staging without a credit stall"
    ;;
  lossy)
    run 200 "$gdx" demo --loss 0.01 --corrupt 0.001 --seed 7
    expect_status 0
    [ "$(rows)" -eq 32 ] || fail "$(rows) verified rows, wanted 32"
    [ "$(sum_column 1)" -gt 0 ] || fail "packets were lost, and none was sent again"
    ;;
  broken_memory)
    run 100 "$gdx" demo --break-memory --max-bytes 4096 --modes push
    expect_failure
    expect 'NO \(1 B\)'
    expect 'DAMAGED'
    ;;
  killed_receiver | killed_sender)
    dead=1
    [ "$case_name" = killed_sender ] && dead=0
    run 30 "$gdx" demo --kill-rank "$dead" --modes push --min-bytes 16777216
    expect_failure
    expect "message [0-9] of 3: rank $dead failed rank $((1 - dead)): .*syndrome 0x15"
    ;;
  capture)
    run 100 "$gdx" demo --pcap "$folder/demo.pcap" --max-bytes 32768
    expect_status 0
    if ! command -v tshark >/dev/null; then
      echo "SKIPPED: tshark is not installed (apt-get install tshark): the capture was written, not decoded"
      exit 77
    fi
    # By field, not by the protocol column: tshark guesses at payload whose first bytes look like an Ethertype.
    tshark -n -r "$folder/demo.pcap" -T fields -e frame.protocols -e infiniband.bth.opcode -e infiniband.invariant.crc \
      >"$out" 2>"$folder/err" || fail "tshark: $(cat "$folder/err")"
    total=$(wc -l <"$out")
    decoded=$(awk '$1 ~ /udp:infiniband/ && $2 != "" && $3 != ""' "$out" | wc -l)
    [ "$total" -gt 1000 ] || fail "only $total packets"
    [ "$decoded" -eq "$total" ] || fail "tshark decodes $decoded of $total packets as RRoCE"
    tshark -n -r "$folder/demo.pcap" >"$out" 2>/dev/null
    grep -q 'RDMA Write' "$out" || fail "no RDMA WRITE in the capture"
    ;;
  bad_input)
    run 30 "$gdx" demo --hca nosuch0 && expect_failure && expect "nosuch0.*gdx0" && expect_one_line
    run 30 "$gdx" demo --min-bytes 0 && expect_failure && expect 'multiple of 8' && expect_one_line
    run 30 "$gdx" demo --modes teleport && expect_failure && expect "'teleport' is none of" && expect_one_line
    run 30 "$gdx" demo --slots 4096 && expect_failure && expect '4096' && expect_one_line
    run 30 "$gdx" demo --slots 0 && expect_failure && expect 'nothing to push into' && expect_one_line
    run 30 "$gdx" demo --kill-rank 7 && expect_failure && expect 'kill-rank' && expect_one_line
    run 30 "$gdx" demo --no-such-option && expect_failure && expect 'no-such-option' && expect_one_line
    run 30 "$gdx" demo --loss 2 && expect_failure && expect 'loss' && expect_one_line
    run 30 "$gdx" demo --pcap /nonexistent/x.pcap && expect_failure && expect '/nonexistent/x.pcap'
    run 30 "$gdx" run --ranks 3 -- "$gdx_demo" && expect_failure && expect '2 ranks.* 3' && expect_one_line
    run 30 "$gdx" run --ranks 100000 -- "$gdx_demo" && expect_failure && expect '100000' && expect_one_line
    run 30 "$gdx" run -- /nonexistent/program && expect_failure && expect '/nonexistent/program' && expect_one_line
    # A peer that never comes, and a port that somebody else has.
    run 30 env GDX_RANK=0 GDX_WORLD_SIZE=2 GDX_ROOT=127.0.0.1:39271 GDX_BOOTSTRAP_TIMEOUT_S=1 "$gdx" run -- "$gdx_demo"
    expect_failure && expect 'rank.* 1' && expect_one_line
    coproc holder { exec timeout 20 bash -c 'exec env GDX_RANK=0 GDX_WORLD_SIZE=2 GDX_ROOT=127.0.0.1:39272 \
      GDX_BOOTSTRAP_TIMEOUT_S=15 "$0" run -- "$1" 2>&1' "$gdx" "$gdx_demo"; }
    for _ in $(seq 100); do
      (exec 8<>/dev/tcp/127.0.0.1/39272) 2>/dev/null && break
      read -rt 0.05 <> <(:) || true
    done
    run 30 env GDX_RANK=0 GDX_WORLD_SIZE=2 GDX_ROOT=127.0.0.1:39272 GDX_BOOTSTRAP_TIMEOUT_S=2 "$gdx" run -- "$gdx_demo"
    kill "$holder_PID" 2>/dev/null
    expect_failure && expect '127.0.0.1:39272' && expect_one_line
    # Without the software HCA and without hardware.
    if ! ls /sys/class/infiniband/* >/dev/null 2>&1; then
      run 30 env GDX_RANK=0 GDX_WORLD_SIZE=2 GDX_ROOT=127.0.0.1:39273 "$gdx_demo" && expect_failure
      expect 'gdx run' && expect_one_line
      run 30 "$gdx" info && expect_failure && expect 'gdx run' && expect_one_line
    fi
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
