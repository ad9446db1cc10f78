#!/usr/bin/env bash
# collectives.sh BUILD_FOLDER [OPTIONS of runner.sh]: collective calls of kernels on the CPU layer beside Open MPI's, 4 ranks.
# Ours over UDP beside UCX over TCP, and ours by loads and stores beside UCX through shared memory. SIZES="1048576 ..." in the
# environment: other bytes than 1 KiB to 64 MiB. OPERATIONS="allreduce": one of the two.
. "$(dirname "${BASH_SOURCE[0]}")/runner.sh"
need mpirun.openmpi openmpi-bin
[ -x "$build/perf/gdx_mpi_collectives" ] || { echo "$runner_name: SKIPPED: gdx_mpi_collectives is not built: install libopenmpi-dev, and build again" >&2; exit 77; }
ranks=4
read -ra sizes <<<"${SIZES:-1024 32768 1048576 8388608 67108864}"
read -ra operations <<<"${OPERATIONS:-allreduce alltoall}"

# calls BYTES: as many as move about 256 MiB a second for --seconds.
calls() { echo $(((seconds << 28) / $1 > 2000 ? 2000 : (seconds << 28) / $1 < 3 ? 3 : (seconds << 28) / $1)); }
# turn NAME COMMAND...: samples what rank 0 prints.
turn() {
  local name=$1 line
  shift
  # shellcheck disable=SC2086 # the prefix is words
  line=$(timeout $((120 + 10 * seconds)) $prefix "$@" 2>"$folder/errors") || fail "$*: status $?: $(tail -n 3 "$folder/errors")"
  sample "$name" "$(awk '$1 == "calls_per_s" { print $2 }' <<<"$line")"
}
ours() {
  local name=$1 wire=$2 direct=$3
  shift 3
  GDX_SOFTHCA_WIRE=$wire GDX_DIRECT=$direct GDX_CALIBRATION='' turn "$name" \
    "$build/host/programs/cli/gdx" run --ranks $ranks -- "$build/perf/gdx_collectives_bench" "$@"
}
theirs() {
  local name=$1 tls=$2
  shift 2
  UCX_TLS=$tls OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 turn "$name" \
    mpirun.openmpi --oversubscribe --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any --mca mpi_yield_when_idle 1 \
    -x UCX_TLS -n $ranks "$build/perf/gdx_mpi_collectives" "$@"
}
one_round() {
  local operation bytes n
  for operation in "${operations[@]}"; do
    for bytes in "${sizes[@]}"; do
      # To each of 4 ranks, so that a call moves as much.
      n=$bytes && [ $operation = alltoall ] && n=$((bytes / ranks))
      ours "${operation}_${bytes}_udp" udp off $operation "$n" "$(calls "$bytes")"
      theirs "${operation}_${bytes}_tcp" tcp,self $operation "$n" "$(calls "$bytes")"
      ours "${operation}_${bytes}_direct" shm auto $operation "$n" "$(calls "$bytes")"
      theirs "${operation}_${bytes}_shm" shm,self $operation "$n" "$(calls "$bytes")"
    done
  done
}
run_rounds

{
  for operation in "${operations[@]}"; do
    for bytes in "${sizes[@]}"; do
      what="$operation of $((bytes >> 10)) KiB"
      bar='' && [ $operation$bytes = allreduce1048576 ] && bar='>= 0.5'
      value calls/s 1 "${operation}_${bytes}_udp" "$what, UDP"
      ratio "${operation}_${bytes}_udp" "${operation}_${bytes}_tcp" "$what, UDP / Open MPI over TCP" "$bar"
      value calls/s 1 "${operation}_${bytes}_direct" "$what, direct"
      ratio "${operation}_${bytes}_direct" "${operation}_${bytes}_shm" "$what, direct / Open MPI over shared memory"
    done
  done
} | report "collective calls of kernels, $ranks ranks"
