#!/usr/bin/env bash
# abi_facts.sh DECLARED [FROM_CUDA_H]: our declarations of the CUDA driver API say what cuda.h says.
set -euo pipefail
[ $# -eq 2 ] || { echo "SKIPPED: no cuda.h to compare with: install the CUDA Toolkit, and configure anew"; exit 77; }
"$1" | grep '^cuMemAlloc_v2 ' >/dev/null || { echo "the program prints no facts"; exit 1; }
diff <("$1") <("$2") || { echo "driver-shim/cuda/declarations.h (<) differs from cuda.h (>)"; exit 1; }
