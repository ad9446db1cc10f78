#!/usr/bin/env bash
# demo.sh BUILD_FOLDER [--rounds N]: put+signal latency of push and inline as ratios to pull, push's bandwidth as one to
# pull's, and the round trip of 8 B beside that of a verbs ping-pong. A round runs all of it after one another, so a
# ratio compares runs of the same minute; medians over the rounds.
set -euo pipefail
build=$1
shift
rounds=5
while [ $# -gt 0 ]; do
  case $1 in
    --rounds)
      rounds=${2:?--rounds needs a number}
      shift 2
      ;;
    *)
      echo "demo.sh: unknown option $1; options: --rounds N" >&2
      exit 2
      ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || { echo "demo.sh: --rounds '$rounds': use 1 to 9999" >&2; exit 2; }

samples=$(mktemp)
trap 'rm -f "$samples"' EXIT
for round in $(seq "$rounds"); do
  printf '== round %s of %s\n' "$round" "$rounds" >&2
  "$build/host/cli/gdx" demo | awk -v round="$round" \
    '$1 ~ /^(pull|push|inline)$/ { print round, $1, $2 $3, $5, $6, $NF }' >>"$samples"
  "$build/host/cli/gdx" run -- "$build/perf/gdx_softhca_bench" latency | awk -v round="$round" \
    '$1 == "median_us" { print round, "verbs", "8B", 2 * $2, 0, "yes" }' >>"$samples"
done
grep -qv ' yes$' "$samples" && { echo "demo.sh: a message was damaged; no figures" >&2; exit 1; }

echo "measured: software HCA over UDP loopback, kernels on the CPU layer, $(nproc) cores, $(uname -m), $(date -u +%F)"
echo "latency of put+signal until the peer's answer, median of $rounds rounds; ratio to pull, median of the rounds' ratios"
awk '
  function median(list, n,    i, j, t, v) {
    split(list, v, " ")
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && v[j] + 0 < v[j - 1] + 0; --j) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
  }
  { us[$1, $2, $3] = $4; rate[$1, $2, $3] = $5; all[$2, $3] = all[$2, $3] " " $4; if (!($3 in seen)) { seen[$3] = 1; size[++sizes] = $3 } rounds = $1 }
  END {
    printf "%-8s%12s%12s%12s%14s%14s%16s\n", "size", "pull (us)", "push (us)", "inline (us)", "push/pull", "inline/pull",
      "  push/pull GB/s"
    for (s = 1; s <= sizes; ++s) {
      push = inline = rates = ""
      for (r = 1; r <= rounds; ++r) {
        push = push " " us[r, "push", size[s]] / us[r, "pull", size[s]]
        inline = inline " " us[r, "inline", size[s]] / us[r, "pull", size[s]]
        rates = rates " " rate[r, "push", size[s]] / rate[r, "pull", size[s]]
      }
      printf "%-8s%12.1f%12.1f%12.1f%14.2f%14.2f%14.2f\n", size[s], median(all["pull", size[s]], rounds),
        median(all["push", size[s]], rounds), median(all["inline", size[s]], rounds), median(push, rounds), median(inline, rounds),
        median(rates, rounds)
    }
    for (r = 1; r <= rounds; ++r) to_verbs = to_verbs " " us[r, "pull", "8B"] / us[r, "verbs", "8B"]
    printf "round trip of 8 B by a kernel / by verbs (%.1f us): %.2f, at most 1.5 wanted; push of 1 MiB and more: at least 0.60 of pull\n",
      median(all["verbs", "8B"], rounds), median(to_verbs, rounds)
  }' "$samples"
