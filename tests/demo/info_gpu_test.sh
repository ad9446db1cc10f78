#!/usr/bin/env bash
# info_gpu_test.sh GDX FAKE OLD_FAKE: `gdx info` on machines with and without a GPU; FAKE is a folder with a fake libcuda.so.1.
set -uo pipefail
gdx=$1 fake=$2 old=$3
fail() {
  echo "FAIL: $*"
  echo "--- output:"
  echo "$out"
  exit 1
}
info() { out=$(timeout 30 env "$@" "$gdx" run -- "$gdx" info 2>&1) || fail "gdx info exited with $?"; }
expect() { grep -qE "$1" <<<"$out" || fail "no line matches: $1"; }

info LD_LIBRARY_PATH="$fake"
expect '^  CUDA driver +13\.0$'
expect '^  doorbells +shown to a GPU by plain registration \(ordinary pages\)$'
expect '^  GPU 0 +Fake GPU at 0000:F0:00\.0, sm_90; queues in host memory or its own; memory by dmabuf$'
info LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DMABUF=0
expect 'queues in host memory or its own; memory by nvidia_peermem$'
info LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DMABUF=0 GDX_GPU_REGISTRATION=dmabuf
expect 'queues in host memory; memory by no way: dmabuf: the GPU exports none.*nvidia_peermem: excluded by \$GDX_GPU_REGISTRATION$'
info LD_LIBRARY_PATH="$fake" GDX_GPU_MAPPING=iomemory GDX_GPU_REGISTRATION=peermem
expect 'shown to a GPU by IoMemory registration \(ordinary pages\)$'
expect 'memory by nvidia_peermem$'
info LD_LIBRARY_PATH="$old" GDX_FAKE_CUDA_DEVICES=2
expect '^  CUDA driver +11\.4$'
expect '^  GPU 1 +Fake GPU .*memory by nvidia_peermem$'
info LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DEVICES=0
expect '^  GPUs +none: the NVIDIA driver shows no GPU: CUDA_ERROR_NO_DEVICE'
if ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
  info LD_LIBRARY_PATH=
  expect '^  GPUs +none: no CUDA driver here: libcuda\.so\.1: .*CPU layer$'
fi
out=$(timeout 30 env LD_LIBRARY_PATH="$fake" "$gdx" run -- "$gdx" info --json 2>&1)
expect '"compute_capability": 90'
expect '"gpu"'
echo ok
