#!/usr/bin/env bash
# Usage: mutation.sh [--since COMMIT | --sample N | --seed S | --seconds S]...
# Plants N mutants (400) by chance, all in one build, and runs on each the tests that reach it. --since: in lines that differ
# from COMMIT alone. S seconds (60) of tests at most for each mutant. What nobody notices is printed, and is a failure.
# Exit status 77: skipped, and said so.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$root/build/mutation
choice=()
seconds=60
while [ $# -gt 0 ]; do
  case $1 in
    --since | --sample | --seed) choice+=("$1" "${2:?$1 needs a value}") ;;
    --seconds) seconds=${2:?--seconds needs a value} ;;
    *) echo "mutation.sh: '$1': use --since, --sample, --seed or --seconds" >&2; exit 2 ;;
  esac
  shift 2
done
/usr/bin/python3 -c 'import clang.cindex; clang.cindex.Index.create()' 2>/dev/null ||
  { echo "SKIPPED: mutants are made with clang's library: install python3-clang"; exit 77; }
cd "$root"
mkdir -p "$out"
# Lists each source with its command.
cmake --preset cpu -B "$out/commands" -DGDX_UNITY=OFF >"$out/log"
rm -f "$out/refused" "$out/reach.json" "$out/judged.json" "$out/found.json"
built=
for _ in 1 2 3 4 5; do
  # Mutants that the compiler refuses are left out.
  tests/mutation/mutate.py "$out/commands" "$out" "${choice[@]}" --drop "$out/refused"
  cmake -S "$out/source" --preset cpu -B "$out/build" -DGDX_MUTATION=ON -DGDX_UNITY=OFF -DCMAKE_CXX_FLAGS="-w -fpermissive" \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -DNDEBUG" >>"$out/log"
  if cmake --build "$out/build" --target gdx_tests_fast gdx_tests_full -- -k 0 >"$out/build.log" 2>&1; then
    built=yes
    break
  fi
  tests/mutation/refused.py "$out" >>"$out/refused"
done
if [ -z "$built" ]; then
  grep -m5 'error:' "$out/build.log" >&2
  echo "mutation.sh: mutants do not build; log in $out/build.log" >&2
  exit 1
fi
tests/mutation/judge.py reach "$out/build" "$out"
tests/mutation/judge.py judge "$out/build" "$out" --seconds "$seconds"
tests/mutation/judge.py report "$out"
