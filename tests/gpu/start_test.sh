#!/usr/bin/env bash
# start_test.sh GDX DEMO POSTING_BENCH DEVICE_TEST CALIBRATE BENCH DOCTOR: programs with kernels for a GPU start without
# one and without a CUDA library, and say so in one line.
set -uo pipefail
gdx=$1
shift
fail() {
  echo "FAIL: $*"
  exit 1
}
for program in "$@"; do
  ! ldd "$program" | grep -E 'libcuda|libcudart' || fail "$program needs a CUDA library to start"
done
if ldconfig -p | grep 'libcuda\.so\.1' >/dev/null; then
  echo "SKIPPED: this machine has a CUDA driver: tests/gpu/run_all.sh is for it"
  exit 77
fi
# one_line COMMAND...: ends with 77, and all that it says is one line, the same from every rank.
one_line() {
  local out status
  out=$(timeout 60 "$@" 2>&1)
  status=$?
  [ "$status" -eq 77 ] || fail "status $status of $*: $out"
  [ "$(sort -u <<<"$out" | grep -c .)" -eq 1 ] || fail "more than one line from $*: $out"
  grep -q 'SKIPPED: no CUDA driver here: libcuda.so.1.*CPU layer' <<<"$out" || fail "$* does not say why: $out"
}
one_line "$1"
one_line "$gdx" demo --gpu
one_line "$2" --json
one_line "$4"
one_line "$gdx" calibrate --gpu --softhca
one_line "$5"
one_line "$gdx" bench --gpu put_lat
one_line "$6"
out=$(timeout 60 "$3" 2>&1) || fail "status $? of $3"
grep -q 'no CUDA driver here' <<<"$out" || fail "$3 does not say why it skips: $out"
! grep -q '\[       OK \]' <<<"$out" || fail "$3 says that a test passed without a GPU"
echo ok
