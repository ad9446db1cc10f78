#!/usr/bin/env bash
# info_gpu_test.sh GDX FAKE OLD_FAKE: `gdx info` on machines with and without a GPU; FAKE is a folder with a fake libcuda.so.1.
set -uo pipefail
gdx=$1 fake=$2 old=$3
export GDX_CALIBRATION=  # keeps this machine's calibration out of the test
unset GDX_PATH_CLASS
fail() {
  echo "FAIL: $*"
  echo "--- output:"
  echo "$out"
  exit 1
}
info() { out=$(timeout 100 env "$@" "$gdx" run -- "$gdx" info 2>&1) || fail "gdx info exited with $?"; }
expect() { grep -qE "$1" <<<"$out" || fail "no line matches: $1"; }

info LD_LIBRARY_PATH="$fake"
expect '^  CUDA driver +13\.0$'
expect '^  gdx +[0-9]+\.[0-9]+\.[0-9]+$'
expect '^  kind +software HCA$'
expect '^  PCI +nowhere that the topology shows$'
expect '^  port +active, 100 Gb/s, Ethernet, MTU 4096 B of 4096$'
expect '^  doorbell +plain, shown to a GPU by plain registration \(ordinary pages\)$'
expect '^  device memory +131072 B, shown to a GPU by plain registration \(ordinary pages\)$'
expect '^  host memory +shown to a GPU by plain registration \(ordinary pages\)$'
expect '^  staging +push 32 slots of 4 KiB, bounce 64 slots of 64 KiB of host memory, by default$'
expect '^  GPU 0 +Fake GPU at 0000:F0:00\.0, sm_90, path of unknown class; queues in host memory or its own; memory of cuMemCreate by dmabuf$'
# Of kernels on no GPU, and on this one.
expect '^ +defaults for kernels on a CPU: '
expect '^ +defaults for a path of unknown class: '
info LD_LIBRARY_PATH="$fake" GDX_PATH_CLASS=SYS
expect '^  auto +inline up to 28 B, push up to 16 KiB, then bounce$'
expect '^ +defaults for a SYS path, plain doorbells and queues in host memory, modelled: '
expect '^  auto +inline up to 220 B, pull up to 4 KiB, then bounce$'
expect '^ +defaults for a SYS path, plain doorbells and queues in GPU memory, modelled: '
info LD_LIBRARY_PATH="$fake" GDX_PATH_CLASS=SYS GDX_DOORBELL=blueflame
expect '^  doorbell +BlueFlame, shown'
expect '^  auto +inline up to 28 B, pull up to 4 KiB, then bounce$'
expect '^ +defaults for a SYS path, BlueFlame and queues in GPU memory, modelled: '
info LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DMABUF=0
expect 'queues in host memory or its own; memory of cuMemCreate by nvidia_peermem$'
info LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DMABUF=0 GDX_GPU_REGISTRATION=dmabuf
expect 'queues in host memory; memory of cuMemCreate by no way: dmabuf: the GPU exports none.*nvidia_peermem: excluded by \$GDX_GPU_REGISTRATION$'
info LD_LIBRARY_PATH="$fake" GDX_GPU_MAPPING=iomemory GDX_GPU_REGISTRATION=peermem
for what in doorbell 'device memory' 'host memory'; do
  expect "^  $what .*shown to a GPU by IoMemory registration \(ordinary pages\)\$"
done
expect 'memory of cuMemCreate by nvidia_peermem$'
info LD_LIBRARY_PATH="$old" GDX_FAKE_CUDA_DEVICES=2
expect '^  CUDA driver +11\.4$'
expect '^  GPU 1 +Fake GPU .*memory of cuMemAlloc by nvidia_peermem$'
info LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DEVICES=0
expect '^  GPUs +none: the NVIDIA driver shows no GPU: CUDA_ERROR_NO_DEVICE'
if ! ldconfig -p | grep 'libcuda\.so\.1' >/dev/null; then
  info LD_LIBRARY_PATH=
  expect '^  GPUs +none: no CUDA driver here: libcuda\.so\.1: .*CPU layer$'
fi
# An HCA without memory of its own.
out=$(timeout 100 "$gdx" run --device-memory-bytes 0 -- "$gdx" info 2>&1) || fail "gdx info exited with $?"
expect '^  device memory +0 B$'
expect '^  staging +push no slots, '
out=$(timeout 100 env LD_LIBRARY_PATH="$fake" "$gdx" run -- "$gdx" info --json 2>&1)
for what in '"compute_capability": 90' '"kind": "software"' '"rate_gbps": 100.0' '"kind": "plain"' \
  '"host_memory_mapping": "plain' '"slot_count": 32' '"gdx_version"' '"pci": null' '^ +"gpu"$'; do
  expect "$what"
done
echo ok
