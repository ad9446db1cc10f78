#!/usr/bin/env bash
# Usage: perftest.sh PORT ROWS PROGRAM [options]. Both ends must succeed, and the client must print ROWS
# lines of results.
. "$(dirname "$0")/common.sh"
port=$1
rows=$2
shift 2
need "$1" perftest

both_ends "$port" "$@" -F
# A line of results: bytes, iterations, then figures with a fraction.
printed=$(grep -Ec '^ *[0-9]+ +[0-9]+ +[0-9]+\.[0-9]+' "$scratch/client")
[ "$printed" = "$rows" ] || fail "the client printed $printed lines of results, not $rows"
