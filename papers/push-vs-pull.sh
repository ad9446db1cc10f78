#!/usr/bin/env bash
# push-vs-pull.sh MODEL_PROGRAM RANKS_PROGRAM MODES_PROGRAM VALIDATION_PROGRAM [FOLDER]: regenerates
# papers/push-vs-pull/ (./run papers), or FOLDER. All of it is modelled. It takes minutes of one core.
set -euo pipefail
usage="usage: push-vs-pull.sh MODEL_PROGRAM RANKS_PROGRAM MODES_PROGRAM VALIDATION_PROGRAM [FOLDER]"
model=${1:?$usage}
ranks=${2:?$usage}
modes=${3:?$usage}
validation=${4:?$usage}
out=${5:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/push-vs-pull}
mkdir -p "$out"
command -v python3 >/dev/null || { echo "push-vs-pull.sh: python3 is missing; install it" >&2; exit 127; }
command -v gnuplot >/dev/null || { echo "push-vs-pull.sh: gnuplot is missing; install Debian's gnuplot-nox" >&2; exit 127; }

# Every mode, by BlueFlame; the curves are not kept. 28 B and 220 B are the longest inline puts of one and of four blocks.
sizes=8,28,64,220,512,1024,2048,4096,8192,16384,32768,65536,131072,262144,524288,2097152
for path in PIX PXB PHB NODE SYS; do
  "$model" --path "$path" --queues gpu --size-bytes "$sizes" --plot "$out/$path.svg" >"$out/$path.txt"
  "$model" --path "$path" --queues host --size-bytes "$sizes" --plot "$out/$path-host.svg" >"$out/$path-host.txt"
done
for generation in 3 4 6; do
  "$model" --path SYS --queues gpu --size-bytes "$sizes" --gen "$generation" >"$out/SYS-gen$generation.txt"
done

# Published figures beside the model's.
"$validation" >"$out/validation.txt"

# Prints the choices of `auto` from those tables.
"$modes" >"$out/default-modes.txt"

# Fences with which a push is even with a pull, queues in GPU memory. Delivery is linear in the fence, because a
# put of up to a quarter of the lease has one: it is the pull's time less the push's without a fence.
break_even_bytes=8,256,4096,16384
json() { "$model" --queues gpu --json "$@"; }
even() {
  python3 - "$(json --mode pull --size-bytes "$break_even_bytes" "$@")" \
    "$(json --mode push --size-bytes "$break_even_bytes" --order-ns 0 "$@")" <<'PYTHON'
import json, sys
pulls, pushes = (json.loads(text) for text in sys.argv[1:])
for pull, push in zip(pulls["rows"], pushes["rows"], strict=True):
    at = [pull["delivered_ns"] / 1e3, push["delivered_ns"] / 1e3]
    print("%-5s %-9s %9d %12.3f %12.3f %13.2f" % (
        pulls["path"], pulls["doorbell"], pull["size_bytes"], at[0], at[1], at[0] - at[1]))
PYTHON
}
{
  echo "modelled: the fence of a push with which it is delivered when a pull is, queues in GPU memory, the pull's fence 0.70 us." \
    "A cheaper one wins."
  printf '%-5s %-9s %9s %12s %12s %13s\n' path doorbell bytes "pull us" "unfenced us" "break-even us"
  for doorbell in blueflame plain; do
    for path in PIX PXB PHB NODE SYS; do even --path "$path" --doorbell "$doorbell"; done
  done
} >"$out/break-even.txt"

