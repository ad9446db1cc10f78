#!/usr/bin/env bash
# run_all.sh [OPTIONS] OUTPUT_FOLDER: everything that needs a GPU, in one command and 8 minutes.
#
# Builds without network, runs the device tests, the measurements, the demo with two processes on one GPU, and
# compute-sanitizer: what is worth most first, each stage within a limit, and none stops the rest. OUTPUT_FOLDER gets
#   summary.json            machine, stages, results, and what each stage has measured; rewritten after every stage, so a
#                           run that is cut off has kept what it knew
#   log.txt                 what all stages have said, in order
#   calibration_table.json  of `gdx calibrate`
#   doctor.json             of `gdx doctor --hardware`: the steps on this GPU, with the software HCA's pages for a NIC's
# A stage that cannot run here is skipped with the reason. Exit status: 0 all passed, 77 nothing failed but something was
# skipped, 1 something failed or found no time, 2 bad arguments.
#   --packages FOLDER      for a machine that lacks the libraries: Debian packages (*.deb), or what `dpkg -x` has unpacked
#   --list-packages        prints the packages to fetch for that, and ends
#   --peer-headers FOLDER  of a checkout of github.com/NVIDIA-DOCA/gpunetio: its puts are measured beside ours
#   --work FOLDER          for the build and other things not worth keeping; default OUTPUT_FOLDER/work
#   --jobs N               of the build; default: one for each processor
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
budget_s=${GDX_RUN_ALL_BUDGET_S:-480}        # of everything
stage_limits=${GDX_RUN_ALL_STAGE_LIMITS:-}   # instead of a stage's own: "NAME=SECONDS ..."
# Debian 12's; nothing that a C++ compiler brings itself.
needed_packages="libibverbs-dev libibverbs1 ibverbs-providers libnl-3-200 libnl-3-dev libnl-route-3-200 libnl-route-3-dev
librdmacm-dev librdmacm1 libfmt-dev libfmt9 libspdlog-dev libspdlog1.10 libexpected-dev libcli11-dev nlohmann-json3-dev
libisal-dev libisal2 libboost-context1.74-dev libboost-context1.74.0 libboost1.74-dev libhwloc-dev libhwloc15 libgtest-dev
libgmock-dev googletest libssl-dev libssl3 libtomlplusplus-dev libtomlplusplus3 pkgconf pkgconf-bin libpkgconf3"

usage() {
  echo "run_all.sh: $*; usage: run_all.sh [--packages FOLDER] [--peer-headers FOLDER] [--work FOLDER] [--jobs N] OUTPUT_FOLDER" >&2
  exit 2
}
packages=
peer_headers=
work=
jobs=$(nproc)
output=
while [ $# -gt 0 ]; do
  case $1 in
    --packages) packages=${2:-} && [ -n "$packages" ] || usage "--packages needs a folder"; shift 2 ;;
    --peer-headers) peer_headers=${2:-} && [ -n "$peer_headers" ] || usage "--peer-headers needs a folder"; shift 2 ;;
    --work) work=${2:-} && [ -n "$work" ] || usage "--work needs a folder"; shift 2 ;;
    --jobs) jobs=${2:-} && [[ $jobs =~ ^[1-9][0-9]*$ ]] || usage "--jobs needs a number"; shift 2 ;;
    --list-packages) printf '%s\n' $needed_packages; exit 0 ;;
    -*) usage "unknown option $1" ;;
    *) [ -z "$output" ] || usage "one OUTPUT_FOLDER, not $output and $1"; output=$1; shift ;;
  esac
done
[ -n "$output" ] || usage "no OUTPUT_FOLDER"
has_packages() { [ -d "$1/usr/include" ] || compgen -G "$1/*.deb" >/dev/null; }
[ -z "$packages" ] || has_packages "$packages" ||
  usage "$packages has neither packages (*.deb) nor usr/include: run_all.sh --list-packages says what to fetch with apt-get download"
peer_header=include/doca_gpunetio_device.h
[ -z "$peer_headers" ] || [ -f "$peer_headers/$peer_header" ] ||
  usage "$peer_headers has no $peer_header: it is no checkout of NVIDIA-DOCA/gpunetio"
[ -z "$peer_headers" ] || peer_headers=$(cd "$peer_headers" && pwd)
[ -z "$packages" ] || packages=$(cd "$packages" && pwd)
mkdir -p "$output" && output=$(cd "$output" && pwd) || usage "cannot make the folder $output"
work=${work:-$output/work}
mkdir -p "$work" && work=$(cd "$work" && pwd) || usage "cannot make the folder $work"
build=$work/build
log=$output/log.txt
started=$SECONDS
: >"$log"

