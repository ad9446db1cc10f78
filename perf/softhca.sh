#!/usr/bin/env bash
# softhca.sh BUILD_FOLDER [--rounds N] [--seconds S] [--json]: the software HCA over UDP loopback beside raw UDP
# and beside UCX over TCP. A round runs all of them after one another, so that a ratio compares runs of the
# same minute; figures are medians over the rounds, ratios medians of the rounds' ratios.
set -euo pipefail
build=$1
shift
rounds=5
seconds=2
json=0
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=${2:?--rounds needs a number} && shift 2 ;;
    --seconds) seconds=${2:?--seconds needs a number} && shift 2 ;;
    --json) json=1 && shift ;;
    *)
      echo "softhca.sh: unknown option $1; options: --rounds N, --seconds S, --json" >&2
      exit 2
      ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || { echo "softhca.sh: --rounds '$rounds': use 1 to 9999" >&2; exit 2; }
[[ $seconds =~ ^[1-9][0-9]{0,1}$ ]] || { echo "softhca.sh: --seconds '$seconds': use 1 to 99" >&2; exit 2; }
command -v ucx_perftest >/dev/null || {
  echo "softhca.sh: SKIPPED: no ucx_perftest to compare with: install ucx-utils" >&2
  exit 77
}

export GDX_SOFTHCA_WIRE=udp
samples=$(mktemp)
loads=()
trap 'rm -f "$samples" "$samples.server" "$samples.client"; [ ${#loads[@]} -eq 0 ] || kill "${loads[@]}"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/ucx.sh"
round=0

# sample NAME VALUE
sample() { echo "$round $1 $2" >>"$samples"; }

# hca PREFIX CASE [OPTIONS]: every "NAME VALUE" line that the case prints, as PREFIX_NAME.
hca() {
  local prefix=$1 hcas=1 name value lines
  shift
  [ "$1" != cost ] || hcas=2
  lines=$(timeout 120 "$build/host/cli/gdx" run --hcas $hcas -- "$build/perf/gdx_softhca_bench" "$@")
  while read -r name value; do sample "${prefix}_$name" "$value"; done <<<"$lines"
}

# ucx NAME COLUMN UNIT TEST BYTES ITERATIONS: a column of ucx_perftest's last line, in units of UNIT.
export UCX_TLS=tcp UCX_NET_DEVICES=lo
ucx() {
  local line
  ucx_line "$4" "$5" "$6"
  sample "$1" "$(awk -v column="$2" -v unit="$3" '{ print $column * unit }' <<<"$line")"
}

# beside_load COMMAND...: while each core has a load at nice 19, where nice 19 means something: not in a task group of
# its own (kernel.sched_autogroup_enabled).
beside_load() {
  local _
  for _ in $(seq "$(nproc)"); do
    nice -n 19 sh -c 'while :; do :; done' &
    loads+=($!)
  done
  "$@"
  kill "${loads[@]}"
  wait "${loads[@]}" 2>/dev/null || true
  loads=()
}

for round in $(seq "$rounds"); do
  printf '== round %s of %s\n' "$round" "$rounds" >&2
  hca raw raw-udp --seconds "$seconds"
  hca large write --bytes 1048576 --seconds "$seconds"
  ucx ucx_large_bytes_per_s 8 1048576 ucp_put_bw 1048576 1000
  hca small write --bytes 8 --seconds "$seconds"
  ucx ucx_small_messages_per_s 8 1 ucp_put_bw 8 300000
  hca latency latency --iterations 5000
  ucx ucx_latency_median_us 2 1 tag_lat 8 5000
  beside_load hca busy latency --iterations 5000
  beside_load ucx ucx_busy_median_us 2 1 tag_lat 8 5000
  hca large_cost cost --bytes 1048576 --seconds "$seconds"
  hca small_cost cost --bytes 8 --seconds "$seconds"
done
hca idle idle --seconds 5
hca memory memory --queues 1000
hca memory_deep memory --queues 200 --depth 128

