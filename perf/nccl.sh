#!/usr/bin/env bash
# nccl.sh BUILD_FOLDER [OPTIONS of runner.sh]: the plugin for NCCL on the software HCA beside perftest on the same HCA.
# SIZES="65536 ..." in the environment: other bytes. GDX_SOFTHCA_WIRE: another wire than UDP.
. "$(dirname "${BASH_SOURCE[0]}")/runner.sh"
need ib_write_bw perftest
plugin=$build/host/plugins/nccl/libnccl-net-gdx.so
[ -f "$plugin" ] || { echo "$runner_name: SKIPPED: the plugin is not built: install libfabric-dev, and build again" >&2; exit 77; }
export GDX_SOFTHCA_WIRE=${GDX_SOFTHCA_WIRE-udp} GDX_PROVIDER='verbs;ofi_rxm' NCCL_SOCKET_IFNAME=lo
read -ra sizes <<<"${SIZES:-65536 524288 1048576}"

# on_hca COMMAND...: what it prints, in `lines`.
on_hca() {
  # shellcheck disable=SC2086 # the prefix is words
  lines=$(timeout $((120 + 10 * seconds)) $prefix "$build/host/programs/cli/gdx" run -- "$@" 2>"$folder/errors") ||
    fail "$*: status $?: $(tail -n 3 "$folder/errors")"
}
# ours NAME CASE OPTIONS...: samples every line as NAME_FIELD.
ours() {
  local name=$1 field number lines
  shift
  on_hca "$build/perf/gdx_nccl_bench" "$@" --plugin "$plugin"
  while read -r field number; do sample "${name}_$field" "$number"; done <<<"$lines"
}
# theirs NAME COLUMN SCALE TOOL OPTIONS...: samples a column of the line of results, times SCALE.
theirs() {
  local name=$1 column=$2 scale=$3 lines port server
  shift 3
  port=$(free_port)
  (on_hca "$@" -F -p "$port") &
  server=$!
  for _ in $(seq 400); do
    listens "$port" && break
    kill -0 $server 2>/dev/null || break
    sleep 0.05
  done
  on_hca "$@" -F -p "$port" 127.0.0.1
  wait $server
  sample "$name" "$(awk -v c="$column" -v s="$scale" '/^ *[0-9]+ +[0-9]+ +[0-9.]+ / { printf "%.6g", $c * s }' <<<"$lines")"
}
# messages BYTES: as many as move 512 MiB for each of --seconds.
messages() { echo $(((seconds << 29) / $1 < 50 ? 50 : (seconds << 29) / $1)); }

one_round() {
  local bytes
  for bytes in "${sizes[@]}"; do
    ours "bw_$bytes" bandwidth --bytes "$bytes" --count "$(messages "$bytes")"
    theirs "ib_$bytes" 4 1048576 ib_write_bw -s "$bytes" -n "$(messages "$bytes")"
    ours "places_$bytes" bandwidth --bytes "$bytes" --count "$(messages "$bytes")" --places 8
  done
  ours lat latency --count 2000
  theirs ib_lat 5 1 ib_send_lat -s 8 -n 2000
  ours connect connections --count 5
}
run_rounds

{
  for bytes in "${sizes[@]}"; do
    what="messages of $((bytes >> 10)) KiB"
    value GB/s 1e-9 "bw_${bytes}_bytes_per_s" "$what"
    ratio "bw_${bytes}_bytes_per_s" "ib_$bytes" "$what / ib_write_bw" ">= 0.9"
    ratio "places_${bytes}_bytes_per_s" "bw_${bytes}_bytes_per_s" "$what from and to 8 places in turn, as NCCL's / one"
  done
  value us 1 lat_median_us "8 B ping-pong, one way, median"
  value us 1 ib_lat "the same by ib_send_lat"
  ratio lat_median_us ib_lat "8 B ping-pong / ib_send_lat, medians"
  value ms 1 connect_ms_each "opening a connection each way"
} | report "the plugin for NCCL by $GDX_PROVIDER on the software HCA over $GDX_SOFTHCA_WIRE"
