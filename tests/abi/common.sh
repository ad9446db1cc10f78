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

# Runs a program on the software HCA, for at most 150 s.
on_hca() {
  env LD_PRELOAD="$GDX_TEST_PRELOAD" timeout 150 "$@"
}

# Addresses of two HCAs, for programs that name their peer by one. Those of InfiniBand ports stand for LIDs.
if [[ "${GDX_SOFTHCA_LINK_LAYER:-}" = infiniband* ]]; then
  server_address=127.0.$((RANDOM % 180 + 2)).1
else
  server_address=127.$((RANDOM % 100 + 100)).$((RANDOM % 250 + 2)).1
fi
client_address=${server_address%.*}.2

# at ADDRESS PROGRAM...: on an HCA of this address, which logs where rdma_cm listens.
at() {
  local address=$1
  shift
  GDX_SOFTHCA_ADDR=$address GDX_LOG=info on_hca "$@"
}

# start PROGRAM...: the server; returns when it listens through rdma_cm.
start() {
  : > "$scratch/server"  # here, or the line of the server before is taken for this one's
  at "$server_address" "$@" > "$scratch/server" 2>&1 &
  server=$!
  await_cm_listener "$server_address" $server
}

# The PID of the program that start began, below timeout(1).
server_pid() { sed -n 's/^gdx\[\([0-9]*\)\] info: .* rdma_cm listens at .*/\1/p' "$scratch/server" | head -n 1; }

# must_end_well END STATUS: the client or the server must have exited with 0.
must_end_well() {
  cat "$scratch/$1"
  [ "$2" = 0 ] || fail "the $1 exited with $2"
}

# await_listener PORT PID: until the server PID, whose output is in $scratch/server, listens.
await_listener() {
  for _ in $(seq 2400); do
    listens "$1" && return
    kill -0 "$2" 2> /dev/null || { cat "$scratch/server" >&2; fail "the server ended early"; }
    sleep 0.05
  done
  cat "$scratch/server" >&2
  fail "the server does not listen"
}

# await_cm_listener ADDRESS PID: until the server PID, whose output is in $scratch/server, listens through rdma_cm.
await_cm_listener() {
  for _ in $(seq 2400); do
    grep -q "rdma_cm listens at $1" "$scratch/server" && return
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
  must_end_well client $client_status
  must_end_well server $server_status
}

# Options of perftest: 69 s for all tries, because a process may stand still.
patience=(-u 21)

# UCX before 1.14 asks for free-running timestamps where it makes queue pairs by DevX. Strict HCAs refuse them, as a
# real-time-only ConnectX-6 Dx does (UCX pull request 8267). Such a UCX runs on the lenient one.
spare_old_ucx() {
  need ucx_info ucx-utils
  ! ucx_info -v | grep -E 'Version 1\.(1[0-3]|[0-9])\.' > /dev/null || unset GDX_STRICT
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
