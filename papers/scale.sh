#!/usr/bin/env bash
# scale.sh RANKS_PROGRAM [FOLDER [RUNS]]: regenerates papers/scale/ (./run papers), or FOLDER. Times are processor time of this machine;
# everything else is a function of the code. RUNS of each row, 5 if not said, of which the best counts.
set -euo pipefail
ranks=${1:?usage: scale.sh RANKS_PROGRAM [FOLDER [RUNS]]}
out=${2:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/scale}
runs=${3:-5}
mkdir -p "$out"
command -v python3 >/dev/null || { echo "scale.sh: python3 is missing; install it" >&2; exit 127; }

"$ranks" --loggp --json >"$out/loggp.json"
"$ranks" --loggp --path SYS --queues gpu --mode push --json >"$out/loggp_SYS_push.json"
"$ranks" --loggp --path SYS --queues gpu --mode pull --json >"$out/loggp_SYS_pull.json"

# One row, the best of all runs, because a shared machine only ever adds time. A look is one endpoint's, at what it
# waits for.
row() {
  local ranks_count=$1 endpoints=$2
  shift 2
  for _ in $(seq "$runs"); do
    "$ranks" --ranks "$ranks_count" --endpoints-per-rank "$endpoints" "$@" --json | tr -d '\n'
    echo
  done | python3 -c '
import json, sys
runs = [json.loads(line) for line in sys.stdin]
best = lambda name: min(run[name] for run in runs)
one = runs[0]
print("%6d %9d %12.0f %15.0f %13.1f %14.1f %8d %13.1f" % (one["ranks"], one["endpoints"] // one["ranks"],
      best("heap_bytes_per_endpoint"), best("resident_bytes_per_endpoint"), best("build_us_per_endpoint"),
      best("run_us_per_message"), one["rounds"], one["looks"] / one["messages"]))'
}
{
  title() {
    printf '%s## %s\n' "${gap-}" "$1"
    gap=$'\n'
    printf '%6s %9s %12s %15s %13s %14s %8s %13s\n' ranks endp/rank heap_B/endp resident_B/endp build_us/endp \
      run_us/message rounds looks/message
  }
  title "twice as many ranks"
  for count in 16 32 64 128 256 512 1024; do row "$count" 8; done
  title "more endpoints on each of two ranks, on a link of 400 Gb/s"
  for count in 8 64 128 256 512 1024; do row 2 "$count"; done
  # At most 6400 Gb/s: gdx_ranks takes no faster link than 10000.
  title "likewise, on a link of 12.5 Gb/s for each endpoint"
  for count in 8 64 128 256 512; do row 2 "$count" --rate-gbps "$((25 * count / 2))"; done
  title "likewise, pushing, with a staging slot for each endpoint"
  for count in 8 64 128 256 512; do
    row 2 "$count" --rate-gbps "$((25 * count / 2))" --mode push --slots "$((count > 32 ? count : 32))"
  done
} >"$out/growth.txt"
echo "wrote $out"
