#!/usr/bin/env bash
# CI's part kernels: a short fuzzing, and device code as CUDA, with bulk stores (sm_90) and without (sm_80).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if ! command -v nvcc >/dev/null; then
  echo "SKIPPED: kernels were not compiled as CUDA: no nvcc here; install the CUDA Toolkit"
  exit 77
fi
# A seed, so that a change is judged by what it does. 77: skipped, and said so.
./run fuzz 30 1 || [ $? -eq 77 ]
# In the tree that is built already: the option adds targets and changes none.
cmake --preset cpu -DGDX_CUDA=ON -DGDX_CUDA_ARCHITECTURES="80;90"
cmake --build --preset cpu --target gdx_demo_cuda gdx_bench_cuda gdx_calibrate_cuda gdx_doctor_cuda gdx_all_calls_cuda \
  gdx_posting_bench_cuda device_test_cuda
# Verbose, because a binary whose cases all skip passes.
ctest --preset cpu --verbose --no-tests=error -R '^Cuda\.|^gpu\.(programs|examples|device_calls)'
