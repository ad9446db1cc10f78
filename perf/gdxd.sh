#!/usr/bin/env bash
# gdxd.sh BUILD_FOLDER [--rounds N] [--json]: programs through gdxd beside the same programs with HCAs of their own. A round
# runs all of them after one another, so that a ratio compares runs of the same minute; figures are medians over the
# rounds, ratios medians of the rounds' ratios.
set -euo pipefail
export LC_ALL=C
build=$1
shift
rounds=7
json=0
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=${2:?--rounds needs a number} && shift 2 ;;
    --json) json=1 && shift ;;
    *)
      echo "gdxd.sh: unknown option $1; options: --rounds N, --json" >&2
      exit 2
      ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || { echo "gdxd.sh: --rounds '$rounds': use 1 to 9999" >&2; exit 2; }
command -v ibv_rc_pingpong >/dev/null || {
  echo "gdxd.sh: SKIPPED: no ibv_rc_pingpong to compare with: install ibverbs-utils" >&2
  exit 77
}
gdx=$build/host/cli/gdx
client=$build/tests/soak/gdxd_client
folder=$(mktemp -d)
export GDXD_CONFIG=/dev/null  # not this machine's
daemon='' held=''
end() {
  local process
  for process in $daemon $held; do kill "$process" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap end EXIT
samples=$folder/samples
round=0
fail() {
  echo "gdxd.sh: $*" >&2
  exit 1
}
# sample NAME COMMAND...: keeps the number that the command prints.
sample() {
  local name=$1 value
  shift
  value=$("$@") || fail "$name: $* failed"
  [[ $value =~ ^[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$ ]] || fail "$name: $* printed '$value', which is no number"
  echo "$round $name $value" >>"$samples"
}
now_us() { echo $((${EPOCHREALTIME/./})); }

# start_gdxd WIRE: samples how long it takes until it listens.
start_gdxd() {
  local began
  : >"$folder/log"
  began=$(now_us)
  GDX_SOFTHCA_WIRE=$1 "$build/host/daemon/gdxd" --socket "$folder/socket" 2>"$folder/log" &
  daemon=$!
  until grep -q '^gdxd listens' "$folder/log"; do
    kill -0 $daemon 2>/dev/null || fail "gdxd did not start: $(cat "$folder/log")"
    sleep 0.005
  done
  sample ready_ms echo $((($(now_us) - began) / 1000))
}
stop_gdxd() {
  kill $daemon
  wait $daemon || fail "gdxd ended with status $?"
  daemon=
}
# bench COLUMN ARGUMENTS...: a column of gdx bench's one row.
bench() {
  local column=$1
  shift
  "$gdx" bench "$@" --modes pull --rounds 1 --csv >"$folder/csv" 2>"$folder/err" || fail "gdx bench $*: $(cat "$folder/err")"
  python3 -c 'import csv, sys; print(next(csv.DictReader(open(sys.argv[1])))[sys.argv[2]])' "$folder/csv" "$column"
}
# pingpong WIRE: microseconds of half a round trip of 8 B between two preloaded processes.
pingpong() {
  local port server
  port=$((20000 + RANDOM % 20000))
  "$gdx" run --wire "$1" -- ibv_rc_pingpong -p $port -s 8 -n 20000 -g 1 >"$folder/server" 2>&1 &
  server=$!
  for _ in $(seq 500); do  # it listens after its last line of text
    grep -qi ":$(printf %04x "$port") [0-9A-F:]* 0A " /proc/net/tcp /proc/net/tcp6 && break
    sleep 0.02
  done
  "$gdx" run --wire "$1" -- ibv_rc_pingpong -p $port -s 8 -n 20000 -g 1 127.0.0.1 >"$folder/client" 2>&1 || {
    kill $server
    fail "ibv_rc_pingpong: $(cat "$folder/client")"
  }
  wait $server || fail "ibv_rc_pingpong: $(cat "$folder/server")"
  awk '/usec\/iter/ { print $(NF - 1) / 2 }' "$folder/client"
}
# processor_us PROCESS: microseconds of processor time so far, of all threads.
processor_us() { cat /proc/"$1"/task/*/schedstat | awk '{ sum += $1 } END { printf "%d\n", sum / 1000 }'; }
# idle PROCESS: its processor time in a second, in us, once it has long been idle.
idle() {
  local before
  before=$(processor_us "$1")
  sleep 5
  echo $((($(processor_us "$1") - before) / 5))
}
# hold COUNT: starts a program with so many idle connections, or HCAs of its own; ends it when descriptor 8 closes.
hold() {
  mkfifo "$folder/hold"
  "${prefix[@]}" "$client" idle "$1" <"$folder/hold" >"$folder/held" 2>&1 &
  held=$!
  exec 8>"$folder/hold"
  until grep -q idle "$folder/held"; do
    kill -0 $held 2>/dev/null || fail "$(cat "$folder/held")"
    sleep 0.05
  done
  sleep 4
}
release() {
  exec 8>&-
  wait $held || fail "$(cat "$folder/held")"
  held=
  rm "$folder/hold"
}

for ((round = 1; round <= rounds; ++round)); do
  for wire in udp auto; do
    export GDX_DAEMON=off
    sample "pingpong_${wire}_us" pingpong $wire
    sample "embedded_${wire}_us" bench latency_us_median put_signal_lat -s 8 -n 5000 --wire $wire
    sample "embedded_${wire}_per_s" bench messages_per_s_median put_bw -s 64K -t 16 --seconds 2 --wire $wire
    start_gdxd $wire
    export GDX_DAEMON=unix:$folder/socket
    sample "gdxd_${wire}_us" bench latency_us_median put_signal_lat -s 8 -n 5000
    sample "gdxd_${wire}_thread_us" bench latency_us_median put_signal_lat -s 8 -n 5000 --scopes thread
    sample "gdxd_${wire}_per_s" bench messages_per_s_median put_bw -s 64K -t 16 --seconds 2
    sample "first_put_${wire}_us" "$client" after_idle 3
    if [ $wire = udp ]; then
      prefix=(env)
      hold 100
      sample idle_gdxd_us idle $daemon
      release
    fi
    unset GDX_DAEMON
    stop_gdxd
  done
  prefix=(env GDX_DAEMON=off GDX_SOFTHCA_WIRE=udp LD_PRELOAD="$build/driver-shim/softhca/interpose/libgdx_softhca.so")
  hold 1
  sample idle_preloaded_us idle $held
  release
done

# median NAME: of its samples. ratio NAME OTHER: the median of the rounds' ratios, then the least and the greatest.
middle='{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
median() { awk -v name="$1" '$2 == name { print $3 }' "$samples" | sort -g | awk "$middle"; }
ratio() {
  awk -v a="$1" -v b="$2" '$2 == a { x[$1] = $3 } $2 == b { y[$1] = $3 } END { for (i in x) if (i in y) print x[i] / y[i] }' \
    "$samples" | sort -g >"$folder/ratios"
  printf '%.3g %.3g %.3g\n' "$(awk "$middle" "$folder/ratios")" "$(head -n 1 "$folder/ratios")" "$(tail -n 1 "$folder/ratios")"
}
rows=()
# row WHAT UNIT MINE OTHER BAR
row() { rows+=("$1|$2|$(median "$3")|$(median "$4")|$(ratio "$3" "$4")|$5"); }
for wire in udp auto; do
  row "half round trip of 8 B, a thread, $wire, beside ibv_rc_pingpong" us "gdxd_${wire}_thread_us" "pingpong_${wire}_us" "at most 2"
  row "half round trip of 8 B, a warp, $wire, beside ibv_rc_pingpong" us "gdxd_${wire}_us" "pingpong_${wire}_us" "at most 2"
  row "half round trip of 8 B, a warp, $wire, beside an HCA of its own" us "gdxd_${wire}_us" "embedded_${wire}_us" ""
  row "puts of 64 KiB, $wire, beside an HCA of its own" 1/s "gdxd_${wire}_per_s" "embedded_${wire}_per_s" "at least 0.8"
done
row "processor time of a second, 100 idle clients beside an idle program" us idle_gdxd_us idle_preloaded_us "at most 1"
if [ $json -eq 1 ]; then
  printf '%s\n' "${rows[@]}" | python3 -c '
import json, sys
keys = ("what", "unit", "gdxd", "other", "ratio", "bar")
rows = [dict(zip(keys, line.rstrip("\n").split("|"))) for line in sys.stdin]
for row in rows:
    row["gdxd"], row["other"] = float(row["gdxd"]), float(row["other"])
    row["ratio"], row["least"], row["most"] = map(float, row["ratio"].split())
single = dict(zip(("ready_ms", "first_put_udp_us", "first_put_auto_us"), map(float, sys.argv[1:])))
print(json.dumps({"rows": rows, **single}, indent=2))' "$(median ready_ms)" "$(median first_put_udp_us)" "$(median first_put_auto_us)"
  exit
fi
echo "measured on the software HCA, kernels on the CPU layer, $(nproc) cores, $rounds rounds"
printf '%-68s %10s %10s  %s\n' what gdxd beside 'ratio [least, most], bar'
for line in "${rows[@]}"; do
  IFS='|' read -r what unit mine other ratios bar <<<"$line"
  read -r middle_ratio least most <<<"$ratios"
  printf '%-68s %10.5g %10.5g  %s [%s, %s] %s\n' "$what, $unit" "$mine" "$other" "$middle_ratio" "$least" "$most" "$bar"
done
echo "gdxd ready after $(median ready_ms) ms (bar 500)"
echo "first put after 3 s of idleness: $(median first_put_udp_us) us over UDP, $(median first_put_auto_us) us (bar 5000)"
