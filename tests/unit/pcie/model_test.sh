#!/usr/bin/env bash
# gdx model as a user runs it. Usage: model_test.sh GDX CASE
set -u
gdx=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

case $2 in
  json)
    "$gdx" model --path SYS --gen 5 --width 16 --mode push --size-bytes 4096 --json >"$scratch/out" || fail "exit $?"
    grep -q '"label": "modelled"' "$scratch/out" || fail "the result does not say that it is modelled"
    grep -q '"caveat": "guessed: ' "$scratch/out" || fail "lines of a root complex are not called guessed"
    "$gdx" model --path PHB --platform epyc-7452 --mode pull --size-bytes 64 | grep -q guessed && fail "fitted lines are called guessed"
    "$gdx" model --path SYS --gen 5 --width 16 --mode push --size-bytes 4096 | grep -q '^guessed: ' || fail "no caveat in the text"
    grep -q '"size_bytes": 4096' "$scratch/out" || fail "no row"
    ;;
  plot)
    command -v gnuplot >/dev/null || { echo "SKIPPED: gnuplot is missing; install Debian's gnuplot-nox" >&2; exit 77; }
    "$gdx" model --mode push --size-bytes 64,4096 --plot "$scratch/it's a plot.svg" >/dev/null || fail "exit $?"
    grep -q modelled "$scratch/it's a plot.svg" || fail "the plot does not say that it is modelled"
    ;;
  bad_input)
    for bad in "--gen 2" "--gen 0" "--path NEAR" "--mode shove" "--width 3" "--size-bytes 0" "--queues tape" "--nonsense" \
      "--tags 0" "--endpoints 0" "--endpoints 1000000" "--endpoints 4000000000" "--wire-latency-ns 4294967295" \
      "--order-ns -5" "--plot a.jpg" "--plot /nonexistent/a.svg" "--plot a.svg --size-bytes 64" "-- --json"; do
      # shellcheck disable=SC2086
      timeout 20 "$gdx" model $bad >"$scratch/out" 2>"$scratch/err"
      [ $? = 2 ] || fail "$bad was not refused"
      [ "$(wc -l <"$scratch/err")" = 1 ] || fail "$bad: not one line: $(cat "$scratch/err")"
      [ -s "$scratch/out" ] && fail "$bad: refused after it had printed figures"
    done
    ;;
esac
exit 0
