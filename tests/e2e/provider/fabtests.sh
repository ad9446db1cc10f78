#!/usr/bin/env bash
# Usage: fabtests.sh CASE FOLDER PROGRAM [ARGUMENT...]: runs a program of libfabric's own between two processes on loopback,
# over the provider "unordered" in FOLDER. Debian's libfabric-bin has fi_pingpong. fi_rdm_pingpong and fi_rma_bw are of
# fabtests, of which Debian has no package: build them outside this tree and put them into PATH. Exit: 77 without PROGRAM.
. "$(dirname "$0")/../../program.sh" "$1"
export FI_PROVIDER_PATH=$2
shift 2
command -v "$1" >/dev/null ||
  { echo "SKIPPED: there is no $1: install Debian's libfabric-bin, or build libfabric's fabtests and put them into PATH"; exit 77; }
port=$(free_port)
listener=(-p unordered -E="$port" -s 127.0.0.1)
caller=("${listener[@]}")
if [ "$(basename "$1")" = fi_pingpong ]; then
  listener=(-p unordered -B "$port")
  caller=(-p unordered -P "$port")
  # It waits forever where there is no room for a receive.
  export UNORDERED_RECEIVES=all
fi
# These programs outlive SIGTERM.
timeout -s KILL 200 "$@" "${listener[@]}" >"$folder/server" 2>&1 &
server=$!
until_true listens "$port" || fail "the server does not listen: $(cat "$folder/server")"
run 90 "$@" "${caller[@]}" 127.0.0.1
cat "$out"
expect_status 0
wait $server || fail "the server failed: $(cat "$folder/server")"
echo "ok ($case_name)"
