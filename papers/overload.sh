#!/usr/bin/env bash
# overload.sh OVERLOAD BUILD_FOLDER [--rounds N]: regenerates papers/overload/, the experiment in virtual time
# (gdx_overload) and on the software HCA, in one table and one plot. With 0 rounds the measured rows stay.
set -euo pipefail
overload=${1:?usage: overload.sh OVERLOAD_PROGRAM BUILD_FOLDER [--rounds N]}
build=${2:?usage: overload.sh OVERLOAD_PROGRAM BUILD_FOLDER [--rounds N]}
rounds=3
[ "${3:-}" = --rounds ] && rounds=${4:?--rounds needs a number}
out=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/overload
mkdir -p "$out"
command -v gnuplot >/dev/null || { echo "overload.sh: gnuplot is missing; install Debian's gnuplot-nox" >&2; exit 127; }
samples=$(mktemp)
rows=$(mktemp)
virtual=$(mktemp)
trap 'rm -f "$samples" "$rows" "$virtual"' EXIT
"$overload" >"$virtual"

rate_gbps=0.5     # of the link on the software HCA
chunks=16384      # of 4 KiB, 1.1 s at that rate
free_chunks=32768 # the same without a limit

# measure SENDERS STAGING ROUND [OPTIONS OF gdx run]: one run as "senders staging round name value" lines.
measure() {
  local senders=$1 staging=$2 round=$3
  shift 3
  GDX_LOG=error timeout 120 "$build/host/programs/cli/gdx" run --ranks $((senders + 1)) --timeout-s 100 "$@" |
    awk -v at="$senders $staging $round" '{ print at, $1, $2 }' >>"$samples"
}
bench=$build/perf/gdx_overload_bench
for senders in 4 8 16; do
  for round in $(seq "$rounds"); do
    printf '== %s senders, round %s of %s\n' "$senders" "$round" "$rounds" >&2
    measure "$senders" free "$round" -- "$bench" --stall none --chunks "$free_chunks"
    measure "$senders" credits "$round" --rate-gbps "$rate_gbps" -- "$bench" --chunks "$chunks"
    measure "$senders" overwrite "$round" --rate-gbps "$rate_gbps" -- "$bench" --chunks "$chunks" --without-credits
  done
done

# Of a figure that others on a shared machine disturb the median, of what may never happen the most. The link can
# carry a chunk in every 4194 B: a packet of 4096 B with its headers and the gap.
summarize() {
  awk -v rate="$rate_gbps" '
  { value[$1, $2, $3, $4] = $5; if ($3 > rounds) rounds = $3 }
  function sorted(n, what, name, v,    r, i, t) {
    for (r = 1; r <= rounds; ++r) v[r] = value[n, what, r, name] + 0
    for (r = 2; r <= rounds; ++r) for (i = r; i > 1 && v[i] < v[i - 1]; --i) { t = v[i]; v[i] = v[i - 1]; v[i - 1] = t }
  }
  function median(n, what, name,    v) { sorted(n, what, name, v); return v[int((rounds + 1) / 2)] }
  function most(n, what, name,    v) { sorted(n, what, name, v); return v[rounds] }
  function row(n, what,    link, whole) {
    link = rate * 4096 / 4194
    whole = median(n, what, "chunks_whole") / median(n, what, "chunks_pushed")
    printf "%-9s%-10s%8d%8.0fx%9d%9d%9d%8.1f%%%12.1f%%\n", "measured", what, n, median(n, "free", "goodput_gbps") / link,
      median(n, what, "chunks_pushed"), most(n, what, "staging_violations"), most(n, what, "chunks_damaged"),
      100 * median(n, what, "goodput_gbps") / link, 100 * n * median(n, what, "worst_other_gbps") * whole / link
  }
  END { for (n = 4; n <= 16; n *= 2) { row(n, "credits"); row(n, "overwrite") } }' "$samples"
}
if [ "$rounds" = 0 ]; then
  header=$(sed -n '/^measured on /,/^$/p' "$out/table.txt")
  measured=$(grep -E '^measured (credits|overwrite) ' "$out/table.txt")
else
  header=$(cat <<TEXT
measured on the software HCA over UDP loopback, $(nproc)-core VM: 32 slots of 4096 B, a link of $rate_gbps Gb/s, one peer's process
stopped for half of the run; medians of $rounds rounds, dropped and damaged the most of any
TEXT
  )
  measured=$(summarize)
fi
{
  sed '/^$/,$d' "$virtual"
  echo "$header"
  echo
  grep -E '^(where|virtual) ' "$virtual"
  echo "$measured"
  sed -n '/^overload:/,$p' "$virtual"
  cat <<TEXT
measured, overload: what the same senders push when the link has no limit. dropped: work requests whose slot another
one held, or that it did not find as it had been filled. worst share: what was pushed during the stall, times what
part of all arrived whole.
TEXT
} >"$out/table.txt"

# Prints the arriving part of the link, and the others' part while one peer is silent: in virtual time at
# eight times too much, and measured.
for series in "virtual credits" "virtual tail drop" "virtual overwrite" "measured credits" "measured overwrite" \
  "virtual partition" "virtual pull"; do
  sed 's/  */ /g' "$out/table.txt" | grep "^$series " | sed "s/^$series //; s/[x%]//g" |
    awk -v series="$series" '$1 !~ "/" && (series ~ /^measured/ || $2 == 8) { print $1, $6, $7 }'
  printf '\n\n'
done >"$rows"
# curves COLUMN: what gnuplot draws of it.
curves() {
  cat <<TEXT
plot "$rows" index 0 using 1:$1 linetype 1 dashtype 1 pointtype 7 title "credits, virtual time", \\
  "$rows" index 1 using 1:$1 linetype 2 dashtype 1 pointtype 5 title "tail drop, virtual time", \\
  "$rows" index 2 using 1:$1 linetype 7 dashtype 1 pointtype 9 title "overwrite, virtual time", \\
  "$rows" index 3 using 1:$1 linetype 1 dashtype 2 pointtype 6 title "credits, measured", \\
  "$rows" index 4 using 1:$1 linetype 7 dashtype 2 pointtype 8 title "overwrite, measured", \\
  "$rows" index 5 using 1:$1 linetype 4 dashtype 3 pointtype 4 title "partition, virtual time", \\
  "$rows" index 6 using 1:$1 linetype 5 dashtype 4 pointtype 10 title "pull, virtual time"
TEXT
}
gnuplot <<GNUPLOT
set terminal svg size 860,380 font "sans,12"
set output "$out/overload.svg"
set multiplot layout 1,2
set style data linespoints
set xlabel "senders"
set xrange [3:17]
set xtics (4, 8, 16)
set yrange [-5:190]
set key top right
set title "goodput, % of the link"
$(curves 2)
set title "worst share of others, %"
$(curves 3)
unset multiplot
GNUPLOT
echo "wrote $out"
