#!/usr/bin/env bash
# push-vs-pull.sh MODEL_PROGRAM RANKS_PROGRAM MODES_PROGRAM [FOLDER]: regenerates papers/push-vs-pull/ (./run
# papers), or FOLDER. All of it is modelled. It takes minutes of one core.
set -euo pipefail
usage="usage: push-vs-pull.sh MODEL_PROGRAM RANKS_PROGRAM MODES_PROGRAM [FOLDER]"
model=${1:?$usage}
ranks=${2:?$usage}
modes=${3:?$usage}
out=${4:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/push-vs-pull}
mkdir -p "$out"
command -v python3 >/dev/null || { echo "push-vs-pull.sh: python3 is missing; install it" >&2; exit 127; }
command -v gnuplot >/dev/null || { echo "push-vs-pull.sh: gnuplot is missing; install Debian's gnuplot-nox" >&2; exit 127; }

# Every mode, by BlueFlame. 28 B and 220 B are the longest inline puts of one and of four blocks.
sizes=8,28,64,220,512,1024,2048,4096,8192,16384,32768,65536,131072,262144,524288,2097152
for path in PIX PXB PHB NODE SYS; do
  "$model" --path "$path" --queues gpu --size-bytes "$sizes" --plot "$out/$path.svg" >"$out/$path.txt"
  "$model" --path "$path" --queues host --size-bytes "$sizes" --plot "$out/$path-host.svg" >"$out/$path-host.txt"
done
for generation in 3 4 6; do
  "$model" --path SYS --queues gpu --size-bytes "$sizes" --gen "$generation" >"$out/SYS-gen$generation.txt"
done

# Prints the choices of `auto` from those tables.
"$modes" >"$out/default-modes.txt"

# Two sizes, one thing changed at a time.
at() {
  local label=$1
  shift
  echo "## $label"
  "$model" --size-bytes 8,4096 "$@" || true # a platform may refuse a mode
  echo
}
{
  for path in PIX SYS; do
    at "queues in host memory, $path" --path "$path" --queues host
    at "plain doorbells, $path" --path "$path" --queues gpu --doorbell plain
    at "plain doorbells and queues in host memory, $path" --path "$path" --queues host --doorbell plain
    at "fences cost nothing, $path" --queues gpu --path "$path" --order-ns 0
  done
  at "GPU stores of 64 B, SYS" --queues gpu --path SYS --store-bytes 64
  at "staging of 1 MiB, SYS" --queues gpu --path SYS --pool-bytes 1048576
  at "192 lines of peer reads, SYS" --queues gpu --path SYS --peer-read-lines 192
  at "EPYC 7452, PHB" --queues gpu --path PHB --platform epyc-7452
  at "Ivy Bridge, SYS" --queues gpu --path SYS --platform ivy-bridge
  at "Intel client, PHB" --queues gpu --path PHB --platform intel-client
} >"$out/one-at-a-time.txt"

# One endpoint, puts by themselves and in batches; then 32 endpoints, with slots for batches and without.
batches() {
  echo "## $path, queues in $queues memory, $1 of $2 puts"
  shift 2
  "$model" --path "$path" --queues "$queues" --mode pull,push,bounce "$@" | grep -v '^completed: '
  echo
}
{
  for path in PIX PXB PHB NODE SYS; do
    for queues in gpu host; do
      for puts in 1 4 16; do
        batches "one endpoint, batches" "$puts" --endpoints 1 --batch "$puts" --size-bytes 8,4096
      done
    done
  done
  path=SYS queues=gpu
  for puts in 1 4 15; do
    batches "32 endpoints, slots of 256 B, batches" "$puts" --slot-bytes 256 --batch "$puts" --size-bytes 8,256
  done
} >"$out/batches.txt"

# The same paths under production code: device posting, HCA and transport in virtual time.
compare() {
  local path=$1 generation=$2 doorbell=$3 mode bytes production lanes table
  for mode in pull push inline bounce; do
    for bytes in 8 256 4096 65536 1048576 16777216; do
      [ "$mode" = inline ] && [ "$bytes" -gt 65536 ] && continue # nobody would
      production=$("$ranks" --point --path "$path" --gen "$generation" --doorbell "$doorbell" --queues gpu --mode "$mode" \
        --message-bytes "$bytes" --order-ns 0 --slots "$([ "$mode" = bounce ] && echo 64 || echo 32)" --json)
      lanes=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["endpoints"])' <<<"$production")
      table=$("$model" --path "$path" --gen "$generation" --doorbell "$doorbell" --queues gpu --mode "$mode" \
        --size-bytes "$bytes" --order-ns 0 --endpoints "$lanes" --json)
      python3 - "$production" "$table" <<'PYTHON'
import json, sys
production, model = json.loads(sys.argv[1]), json.loads(sys.argv[2])
table = model["rows"][0]
print("%-5s %3d %-9s %-10s %9d %13d %13d %10.1f %10.1f" % (
    model["path"], model["generation"], model["doorbell"], table["mode"], table["size_bytes"],
    production["delivered_ns"], round(table["delivered_ns"]), production["bytes_per_s"] * 8e-9, table["gbps"]))
PYTHON
    done
  done
}
{
  echo "modelled, virtual time: production code (delivered_ns, Gb/s) beside the tables of gdx model, queues in GPU memory," \
    "fences free"
  printf '%-5s %3s %-9s %-10s %9s %13s %13s %10s %10s\n' path gen doorbell mode bytes delivered_ns table_ns Gb/s table_Gb/s
  for path in PIX PXB PHB NODE SYS; do compare "$path" 5 blueflame; done
  for generation in 3 4 6; do
    for path in PIX SYS; do compare "$path" "$generation" blueflame; done
  done
  for path in PIX SYS; do compare "$path" 5 plain; done
} >"$out/production-code.txt"
echo "wrote $out"
