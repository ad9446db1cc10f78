#!/usr/bin/env bash
# profile.sh BUILD_FOLDER [--seconds S]: the processor time of 8 B and 1 MiB RC writes, both ends together on one
# thread. Sampled with perf, grouped by what the sampled function is for.
set -euo pipefail
build=$1
shift
seconds=3
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?--seconds needs a number} && shift 2 ;;
    *)
      echo "profile.sh: unknown option $1; options: --seconds S" >&2
      exit 2
      ;;
  esac
done
[[ $seconds =~ ^[1-9][0-9]{0,1}$ ]] || { echo "profile.sh: --seconds '$seconds': use 1 to 99" >&2; exit 2; }
export GDX_SOFTHCA_WIRE=udp
data=$(mktemp)
trap 'rm -f "$data"' EXIT
command -v perf >/dev/null && perf record -q -e cpu-clock -o "$data" true 2>/dev/null || {
  echo "profile.sh: SKIPPED: perf cannot sample here: install linux-perf, lower kernel.perf_event_paranoid" >&2
  exit 77
}

# The first half second is start-up and is left out.
profile() {
  local bytes=$1 cost_ns
  cost_ns=$(perf record -q -D 500 -F 9973 -e cpu-clock -o "$data" -- \
    "$build/host/programs/cli/gdx" run --hcas 2 -- "$build/perf/gdx_softhca_bench" cost --bytes "$bytes" --seconds "$seconds" |
    awk '$1 == "cpu_ns_per_message" { print $2 }')
  perf script -i "$data" -F comm,ip,sym,dso 2>/dev/null | awk -v bytes="$bytes" -v cost_ns="$cost_ns" '
    function group(line) {
      if (line ~ /kallsyms|\[k|\[vdso/) return line ~ /copy_(from|to)_iter|clear_page|rep_movs/ ? "kernel: copies" : "kernel: system calls, UDP, IP, loopback"
      if (line ~ /libisal|icrc|Icrc/) return "ICRC"
      if (line ~ /libmlx5|libibverbs|gdx_softhca_bench\)/) return "program, libibverbs, libmlx5: post and poll"
      if (line ~ /libc.so/ && line ~ /mem(move|cpy|cmp)/) return "copies: gather, store"
      if (line ~ /parse_|SendQueue|QueuePair::post|fetch_sends|poll_uar|poll_doorbells|hold_staging/) return "engine: doorbell, WQE"
      if (line ~ /Requester|SendSide/) return "transport: requester"
      if (line ~ /Responder|ReceiveSide/) return "transport: responder"
      if (line ~ /roce::encode|QueuePair::(send|commit)|MemoryAccess::(gather|load)/) return "engine: building packets"
      if (line ~ /accept|dispatch|on_packet|QueuePair::(check|write)|MemoryAccess|MemoryTable|decode/) return "engine: taking packets, keys"
      if (line ~ /UdpWire/) return "wire: GSO and GRO batches"
      if (line ~ /omplet|staging|handle_failure|synchronize/) return "engine: completions"
      return "other"
    }
    # Samples of the run itself, not of what starts it.
    /gdx_softhca_ben|gdx-softhca/ { ++n[group($0)]; ++all }
    END {
      printf "%s B write: %.0f ns\n", bytes, cost_ns
      for (g in n) printf "%10.1f ns %6.1f %%  %s\n", cost_ns * n[g] / all, 100 * n[g] / all, g | "sort -rn"
    }'
}

echo "measured: software HCA over UDP loopback, both ends on one thread, $(nproc) cores, $(uname -m), $(date -u +%F)"
profile 8
profile 1048576
