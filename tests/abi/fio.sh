#!/usr/bin/env bash
# Usage: fio.sh. fio's rdma engine between two processes with an HCA each: by WRITE, by READ, by SEND.
. "$(dirname "$0")/common.sh"
need fio fio
fio --enghelp | grep -w rdma > /dev/null || { echo "SKIPPED: this fio has no rdma engine; Debian's has" >&2; exit 77; }

for verb in write read send; do
  echo "== $verb"
  port=$(free_port) || exit 1
  job=(--ioengine=rdma --port="$port" --bs=64k --size=4m --iodepth=8)
  start fio --name=server "${job[@]}" --rw=read
  at "$client_address" fio --name=client "${job[@]}" --rw=write --hostname="$server_address" --verb="$verb" \
    > "$scratch/client" 2>&1
  client_status=$?
  wait $server
  server_status=$?
  must_end_well client $client_status
  must_end_well server $server_status
  grep -Eq 'err= 0' "$scratch/client" || fail "$verb: the client reports an error"
  grep -Eq 'io=4096KiB' "$scratch/client" || fail "$verb: not all was moved"
done
exit 0
