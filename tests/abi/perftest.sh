#!/usr/bin/env bash
# Usage: perftest.sh ROWS PROGRAM [options]. Both ends must succeed, and the client must print ROWS lines of results.
. "$(dirname "$0")/common.sh"
rows=$1
shift
need "$1" perftest
if [[ " $* " == *" --use-null-mr "* ]] && ! "$1" --help 2>&1 | grep -- --use-null-mr > /dev/null; then
  echo "SKIPPED: this perftest has no --use-null-mr; that of Debian 13 has" >&2
  exit 77
fi

both_ends "$@" -F "${patience[@]}"
# A line of results: bytes, iterations, then figures with a fraction.
printed=$(grep -Ec '^ *[0-9]+ +[0-9]+ +[0-9]+\.[0-9]+' "$scratch/client")
[ "$printed" = "$rows" ] || fail "the client printed $printed lines of results, not $rows"
