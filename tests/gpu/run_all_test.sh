#!/usr/bin/env bash
# run_all_test.sh CASE: run_all.sh's own logic, on a machine of stubs: a GPU that is there or not, a build that makes
# stub programs, a stage that hangs, a budget that is spent, libraries from a folder.
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
  mkdir -p "$2"/{host/cli,tests/gpu,perf}
  for program in host/cli/gdx tests/gpu/device_test_cuda perf/gdx_posting_bench_cuda; do
    cp "$STUB_FOLDER/program" "$2/$program"
  done
else
  env >"$STUB_FOLDER/configured"
  echo "$*" >>"$STUB_FOLDER/configured"
fi
STUB
  stub "$scratch/program" <<'STUB'
[ "$1" = run ] && { echo '[{"name": "gdx0"}]'; exit 0; }
case $STUB_KERNELS in
  run) [ "$(basename "$0")" = device_test_cuda ] && echo "[  PASSED  ] 9 tests." || echo '{"rows": []}' ;;
  skip)
    if [ "$(basename "$0")" = device_test_cuda ]; then
      printf 'device_test.cpp:30: Skipped\nno CUDA driver here\n'
    else
      echo "gdx: SKIPPED: no CUDA driver here" >&2
      exit 77
    fi ;;
  fault) exit 3 ;;
  hang) [ "$(basename "$0")" = device_test_cuda ] && exec timeout 30 tail -f /dev/null; echo '{}' ;;
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
no_gpu() { stub_tool nvidia-smi <<<'exit 9'; }
stub_sanitizer() { stub_tool compute-sanitizer <<<'shift 4; exec "$@"'; }

# run STATUS [ARGUMENTS...]: without the real toolkit, whatever this machine has.
run() {
  local wanted=$1 status
  shift
  timeout 60 env PATH="$scratch/bin:/usr/bin:/bin" STUB_FOLDER="$scratch" STUB_KERNELS="${kernels:-run}" \
    bash "$here/run_all.sh" "$@" >"$scratch/said" 2>&1
  status=$?
  [ "$status" -eq "$wanted" ] || fail "exit status $status, wanted $wanted"
}
# stage NAME RESULT [REASON]: as the summary has it.
stage() { grep -qE "\"stage\": \"$1\", \"result\": \"$2\", \"reason\": \"${3:-}" "$out/summary.json" || fail "$1 is not $2 ${3:-}"; }
all_stages="info device_tests demo memcheck racecheck posting calibrate"

case $1 in
  arguments)
    run 2
    grep -q 'no OUTPUT_FOLDER' "$scratch/said" || fail "no usage"
    run 2 --packages
    run 2 --jobs none "$out"
    run 2 --packages "$scratch/nothing" "$out"
    grep -q 'nothing has no usr/include' "$scratch/said" || fail "the missing packages are not named"
    [ ! -e "$out/summary.json" ] || fail "it ran all the same"
    ;;
  no_toolkit)
    no_gpu
    [ -e /usr/bin/nvcc ] && { echo "SKIPPED: nvcc is in /usr/bin, where it cannot be hidden: run it where the CUDA Toolkit is elsewhere"; exit 77; }
    run 77 "$out"
    stage build skipped "no nvcc in PATH"
    for name in $all_stages; do stage "$name" skipped "nothing was built"; done
    ;;
  no_gpu)
    stub_toolkit && no_gpu && stub_sanitizer
    kernels=skip run 77 "$out"
    stage machine skipped "no nvidia-smi"
    stage build passed && stage info passed
    for name in device_tests demo memcheck racecheck posting calibrate; do stage "$name" skipped "no CUDA driver here"; done
    ;;
  gpu)
    stub_toolkit && stub_gpu && stub_sanitizer
    run 0 "$out"
    for name in machine build $all_stages; do stage "$name" passed; done
    grep -q -- -DGDX_CUDA_ARCHITECTURES=90 "$scratch/configured" || fail "built for more than the GPU that is here"
    for file in info.json demo.json posting.json calibrate.json device_tests.log machine.log; do
      [ -s "$out/$file" ] || fail "no $file"
    done
    if command -v python3 >/dev/null; then python3 -m json.tool "$out/summary.json" >/dev/null || fail "no JSON"; fi
    ;;
  no_sanitizer)
    stub_toolkit && stub_gpu
    run 77 "$out"
    stage memcheck skipped "no compute-sanitizer" && stage posting passed
    ;;
  skips_beside_a_gpu)
    stub_toolkit && stub_gpu && stub_sanitizer
    kernels=skip run 1 "$out"
    stage device_tests failed
    ;;
  fault)
    stub_toolkit && stub_gpu && stub_sanitizer
    kernels=fault run 1 "$out"
    for name in device_tests posting calibrate; do stage "$name" failed "status 3"; done
    ;;
  hang)
    stub_toolkit && stub_gpu && stub_sanitizer
    export GDX_RUN_ALL_STAGE_LIMIT_S=1
    kernels=hang run 1 "$out"
    stage device_tests failed "still running after 1 s"
    stage posting passed
    ;;
  budget)
    stub_toolkit && stub_gpu && stub_sanitizer
    export GDX_RUN_ALL_BUDGET_S=0
    run 1 "$out"
    stage machine failed "no time left of 0 s" && stage build failed "no time left"
    ;;
  packages)
    stub_toolkit && stub_gpu && stub_sanitizer
    mkdir -p "$scratch/debs/usr/include"
    run 0 --packages "$scratch/debs" "$out"
    libraries=$scratch/debs/usr/lib/$(uname -m)-linux-gnu
    for wanted in "PKG_CONFIG_SYSROOT_DIR=$scratch/debs" "PKG_CONFIG_LIBDIR=$libraries/pkgconfig:.*" \
      "CMAKE_PREFIX_PATH=$scratch/debs/usr" "LD_LIBRARY_PATH=$libraries.*" "CPATH=$scratch/debs/usr/include.*"; do
      grep -qx "$wanted" "$scratch/configured" || fail "not configured with $wanted"
    done
    ;;
  *) fail "no such case: $1" ;;
esac
echo "ok: $1"
