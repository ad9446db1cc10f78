#!/usr/bin/env bash
# nvtx_test.sh GDX [LISTENER]: a profiler sees the host operations of a program, nested and ended. Without one the
# program says nothing of it.
set -uo pipefail
[ $# -eq 2 ] || { echo "SKIPPED: built without ranges, for want of NVTX headers: install the CUDA Toolkit, and configure anew"; exit 77; }
fail() {
  echo "FAIL: $*"
  echo "$out"
  exit 1
}
out=$(timeout 60 "$1" run -- "$1" info 2>&1) || fail "gdx info exited with $?"
! grep -q '^begin' <<<"$out" || fail "ranges without a listener"
out=$(timeout 60 env NVTX_INJECTION64_PATH="$2" "$1" run -- "$1" info 2>&1) || fail "gdx info exited with $?"
grep -q '^begin Hca::open$' <<<"$out" || fail "no range of Hca::open"
[ "$(grep -c '^begin' <<<"$out")" -eq "$(grep -c '^end' <<<"$out")" ] || fail "a range that does not end"
[ "$(grep '^end' <<<"$out" | tail -n 1)" = "end 0" ] || fail "ranges are not nested"
echo ok
