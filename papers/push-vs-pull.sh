#!/usr/bin/env bash
# Regenerates papers/push-vs-pull/: ./run papers. All of it is modelled; it takes a few minutes.
set -euo pipefail
usage="usage: push-vs-pull.sh MODEL_PROGRAM RANKS_PROGRAM"
model=${1:?$usage}
ranks=${2:?$usage}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$here/push-vs-pull
mkdir -p "$out"
command -v python3 >/dev/null || { echo "push-vs-pull.sh: python3 is missing; install it" >&2; exit 127; }
command -v gnuplot >/dev/null || { echo "push-vs-pull.sh: gnuplot is missing; install Debian's gnuplot-nox" >&2; exit 127; }

ways=pull,push,push-bf,inline,bounce

# Every size.
for path in PIX PXB PHB NODE SYS; do
  "$model" --path "$path" --queues gpu --mode "$ways" --plot "$out/$path.svg" >"$out/$path.txt"
done
for generation in 3 4 6; do
  "$model" --path SYS --queues gpu --mode "$ways" --gen "$generation" >"$out/SYS-gen$generation.txt"
done

# One size, one thing changed at a time.
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
  at "EPYC 7452, PHB" --queues gpu --path PHB --platform epyc-7452
  at "Ivy Bridge, SYS" --queues gpu --path SYS --platform ivy-bridge
  at "Intel client, PHB" --queues gpu --path PHB --platform intel-client
} >"$out/one-at-a-time.txt"

# The same paths under production code: device posting, HCA and transport in virtual time.
{
  printf '%-5s %-8s %9s %13s %13s %10s %10s\n' path mode bytes delivered_ns table_ns Gb/s table_Gb/s
  for path in PIX PHB SYS; do
    for mode in pull push push-bf inline; do
      for bytes in 8 256 4096 65536 1048576 16777216; do
        [ "$mode" = inline ] && [ "$bytes" -gt 65536 ] && continue # nobody would
        production=$("$ranks" --point --path "$path" --queues gpu --mode "$mode" --message-bytes "$bytes" --json)
        lanes=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["endpoints"])' <<<"$production")
        table=$("$model" --path "$path" --queues gpu --mode "$mode" --size-bytes "$bytes" --order-ns 0 \
          --endpoints "$lanes" --json)
        python3 - "$production" "$table" <<'PYTHON'
import json, sys
production, table = json.loads(sys.argv[1]), json.loads(sys.argv[2])["rows"][0]
print("%-5s %-8s %9d %13d %13d %10.1f %10.1f" % (
    production["path"], production["mode"], production["message_bytes"], production["delivered_ns"],
    round(table["delivered_ns"]), production["bytes_per_s"] * 8e-9, table["gbps"]))
PYTHON
      done
    done
  done
} >"$out/production-code.txt"
echo "wrote $out"
