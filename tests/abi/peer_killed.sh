#!/usr/bin/env bash
# A client whose server is killed during a transfer through shared memory ends by itself, and says why.
. "$(dirname "$0")/common.sh"
need ib_write_bw perftest
export GDX_SOFTHCA_WIRE=shm

start_both() {
  local port
  port=$(free_port) || exit 1
  rm -f "$scratch/pcap"
  env LD_PRELOAD="$GDX_TEST_PRELOAD" ib_write_bw -F -D 140 -s 64 -p "$port" > "$scratch/server" 2>&1 &
  server=$!
  trap 'kill -9 $server 2> /dev/null; rm -rf "$scratch"' EXIT
  await_listener "$port" $server
  GDX_SOFTHCA_PCAP=$scratch/pcap on_hca ib_write_bw -F -D 140 -s 64 -p "$port" 127.0.0.1 > "$scratch/client" 2>&1 &
  client=$!
}
start_both
# So much of a capture: the transfer runs.
until [ "$(stat -c %s "$scratch/pcap" 2> /dev/null || echo 0)" -gt 100000 ]; do
  # A server that stood still was given up after two seconds of tries.
  if ! kill -0 $client 2> /dev/null; then
    grep -q 'status 12' "$scratch/client" || { cat "$scratch/client" >&2; fail "no transfer"; }
    kill -9 $server
    wait
    start_both
  fi
  sleep 0.05
done
kill -9 $server
wait $client
status=$?
cat "$scratch/client"
[ $status != 0 ] || fail "the client did not notice"
[ $status != 124 ] || fail "the client did not end"
grep -q 'status 12' "$scratch/client" || fail "no 'status 12', transport retry counter exceeded"
