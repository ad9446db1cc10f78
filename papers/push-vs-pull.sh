#!/usr/bin/env bash
# Regenerates papers/push-vs-pull/: ./run papers. All of it is modelled; it takes a few minutes.
set -euo pipefail
model=${1:?usage: push-vs-pull.sh MODEL_PROGRAM}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$here/push-vs-pull
mkdir -p "$out"
command -v gnuplot >/dev/null || { echo "push-vs-pull.sh: gnuplot is missing; install Debian's gnuplot-nox" >&2; exit 127; }

# Every size, every mode.
for path in PIX PHB SYS; do
  "$model" --path "$path" --queues gpu --plot "$out/$path.svg" >"$out/$path.txt"
done

# One size, one thing changed at a time.
ways=pull,push,push-bf,inline,bounce
at() {
  local label=$1
  shift
  echo "## $label"
  "$model" --size-bytes 8,4096 --mode "$ways" "$@" || true # a platform may refuse a mode
  echo
}
{
  at "queues in host memory, SYS" --path SYS --queues host
  at "fences cost nothing, PIX" --queues gpu --path PIX --order-ns 0
  at "fences cost nothing, SYS" --queues gpu --path SYS --order-ns 0
  at "GPU stores of 64 B, SYS" --queues gpu --path SYS --store-bytes 64
  at "staging of 1 MiB, SYS" --queues gpu --path SYS --pool-bytes 1048576
  at "Gen3, SYS" --queues gpu --path SYS --gen 3
  at "Gen4, SYS" --queues gpu --path SYS --gen 4
  at "Gen6, SYS" --queues gpu --path SYS --gen 6
  at "EPYC 7452, PHB" --queues gpu --path PHB --platform epyc-7452
  at "Ivy Bridge, SYS" --queues gpu --path SYS --platform ivy-bridge
  at "Intel client, PHB" --queues gpu --path PHB --platform intel-client
} >"$out/one-at-a-time.txt"
echo "wrote $out"
