# shellcheck shell=bash
# Runner of measurements, for scripts that source it with their own arguments: BUILD_FOLDER [--rounds N] [--seconds S]
# [--prefix COMMAND] [--json]. A script defines a function `one_round`, calls `run_rounds`, and passes `value` and
# `ratio` lines to `report`. A round runs everything in turn, so that a ratio compares runs of the same minute.
# --prefix 'chrt -r 1' keeps others of a busy machine out of the way.
set -euo pipefail
export LC_ALL=C
. "$(dirname "${BASH_SOURCE[0]}")/../tests/ports.sh"
runner_name=$(basename "$0")
fail() {
  echo "$runner_name: $*" >&2
  exit 1
}
# need PROGRAM PACKAGE: ends the script as skipped where a program to compare with is missing.
need() {
  command -v "$1" >/dev/null && return
  echo "$runner_name: SKIPPED: no $1 to compare with: install $2" >&2
  exit 77
}

build=${1-}
shift || true
rounds=7
seconds=2
prefix=
as_json=()
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=${2:?--rounds needs a number} && shift 2 ;;
    --seconds) seconds=${2:?--seconds needs a number} && shift 2 ;;
    --prefix) prefix=${2:?--prefix needs a command} && shift 2 ;;
    --json) as_json=(--json) && shift ;;
    *)
      echo "$runner_name: unknown option $1; options: --rounds N, --seconds S, --prefix COMMAND, --json" >&2
      exit 2
      ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || { echo "$runner_name: --rounds '$rounds': use 1 to 9999" >&2; exit 2; }
[[ $seconds =~ ^[1-9][0-9]{0,1}$ ]] || { echo "$runner_name: --seconds '$seconds': use 1 to 99" >&2; exit 2; }
[ -x "$build/host/programs/cli/gdx" ] || { echo "$runner_name: '$build' is no build folder: start it as ./run bench ${runner_name%.sh}" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
samples=$folder/samples
round=0

# sample NAME VALUE
sample() {
  [[ $2 =~ ^[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$ ]] || fail "$1: '$2' is no number"
  echo "sample|$round|$1|$2" >>"$samples"
}
run_rounds() {
  for ((round = 1; round <= rounds; ++round)); do
    printf '== round %s of %s\n' "$round" "$rounds" >&2
    one_round
  done
  round=1
}
value() { echo "value|$1|$2|$3|$4|${5-}"; }  # value UNIT SCALE NAME WHAT [BAR]
ratio() { echo "ratio|$1|$2|$3|${4-}"; }     # ratio NAME OTHER WHAT [BAR]
# report WHERE <ROWS: a table, or JSON, with the intervals of gdx bench.
report() {
  cat "$samples" - | "$build/perf/gdx_measurements" "${as_json[@]}" --measured \
    "$1, $(nproc) cores, $(uname -m), $rounds rounds, load $(cut -d' ' -f1 /proc/loadavg), $(date -u +%F)${prefix:+, under '$prefix'}"
}

# hca PREFIX HCAS CASE [OPTIONS]: samples every "NAME VALUE" line that gdx_softhca_bench prints, as PREFIX_NAME.
hca() {
  local name=$1 hcas=$2 field number lines
  shift 2
  # shellcheck disable=SC2086 # the prefix is words
  lines=$(timeout $((120 + 2 * seconds)) $prefix "$build/host/programs/cli/gdx" run --hcas "$hcas" -- "$build/perf/gdx_softhca_bench" "$@") ||
    fail "gdx_softhca_bench $* ended with status $?"
  while read -r field number; do sample "${name}_$field" "$number"; done <<<"$lines"
}

# ucx_once TEST BYTES ITERATIONS: the last line of ucx_perftest, in `line`.
ucx_once() {
  local port server status=0
  port=$(free_port) || return 1
  # shellcheck disable=SC2086
  timeout 120 $prefix ucx_perftest -p "$port" >"$folder/server" 2>&1 &
  server=$!
  for _ in $(seq 200); do
    kill -0 "$server" 2>/dev/null || break
    listens "$port" && break
    sleep 0.05
  done
  # shellcheck disable=SC2086
  timeout 120 $prefix ucx_perftest -p "$port" 127.0.0.1 -t "$1" -s "$2" -n "$3" -f >"$folder/client" 2>&1 || status=$?
  [ $status -eq 0 ] || kill "$server" 2>/dev/null || true
  wait "$server" || return 1
  line=$(tail -n 1 "$folder/client")
  return $status
}
# ucx NAME COLUMN TEST BYTES ITERATIONS: samples a column: iterations, then latency in us (median, average, overall),
# MiB/s (average, overall), messages/s (average, overall).
ucx() {
  local line
  # The port was free when it was picked; the server's own bind decides.
  for _ in 1 2 3; do
    if ucx_once "$3" "$4" "$5"; then
      sample "$1" "$(awk -v column="$2" '{ print $column }' <<<"$line")"
      return
    fi
    grep -q 'Address already in use' "$folder/server" || break
  done
  fail "ucx_perftest -t $3 -s $4 fails: $(tail -n 1 "$folder/server")"
}
