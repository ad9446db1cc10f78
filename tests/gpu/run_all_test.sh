#!/usr/bin/env bash
# run_all_test.sh CASE: run_all.sh's own logic, on a machine of stubs, with a GPU or none: a build of stub programs, a
# stage that hangs, a spent budget, a toolkit elsewhere, libraries from a folder.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
out=$scratch/results
mkdir -p "$scratch/bin"

fail() {
  echo "FAIL: $*"
  cat "$scratch/said" "$out/summary.json" 2>/dev/null
  exit 1
}
# stub NAME: a program of that name first in PATH; its body is on standard input.
stub() { { echo '#!/usr/bin/env bash'; cat; } >"$1" && chmod +x "$1"; }
stub_tool() { stub "$scratch/bin/$1"; }

# A toolkit whose "build" makes programs that behave as $STUB_KERNELS says.
stub_toolkit() {
  stub_tool nvcc <<<'echo "a stub of nvcc"'
  stub_tool cmake <<'STUB'
if [ "$1" = --build ]; then
  mkdir -p "$2"/{host/programs/cli,tests/gpu,perf}
  case $* in
    *gdx_softhca*) [ "$STUB_KERNELS" != no_programs ] && cp "$STUB_FOLDER/program" "$2/host/programs/cli/gdx" ;;
    *gdx_peer_bench_cuda*) cp "$STUB_FOLDER/program" "$2/perf/gdx_peer_bench_cuda" ;;
    *) cp "$STUB_FOLDER/program" "$2/tests/gpu/device_test_cuda" && cp "$STUB_FOLDER/program" "$2/perf/gdx_posting_bench_cuda" ;;
  esac
else
  env >"$STUB_FOLDER/configured"
  echo "$*" >>"$STUB_FOLDER/configured"
fi
STUB
  stub "$scratch/program" <<'STUB'
case $* in
  *gdx_doctor_cuda*) [ "$STUB_KERNELS" = blind ] && echo '"verdict": "OK"' || echo '"verdict": "FAIL"'; exit 0 ;;
  *doctor*)
    case $STUB_KERNELS in
      failing_step) printf '  FAIL    11 gpu-doorbells  GPU N: a put: timed out\nsteps on gdx0: 1 FAIL, 0 WARN\n' ;;
      dying_doctor) exit 134 ;;
      untried) echo "steps on gdx0: 0 FAIL, 0 WARN" ;;
      *) printf '  OK %7s step\n' 8 9 10 11 12 13 14 15 16; echo "steps on gdx0: 0 FAIL, 0 WARN" ;;
    esac
    exit 1 ;;  # of a check
  run*) echo '[{"name": "gdx0"}]'; exit 0 ;;
esac
[ "$1" != demo ] || echo "demo at ${CUDA_MPS_PIPE_DIRECTORY:-no MPS}" >>"$STUB_FOLDER/mps"
[ "$(basename "$0")" = gdx_posting_bench_cuda ] && cp "$output/summary.json" "$STUB_FOLDER/seen_by_posting"
case $STUB_KERNELS in
  run | no_programs | silent) [ "$(basename "$0")" = device_test_cuda ] && echo "[  PASSED  ] 9 tests." || echo '{"rows": []}' ;;
  skip)
    if [ "$(basename "$0")" = device_test_cuda ]; then
      printf 'device_test.cpp:30: Skipped\nno CUDA driver here\n'
    else
      echo "gdx: SKIPPED: no CUDA driver here" >&2
      exit 77
    fi ;;
  fault) echo "gdx: the kernel faults" >&2; exit 3 ;;
  torn) printf '{"rows": ['; exit 3 ;;
  hang) [ "$(basename "$0")" = device_test_cuda ] && exec sleep 600; echo '{}' ;;
esac
STUB
}
stub_gpu() {
  stub_tool nvidia-smi <<'STUB'
case $* in
  -L) echo "GPU 0: Stub" ;;
  *compute_cap*) echo 9.0 ;;
  *) echo "a stub of nvidia-smi" ;;
esac
STUB
}
stub_mps() {
  stub_tool nvidia-cuda-mps-control <<'STUB'
[ "$*" = -d ] || read -r word
echo "${word:-start} at $CUDA_MPS_PIPE_DIRECTORY" >>"$STUB_FOLDER/mps"
STUB
}
no_gpu() { stub_tool nvidia-smi <<<'exit 9'; }
stub_sanitizer() {
  stub_tool compute-sanitizer <<'STUB'
tool=$2
shift 4
"$@" || exit
[ "$STUB_KERNELS" = silent ] || case $tool in
  memcheck) echo "========= ERROR SUMMARY: 0 errors" ;;
  racecheck) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