# The same over the fence, up to what was published; and the rate of 2 MiB messages, which a fence holds slots for.
over_fence() {
  for ns in 0 250 500 750 1000 1250 1500 1750 2000 2250 2500 2750 3000; do
    json --path "$1" --mode push --size-bytes 8,4096,2097152 --order-ns "$ns"
  done | python3 -c '
import json, sys
text, at, decoder = sys.stdin.read(), 0, json.JSONDecoder()
while at < len(text.rstrip()):
    one, end = decoder.raw_decode(text[at:])
    at += end + 1
    rows = one["rows"]
    print(one["order_system_scope_ns"] / 1e3, rows[0]["delivered_ns"] / 1e3, rows[1]["delivered_ns"] / 1e3, rows[2]["gbps"])
'
}
pull_row() { json --path "$1" --mode pull --size-bytes 8,4096,2097152 | python3 -c '
import json, sys
rows = json.load(sys.stdin)["rows"]
print(rows[0]["delivered_ns"] / 1e3, rows[1]["delivered_ns"] / 1e3, rows[2]["gbps"])
'; }
draw_over_fence() {
  local path sets="" blocks=""
  for path in PIX SYS; do
    blocks+="\$push_$path << EOD"$'\n'"$(over_fence "$path")"$'\n'"EOD"$'\n'
    read -r small page large <<<"$(pull_row "$path")"
    sets+="small_$path = $small; page_$path = $page; large_$path = $large"$'\n'
  done
  gnuplot <<GNUPLOT
$blocks
$sets
set terminal svg background '#ffffff' size 1100,480 font 'sans,11'
set output '$out/break-even.svg'
set multiplot layout 1,2 title 'modelled: push over what its fence costs, queues in GPU memory, BlueFlame; pull with 0.70 us of fence' noenhanced
set xlabel 'fence of a push [us]'
set xrange [0:3]
set grid
set key left top
set arrow 1 from 1.18, graph 0 to 1.18, graph 1 nohead dt 3
set arrow 2 from 2.62, graph 0 to 2.62, graph 1 nohead dt 3
set label 1 'H200, no NIC' at 1.20, graph 0.05 font 'sans,9'
set label 2 'published' at 2.60, graph 0.05 right font 'sans,9'
set ylabel 'delivered after [us]'
plot small_PIX lt 1 dt 2 title 'pull, 8 B, PIX', \$push_PIX using 1:2 with lines lt 1 title 'push, 8 B, PIX', \\
  page_PIX lt 2 dt 2 title 'pull, 4 KiB, PIX', \$push_PIX using 1:3 with lines lt 2 title 'push, 4 KiB, PIX', \\
  page_SYS lt 7 dt 2 title 'pull, 4 KiB, SYS', \$push_SYS using 1:3 with lines lt 7 title 'push, 4 KiB, SYS'
set ylabel 'rate of 2 MiB messages [Gb/s]'
set yrange [0:*]
set key right center
plot large_PIX lt 1 dt 2 title 'pull, PIX', \$push_PIX using 1:4 with lines lt 1 title 'push, PIX', \\
  large_SYS lt 7 dt 2 title 'pull, SYS', \$push_SYS using 1:4 with lines lt 7 title 'push, SYS'
unset multiplot
GNUPLOT
}
draw_over_fence

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
    at "plain doorbells, records unread, $path" --path "$path" --queues gpu --doorbell plain --record unread
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
# The model withholds rates that no NIC is known to serve; those of production code are as many messages.
most_gbps = model["most_messages_per_s"] * table["size_bytes"] * 8e-9
shown = lambda gbps: "-" if gbps is None or gbps > most_gbps else "%.1f" % gbps
print("%-5s %3d %-9s %-10s %9d %13d %13d %10s %10s" % (
    model["path"], model["generation"], model["doorbell"], table["mode"], table["size_bytes"],
    production["delivered_ns"], round(table["delivered_ns"]), shown(production["bytes_per_s"] * 8e-9), shown(table["gbps"])))
PYTHON
    done
  done
}
{
  echo "modelled, virtual time: production code (delivered_ns, Gb/s) beside the tables of gdx model, queues in GPU memory," \
    "fences free, records read; - where more messages a second than were published"
  printf '%-5s %3s %-9s %-10s %9s %13s %13s %10s %10s\n' path gen doorbell mode bytes delivered_ns table_ns Gb/s table_Gb/s
  for path in PIX PXB PHB NODE SYS; do compare "$path" 5 blueflame; done
  for generation in 3 4 6; do
    for path in PIX SYS; do compare "$path" "$generation" blueflame; done
  done
  for path in PIX SYS; do compare "$path" 5 plain; done
} >"$out/production-code.txt"
echo "wrote $out"
