#!/usr/bin/env bash
# overload_test.sh CASE GDX GDX_OVERLOAD_BENCH: four senders push at a link that is slower than they are, and the
# process of one peer is stopped. Checked is what arrives and what is counted, never how fast.
set -uo pipefail
case_name=$1
gdx=$2
bench=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
out=$folder/out
chunks=2000

fail() {
  echo "FAIL ($case_name): $*"
  echo "--- output:"
  cat "$out"
  exit 1
}

# Before the first resend, so that a peer that only waits for its processor is not given up.
one_second=18
quarter_second=16

# push WIRE ACK_TIMEOUT [OPTIONS]: one run; its lines are left in $out.
push() {
  local wire=$1 ack_timeout=$2
  shift 2
  timeout --kill-after=5 110 "$gdx" run --ranks 5 --wire "$wire" --rate-gbps 0.2 --timeout-s 100 -- \
    "$bench" --chunks "$chunks" --ack-timeout "$ack_timeout" "$@" >"$out" 2>&1 </dev/null
  status=$?
  [ "$status" -eq 0 ] || fail "status $status"
  ! grep -qE 'Sanitizer|runtime error' "$out" || fail "a sanitizer complained"
}

value() { awk -v name="$1" '$1 == name { print $2 }' "$out"; }
expect_value() { [ "$(value "$1")" = "$2" ] || fail "$1 is '$(value "$1")', wanted $2"; }
expect_more() { [ "$(value "$1")" -gt "$2" ] || fail "$1 is '$(value "$1")', wanted more than $2"; }

case $case_name in
  with_credits | with_credits_shm)
    wire=udp
    [ "$case_name" = with_credits_shm ] && wire=shm
    push "$wire" "$one_second"
    expect_value failed_senders 0
    expect_more chunks_pushed $((chunks - 1))
    expect_value chunks_whole "$(value chunks_pushed)"
    expect_value chunks_damaged 0
    expect_value staging_violations 0
    expect_value lost_slots 0
    ;;
  without_credits)
    push udp "$one_second" --without-credits
    expect_more staging_violations 0
    expect_more chunks_damaged 0
    ;;
  peer_that_never_wakes)
    push udp "$quarter_second" --stall end --retry-count 4
    expect_value failed_senders 1
    grep -q '^failure sender 0: peer unreachable .*syndrome 0x15' "$out" || fail "no line names sender 0 and its cause"
    expect_value chunks_damaged 0
    expect_value staging_violations 0
    expect_value lost_slots 0
    ;;
  bad_input)
    for arguments in "--chunks 0" "--stall sometimes" "--ack-timeout 32" "--retry-count 8"; do
      # shellcheck disable=SC2086 # the arguments are words
      timeout 30 "$gdx" run --ranks 2 --timeout-s 20 -- "$bench" $arguments >"$out" 2>&1 </dev/null && fail "$arguments was taken"
      grep -q -- "${arguments%% *}" "$out" || fail "$arguments: the message does not name it"
    done
    timeout 30 "$gdx" run --timeout-s 20 -- "$bench" >"$out" 2>&1 </dev/null && fail "a world of one rank was taken"
    grep -q 'world of 1 ranks: use 2 to 32' "$out" || fail "no line says how many ranks there may be"
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
