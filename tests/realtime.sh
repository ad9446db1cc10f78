#!/usr/bin/env bash
# Usage: realtime.sh COMMAND...: a test whose verdict comes from elapsed time. A failure of that kind alone says "too slow"
# in each failed assertion; then the last line says so, and second_try.sh may try the test again. A sanitizer's report, a
# crash or any other failure never has that line.
set -uo pipefail
output=$(mktemp)
trap 'rm -f "$output"' EXIT
"$@" 2>&1 | tee "$output"
status=${PIPESTATUS[0]}
failures=$(grep -cE ': Failure$|^FAIL' "$output")
slow=$(grep -cE '^too slow|^FAIL.*: too slow' "$output")
if [ "$status" -eq 1 ] && [ "$failures" -gt 0 ] && [ "$slow" -eq "$failures" ] &&
  ! grep -qE 'Sanitizer|runtime error' "$output"; then
  echo "REALTIME: nothing failed but bounds on elapsed time"
fi
exit "$status"
