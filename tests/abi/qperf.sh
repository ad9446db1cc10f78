#!/usr/bin/env bash
# Usage: qperf.sh. Debian's qperf over connections of rdma_cm: each test must end with a figure above zero.
. "$(dirname "$0")/common.sh"
need qperf qperf
port=$(free_port) || exit 1

client() { at "$client_address" qperf "$server_address" -lp "$port" "$@" > "$scratch/client" 2>&1; }

# Without rdma_cm qperf addresses its peer by LID, which no RoCE port has.
one() {
  until client -cm 1 -t 1 -to 100 "$1"; do
    # qperf 0.4.11 tells its port before it listens there, so a quick peer is rejected, on any HCA.
    grep -q 'Event rejected' "$scratch/client" || { cat "$scratch/client" "$scratch/server" >&2; fail "$1"; }
    echo "$1: rejected before the server listened"
  done
  cat "$scratch/client"
  # In a second a slow machine may pass nothing.
  grep -Eq "^ +$2 += +[0-9.]*[1-9]" "$scratch/client" || one "$@"
}

at "$server_address" qperf -lp "$port" > "$scratch/server" 2>&1 &
server=$!
await_listener "$port" $server
one rc_lat latency
one rc_bw bw
one rc_bi_bw bw
one rc_rdma_write_lat latency
one rc_rdma_write_poll_lat latency
one rc_rdma_read_bw bw
# These verify what the atomics return.
one ver_rc_compare_swap msg_rate
one ver_rc_fetch_add msg_rate
client quit || { cat "$scratch/client" >&2; fail "the server does not quit"; }
wait $server || { cat "$scratch/server" >&2; fail "the server exited with $?"; }
exit 0
