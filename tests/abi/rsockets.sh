#!/usr/bin/env bash
# Usage: rsockets.sh. Sockets over RDMA (librdmacm's rsockets) between two processes with an HCA each: streams, direct
# writes, a copied file. All data is verified.
. "$(dirname "$0")/common.sh"
need rstream rdmacm-utils

# both PROGRAM OPTIONS...: the client says how fast it was.
both() {
  local client_status
  echo "== $*"
  start "$@"
  at "$client_address" "$@" -s "$server_address" > "$scratch/client" 2>&1
  client_status=$?
  wait $server
  must_end_well server $?
  must_end_well client $client_status
  grep -q '^custom ' "$scratch/client" || fail "no line of results"
}

both rstream -S 64 -I 100 -C 1 -T v
both rstream -S 65536 -I 5 -C 20 -T v
both rstream -S 1048576 -I 2 -C 10 -T b -T v
# Its ends look at memory and call nothing, so a transfer on busy cores takes a time slice: few of them.
both riostream -S 64 -I 50 -C 1 -T v
both riostream -S 65536 -I 2 -C 10 -T v

# Its server serves one client after the other, for ever.
head -c 3000000 /dev/urandom > "$scratch/file"
start rcopy
at "$client_address" rcopy "$scratch/file" "$server_address:$scratch/copy" > "$scratch/client" 2>&1
must_end_well client $?
cmp "$scratch/file" "$scratch/copy" || fail "the copied file differs"
kill "$(server_pid)"
wait
exit 0
