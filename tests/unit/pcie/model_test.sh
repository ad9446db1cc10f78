#!/usr/bin/env bash
# model_test.sh CASE GDX: gdx model as a user runs it.
. "$(dirname "$0")/../../program.sh"
gdx=$2

case $case_name in
  json)
    run 100 "$gdx" model --path SYS --gen 5 --width 16 --mode push --size-bytes 4096 --json
    expect_status 0
    expect '"label": "modelled"'
    expect '"caveat": "guessed: ' # lines of a root complex
    expect '"size_bytes": 4096'
    run 100 "$gdx" model --path PHB --platform epyc-7452 --mode pull --size-bytes 64
    expect_status 0
    expect_no guessed # its lines are fitted
    run 100 "$gdx" model --path SYS --gen 5 --width 16 --mode push --size-bytes 4096
    expect_status 0
    expect '^guessed: '
    run 100 "$gdx" model --help
    expect_status 0
    expect 'interprets a table of PCIe steps'
    run 100 "$gdx" model --path SYS --mode push --size-bytes 4096
    expect "^completed: .* ACK, .* before its PCIe write lands"
    ;;
  options)
    # figures OPTIONS: leaves the rows in $out.
    figures() {
      # shellcheck disable=SC2086 # the options are words
      run 100 "$gdx" model $1
      expect_status 0
      cp "$out" "$folder/all"
      grep -E '^(pull|push|inline|proxy|bounce|push-flags|push-ordered) ' "$folder/all" >"$out" || fail "$1: no figures"
    }
    # changes OPTIONS, OF: those options change the figures of these, and not how many there are.
    changes() {
      figures "$2"
      cp "$out" "$folder/before"
      figures "$1 $2"
      [ "$(wc -l <"$folder/before")" = "$(wc -l <"$out")" ] || fail "$1 $2: not as many figures"
      cmp -s "$folder/before" "$out" && fail "$1 changes nothing of $2"
    }
    changes "--doorbell plain" "--mode pull --size-bytes 8"
    changes "--queues gpu" "--mode pull --size-bytes 8"
    changes "--queues gpu" "--mode push-flags --size-bytes 8"
    changes "--doorbell plain" "--mode push-ordered --size-bytes 8"
    grep -q '^proposed: .* none of today does' "$folder/all" || fail "what nothing can do is not called so"
    changes "--batch 16" "--mode push --size-bytes 4096 --endpoints 1"
    grep -q 'plain doorbells, .* batches of 16 puts' "$folder/all" || fail "a batch is not called so"
    grep -q '^proposed' "$folder/all" && fail "a push of today is called a proposal"
    changes "--peer-read-lines 192" "--path PHB --mode pull --size-bytes 65536"
    grep -q '^given: .* 192 lines' "$folder/all" || fail "lines that were given are not called so"
    changes "--rcb-bytes 256" "--mode proxy --size-bytes 65536"
    changes "--socket-gbps 80" "--path SYS --mode push --size-bytes 65536"
    changes "--mtu 1024" "--mode pull --size-bytes 65536"
    # Four times as many lines outstanding read four times as fast, where nothing else limits: 49 Gb/s become 196.
    figures "--path PHB --mode pull --size-bytes 65536 --peer-read-lines 48"
    few=$(awk '{ print $5 }' "$out")
    figures "--path PHB --mode pull --size-bytes 65536 --peer-read-lines 192"
    many=$(awk '{ print $5 }' "$out")
    awk "BEGIN { exit !($many > 3.9 * $few && $many < 4.1 * $few) }" || fail "$few Gb/s by 48 lines, $many by 192"
    ;;
  plot)
    command -v gnuplot >/dev/null || { echo "SKIPPED: gnuplot is missing; install Debian's gnuplot-nox"; exit 77; }
    run 100 "$gdx" model --mode push,push-flags --size-bytes 64,4096 --plot "$folder/it's a plot.svg"
    expect_status 0
    grep -q modelled "$folder/it's a plot.svg" || fail "the plot does not say that it is modelled"
    [ "$(grep -o 'push[a-z-]*[ (]*proposed' "$folder/it's a plot.svg" | sort -u)" = "push-flags (proposed" ] ||
      fail "the plot does not mark as proposed what is, and nothing else"
    ;;
  bad_input)
    for bad in "--gen 2" "--gen 0" "--path NEAR" "--mode shove" "--width 3" "--size-bytes 0" "--queues tape" \
      "--doorbell loud" "--mode push-bf" "--peer-read-lines 0" "--rcb-bytes 100" "--socket-gbps 0" "--mtu 1500" \
      "--nonsense" "--batch 0" "--batch 65" "--tags 0" "--endpoints 0" "--endpoints 1000000" "--endpoints 4000000000" \
      "--platform intel-client --path SYS" "--platform intel-client --path NODE" "--pool-bytes 131073" \
      "--wire-latency-ns 4294967295" "--order-ns -5" "--plot a.jpg" "--plot /nonexistent/a.svg" "--plot a.svg --size-bytes 64" "-- --json"; do
      # shellcheck disable=SC2086 # the options are words
      refused . "$gdx" model $bad
    done
    # Refuses settings that a world admits in general and no requested mode does.
    refuses 1 'push of 64 B: 33 endpoints on 32 slots' "$gdx" model --mode push --endpoints 33 --size-bytes 64
    refuses 1 'pull of 64 B: intel-client forwards no peer reads' "$gdx" model --platform intel-client --path PHB \
      --mode pull --size-bytes 64
    run 100 "$gdx" model --mode pull,push --endpoints 33 --size-bytes 64
    expect_status 0
    expect '^not possible: push of 64 B: '
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
