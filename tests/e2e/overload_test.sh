#!/usr/bin/env bash
# overload_test.sh CASE GDX GDX_OVERLOAD_BENCH: four senders push at a link that is slower than they are, and the
# process of one peer is stopped. Checked is what arrives and what is counted, never how fast.
. "$(dirname "$0")/../program.sh"
gdx=$2
bench=$3
chunks=2000
ack_timeout=$GDX_ACK_TIMEOUT

# push WIRE [OPTIONS]: one run; its lines are left in $out. A peer that only waits for its processor is not given up.
push() {
  local wire=$1
  shift
  run 250 "$gdx" run --ranks 5 --wire "$wire" --rate-gbps 0.2 --timeout-s 240 -- \
    "$bench" --chunks "$chunks" --ack-timeout "$ack_timeout" "$@"
  expect_status 0
}

value() { awk -v name="$1" '$1 == name { print $2 }' "$out"; }
expect_value() { [ "$(value "$1")" = "$2" ] || fail "$1 is '$(value "$1")', wanted $2"; }
expect_more() { [ "$(value "$1")" -gt "$2" ] || fail "$1 is '$(value "$1")', wanted more than $2"; }

case $case_name in
  with_credits | with_credits_shm)
    wire=udp
    [ "$case_name" = with_credits_shm ] && wire=shm
    push "$wire"
    expect_value failed_senders 0
    expect_more chunks_pushed $((chunks - 1))
    expect_value chunks_whole "$(value chunks_pushed)"
    expect_value chunks_damaged 0
    expect_value staging_violations 0
    expect_value lost_slots 0
    ;;
  without_credits)
    push udp --without-credits
    expect_more staging_violations 0
    expect_more chunks_damaged 0
    ;;
  peer_that_never_wakes)
    ack_timeout=16  # 7 s of tries in all, which a peer that lives may not stand still
    push udp --stall end
    [ "$(value failed_senders)" -le 1 ] || fail "too slow: a peer that lives was given up"
    expect_value failed_senders 1
    expect '^failure sender 0: peer unreachable .*syndrome 0x15'
    expect_value chunks_damaged 0
    expect_value staging_violations 0
    expect_value lost_slots 0
    ;;
  bad_input)
    for arguments in "--chunks 0" "--stall sometimes" "--ack-timeout 32" "--retry-count 8"; do
      # shellcheck disable=SC2086 # the arguments are words
      run 100 "$gdx" run --ranks 2 -- "$bench" $arguments
      expect_failure
      expect "${arguments%% *}"
    done
    run 100 "$gdx" run -- "$bench"
    expect_failure
    expect 'world of 1 ranks: use 2 to 32'
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
