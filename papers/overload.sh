#!/usr/bin/env bash
# Regenerates papers/overload/: ./run papers. Modelled, in virtual time: the same figures on every machine.
set -euo pipefail
overload=${1:?usage: overload.sh OVERLOAD_PROGRAM}
out=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/overload
mkdir -p "$out"
command -v gnuplot >/dev/null || { echo "overload.sh: gnuplot is missing; install Debian's gnuplot-nox" >&2; exit 127; }
"$overload" >"$out/table.txt"

# Eight times too much: what of the link arrives, and what is left for the others while one peer is silent.
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
for staging in "credits" "tail drop" "overwrite"; do
  grep "^$staging " "$out/table.txt" | sed "s/^$staging //; s/[x%]//g" | awk '$2 == 8 { print $1, $6, $7 }'
  printf '\n\n'
done >"$rows"
gnuplot <<GNUPLOT
set terminal svg size 760,320 font "sans,12"
set output "$out/overload.svg"
set multiplot layout 1,2
set style data linespoints
set xlabel "senders"
set xrange [3:17]
set xtics (4, 8, 16)
set yrange [-5:190]
set key top right
set title "goodput, % of the link (modelled)"
plot "$rows" index 0 using 1:2 title "credits", "" index 1 using 1:2 title "tail drop", "" index 2 using 1:2 title "overwrite"
set title "worst share of others, % (modelled)"
plot "$rows" index 0 using 1:3 title "credits", "" index 1 using 1:3 title "tail drop", "" index 2 using 1:3 title "overwrite"
unset multiplot
GNUPLOT
echo "wrote $out"
