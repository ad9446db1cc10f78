#!/usr/bin/env bash
# bad_input.sh GDX_RANKS GDX_SIM: what cannot be simulated is refused with status 2 and one line.
set -u
ranks=$1
sim=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# refused PROGRAM OPTIONS
refused() {
  # shellcheck disable=SC2086
  timeout 100 "$1" $2 >"$scratch/out" 2>"$scratch/err"
  local status=$?
  [ $status = 2 ] && [ "$(wc -l <"$scratch/err")" = 1 ] && [ ! -s "$scratch/out" ] && return
  echo "FAILED: $2: status $status, printed: $(cat "$scratch/out" "$scratch/err")" >&2
  exit 1
}

# refused_with WORDS OPTIONS, of gdx_ranks: which say so.
refused_with() {
  refused "$ranks" "$2"
  grep -qF -- "$1" "$scratch/err" && return
  echo "FAILED: $2: not said: $1: $(cat "$scratch/err")" >&2
  exit 1
}

for bad in "--message-bytes 9223372036854775800" "--message-bytes 1073741824 --ranks 2 --messages 1" \
  "--message-bytes 16777216 --ranks 128" "--mode push --slots 2147483648" "--mode bounce --slots 65536" \
  "--ranks -1" "--ranks two" "--pattern foo" "--mode proxy" "--gen 5" "--goal /dev/null --pattern stream" \
  "--queues gpu" "--doorbell plain" "--doorbell loud --path PIX" "--path NEAR" "--loggp --point --path PIX" "--point" \
  "--messages 4294967295" "--messages 131073" "--messages 8193 --goal $scratch/goal" \
  "--ranks 2 --message-bytes 16777216 --messages 4096" \
  "--rate-gbps 0" "--rate-gbps nan" "--seed -1" "--step-ns 0" "--nonsense"; do
  refused "$ranks" "$bad"
done
for option in "--ranks 4" "--endpoints-per-rank 4" "--pattern exchange" "--messages 4" "--jitter-ns 4" "--step-ns 4" \
  "--dead-rank 1"; do
  refused_with "${option% *} excludes" "--loggp $option"
  refused_with "${option% *} excludes" "--point --path PIX $option"
done
refused_with "--message-bytes excludes" "--loggp --message-bytes 64"
refused_with "--post-ns excludes" "--point --path PIX --post-ns 0"
# Before it simulates: so many messages take longer than a refusal may.
refused_with "--goal /nonexist/x: cannot be written" "--goal /nonexist/x --messages 8192 --message-bytes 65536"
refused_with "use at most 256" "--goal $scratch/goal --ranks 2 --endpoints-per-rank 258 --messages 1"
refused_with "--goal excludes --json" "--goal /dev/null --json"
refused_with "at most 16777216 in all" "--messages 4294967295"
refused_with "at most 1048576 in all with a trace" "--messages 8193 --goal $scratch/goal"
for bad in "--seeds 3..a" "--seeds -1" "--jobs 0" "--nonsense"; do
  refused "$sim" "$bad"
done
"$ranks" --help >"$scratch/out" || exit 1
if LC_ALL=C grep -q '[^[:print:][:space:]]' "$scratch/out"; then
  echo "FAILED: --help holds bytes that nobody can read" >&2
  exit 1
fi
