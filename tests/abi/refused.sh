#!/usr/bin/env bash
# Usage: refused.sh LINE PROGRAM [options]. PROGRAM wants XRC, which the software HCA has not: it must say LINE and
# fail, and the log must name what was asked for, once.
. "$(dirname "$0")/common.sh"
line=$1
shift
port=$(free_port) || exit 1
export GDX_LOG=info
case $1 in
  ibv_*)
    need "$1"
    on_hca "$@" -p "$port" > "$scratch/out" 2>&1
    status=$?
    ;;
  *)
    # perftest opens its device when both ends have met.
    need "$1" perftest
    on_hca "$@" -p "$port" > "$scratch/server" 2>&1 &
    server=$!
    await_listener "$port" $server
    on_hca "$@" -p "$port" 127.0.0.1 > "$scratch/out" 2>&1
    status=$?
    wait $server && fail "the server of $1 found XRC"
    ;;
esac
cat "$scratch/out"
[ $status != 0 ] || fail "$1 found XRC"
[ $status -lt 124 ] || fail "$1 ended with $status"
grep -q "$line" "$scratch/out" || fail "$1 does not say: $line"
[ "$(grep -c 'no uverbs write command 0x25, open_xrcd (XRC)' "$scratch/out")" = 1 ] || fail "the log does not name it once"
