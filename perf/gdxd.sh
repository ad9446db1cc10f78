#!/usr/bin/env bash
# gdxd.sh BUILD_FOLDER [OPTIONS of runner.sh]: programs through gdxd beside the same programs with HCAs of their own.
. "$(dirname "${BASH_SOURCE[0]}")/runner.sh"
need ibv_rc_pingpong ibverbs-utils
[ -z "$prefix" ] || { echo "gdxd.sh: --prefix '$prefix': gdxd cannot run under it; leave it out" >&2; exit 2; }
gdx=$build/host/programs/cli/gdx
client=$build/tests/soak/gdxd_client
export GDXD_CONFIG=/dev/null  # not this machine's
daemon='' held='' through=()
end() {
  local process
  for process in $daemon $held; do kill "$process" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap end EXIT
# keep NAME COMMAND...: samples the number that the command prints.
keep() {
  local name=$1 number
  shift
  number=$("$@") || fail "$name: $* failed"
  sample "$name" "$number"
}
now_us() { echo $((${EPOCHREALTIME/./})); }

# start_gdxd WIRE: samples how long it takes until it listens.
start_gdxd() {
  local began
  : >"$folder/log"
  began=$(now_us)
  GDX_SOFTHCA_WIRE=$1 "$build/host/programs/daemon/gdxd" --socket "$folder/socket" 2>"$folder/log" &
  daemon=$!
  until grep -q '^gdxd listens' "$folder/log"; do
    kill -0 $daemon 2>/dev/null || fail "gdxd did not start: $(cat "$folder/log")"
    sleep 0.005
  done
  sample "ready_${1}_ms" $((($(now_us) - began) / 1000))
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
  port=$(free_port)
  "$gdx" run --wire "$1" -- ibv_rc_pingpong -p $port -s 8 -n 20000 -g 1 >"$folder/server" 2>&1 &
  server=$!
  for _ in $(seq 500); do  # it listens after its last line of text
    listens "$port" && break
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
  "${through[@]}" "$client" idle "$1" <"$folder/hold" >"$folder/held" 2>&1 &
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

one_round() {
  local wire
  for wire in udp auto; do
    export GDX_DAEMON=off
    keep "pingpong_${wire}_us" pingpong $wire
    keep "embedded_${wire}_us" bench latency_us_median put_signal_lat -s 8 -n 5000 --wire $wire
    keep "embedded_${wire}_per_s" bench messages_per_s_median put_bw -s 64K -t 16 --seconds "$seconds" --wire $wire
    start_gdxd $wire
    export GDX_DAEMON=unix:$folder/socket
    keep "gdxd_${wire}_us" bench latency_us_median put_signal_lat -s 8 -n 5000
    keep "gdxd_${wire}_thread_us" bench latency_us_median put_signal_lat -s 8 -n 5000 --scopes thread
    keep "gdxd_${wire}_per_s" bench messages_per_s_median put_bw -s 64K -t 16 --seconds "$seconds"
    keep "first_put_${wire}_us" "$client" after_idle 3
    if [ $wire = udp ]; then
      through=(env)
      hold 100
      keep idle_gdxd_us idle $daemon
      release
    fi
    unset GDX_DAEMON
    stop_gdxd
  done
  through=(env GDX_DAEMON=off GDX_SOFTHCA_WIRE=udp LD_PRELOAD="$build/driver-shim/softhca/interpose/libgdx_softhca.so")
  hold 1
  keep idle_preloaded_us idle $held
  release
}
run_rounds

{
  for wire in udp auto; do
    value us 1 "gdxd_${wire}_thread_us" "half round trip of 8 B through gdxd, a thread, $wire"
    value us 1 "gdxd_${wire}_us" "half round trip of 8 B through gdxd, a warp, $wire"
    value us 1 "embedded_${wire}_us" "half round trip of 8 B with an HCA of its own, a warp, $wire"
    value us 1 "pingpong_${wire}_us" "half round trip of 8 B of ibv_rc_pingpong, $wire"
    ratio "gdxd_${wire}_thread_us" "pingpong_${wire}_us" "half round trip of 8 B, a thread, $wire / ibv_rc_pingpong" "<= 2"
    ratio "gdxd_${wire}_us" "pingpong_${wire}_us" "half round trip of 8 B, a warp, $wire / ibv_rc_pingpong" "<= 2"
    ratio "gdxd_${wire}_us" "embedded_${wire}_us" "half round trip of 8 B, a warp, $wire / an HCA of its own"
    value 1/s 1 "gdxd_${wire}_per_s" "puts of 64 KiB through gdxd, $wire"
    ratio "gdxd_${wire}_per_s" "embedded_${wire}_per_s" "puts of 64 KiB, $wire / an HCA of its own" ">= 0.8"
    value ms 1 "ready_${wire}_ms" "gdxd listens after, $wire" "<= 500"
    value us 1 "first_put_${wire}_us" "first put after 3 s of idleness, $wire" "<= 5000"
  done
  value us 1 idle_gdxd_us "processor time of a second, 100 idle clients"
  ratio idle_gdxd_us idle_preloaded_us "processor time, 100 idle clients / an idle program" "<= 1"
} | report "software HCA, kernels on the CPU layer"
