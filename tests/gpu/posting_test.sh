#!/usr/bin/env bash
# posting_test.sh POSTING_BENCH: on the CPU layer the benchmark counts and checks what it posts, and sees what is wrong.
set -uo pipefail
fail() {
  echo "FAIL: $*"
  exit 1
}
out=$(timeout 60 "$1" --puts 64 --chunks 2) || fail "status $?: $out"
echo "$out"
# 10 shapes in 2 places, the 2 of warps that put one by one by 2 kinds of doorbell; 7 ways to store, 4 of them also one by one in 2 sizes; one to GPU memory, in 2 scopes.
[ "$(grep -c '^what post .* mistakes 0$' <<<"$out")" -eq 24 ] || fail "not 24 cases of posting"
[ "$(grep -c '^what post .* doorbell BlueFlame .* mistakes 0$' <<<"$out")" -eq 4 ] || fail "not 4 cases by BlueFlame"
[ "$(grep -c '^what store .* wrong_chunks 0$' <<<"$out")" -eq 17 ] || fail "not 17 cases of storing"
grep -q '^what answer of a host thread  rounds 1000  answered 1000$' <<<"$out" || fail "the host did not answer"
out=$(timeout 60 "$1" --puts 64 --chunks 1 --json) || fail "status $? with --json"
grep -q '"machine": "CPU layer"' <<<"$out" || fail "the JSON does not say what ran"
! grep -q 'per_s' <<<"$out" || fail "times of the CPU layer are shown as measurements"
timeout 60 "$1" --puts 64 --chunks 1 --break-queue >/dev/null 2>&1 && fail "a damaged WQE was not found"
timeout 60 "$1" --puts 64 --chunks 1 --break-blueflame >/dev/null 2>&1 && fail "a damaged BlueFlame write was not found"
out=$(timeout 60 "$1" --puts 1 2>&1)
[ $? -eq 2 ] && [ "$out" = "gdx_posting_bench: --puts: '1': use a whole number from 32 to 32768; see gdx_posting_bench --help" ] ||
  fail "--puts 1: $out"
echo ok
