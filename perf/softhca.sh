#!/usr/bin/env bash
# softhca.sh BUILD_FOLDER [OPTIONS of runner.sh]: the software HCA over UDP loopback beside raw UDP and beside UCX over TCP.
. "$(dirname "${BASH_SOURCE[0]}")/runner.sh"
need ucx_perftest ucx-utils
export GDX_SOFTHCA_WIRE=udp UCX_TLS=tcp UCX_NET_DEVICES=lo
loads=()
trap 'rm -rf "$folder"; [ ${#loads[@]} -eq 0 ] || kill "${loads[@]}"' EXIT

# beside_load COMMAND...: while each core has a load at nice 19, where nice 19 means something: not in a task group of
# its own (kernel.sched_autogroup_enabled).
beside_load() {
  local _
  for _ in $(seq "$(nproc)"); do
    nice -n 19 sh -c 'while :; do :; done' &
    loads+=($!)
  done
  "$@"
  kill "${loads[@]}"
  wait "${loads[@]}" 2>/dev/null || true
  loads=()
}

one_round() {
  hca raw 1 raw-udp --seconds "$seconds"
  hca large 1 write --bytes 1048576 --seconds "$seconds"
  ucx ucx_large_messages_per_s 8 ucp_put_bw 1048576 1000
  hca small 1 write --bytes 8 --seconds "$seconds"
  ucx ucx_small_messages_per_s 8 ucp_put_bw 8 300000
  hca latency 1 latency --iterations 5000
  ucx ucx_latency_median_us 2 tag_lat 8 5000
  beside_load hca busy 1 latency --iterations 5000
  beside_load ucx ucx_busy_median_us 2 tag_lat 8 5000
  hca large_cost 2 cost --bytes 1048576 --seconds "$seconds"
  hca small_cost 2 cost --bytes 8 --seconds "$seconds"
}
run_rounds
hca idle 1 idle --seconds 5
hca memory 1 memory --queues 1000
hca memory_deep 1 memory --queues 200 --depth 128

{
  value GB/s 1e-9 raw_bytes_per_s "raw UDP with GSO and GRO"
  value GB/s 1e-9 large_bytes_per_s "1 MiB writes"
  value GB/s 1.048576e-3 ucx_large_messages_per_s "1 MiB writes over UCX over TCP"
  ratio large_bytes_per_s raw_bytes_per_s "1 MiB writes / raw UDP" ">= 0.4"
  ratio large_messages_per_s ucx_large_messages_per_s "1 MiB writes / UCX over TCP" ">= 3"
  value M/s 1e-6 small_messages_per_s "8 B writes" ">= 2"
  value M/s 1e-6 ucx_small_messages_per_s "8 B writes over UCX over TCP"
  ratio small_messages_per_s ucx_small_messages_per_s "8 B writes / UCX over TCP" ">= 8"
  value us 1 latency_median_us "8 B ping-pong, one way, median"
  value us 1 latency_p99_us "8 B ping-pong, one way, 99th percentile"
  value us 1 ucx_latency_median_us "8 B ping-pong over UCX over TCP, one way, median"
  ratio latency_median_us ucx_latency_median_us "8 B ping-pong / UCX over TCP, medians" "<= 2.5"
  value us 1 busy_median_us "8 B ping-pong beside a load at nice 19, median"
  value us 1 ucx_busy_median_us "the same over UCX over TCP, median"
  ratio busy_median_us ucx_busy_median_us "the same / UCX over TCP, medians" "<= 2.5"
  value ns 1 small_cost_cpu_ns_per_message "processor time of both ends of an 8 B write"
  value ns/B 1 large_cost_cpu_ns_per_byte "processor time of both ends of a 1 MiB write"
  value ns/B 1 raw_cpu_ns_per_byte "the same for raw UDP"
  ratio raw_cpu_ns_per_byte large_cost_cpu_ns_per_byte "processor time, raw UDP / 1 MiB writes"
  value "%" 100 idle_core_share "of a core that an idle HCA takes" "< 1"
  value KiB 9.765625e-4 memory_bytes_beyond_rings "memory of a connected queue beyond its rings" "<= 64"
  value KiB 9.765625e-4 memory_deep_bytes_beyond_rings "the same, 128 deep and full" "<= 64"
} | report "software HCA over UDP loopback"
