#!/usr/bin/env bash
# shm.sh BUILD_FOLDER [--rounds N] [--seconds S] [--prefix COMMAND]: the software HCA's shared-memory
# wire beside UCX's own shared memory. A round runs both after one another, so that a ratio compares runs of the
# same minute; medians over the rounds. --prefix 'chrt -r 1' keeps others of a busy machine out of the way.
set -euo pipefail
build=$1
shift
rounds=5
seconds=1
prefix=
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=${2:?--rounds needs a number} && shift 2 ;;
    --seconds) seconds=${2:?--seconds needs a number} && shift 2 ;;
    --prefix) prefix=${2:?--prefix needs a command} && shift 2 ;;
    *)
      echo "shm.sh: unknown option $1; options: --rounds N, --seconds S, --prefix COMMAND" >&2
      exit 2
      ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || { echo "shm.sh: --rounds '$rounds': use 1 to 9999" >&2; exit 2; }
[[ $seconds =~ ^[1-9][0-9]{0,1}$ ]] || { echo "shm.sh: --seconds '$seconds': use 1 to 99" >&2; exit 2; }
command -v ucx_perftest >/dev/null || {
  echo "shm.sh: SKIPPED: no ucx_perftest to compare with: install ucx-utils" >&2
  exit 77
}

samples=$(mktemp)
trap 'rm -f "$samples" "$samples.server" "$samples.client"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/ucx.sh"

# hca NAME FIELD WIRE CASE [OPTIONS]: the value that the bench prints for FIELD.
hca() {
  local name=$1 field=$2 wire=$3 hcas=1
  shift 3
  [ "$1" != cost ] || hcas=2
  # shellcheck disable=SC2086 # the prefix is words
  timeout 120 $prefix "$build/host/cli/gdx" run --hcas $hcas --wire "$wire" -- "$build/perf/gdx_softhca_bench" "$@" |
    awk -v name="$name" -v field="$field" '$1 == field { print name, $2 }' >>"$samples"
}

# ucx NAME COLUMN TRANSPORTS TEST BYTES ITERATIONS: a column of ucx_perftest's last line.
ucx() {
  local line
  export UCX_TLS=$3
  ucx_line "$4" "$5" "$6"
  awk -v name="$1" -v column="$2" '{ print name, $column }' <<<"$line" >>"$samples"
}

for round in $(seq "$rounds"); do
  printf '== round %s of %s\n' "$round" "$rounds" >&2
  hca large bytes_per_s shm write --bytes 1048576 --seconds "$seconds"
  ucx ucx_large 6 shm,self ucp_put_bw 1048576 20000
  hca large_udp bytes_per_s udp write --bytes 1048576 --seconds "$seconds"
  hca small messages_per_s shm write --bytes 8 --seconds "$seconds"
  hca latency median_us shm latency --bytes 8
  hca latency_p99 p99_us shm latency --bytes 8
  hca one_thread_large cpu_ns_per_message shm cost --bytes 1048576 --seconds "$seconds"
  hca one_thread_small cpu_ns_per_message shm cost --bytes 8 --seconds "$seconds"
done

where="software HCA over shared memory, two processes, $(nproc) cores, $(uname -m), $(date -u +%F)"
echo "measured: $where; medians of $rounds rounds${prefix:+, under '$prefix'}"
awk '
  function median(name,    n, i, j, t, v) {
    n = split(list[name], v, " ")
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && v[j] + 0 < v[j - 1] + 0; --j) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
  }
  {
    list[$1] = list[$1] " " $2
    if ($1 == "large") large = $2
    if ($1 == "ucx_large") list["to_ucx"] = list["to_ucx"] " " large / ($2 * 1048576)
    if ($1 == "large_udp") list["to_udp"] = list["to_udp"] " " large / $2
  }
  END {
    printf "1 MiB RC write, GB/s               %8.2f\n", median("large") / 1e9
    printf "  UCX put, shared memory, GB/s     %8.2f   ratio %.2f (at least 0.60)\n",
      median("ucx_large") * 1048576 / 1e9, median("to_ucx")
    printf "  over UDP, GB/s                   %8.2f   ratio %.2f\n", median("large_udp") / 1e9, median("to_udp")
    printf "8 B RC write, million a second     %8.2f   (at least 5)\n", median("small") / 1e6
    printf "8 B ping-pong, us one way, median  %8.2f   (under 3)\n", median("latency")
    printf "                           99 %%    %8.2f\n", median("latency_p99")
    printf "both ends on one thread, ns: 8 B   %8.0f   1 MiB %.0f\n", median("one_thread_small"), median("one_thread_large")
  }' "$samples"
