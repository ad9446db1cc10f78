#!/usr/bin/env bash
# examples.sh ROOT FOLDER: nvcc takes the kernels of examples/, and one for Python, for each architecture that gdx is for, without a warning.
set -euo pipefail
command -v nvcc >/dev/null || { echo "SKIPPED: no nvcc in PATH: install the CUDA Toolkit"; exit 77; }
folder=$(mktemp -d "$2/examples.XXXXXX")
trap 'rm -rf "$folder"' EXIT
known=$(nvcc --list-gpu-arch)
codes=()
for arch in 80 90 100; do
  if grep -qx "compute_$arch" <<<"$known"; then
    codes+=(-gencode "arch=compute_$arch,code=sm_$arch")
  else
    echo "not tried: this nvcc has no sm_$arch"
  fi
done
for kernel in "$1"/examples/*/*.cu "$1/tests/python/gpu_kernels.cu"; do
  echo "+ $kernel"
  nvcc -std=c++17 --expt-relaxed-constexpr -Werror all-warnings "${codes[@]}" -I "$1" -c "$kernel" -o "$folder/kernel.o"
done
