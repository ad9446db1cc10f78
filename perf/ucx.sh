# shellcheck shell=bash disable=SC2154
# UCX beside what a script here measures, for scripts that have set -euo pipefail and a file $samples.
# $prefix: words to run it under.
. "$(dirname "${BASH_SOURCE[0]}")/../tests/ports.sh"

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# ucx_once TEST BYTES ITERATIONS: what ucx_line says, once.
ucx_once() {
  local port server status=0
  port=$(free_port) || return 1
  # shellcheck disable=SC2086 # the prefix is words
  timeout 120 ${prefix:-} ucx_perftest -p "$port" >"$samples.server" 2>&1 &
  server=$!
  for _ in $(seq 200); do
    kill -0 "$server" 2>/dev/null || break
    listens "$port" && break
    sleep 0.05
  done
  # shellcheck disable=SC2086
  timeout 120 ${prefix:-} ucx_perftest -p "$port" 127.0.0.1 -t "$1" -s "$2" -n "$3" -f >"$samples.client" 2>&1 ||
    status=$?
  [ $status -eq 0 ] || kill "$server" 2>/dev/null || true
  wait "$server" || return 1
  line=$(tail -n 1 "$samples.client")
  return $status
}

# ucx_line TEST BYTES ITERATIONS: the last line of ucx_perftest, in `line`: iterations, then latency in us (median,
# average, overall), MiB/s (average, overall), messages/s (average, overall).
ucx_line() {
  # The port was free when it was picked; the server's own bind decides.
  for _ in 1 2 3; do
    if ucx_once "$@"; then return; fi
    grep -q 'Address already in use' "$samples.server" || break
  done
  fail "ucx_perftest -t $1 -s $2 fails: $(tail -n 1 "$samples.server")"
}
