#!/usr/bin/env bash
# run_all.sh [--packages FOLDER] [--jobs N] OUTPUT_FOLDER: everything that needs a GPU, in one command and 8 minutes.
#
# Builds without network, runs the device tests, the demo with two processes on one GPU, compute-sanitizer and the
# measurements. OUTPUT_FOLDER gets a log of every stage, the JSON of those that have one, and summary.json. A stage that
# cannot run here is skipped with the reason. Exit status: 0 all passed, 77 nothing failed but something was skipped,
# 1 something failed or found no time, 2 bad arguments.
#   --packages FOLDER  Debian packages unpacked with `dpkg -x`, for a machine that lacks the libraries: all of them
#                      are taken from there
#   --jobs N           of the build; default: one for each processor
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
budget_s=${GDX_RUN_ALL_BUDGET_S:-480}        # of everything
stage_limit_s=${GDX_RUN_ALL_STAGE_LIMIT_S:-} # of each stage, instead of its own

usage() {
  echo "run_all.sh: $*; usage: run_all.sh [--packages FOLDER] [--jobs N] OUTPUT_FOLDER" >&2
  exit 2
}
packages=
jobs=$(nproc)
output=
while [ $# -gt 0 ]; do
  case $1 in
    --packages) packages=${2:-} && [ -n "$packages" ] || usage "--packages needs a folder"; shift 2 ;;
    --jobs) jobs=${2:-} && [[ $jobs =~ ^[1-9][0-9]*$ ]] || usage "--jobs needs a number"; shift 2 ;;
    -*) usage "unknown option $1" ;;
    *) [ -z "$output" ] || usage "one OUTPUT_FOLDER, not $output and $1"; output=$1; shift ;;
  esac
done
[ -n "$output" ] || usage "no OUTPUT_FOLDER"
mkdir -p "$output" && output=$(cd "$output" && pwd) || usage "cannot make the folder $output"
build=$output/build
started=$SECONDS

if [ -n "$packages" ]; then
  [ -d "$packages/usr/include" ] || usage "$packages has no usr/include: unpack Debian packages there with dpkg -x"
  packages=$(cd "$packages" && pwd)
  libraries=$packages/usr/lib/$(uname -m)-linux-gnu
  export PKG_CONFIG_SYSROOT_DIR=$packages PKG_CONFIG_LIBDIR=$libraries/pkgconfig:$packages/usr/share/pkgconfig
  export CMAKE_PREFIX_PATH=$packages/usr CPATH=$packages/usr/include${CPATH:+:$CPATH}
  export LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH} LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PATH=$packages/usr/bin:$PATH
fi

rows=()
failed=0
skipped=0
quoted() { local text=${1//\\/\\\\}; text=${text//\"/\\\"}; printf '"%s"' "${text//[$'\t\r\n']/ }"; }

# note STAGE passed|failed|skipped REASON SECONDS
note() {
  rows+=("{\"stage\": $(quoted "$1"), \"result\": $(quoted "$2"), \"reason\": $(quoted "$3"), \"seconds\": $4}")
  printf '%-22s %-8s %4s s  %s\n' "$1" "$2" "$4" "$3"
  case $2 in
    failed) failed=$((failed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
  esac
}

# stage NAME LIMIT_S COMMAND...: within its limit and what is left of the budget; status 77 is a skip, whose reason is
# the line that says SKIPPED. The command's standard output goes to NAME.json if it is JSON, else to the log.
stage() {
  local name=$1 limit=${stage_limit_s:-$2} begun=$SECONDS left=$((budget_s - (SECONDS - started))) status reason
  shift 2
  if [ "$left" -le 0 ]; then
    note "$name" failed "no time left of $budget_s s" 0
    return 1
  fi
  [ "$limit" -lt "$left" ] || limit=$left
  timeout --kill-after=5 "$limit" "$@" >"$output/$name.out" 2>"$output/$name.log" </dev/null
  status=$?
  case $(head -c 1 "$output/$name.out") in
    [\{\[]) mv "$output/$name.out" "$output/$name.json" ;;
    *) cat "$output/$name.out" >>"$output/$name.log" && rm -f "$output/$name.out" ;;
  esac
  case $status in
    0) note "$name" passed "" $((SECONDS - begun)) && return 0 ;;
    77)
      reason=$(grep -hom 1 'SKIPPED: .*' "$output/$name.log")
      note "$name" skipped "${reason#SKIPPED: }" $((SECONDS - begun))
      ;;
    124 | 137) note "$name" failed "still running after $limit s; see $name.log" $((SECONDS - begun)) ;;
    *) note "$name" failed "status $status; see $name.log" $((SECONDS - begun)) ;;
  esac
  return 1
}
skip() { note "$1" skipped "$2" 0; }