# Finds toolkits and drivers that are not in PATH.
look_in() {
  local folder
  for folder in "$@"; do
    if [ -d "$folder" ]; then PATH=$PATH:$folder; fi
  done
}
look_in ${CUDA_HOME:+"$CUDA_HOME/bin"} ${CUDA_PATH:+"$CUDA_PATH/bin"} ${GDX_CUDA_FOLDERS-/usr/local/cuda/bin /usr/local/cuda-*/bin \
  /opt/cuda/bin /usr/local/cuda/compute-sanitizer /opt/nvidia/compute-sanitizer /usr/local/nvidia/bin}
export PATH

# use_packages FOLDER: all libraries come from there. As system headers, whose warnings are nobody's here.
use_packages() {
  local libraries
  libraries=$1/usr/lib/$(uname -m)-linux-gnu
  export PKG_CONFIG_SYSROOT_DIR=$1 PKG_CONFIG_LIBDIR=$libraries/pkgconfig:$1/usr/share/pkgconfig
  export CMAKE_PREFIX_PATH=$1/usr CPLUS_INCLUDE_PATH=$1/usr/include${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
  export C_INCLUDE_PATH=$1/usr/include${C_INCLUDE_PATH:+:$C_INCLUDE_PATH}
  export LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH} LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PATH=$PATH:$1/usr/bin
}

rows=()
failed=0
skipped=0
quoted() { local text=${1//\\/\\\\}; text=${text//\"/\\\"}; printf '"%s"' "${text//[$'\t\r\n']/ }"; }

# One row a stage; what it printed, if that is one whole JSON document, within it.
write_summary() {
  {
    printf '{"seconds": %d, "failed": %d, "skipped": %d, "commit": %s, "machine": %s, "stages": [\n' $((SECONDS - started)) \
      "$failed" "$skipped" "$(quoted "$commit")" "$(quoted "$machine")"
    (IFS=$'\n'; echo "${rows[*]}") | sed '$!s/$/,/'
    echo ']}'
  } >"$output/summary.json.new" && mv "$output/summary.json.new" "$output/summary.json"
}

# note STAGE passed|failed|skipped REASON SECONDS
note() {
  local said=
  # Newlines in JSON are white space: a row stays a line.
  [ ! -s "$work/$1.json" ] || said=", \"said\": $(tr '\n' ' ' <"$work/$1.json")"
  rows+=("{\"stage\": $(quoted "$1"), \"result\": $(quoted "$2"), \"reason\": $(quoted "$3"), \"seconds\": $4$said}")
  printf '%-22s %-8s %4s s  %s\n' "$1" "$2" "$4" "$3"
  case $2 in
    failed) failed=$((failed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
  esac
  write_summary
}

# A document that was cut off would spoil the summary.
is_whole_json() {
  case $(head -c 1 "$1") in [\{\[]) ;; *) return 1 ;; esac
  if command -v python3 >/dev/null; then python3 -m json.tool "$1" >/dev/null 2>&1; else [[ $(tail -c 2 "$1") == *[\}\]]* ]]; fi
}

# stage NAME LIMIT_S COMMAND...: within its limit and what is left of the budget; status 77 is a skip, whose reason is
# the line that says SKIPPED.
stage() {
  local name=$1 limit=$2 begun=$SECONDS left=$((budget_s - (SECONDS - started))) status reason
  shift 2
  [[ " $stage_limits" != *" $name="* ]] || limit=${stage_limits##*"$name="} limit=${limit%% *}
  rm -f "$work/$name.json"
  if [ "$left" -le 0 ]; then
    note "$name" failed "no time left of $budget_s s" 0
    return 1
  fi
  [ "$limit" -lt "$left" ] || limit=$left
  timeout --kill-after=5 "$limit" "$@" >"$work/$name.out" 2>"$work/$name.err" </dev/null
  status=$?
  { echo "=== $name: status $status"; cat "$work/$name.err" "$work/$name.out"; } >>"$log"
  is_whole_json "$work/$name.out" && mv "$work/$name.out" "$work/$name.json"
  case $status in
    0) note "$name" passed "" $((SECONDS - begun)) && return 0 ;;
    77)
      reason=$(sed -n 's/.*SKIPPED: //p' "$work/$name.err" "$work/$name.out" 2>/dev/null | head -n 1)
      note "$name" skipped "$reason" $((SECONDS - begun))
      ;;
    124 | 137) note "$name" failed "still running after $limit s; see log.txt" $((SECONDS - begun)) ;;
    *)
      reason=$(grep -hm 1 -E 'error:|Error|FAILED|^gdx[a-z_]*: ' "$work/$name.err" "$work/$name.out" 2>/dev/null | head -c 300)
      note "$name" failed "status $status; ${reason:-see log.txt}" $((SECONDS - begun))
      ;;
  esac
  return 1
}
skip() { rm -f "$work/$1.json"; note "$1" skipped "$2" 0; }

