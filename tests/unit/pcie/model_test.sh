#!/usr/bin/env bash
# model_test.sh CASE GDX: gdx model as a user runs it.
. "$(dirname "$0")/../../program.sh"
gdx=$2

case $case_name in
  json)
    run 60 "$gdx" model --path SYS --gen 5 --width 16 --mode push --size-bytes 4096 --json
    expect_status 0
    expect '"label": "modelled"'
    expect '"caveat": "guessed: ' # lines of a root complex
    expect '"size_bytes": 4096'
    run 60 "$gdx" model --path PHB --platform epyc-7452 --mode pull --size-bytes 64
    expect_status 0
    expect_no guessed # its lines are fitted
    run 60 "$gdx" model --path SYS --gen 5 --width 16 --mode push --size-bytes 4096
    expect_status 0
    expect '^guessed: '
    ;;
  plot)
    command -v gnuplot >/dev/null || { echo "SKIPPED: gnuplot is missing; install Debian's gnuplot-nox"; exit 77; }
    run 60 "$gdx" model --mode push --size-bytes 64,4096 --plot "$folder/it's a plot.svg"
    expect_status 0
    grep -q modelled "$folder/it's a plot.svg" || fail "the plot does not say that it is modelled"
    ;;
  bad_input)
    for bad in "--gen 2" "--gen 0" "--path NEAR" "--mode shove" "--width 3" "--size-bytes 0" "--queues tape" "--nonsense" \
      "--tags 0" "--endpoints 0" "--endpoints 1000000" "--endpoints 4000000000" "--wire-latency-ns 4294967295" \
      "--order-ns -5" "--plot a.jpg" "--plot /nonexistent/a.svg" "--plot a.svg --size-bytes 64" "-- --json"; do
      # shellcheck disable=SC2086 # the options are words
      refused . "$gdx" model $bad
    done
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
