#!/usr/bin/env bash
# Compares host/plugins/nccl/abi.h and rma_abi.h with the headers of NCCL's sources, which stay outside of the tree:
# nccl.sh SOURCE_DIR. Without an argument GDX_NCCL_SOURCE names them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=${1:-${GDX_NCCL_SOURCE:-}}
if [ -z "$source" ]; then
  echo "SKIPPED: NCCL's sources were not named: GDX_NCCL_SOURCE=FOLDER (https://github.com/NVIDIA/nccl)" >&2
  exit 77
fi
# Headers for plugins moved with 2.29.
for folder in plugins/net/example/nccl ext-net/example/nccl; do
  [ -f "$source/$folder/net_v11.h" ] && headers=$source/$folder && break
done
if [ -z "${headers:-}" ]; then
  echo "FAILED: $source holds no net_v11.h: NCCL has had it since 2.28.7" >&2
  exit 1
fi
versions=v11
flags=()
if [ -f "$headers/net_v12.h" ]; then
  versions="v11 v12"
  flags=(-DGDX_HAS_V12)
fi
# Headers of RMA name the net's as NCCL's own sources do.
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
echo '#include "net.h"' >"$work/nccl_net.h"
for rma in 14 15 16; do
  [ -f "$source/src/include/plugin/rma/rma_v$rma.h" ] || break
  newest=$rma
done
if [ -n "${newest:-}" ]; then
  versions="$versions, RMA v13 to v$newest"
  flags+=(-DGDX_RMA="$newest" -isystem "$work" -isystem "$source/src/include/plugin")
fi
"${CXX:-c++}" -std=c++20 -fsyntax-only -Wall -I "$here/../.." -isystem "$headers" "${flags[@]}" "$here/nccl_layouts.cpp"
echo "same layouts and numbers: net $versions of $headers"
