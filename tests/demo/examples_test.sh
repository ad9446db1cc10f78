#!/usr/bin/env bash
# examples_test.sh CASE GDX PROGRAM: one of examples/ as a user runs it. Each rank checks its own values.
. "$(dirname "$0")/../program.sh"
gdx=$2
program=$3
name=$(basename "$program")

# on_ranks RANKS OPTION...: by loads and stores, through the NIC, and as a team with rank 0 alone behind the NIC. The
# NIC then does all atomics. Nobody is to wait for a machine that has much to do.
on_ranks() {
  local ranks=$1 direct
  shift
  for direct in on off mixed; do
    # shellcheck disable=SC2016
    run 100 env DIRECT=$direct "$gdx" run --ranks "$ranks" "$@" -- bash -c '
      [ $DIRECT = mixed ] && { [ $GDX_RANK = 0 ] && DIRECT=off || DIRECT=auto; }
      GDX_DIRECT=$DIRECT exec "$@"' - "$program"
    expect_status 0
    expect 'rank'
  done
}

case $case_name in
  runs)
    on_ranks 2
    on_ranks 3
    ;;
  lossy)
    for ranks in 2 5 16; do on_ranks "$ranks" --loss 0.01 --seed 7; done
    ;;
  killed)
    # Rank 1 is killed amid rounds without end. The others end in time, and say whose end was the first.
    # Without a NIC between them they wait as long as a call may: less than the 10 s after which all are ended. A slow
    # machine may pass that, or end a rank's call before.
    in_time() { grep -q 'rank 1 .* ended with status 137; 2 other' "$out" && ! grep -q 's have passed since' "$out"; }
    rounds=(1000000000)
    [ "$name" = ring_allreduce ] && rounds=(10007 1000000000)
    # shellcheck disable=SC2016
    for direct in on off; do
      tried in_time env GDX_CALL_TIMEOUT_S=4 GDX_ACK_TIMEOUT=14 GDX_RETRY_COUNT=5 GDX_DIRECT=$direct "$gdx" run --ranks 3 --label -- \
        bash -c '"$@" & [ "$GDX_RANK" = 1 ] || { wait $!; exit; }
          until grep -q "gdx memory" /proc/$!/maps; do sleep 0.1; done  # the heap
          sleep 1
          kill -KILL $!
          wait $!' - "$program" "${rounds[@]}"
      expect_status 137
      expect 'rank 1 .* ended with status 137; 2 other ranks'
      expect_no 'did not end them'
      for rank in 0 2; do expect "^$rank: $name: .*rank 1 closed its connection"; done
    done
    ;;
esac
echo "ok: $case_name"