gpu_present() { nvidia-smi -L 2>/dev/null | grep '^GPU ' >/dev/null; }

describe_machine() {
  uname -a
  date -u +%FT%TZ
  nproc
  nvcc --version || true
  for tool in cmake ninja g++ compute-sanitizer cuobjdump; do command -v $tool || echo "no $tool"; done
  nvidia-smi || { echo "SKIPPED: no nvidia-smi, or it shows no GPU"; return 77; }
  nvidia-smi topo -m || true
}

unpack_packages() {
  local package
  mkdir -p "$work/packages"
  for package in "$packages"/*.deb; do dpkg -x "$package" "$work/packages" || return 1; done
}

configure() {
  local generator="Unix Makefiles" architectures
  command -v ninja >/dev/null && generator=Ninja
  # Only for the GPU that is here: a third of the time.
  architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
  # Another compiler's warnings are not worth a session with a GPU.
  cmake -S "$root" -B "$build" -G "$generator" -DCMAKE_BUILD_TYPE=Release -DGDX_CUDA=ON -DGDX_WERROR=OFF \
    -DCMAKE_CUDA_COMPILER="$(command -v nvcc)" -DGDX_PEER_HEADERS="$peer_headers" \
    ${architectures:+-DGDX_CUDA_ARCHITECTURES=$architectures}
}
# build_targets TARGET...
build_targets() { cmake --build "$build" --parallel "$jobs" --target "$@"; }

# device_tests [COMMAND...]: the tests' own binary, behind COMMAND. Tests that skip where a GPU is are a failure.
device_tests() {
  local out=$work/device_tests.$$ status reason
  "$@" "$build/tests/gpu/device_test_cuda" >"$out" 2>&1
  status=$?
  cat "$out" >&2
  reason=$(sed -n '/: Skipped$/{n;p;q}' "$out")
  rm -f "$out"
  [ "$status" -eq 0 ] && [ -n "$reason" ] || return "$status"
  gpu_present && { echo "tests skipped though nvidia-smi shows a GPU: $reason"; return 1; }
  echo "SKIPPED: $reason" && return 77
}

# A tool that found nothing because it could not work has proved nothing. Left out are kernels that are the tests' own:
# one provokes an error of the runtime, another's lanes wait for lanes of their warp, which under memcheck never come.
sanitized() {
  local out=$work/sanitized.$1 status
  GTEST_FILTER=-CudaNames.* device_tests compute-sanitizer --tool "$1" --error-exitcode 3 2>&1 | tee "$out" >&2
  status=${PIPESTATUS[0]}
  if grep -q 'SKIPPED: ' "$out"; then return 77; fi
  [ "$status" -eq 0 ] || return "$status"
  grep -qE '(ERROR|RACECHECK) SUMMARY: 0 ' "$out" || { echo "Error: $1 did not report"; return 1; }
}
# Two ranks on one GPU run beside one another under MPS only; else each message waits for time slices of milliseconds.
# The daemon serves those that name its folder, and ends with this script.
mps_control() { env CUDA_MPS_PIPE_DIRECTORY="$work/mps" CUDA_MPS_LOG_DIRECTORY="$work/mps" timeout 60 nvidia-cuda-mps-control "$@"; }
start_mps() { mkdir -p "$work/mps" && mps_control -d; }
stop_mps() { echo quit | mps_control >>"$log" 2>&1; }

# A FAIL of a step fails. One of a check alone does not, because a machine without a ConnectX has one. Beside a GPU its
# steps are OK, and fail where the software HCA does wrong.
doctor() {
  local out=$work/doctor.steps status fault step
  gpu_present || { echo "SKIPPED: no CUDA driver here, or no GPU" && return 77; }
  "$gdx" run -- "$gdx" doctor --hardware --output "$output/doctor.json" | tee "$out"
  status=${PIPESTATUS[0]}
  case $status in 0 | 1 | 3 | 4) ;; *) echo "Error: gdx doctor ended with status $status" && return 1 ;; esac
  grep -q '^steps on .*: 0 FAIL, ' "$out" || { echo "Error: $(grep -m 1 '^  FAIL  *[0-9]' "$out")"; return 1; }
  [ "$(grep -cE '^  OK +(8|9|1[0-6]) ' "$out")" -eq 9 ] || { echo "Error: not all of steps 8 to 16 are OK"; return 1; }
  for fault in stale_payload=receiver-visibility no_gpu_atomics=receiver-visibility lost_add=gpu-doorbells lost_add=shared-endpoint \
    merged_doorbells=gpu-doorbells deaf_to_repeats=gpu-doorbells device_memory_tail=gpu-push; do
    step=${fault#*=}
    GDX_SOFTHCA_FAULT=${fault%=*} "$gdx" run -- "$build/host/programs/doctor/gdx_doctor_cuda" --step "$step" --short | tee "$out"
    grep -q '"verdict": "FAIL"' "$out" || { echo "Error: step $step misses the fault ${fault%=*}"; return 1; }
  done
}
export -f describe_machine unpack_packages configure build_targets device_tests sanitized doctor gpu_present \
  mps_control start_mps
gdx=$build/host/programs/cli/gdx
export root output work build jobs packages peer_headers gdx

commit=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo "unknown: no git")
machine=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
stage machine 60 bash -c describe_machine
if [ -n "$packages" ]; then
  if [ -d "$packages/usr/include" ]; then
    use_packages "$packages"
  elif stage packages 60 bash -c unpack_packages; then
    use_packages "$work/packages"
  fi
fi

missing_tool() {
  command -v nvcc >/dev/null || { echo "no nvcc in PATH, CUDA_HOME or /usr/local/cuda: install the CUDA Toolkit"; return; }
  command -v cmake >/dev/null || { echo "no cmake in PATH: install it"; return; }
  command -v g++ >/dev/null || echo "no g++ in PATH: install it"
}
kernels="device_tests posting"
programs="info doctor calibrate demo bench"
sanitizers="memcheck racecheck"
by_mps=()
built=0
reason=$(missing_tool)
if [ -n "$reason" ]; then
  skip build_kernels "$reason"
elif stage configure 60 bash -c configure && stage build_kernels 180 bash -c 'build_targets device_test_cuda gdx_posting_bench_cuda'; then
  built=1
fi
# Stages that need a GPU alone come first, before the host's side is built.
if [ "$built" -eq 1 ]; then
  stage device_tests 60 bash -c device_tests
  stage posting 60 "$build/perf/gdx_posting_bench_cuda" --json
  if [ -z "$peer_headers" ]; then
    echo "posting_beside_peer    not asked for: it needs --peer-headers"
  elif stage build_peer 90 bash -c 'build_targets gdx_peer_bench_cuda'; then
    stage posting_beside_peer 60 "$build/perf/gdx_peer_bench_cuda" --json
  fi
  if stage build_programs 200 bash -c 'build_targets gdx gdx_softhca gdx_bench_cuda gdx_demo_cuda gdx_calibrate_cuda gdx_doctor_cuda'; then
    stage info 60 "$gdx" run -- "$gdx" info --json
    stage doctor 120 bash -c doctor
    # Push, pull and bounce. The software HCA reaches payload in host memory, whatever GPU and kernel there are.
    stage calibrate 60 "$gdx" calibrate --gpu --softhca --payload host --max-bytes 1048576 --json \
      --output "$output/calibration_table.json"
    if ! command -v nvidia-cuda-mps-control >/dev/null; then
      echo "mps                    not here: ranks share the GPU by time slices"
    elif stage mps 60 bash -c start_mps; then
      by_mps=(env "CUDA_MPS_PIPE_DIRECTORY=$work/mps")
      trap stop_mps EXIT
    fi
    stage demo 90 "${by_mps[@]}" "$gdx" demo --gpu --json --max-bytes 1048576
    # Also of a kernel that leaves posting to a thread of the host.
    stage bench 90 "${by_mps[@]}" "$gdx" bench put_signal_lat put_bw --gpu --json -s 8,4K,64K --modes pull,push,inline,bounce,proxy --seconds 20
  else
    for name in $programs; do skip "$name" "not built"; done
  fi
  for name in $sanitizers; do
    if command -v compute-sanitizer >/dev/null; then
      stage "$name" 90 bash -c "sanitized $name"
    else
      skip "$name" "no compute-sanitizer in PATH: it is part of the CUDA Toolkit"
    fi
  done
else
  for name in $kernels $programs $sanitizers; do skip "$name" "nothing was built"; done
fi

write_summary
echo "$failed failed, $skipped skipped, $((SECONDS - started)) s; see $output/summary.json"
[ "$failed" -eq 0 ] || exit 1
[ "$skipped" -eq 0 ] || exit 77
