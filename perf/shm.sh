#!/usr/bin/env bash
# shm.sh BUILD_FOLDER [OPTIONS of runner.sh]: the software HCA's shared-memory wire beside UCX's own shared memory.
. "$(dirname "${BASH_SOURCE[0]}")/runner.sh"
need ucx_perftest ucx-utils
export UCX_TLS=shm,self

one_round() {
  export GDX_SOFTHCA_WIRE=shm
  hca large 1 write --bytes 1048576 --seconds "$seconds"
  ucx ucx_large_messages_per_s 8 ucp_put_bw 1048576 20000
  GDX_SOFTHCA_WIRE=udp hca large_udp 1 write --bytes 1048576 --seconds "$seconds"
  hca small 1 write --bytes 8 --seconds "$seconds"
  hca latency 1 latency --bytes 8
  hca one_thread_large 2 cost --bytes 1048576 --seconds "$seconds"
  hca one_thread_small 2 cost --bytes 8 --seconds "$seconds"
}
run_rounds

{
  value GB/s 1e-9 large_bytes_per_s "1 MiB writes"
  value GB/s 1.048576e-3 ucx_large_messages_per_s "1 MiB puts of UCX over shared memory"
  ratio large_messages_per_s ucx_large_messages_per_s "1 MiB writes / UCX" ">= 0.6"
  value GB/s 1e-9 large_udp_bytes_per_s "1 MiB writes over UDP"
  ratio large_bytes_per_s large_udp_bytes_per_s "1 MiB writes / over UDP"
  value M/s 1e-6 small_messages_per_s "8 B writes" ">= 5"
  value us 1 latency_median_us "8 B ping-pong, one way, median" "< 3"
  value us 1 latency_p99_us "8 B ping-pong, one way, 99th percentile"
  value ns 1 one_thread_small_cpu_ns_per_message "both ends of an 8 B write on one thread"
  value ns 1 one_thread_large_cpu_ns_per_message "both ends of a 1 MiB write on one thread"
} | report "software HCA over shared memory, two processes"
