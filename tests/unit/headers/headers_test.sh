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
  local words='include device/team.h or device/endpoint.h in what nvcc compiles'
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

# says_in_kernel WORDS STATEMENT: the words are the only error of both compilers.
says_in_kernel() {
  local words=$1 said errors source
  source="#include \"device/team.h\"
    __global__ void kernel(gdx::TeamHandle team, void* pointer, gdx::Status* status) { *status = $2; }"
  said=$("$compiler" -x c++ -std=c++20 -include device/exec/cuda_names.h -I "$root" -fsyntax-only - <<<"$source" 2>&1)
  errors=$(grep -E '\berror\b.*:' <<<"$said")
  [[ $errors == *"$words"* && $errors != *$'\n'* ]] || fail "$compiler of $2: $said"
  command -v nvcc >/dev/null || { echo "SKIPPED: the words of nvcc: there is none here"; return 0; }
  said=$(nvcc -arch=sm_80 -x cu -std=c++17 --expt-relaxed-constexpr -I "$root" -o /dev/null -c - <<<"$source" 2>&1)
  errors=$(grep -E '\berror\b.*:' <<<"$said")
  [[ $errors == *"$words"* && $errors != *$'\n'* ]] || fail "nvcc of $2: $said"
}

pointers_of_a_wrong_type_are_answered_by_what_to_write() {
  says_in_kernel 'gdx_put_value(team, static_cast<std::uint64_t*>(to), ...)' 'gdx_put_value(team, pointer, 1, 0)'
  local wait='gdx_wait(team, static_cast<const std::uint64_t*>(signal), ...)'
  says_in_kernel "$wait" 'gdx_wait(team, pointer, gdx::Compare::kEqual, 1, 0)'
  says_in_kernel "$wait" 'gdx_wait(team, pointer, gdx::Compare::kEqual, 1)'
}

# The comparison of arguments on GPUs, which no preset has.
checked_arguments_compile_by_nvcc() {
  command -v nvcc >/dev/null || { echo "SKIPPED: GDX_CHECK_ARGUMENTS was not compiled: no nvcc here"; exit 77; }
  local said
  said=$(nvcc -arch=sm_80 -x cu -std=c++17 --expt-relaxed-constexpr -DGDX_CHECK_ARGUMENTS -Werror all-warnings -I "$root" \
    -o /dev/null -c - 2>&1 <<'SOURCE'
#include "device/team.h"
template <gdx::Scope S>
__global__ void kernel(gdx::TeamHandle team, char* to, const char* from, gdx::Status* status) {
  *status = gdx_put<gdx::Mode::kAuto, S>(team, to, from, 64, 1);
}
template __global__ void kernel<gdx::Scope::kThread>(gdx::TeamHandle, char*, const char*, gdx::Status*);
template __global__ void kernel<gdx::Scope::kWarp>(gdx::TeamHandle, char*, const char*, gdx::Status*);
template __global__ void kernel<gdx::Scope::kBlock>(gdx::TeamHandle, char*, const char*, gdx::Status*);
SOURCE
  ) || fail "$said"
}

host_header_is_standard_cxx() {
  local said
  said=$(echo '#include "host/gdx.h"' | "$compiler" -x c++ -std=c++20 -Wpedantic -fsyntax-only -I "$root" - 2>&1)
  [ -z "$said" ] || fail "$said"
}

"$case"
