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
    expect '^guessed: ' # the figure that its lines meet has no publication on record
    # 16 puts for each fence are more than one queue is known to serve.
    run 100 "$gdx" model --queues gpu --mode pull --size-bytes 8,4096 --endpoints 1 --batch 16
    expect_status 0
    expect '^no rate: more than the 21\.6 million messages a second that were published, of 21\.6 by one queue$'
    expect '^pull  *8  *[0-9.]+  *[0-9.]+  *-  *-  '
    expect '^pull  *4096  *[0-9.]+  *[0-9.]+  *[0-9.]+  *[0-9.]+  '
    run 100 "$gdx" model --queues gpu --mode pull --size-bytes 8 --endpoints 1 --batch 16 --json
    expect '"messages_per_s": null'
    run 100 "$gdx" model --queues gpu --mode pull --size-bytes 4096 --endpoints 1 --batch 16
    expect_no '^no rate'
    run 100 "$gdx" model --path SYS --gen 5 --width 16 --mode push --size-bytes 4096
    expect_status 0
    expect '^guessed: '
    run 100 "$gdx" model --help
    expect_status 0
    expect 'interprets a table of PCIe steps'
    # Every option that the report tells, with a value that is no default.
    run 100 "$gdx" model --path PXB --platform a100 --gen 3 --width 8 --mode push,pull --size-bytes 2048,8 --queues gpu \
      --doorbell plain --wire-gbps 200 --wire-latency-ns 900 --mtu 2048 --store-bytes 128 --mps 512 --mrrs 1024 \
      --rcb-bytes 128 --peer-read-lines 96 --socket-gbps 160 --tags 128 --pool-bytes 65536 --slot-bytes 2048 \
      --order-ns 500 --endpoints 3 --batch 2 --json
    expect_status 0
    grep -v '"completed"' "$out" | tr -d ' \n' >"$folder/whole"
    mv "$folder/whole" "$out"
    expect '^\{"label":"modelled","platform":"a100","path":"PXB","generation":3,"lanes":8,"mps_bytes":512,"gpu_store_bytes":128,"queues":"gpu","doorbell":"plain","record":"read","wire_gbps":200.0,"mtu_bytes":2048,"peer_read_lines":96,"rcb_bytes":128,"socket_gbps":160.0,"pool_bytes":65536,"slot_bytes":2048,"order_gpu_scope_ns":500,"order_system_scope_ns":500,"endpoints":3,"batch":2,"most_messages_per_s":64800000.0[0-9]*,"caveat":"","proposed":"","withheld":"","rows":'
    expect '"rows":\[\{"mode":"push","size_bytes":2048,"delivered_ns":5493.96,"completed_ns":5992.364,"gbps":33.310762[0-9]*,"messages_per_s":2033127.56[0-9]*,"reads":\{"WQE":\{"transfers":1,"packets":1,"bytes":128\},"record":\{"transfers":1,"packets":1,"bytes":4\}\},"writes":\{"payload":\{"transfers":2,"packets":32,"bytes":4096\},"doorbell":\{"transfers":1,"packets":1,"bytes":8\},"CQE":\{"transfers":2,"packets":2,"bytes":128\}\}\},\{"mode":"push","size_bytes":8,'
    [ "$(grep -o '"mode":"[a-z]*","size_bytes":[0-9]*' "$out" | tr -d '\n')" = \
      '"mode":"push","size_bytes":2048"mode":"push","size_bytes":8"mode":"pull","size_bytes":2048"mode":"pull","size_bytes":8' ] || fail "not these rows"
    expect '"not_possible":\[\]\}$'
    run 100 "$gdx" model --path SYS --gen 6 --mode push-flags,pull --size-bytes 8,64 --endpoints 33
    expect_status 0
    expect '^modelled: generic, SYS path, Gen6 x16, MPS 256 B, GPU stores of 256 B, queues in host memory, BlueFlame, records read, 400 Gb/s wire$'
    expect '^guessed: a root complex keeps 48 lines of peer reads outstanding; it limits pull$'
    expect '^pull                 8        5\.709        7\.035      0\.81    12\.607  1 payload, 1 CQE; 1 WQE, 1 record, 1 doorbell, 1 CQE$'
    expect '^not possible: push-flags of 8, 64 B: 33 endpoints on 32 slots, of which each keeps one: use fewer, or a larger pool$'
    expect_no '^proposed'
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
    changes "--record unread" "--mode pull --size-bytes 8 --doorbell plain"
    grep -q 'plain doorbells, records unread, ' "$folder/all" || fail "records that are unread are not called so"
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
    for more in "--platform a100" "--gen 4" "--width 8" "--mps 128" "--wire-gbps 100" \
      "--wire-latency-ns 2000" "--order-ns 0" "--queues gpu"; do
      changes "$more" "--path SYS --mode push --size-bytes 16384 --endpoints 1"
    done
    changes "--endpoints 1" "--mode pull --size-bytes 4096"
    changes "--path PXB" "--mode pull --size-bytes 4096 --endpoints 2"
    changes "--tags 2" "--mode pull --size-bytes 4096 --endpoints 2"
    changes "--mrrs 256" "--tags 2 --mode pull --size-bytes 4096 --endpoints 2"
    changes "--store-bytes 64" "--mode push --size-bytes 4096 --order-ns 0 --endpoints 1"
    for more in "--pool-bytes 32768" "--slot-bytes 1024"; do
      changes "$more" "--mode push --size-bytes 16384 --endpoints 1"
    done
    # One size makes one row of each mode, and no size 8 B, four times as much each, and 16 MiB.
    figures "--size-bytes 64"
    [ "$(cut -d ' ' -f 1 "$out" | tr '\n' ' ')" = "pull push inline proxy bounce push-flags push-ordered " ] || fail "not all modes"
    figures "--mode pull"
    [ "$(awk '{ print $2 }' "$out" | tr '\n' ' ')" = "8 32 128 512 2048 8192 32768 131072 524288 2097152 8388608 16777216 " ] || fail "not all sizes"
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
      "--wire-latency-ns 4294967295" "--order-ns -5" "--size-bytes 16777217" "--batch x" "--platform b200" "--gen 7" \
      "--peer-read-lines 65537" "--tags 65537" "--wire-gbps 0" "--store-bytes 16" "--mps 127" "--endpoints 1025" "--slot-bytes 32" "--plot a.jpg" "--plot /nonexistent/a.svg" "--plot a.svg --size-bytes 64" "-- --json"; do
      # shellcheck disable=SC2086 # the options are words
      refused . "$gdx" model $bad
    done
    run 100 "$gdx" model --path SYS --mode push --size-bytes 1 --wire-latency-ns 1 --endpoints 1 --batch 1 --pool-bytes 64 \
      --slot-bytes 64 --order-ns 0 --wire-gbps 1 --tags 1 --peer-read-lines 1 --socket-gbps 1 --mps 128 --mrrs 128 --store-bytes 32
    expect_status 0
    run 100 "$gdx" model --path SYS --mode pull --size-bytes 8 --tags 65536 --peer-read-lines 65536 --endpoints 1
    expect_status 0
    # Refuses settings that a world admits in general and no requested mode does.
    refuses 1 'push of 64 B: 33 endpoints on 32 slots' "$gdx" model --mode push --endpoints 33 --size-bytes 64
    refuses 1 'pull of 64 B: intel-client forwards no peer reads' "$gdx" model --platform intel-client --path PHB \
      --mode pull --size-bytes 64
    refuses 127 "^gdx model: no plot: gnuplot is missing; install Debian's gnuplot-nox$" \
      env PATH="$folder" "$gdx" model --size-bytes 8,64 --plot "$folder/a.svg"
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
