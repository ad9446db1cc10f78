#!/usr/bin/env bash
# headers_test.sh SOURCE_FOLDER COMPILER CASE: what compilers say of one header that a source includes.
set -u
export LC_ALL=C
root=$1 compiler=$2 case=$3

fail() {
  echo "$*" >&2
  exit 1
}

# refuses HEADER WORDS COMPILER...: its first error has the words, and is the only one.
refuses() {
  local header=$1 words=$2 said
  shift 2
  said=$(echo "#include \"$header\"" | "$@" -I "$root" - 2>&1) && fail "$header compiles by: $*"
  [[ $(grep error: <<<"$said" | head -1) == *"error:"*"$words"* ]] || fail "$*: $said"
  [[ $header == device/* || $(grep -c error: <<<"$said") == 1 ]] || fail "more than one line: $said"
}

host_header_under_nvcc_names_the_remedy() {
  local words='include device/endpoint.h in what nvcc compiles'
  refuses host/gdx.h "$words" "$compiler" -x c++ -std=c++20 -D__CUDACC__ -fsyntax-only
  command -v nvcc >/dev/null || return 0
  refuses host/gdx.h "$words" nvcc -x cu -std=c++17 -o /dev/null -c
}

host_header_below_cxx20_names_the_remedy() {
  refuses host/gdx.h 'compile with -std=c++20' "$compiler" -x c++ -std=c++17 -fsyntax-only
}

device_header_below_cxx17_names_the_remedy() {
  refuses device/endpoint.h 'compile with -std=c++17' "$compiler" -x c++ -std=c++14 -fsyntax-only
}

host_headers_need_no_fmt_nor_json() {
  local included
  for header in host/gdx.h host/topo/topology.h; do
    included=$(echo "#include \"$header\"" | "$compiler" -x c++ -std=c++20 -M -I "$root" -) || exit 1
    grep -q base/result.h <<<"$included" || fail "the list lacks what $header includes: $included"
    grep -oE '[^ ]*/(fmt|spdlog|nlohmann)/[^ ]*' <<<"$included" && fail "included by $header: keep them to .cpp files"
  done
  return 0
}

status_that_is_dropped_warns_in_kernels_too() {
  local kernel='#include "device/team.h"
    __global__ void kernel(gdx::TeamHandle team) { gdx_flush(team, 0); }' warning='ignoring return'
  "$compiler" -x c++ -std=c++20 -include device/exec/cuda_names.h -I "$root" -fsyntax-only - <<<"$kernel" 2>&1 |
    grep "$warning" >/dev/null || fail "no warning by $compiler"
  command -v nvcc >/dev/null || return 0
  nvcc -x cu -std=c++17 --expt-relaxed-constexpr -I "$root" -o /dev/null -c - <<<"$kernel" 2>&1 |
    grep "$warning" >/dev/null || fail "no warning by nvcc"
}

host_header_is_standard_cxx() {
  local said
  said=$(echo '#include "host/gdx.h"' | "$compiler" -x c++ -std=c++20 -Wpedantic -fsyntax-only -I "$root" - 2>&1)
  [ -z "$said" ] || fail "$said"
}

"$case"
