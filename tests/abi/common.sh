# Shared by the scripts here. GDX_TEST_PRELOAD: what to preload, sanitizer runtime first.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/../ports.sh"

# need PROGRAM [PACKAGE]
need() {
  command -v "$1" > /dev/null && return
  echo "SKIPPED: $1 is missing; install Debian's ${2:-ibverbs-utils} to run this test" >&2
  exit 77
}

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Runs a program on the software HCA, for at most 60 s.
on_hca() {
  env LD_PRELOAD="$GDX_TEST_PRELOAD" timeout 60 "$@"
}

# await_listener PORT PID: until the server PID, whose output is in $scratch/server, listens.
await_listener() {
  for _ in $(seq 200); do
    listens "$1" && return
    kill -0 "$2" 2> /dev/null || { cat "$scratch/server" >&2; fail "the server ended early"; }
    sleep 0.05
  done
  cat "$scratch/server" >&2
  fail "the server does not listen"
}

# both_ends PROGRAM [ARGUMENTS]: a server and a client, both of which must exit with 0. Their output is then in
# $scratch/server and $scratch/client.
both_ends() {
  local port server client_status server_status
  port=$(free_port) || exit 1
  on_hca "$@" -p "$port" > "$scratch/server" 2>&1 &
  server=$!
  await_listener "$port" $server
  on_hca "$@" -p "$port" 127.0.0.1 > "$scratch/client" 2>&1
  client_status=$?
  wait $server
  server_status=$?
  cat "$scratch/client" "$scratch/server"
  [ $client_status = 0 ] || fail "the client exited with $client_status"
  [ $server_status = 0 ] || fail "the server exited with $server_status"
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
