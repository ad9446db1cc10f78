#!/usr/bin/env bash
# Regenerates papers/scale/: ./run papers. Times are of this machine; everything else is a function of the code.
set -euo pipefail
ranks=${1:?usage: scale.sh RANKS_PROGRAM}
out=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/scale
mkdir -p "$out"
command -v python3 >/dev/null || { echo "scale.sh: python3 is missing; install it" >&2; exit 127; }

"$ranks" --loggp --json >"$out/loggp.json"
"$ranks" --ranks 16 --endpoints-per-rank 2 --messages 8 --goal "$out/exchange_16.goal"

# Twice as many ranks each time; the best of five runs, because a shared machine only ever adds time.
{
  printf '%9s %14s %14s %14s %14s %9s\n' endpoints heap_B/endp resident_B/endp build_us/endp run_us/message rounds
  for count in 16 32 64 128 256 512 1024; do
    for _ in 1 2 3 4 5; do "$ranks" --ranks "$count" --json | tr -d '\n'; echo; done | python3 -c '
import json, sys
runs = [json.loads(line) for line in sys.stdin]
best = lambda name: min(run[name] for run in runs)
print("%9d %14.0f %14.0f %14.1f %14.1f %9d" % (runs[0]["endpoints"], best("heap_bytes_per_endpoint"),
      best("resident_bytes_per_endpoint"), best("build_us_per_endpoint"), best("run_us_per_message"),
      runs[0]["rounds"]))'
  done
} >"$out/growth.txt"
echo "wrote $out"