gpu_present() { nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }

describe_machine() {
  uname -a
  date -u +%FT%TZ
  git -C "$root" rev-parse HEAD 2>/dev/null || echo "no git: commit unknown"
  nvcc --version || true
  nvidia-smi || { echo "SKIPPED: no nvidia-smi, or it shows no GPU"; return 77; }
}

build_programs() {
  local generator="Unix Makefiles" architectures
  command -v ninja >/dev/null && generator=Ninja
  # Only for the GPU that is here: a third of the time.
  architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
  cmake -S "$root" -B "$build" -G "$generator" -DCMAKE_BUILD_TYPE=Release -DGDX_CUDA=ON \
    ${architectures:+-DGDX_CUDA_ARCHITECTURES=$architectures} &&
    cmake --build "$build" --parallel "$jobs" --target gdx gdx_softhca gdx_demo_cuda gdx_calibrate_cuda \
      device_test_cuda gdx_posting_bench_cuda
}

# device_tests [COMMAND...]: the tests' own binary, behind COMMAND. Tests that skip where a GPU is are a failure.
device_tests() {
  local out=$output/device_tests.$$ status reason
  "$@" "$build/tests/gpu/device_test_cuda" >"$out" 2>&1
  status=$?
  cat "$out" >&2
  reason=$(sed -n '/: Skipped$/{n;p;q}' "$out")
  rm -f "$out"
  [ "$status" -eq 0 ] && [ -n "$reason" ] || return "$status"
  gpu_present && { echo "tests skipped though nvidia-smi shows a GPU: $reason"; return 1; }
  echo "SKIPPED: $reason" && return 77
}

sanitized() { device_tests compute-sanitizer --tool "$1" --error-exitcode 3; }
export -f describe_machine build_programs device_tests sanitized gpu_present
export root output build jobs

stage machine 20 bash -c describe_machine
built=0
if ! command -v nvcc >/dev/null; then
  skip build "no nvcc in PATH: install the CUDA Toolkit"
elif stage build 300 bash -c build_programs; then
  built=1
fi
if [ "$built" -eq 1 ]; then
  gdx=$build/host/cli/gdx
  stage info 20 "$gdx" run -- "$gdx" info --json
  stage device_tests 60 bash -c device_tests
  stage demo 90 "$gdx" demo --gpu --json --max-bytes 1048576
  if command -v compute-sanitizer >/dev/null; then
    stage memcheck 90 bash -c 'sanitized memcheck'
    stage racecheck 90 bash -c 'sanitized racecheck'
  else
    skip memcheck "no compute-sanitizer in PATH: it is part of the CUDA Toolkit"
    skip racecheck "no compute-sanitizer in PATH: it is part of the CUDA Toolkit"
  fi
  stage posting 60 "$build/perf/gdx_posting_bench_cuda" --json
  # The software HCA reaches payload in host memory, whatever GPU and kernel there are.
  stage calibrate 60 "$gdx" calibrate --gpu --softhca --payload host --max-bytes 1048576 --json \
    --output "$output/calibration_table.json"
else
  for name in info device_tests demo memcheck racecheck posting calibrate; do skip "$name" "nothing was built"; done
fi

{
  printf '{"seconds": %d, "failed": %d, "skipped": %d, "stages": [\n' $((SECONDS - started)) "$failed" "$skipped"
  (IFS=$'\n'; echo "${rows[*]}") | sed '$!s/$/,/'
  echo ']}'
} >"$output/summary.json"
echo "$failed failed, $skipped skipped, $((SECONDS - started)) s; see $output/summary.json"
[ "$failed" -eq 0 ] || exit 1
[ "$skipped" -eq 0 ] || exit 77