where="software HCA over UDP loopback, $(nproc) cores, $(uname -m), load $(cut -d' ' -f1 /proc/loadavg), $(date -u +%F)"
awk -v rounds="$rounds" -v json="$json" -v where="$where" '
  function sorted_middle(v, n,    i, j, t) {
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && v[j] < v[j - 1]; --j) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
  }
  function median(name,    r, n, v) {
    for (r = 1; r <= rounds; ++r) if ((r, name) in at) v[++n] = at[r, name]
    return sorted_middle(v, n)
  }
  function ratio(a, b,    r, n, v) {
    for (r = 1; r <= rounds; ++r) if ((r, b) in at && at[r, b] > 0) v[++n] = at[r, a] / at[r, b]
    return sorted_middle(v, n)
  }
  function row(what, value, bar) {
    if (json) printf "%s\n    {\"what\": \"%s\", \"value\": %.4g, \"bar\": \"%s\"}", rows++ ? "," : "", what, value, bar
    else printf "%-64s%12.4g   %s\n", what, value, bar
  }
  { at[$1, $2] = $3 + 0 }
  END {
    if (json) printf "{\"measured\": \"%s\", \"rounds\": %d, \"rows\": [", where, rounds
    else printf "measured: %s; medians of %d rounds\n%-64s%12s   %s\n", where, rounds, "", "", "bar"
    row("raw UDP with GSO and GRO, GB/s", median("raw_bytes_per_s") / 1e9, "")
    row("1 MiB writes, GB/s", median("large_bytes_per_s") / 1e9, "")
    row("1 MiB writes over UCX over TCP, GB/s", median("ucx_large_bytes_per_s") / 1e9, "")
    row("1 MiB writes / raw UDP", ratio("large_bytes_per_s", "raw_bytes_per_s"), ">= 0.4")
    row("1 MiB writes / UCX over TCP", ratio("large_bytes_per_s", "ucx_large_bytes_per_s"), ">= 3")
    row("8 B writes, M/s", median("small_messages_per_s") / 1e6, ">= 2")
    row("8 B writes over UCX over TCP, M/s", median("ucx_small_messages_per_s") / 1e6, "")
    row("8 B writes / UCX over TCP", ratio("small_messages_per_s", "ucx_small_messages_per_s"), ">= 8")
    row("8 B ping-pong, one way, median us", median("latency_median_us"), "")
    row("8 B ping-pong, one way, 99th percentile, us", median("latency_p99_us"), "")
    row("8 B ping-pong over UCX over TCP, one way, median us", median("ucx_latency_median_us"), "")
    row("8 B ping-pong / UCX over TCP, medians", ratio("latency_median_us", "ucx_latency_median_us"), "<= 2.5")
    row("8 B ping-pong beside a load at nice 19, median us", median("busy_median_us"), "")
    row("the same over UCX over TCP, median us", median("ucx_busy_median_us"), "")
    row("the same / UCX over TCP, medians", ratio("busy_median_us", "ucx_busy_median_us"), "<= 2.5")
    row("processor time of both ends of an 8 B write, ns", median("small_cost_cpu_ns_per_message"), "")
    row("processor time of both ends of a 1 MiB write, ns/B", median("large_cost_cpu_ns_per_byte"), "")
    row("the same for raw UDP, ns/B", median("raw_cpu_ns_per_byte"), "")
    row("processor time, raw UDP / 1 MiB writes", ratio("raw_cpu_ns_per_byte", "large_cost_cpu_ns_per_byte"), "")
    row("share of a core that an idle HCA takes", at[rounds, "idle_core_share"], "< 0.01")
    row("memory of a connected queue beyond its rings, KiB", at[rounds, "memory_bytes_beyond_rings"] / 1024, "<= 64")
    row("the same, 128 deep and full, KiB", at[rounds, "memory_deep_bytes_beyond_rings"] / 1024, "<= 64")
    if (json) print "\n]}"
  }' "$samples"
