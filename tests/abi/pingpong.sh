#!/usr/bin/env bash
# Usage: pingpong.sh PORT [ibv_rc_pingpong options]. Both ends must say that they finished.
. "$(dirname "$0")/common.sh"
need ibv_rc_pingpong
port=$1
shift

on_hca ibv_rc_pingpong -p "$port" -n 200 "$@" > "$scratch/server" 2>&1 &
server=$!
for _ in $(seq 200); do
  grep -Eq "^ *[0-9]+: [0-9A-F]+:$(printf '%04X' "$port") .* 0A " /proc/net/tcp /proc/net/tcp6 2> /dev/null && break
  kill -0 $server 2> /dev/null || { cat "$scratch/server" >&2; fail "the server ended early"; }
  sleep 0.05
done
on_hca ibv_rc_pingpong -p "$port" -n 200 "$@" 127.0.0.1 > "$scratch/client" 2>&1
client_status=$?
wait $server
server_status=$?
cat "$scratch/client" "$scratch/server"
[ $client_status = 0 ] || fail "the client exited with $client_status"
[ $server_status = 0 ] || fail "the server exited with $server_status"
grep -q '200 iters in' "$scratch/client" || fail "the client does not report 200 iterations"
grep -q '200 iters in' "$scratch/server" || fail "the server does not report 200 iterations"
case " $* " in
  *" -g "*) ! grep -q 'by LID' "$scratch/client" || fail "warned about a LID where a GID was used" ;;
  *) [ "$(grep -c 'by LID' "$scratch/client")" = 1 ] || fail "no single warning about the LID" ;;
esac