esac
STUB
}

# run STATUS [ARGUMENTS...]: without the real toolkit, whatever this machine has.
run() {
  local wanted=$1 status
  shift
  timeout 250 env -u CUDA_HOME -u CUDA_PATH PATH="$scratch/bin:/usr/bin:/bin" GDX_CUDA_FOLDERS="${toolkit:-}" \
    STUB_FOLDER="$scratch" STUB_KERNELS="${kernels:-run}" bash "$here/run_all.sh" "$@" >"$scratch/said" 2>&1
  status=$?
  [ "$status" -eq "$wanted" ] || fail "exit status $status, wanted $wanted"
}
# stage NAME RESULT [REASON]: as the summary has it.
stage() { grep -qE "\"stage\": \"$1\", \"result\": \"$2\", \"reason\": \"${3:-}" "$out/summary.json" || fail "$1 is not $2 ${3:-}"; }
all_stages="device_tests posting info doctor calibrate demo bench memcheck racecheck"
is_json() { ! command -v python3 >/dev/null || python3 -m json.tool "$1" >/dev/null || fail "$1 is no JSON"; }

case $1 in
  arguments)
    run 2
    grep -q 'no OUTPUT_FOLDER' "$scratch/said" || fail "no usage"
    run 2 --packages
    run 2 --jobs none "$out"
    run 2 --packages "$scratch/nothing" "$out"
    grep -q 'nothing has neither packages (\*.deb) nor usr/include: .*--list-packages' "$scratch/said" || fail "missing packages are not named"
    run 2 --peer-headers "$scratch/nothing" "$out"
    grep -q 'nothing has no include/doca_gpunetio_device.h' "$scratch/said" || fail "missing headers are not named"
    [ ! -e "$out/summary.json" ] || fail "it ran all the same"
    run 0 --list-packages
    grep -qx libibverbs-dev "$scratch/said" || fail "the packages are not listed"
    ;;
  no_toolkit)
    no_gpu
    [ -e /usr/bin/nvcc ] && { echo "SKIPPED: nvcc is in /usr/bin, where it cannot be hidden: run it where the CUDA Toolkit is elsewhere"; exit 77; }
    run 77 "$out"
    stage build_kernels skipped "no nvcc in PATH"
    for name in $all_stages; do stage "$name" skipped "nothing was built"; done
    is_json "$out/summary.json"
    ;;
  toolkit_elsewhere)
    stub_toolkit && stub_gpu && stub_sanitizer
    mkdir -p "$scratch/elsewhere" && mv "$scratch/bin/nvcc" "$scratch/bin/compute-sanitizer" "$scratch/elsewhere"
    toolkit=$scratch/elsewhere run 0 "$out"
    grep -q -- "-DCMAKE_CUDA_COMPILER=$scratch/elsewhere/nvcc" "$scratch/configured" || fail "configured with another nvcc"
    ;;
  no_gpu)
    stub_toolkit && no_gpu && stub_sanitizer
    kernels=skip run 77 "$out"
    stage machine skipped "no nvidia-smi"
    stage build_kernels passed && stage build_programs passed && stage info passed
    stage doctor skipped "no CUDA driver here"
    for name in device_tests demo bench memcheck racecheck posting calibrate; do stage "$name" skipped "no CUDA driver here"; done
    ;;
  gpu)
    stub_toolkit && stub_gpu && stub_sanitizer
    run 0 --work "$scratch/kept" "$out"
    for name in machine configure build_kernels build_programs $all_stages; do stage "$name" passed; done
    grep -q -- -DGDX_CUDA_ARCHITECTURES=90 "$scratch/configured" || fail "built for more than the GPU that is here"
    [ "$(find "$out" -type f | wc -l)" -eq 2 ] || fail "more in the folder than a summary and a log: $(ls "$out")"
    is_json "$out/summary.json"
    grep -q '"stage": "posting".*"said": {"rows": \[\]' "$out/summary.json" || fail "what was measured is not in the summary"
    grep -q '=== device_tests: status 0' "$out/log.txt" || fail "no log"
    grep -qx 'demo at no MPS' "$scratch/mps" || fail "the demo was promised MPS where there is none"
    # Results that need a GPU alone are on disk before the host's programs are built and the next stage runs.
    order=$(grep -o '"stage": "[a-z_]*"' "$out/summary.json" | tr -d '\n')
    [[ $order == *device_tests*posting*build_programs*calibrate*demo*bench*memcheck*racecheck* ]] || fail "another order: $order"
    is_json "$scratch/seen_by_posting"
    grep -q '"stage": "device_tests", "result": "passed"' "$scratch/seen_by_posting" || fail "a result waits for the stages behind it"
    ;;
  mps)
    stub_toolkit && stub_gpu && stub_sanitizer && stub_mps
    run 0 --work "$scratch/kept" "$out"
    stage mps passed
    printf '%s at '"$scratch/kept/mps"'\n' start demo quit | diff - "$scratch/mps" || fail "ranks did not share the GPU by the daemon, or it was left"
    ;;
  peer)
    stub_toolkit && stub_gpu && stub_sanitizer
    mkdir -p "$scratch/peer/include" && touch "$scratch/peer/include/doca_gpunetio_device.h"
    run 0 --peer-headers "$scratch/peer" "$out"
    stage build_peer passed && stage posting_beside_peer passed
    grep -q -- "-DGDX_PEER_HEADERS=$scratch/peer" "$scratch/configured" || fail "configured without the headers"
    ;;
  no_sanitizer)
    stub_toolkit && stub_gpu
    run 77 "$out"
    stage memcheck skipped "no compute-sanitizer" && stage posting passed
    ;;
  silent_sanitizer)
    stub_toolkit && stub_gpu && stub_sanitizer
    kernels=silent run 1 "$out"
    stage memcheck failed "status 1; Error: memcheck did not report" && stage racecheck failed
    ;;
  skips_beside_a_gpu)
    stub_toolkit && stub_gpu && stub_sanitizer
    kernels=skip run 1 "$out"
    stage device_tests failed
    ;;
  fault)
    stub_toolkit && stub_gpu && stub_sanitizer
    kernels=fault run 1 "$out"
    for name in device_tests posting calibrate; do stage "$name" failed "status 3; gdx: the kernel faults"; done
    ;;
  failing_doctor)
    stub_toolkit && stub_gpu && stub_sanitizer
    kernels=failing_step run 1 "$out"
    stage doctor failed "status 1; Error:   FAIL    11 gpu-doorbells" && stage info passed
    kernels=untried run 1 "$out"
    stage doctor failed "status 1; Error: not all of steps 8 to 16 are OK"
    kernels=blind run 1 "$out"
    stage doctor failed "status 1; Error: step receiver-visibility misses the fault stale_payload"
    kernels=dying_doctor run 1 "$out"
    stage doctor failed "status 1; Error: gdx doctor ended with status 134"
    ;;
  torn)
    stub_toolkit && stub_gpu && stub_sanitizer
    kernels=torn run 1 "$out"
    stage posting failed && is_json "$out/summary.json"
    ;;
  no_programs)
    stub_toolkit && stub_gpu && stub_sanitizer
    kernels=no_programs run 1 "$out"
    stage posting passed && stage build_programs failed && stage demo skipped "not built" && stage racecheck passed
    ;;
  hang)
    stub_toolkit && stub_gpu && stub_sanitizer
    export GDX_RUN_ALL_STAGE_LIMITS="device_tests=2 memcheck=2 racecheck=2"
    kernels=hang run 1 "$out"
    stage device_tests failed "still running after 2 s"
    stage posting passed
    ;;
  budget)
    stub_toolkit && stub_gpu && stub_sanitizer
    export GDX_RUN_ALL_BUDGET_S=0
    run 1 "$out"
    stage machine failed "no time left of 0 s" && stage configure failed "no time left"
    ;;
  packages)
    stub_toolkit && stub_gpu && stub_sanitizer
    mkdir -p "$scratch/debs/usr/include" "$scratch/archives"
    # Unpacked already, and as they come.
    touch "$scratch/archives/a.deb"
    stub_tool dpkg <<<'[ "$1 $2" = "-x '"$scratch"'/archives/a.deb" ] && mkdir -p "$3/usr/include"'
    for folder in "$scratch/debs" "$scratch/archives"; do
      run 0 --packages "$folder" --work "$scratch/kept" "$out"
      used=$folder
      [ "$folder" = "$scratch/debs" ] || used=$scratch/kept/packages
      libraries=$used/usr/lib/$(uname -m)-linux-gnu
      for wanted in "PKG_CONFIG_SYSROOT_DIR=$used" "PKG_CONFIG_LIBDIR=$libraries/pkgconfig:.*" "CMAKE_PREFIX_PATH=$used/usr" \
        "LD_LIBRARY_PATH=$libraries.*" "CPLUS_INCLUDE_PATH=$used/usr/include.*"; do
        grep -qx "$wanted" "$scratch/configured" || fail "not configured with $wanted"
      done
    done
    ;;
  *) fail "no such case: $1" ;;
esac
echo "ok: $1"
