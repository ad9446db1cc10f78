#!/usr/bin/env bash
# bench_test.sh CASE GDX: one case of gdx bench, checked by what it prints, keeps, and how it exits. No figure is
# judged: only that it is there.
. "$(dirname "$0")/../program.sh"
gdx=$2
few=(--iters 8 --rounds 2)

# needs_python: what JSON is read with.
needs_python() {
  command -v python3 >/dev/null && return
  echo "SKIPPED: python3 is missing; install Debian's python3 to read the JSON of gdx bench"
  exit 77
}

case $case_name in
  table)
    # Every benchmark, mode and scope, both ways, and several endpoints.
    run 100 "$gdx" bench -s 1,4K --modes pull,push,inline,bounce,auto,proxy "${few[@]}"
    expect_status 0
    expect '^measured on the software HCA, kernels on the CPU layer$'
    expect '^latency of a completion, us: warp scope, 1 endpoint$'
    expect '^latency of a half round trip, us: warp scope, 1 endpoint$'
    expect '^bandwidth: warp scope, 1 endpoint, 16 messages between two flushes, 1 of a doorbell, one way$'
    for operation in put put_signal; do
      for mode in pull push inline bounce auto proxy; do
        for size in '1 B' '4 KiB'; do
          [ "$(grep -cE "^$operation +$mode +$size +[0-9.]+" "$out")" -eq 2 ] || fail "not 2 rows of $operation by $mode of $size"
        done
      done
    done
    [ "$(grep -cE '^(get|fetch_add) +(nic|proxy) +[0-9]+ (B|KiB) +[0-9.]+' "$out")" -eq 12 ] || fail "not 12 rows of gets and atomics"
    expect 'every one right$'
    expect 'slots written without a credit: 0$'
    expect 'too few rounds'
    [ "$(awk 'length > 100' "$out" | wc -l)" -eq 0 ] || fail "a line of more than 100 columns"
    run 100 "$gdx" bench put_bw put_signal_bw get_bw fetch_add_bw -s 64 --modes pull,push,proxy --scopes thread,block -q 3 -t 5 \
      --batch 2 -b "${few[@]}"
    expect_status 0
    expect '^bandwidth: block scope, 3 endpoints, 5 messages between two flushes, 2 of a doorbell, both ways$'
    expect 'every one right$'
    ;;
  formats)
    needs_python
    run 60 "$gdx" bench put_lat put_bw -s 8,64 --modes pull,push "${few[@]}" --json --output "$folder/a.json"
    expect_status 0
    grep -v '^gdx bench: .* done' "$out" | cmp - "$folder/a.json" || fail "--json and --output differ"
    python3 - "$folder/a.json" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
document = json.load(open(sys.argv[1]))
assert document["whole"] is True and document["ended_by"] is None
assert len(document["rows"]) == 8 and document["staging_violations"] == 0
assert document["command"].startswith("gdx bench put_lat put_bw -s 8,64")
here, there = document["conditions"]
for name in ("host", "cpu", "cores", "kernel", "hca", "firmware", "rdma_core", "path_class", "gdx_version", "clocks", "gpu"):
    assert name in here, name
assert here["address"] != there["address"]
for row in document["rows"]:
    assert row["series"] == "measured on the software HCA, kernels on the CPU layer", row
    assert row["rounds"] == 2 and row["messages"] == 16 and len(row["samples"]) == 2, row
    assert row["bad_bytes"] == 0, row
    # A latency has one place; of 8 messages and one that warms up each has its own in a window of 16.
    assert row["bytes_verified"] == 2 * row["bytes"] * (8 if row["measure"] == "bw" else 1), row
    assert row["messages_per_s"]["median"] > 0 and row["pcie_reads_per_message"] > 0, row
    if row["measure"] == "lat":
        us = row["latency_us"]
        assert 0 < us["least"] <= us["p50"] <= us["p99"] <= us["p99_9"] <= us["most"], us
        assert us["low"] <= us["median"] <= us["high"] and sum(c for _, c in row["histogram_ns"]) == 16, row
PYTHON
    run 60 "$gdx" bench put_lat get_bw -s 8 --modes pull "${few[@]}" --csv
    expect_status 0 && expect '^series,operation,' && expect '^"measured on .*,"get","bw","nic",8,'
    run 60 "$gdx" bench put_lat put_bw -s 8 --modes pull "${few[@]}" --format perftest
    expect_status 0 && expect '^ #bytes #iterations    t_min' && expect 'MsgRate\[Mpps\]$'
    [ "$(grep -cE '^ 8 +16 +[0-9.]+ ' "$out")" -eq 2 ] || fail "not two rows of figures"
    run 60 "$gdx" bench put_lat -s 8 --modes push "${few[@]}" --format nvshmem
    expect_status 0 && expect '^#gdx_put_lat_push$' && expect '^8 +warp +[0-9.]+'
    run 60 env NVSHMEM_MACHINE_READABLE_OUTPUT=1 "$gdx" bench put_lat -s 8 --modes push "${few[@]}" --format nvshmem
    expect_status 0 && expect '^&&&& PERF gdx_put_lat_push___warp___size__8___latency [0-9.]+ -us$'
    run 60 "$gdx" bench put_bw -s 8 --modes push "${few[@]}" --format nccl-tests
    expect_status 0 && expect '^ +8 +8 +uint8 +none +-1 .* 0 +N/A'
    run 60 "$gdx" bench put_bw -s 8 --modes push,auto "${few[@]}" --model PHB,SYS
    expect_status 0 && expect '^modelled by gdx model: SYS, PCIe 5 x16, generic platform$' && expect '^measured on '
    # A missing gdx_model is told, and what was measured is kept.
    mkdir "$folder/alone"
    cp "$gdx" "$(dirname "$gdx")/../bench/gdx_bench" "$folder/alone"
    export GDX_SOFTHCA_LIBRARY=$(dirname "$gdx")/../../driver-shim/softhca/uverbs/libgdx_softhca.so
    run 60 "$folder/alone/gdx" bench put_lat -s 8 --modes pull "${few[@]}"
    expect_status 0 && expect '^put +pull +8 B '
    run 60 "$folder/alone/gdx" bench put_lat -s 8 --modes pull "${few[@]}" --model SYS
    expect_status 127 && expect '^put +pull +8 B ' && expect 'no gdx_model beside the executable'
    unset GDX_SOFTHCA_LIBRARY
    run 60 "$gdx" bench put_bw -s 8 --modes push "${few[@]}" --output "$folder/none/a.json"
    expect_failure && expect 'none/a.json: cannot be written'
    ;;
  killed)
    # Half-way, in either rank: all that was measured is there, and the report says that it is not whole.
    for dead in 0 1; do
      run 100 env GDX_RETRY_COUNT=3 "$gdx" bench put_signal_lat -s 8 --modes pull,push,inline --rounds 8 --iters 50 --kill-rank "$dead"
      expect_failure
      [ "$(grep -cE '^put_signal +(pull|push|inline) +8 B +[0-9.]+' "$out")" -eq 3 ] || fail "not 3 rows of figures"
      expect "was killed: Killed"
      expect '^PARTIAL: the run ended early: '
    done
    expect 'PARTIAL: .*rank 1 failed rank 0: .*syndrome 0x15'
    ;;
  interrupted)
    # Ctrl-C keeps what was measured.
    # A shell without job control starts programs that ignore SIGINT.
    env --default-signal=INT "$gdx" bench put_lat -s 8 --modes pull,push --rounds 100 --seconds 20 >"$out" 2>&1 </dev/null &
    bench=$!
    # Each tenth is told.
    for _ in $(seq 600); do
      grep -q 'bench: .* done, round [1-9]' "$out" && break
      read -rt 0.1 <> <(:) || true
    done
    kill -INT "$bench"
    wait "$bench"
    status=$?
    expect_status 130
    expect '^PARTIAL: the run ended early: signal 2: Interrupt$'
    [ "$(grep -cE '^put +(pull|push) +8 B +[0-9.]+' "$out")" -eq 2 ] || fail "what was measured is lost"
    ;;
  page | browser)
    # The page says what the document says, with a chart library and without.
    needs_python
    here=$(dirname "$0")
    browser=
    if [ "$case_name" = browser ]; then
      browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
        echo "SKIPPED: there is no chromium; install Debian's chromium to look at the page of gdx bench as a reader does"
        exit 77
      }
    fi
    export GDX_CHART_JS=$here/chart_stub.js
    run 100 "$gdx" bench put_lat put_bw get_lat -s 8,512,32K --modes pull,push "${few[@]}" --output "$folder/a.json" --report "$folder/a.html"
    expect_status 0
    run 100 python3 "$here/bench_page.py" "$folder/a.html" "$folder/a.json" ${browser:+"$browser"}
    expect_status 0 && expect '^[1-9][0-9]* cells are the document.s$'
    cat "$out"
    # A figure that differs is found.
    sed -E '0,/(data-at="[^"]*latency_us.median">)[0-9.]+/s//\17.7777/' "$folder/a.html" >"$folder/wrong.html"
    run 60 python3 "$here/bench_page.py" "$folder/wrong.html" "$folder/a.json"
    expect_failure && expect 'the page has 7.7777'
    refuses 127 'no.js: no chart library can be read there' "$gdx" bench put_lat --report "$folder/b.html" --chart-library "$folder/no.js"
    [ -e "$folder/b.html" ] && fail "a page was written"
    unset GDX_CHART_JS
    if ls /usr/share/javascript/chart.js /usr/share/nodejs/chart.js >/dev/null 2>&1; then
      echo "not tried: a page without a chart library; this machine has one"
    else
      run 60 "$gdx" bench fetch_add_lat "${few[@]}" --report "$folder/b.html"
      expect_status 0 && expect 'b.html: There is no chart, .* install libjs-chart.js'
      grep -q '<p class="warn">There is no chart' "$folder/b.html" || fail "the page does not say why it has no chart"
    fi
    ;;
  two_nodes)
    # Each rank started by itself, as on two machines; the first one reports, and different options are refused.
    port=$(free_port) || exit 1
    "$gdx" bench put_lat 127.0.0.1 -p "$port" -s 8 --modes pull "${few[@]}" >"$folder/other" 2>&1 </dev/null &
    other=$!
    run 60 "$gdx" bench put_lat --listen -p "$port" -s 8 --modes pull "${few[@]}"
    expect_status 0 && expect '^put +pull +8 B '
    wait "$other" || fail "status $? of rank 1: $(cat "$folder/other")"
    refused "listen: '10.0.0.1' is the node that listens: leave out one" "$gdx" bench put_lat 10.0.0.1 --listen
    # The same by variables, as under a launcher.
    export GDX_WORLD_SIZE=2 GDX_ROOT=127.0.0.1:$port
    GDX_RANK=1 "$gdx" bench put_lat -s 8 --modes pull "${few[@]}" >"$folder/other" 2>&1 </dev/null &
    other=$!
    run 60 env GDX_RANK=0 "$gdx" bench put_lat -s 8 --modes pull "${few[@]}"
    expect_status 0 && expect '^put +pull +8 B ' && expect '^rank 1, where it differs: address: '
    wait "$other" || fail "status $? of rank 1: $(cat "$folder/other")"
    [ -s "$folder/other" ] && fail "rank 1 printed: $(cat "$folder/other")"
    GDX_RANK=1 "$gdx" bench put_lat -s 16 --modes pull "${few[@]}" >"$folder/other" 2>&1 </dev/null &
    run 60 env GDX_RANK=0 "$gdx" bench put_lat -s 8 --modes pull "${few[@]}"
    wait "$!" && fail "rank 1 took other options than rank 0"
    expect_status 2 && expect 'started with different options: give both the same$' && expect_one_line
    ;;
  networks)
    # Two nodes, as far as one machine has them, and a bad network between them: the report is complete.
    needs_python
    command -v ip >/dev/null || { echo "SKIPPED: there is no ip; install Debian's iproute2 to join two networks"; exit 77; }
    run 100 python3 "$(dirname "$0")/two_networks.py" 7 0.005 0.5 "$gdx" bench put_lat put_bw get_bw -s 8,64K --modes pull,push \
      --rounds 2 -n 20 --addr ADDRESS --output "$folder/a.json"
    [ "$status" -eq 77 ] && { cat "$out"; exit 77; }
    expect_status 0
    expect '^relay: seed 7, [0-9]+ frames passed, [1-9][0-9]* lost$'
    expect '^rank 1, where it differs: address: 10.99.0.2(;|$)'
    expect 'every one right$' && expect_no 'PARTIAL'
    python3 - "$folder/a.json" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
document = json.load(open(sys.argv[1]))
assert document["whole"] and len(document["rows"]) == 10
assert sum(row["retransmissions"] for row in document["rows"]) > 0, "frames were lost, and nothing was sent again"
# The relay delays each way.
assert all(row["latency_us"]["least"] > 1000 for row in document["rows"] if row["measure"] == "lat")
PYTHON
    ;;
  peers)
    if ! command -v ib_write_bw >/dev/null; then
      echo "SKIPPED: perftest is missing; install Debian's perftest to run it beside gdx bench"
      exit 77
    fi
    # perftest leaves memory behind when it ends.
    export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
    run 100 "$gdx" bench put_bw get_lat -s 4K --modes pull --iters 20 --rounds 2 --peers
    expect_status 0
    expect '^ib_write_bw +put +4 KiB +- +\[.*\] +- +[0-9.e+]+ +[0-9.]+$'
    expect '^ib_read_lat +get +4 KiB +[0-9.]+ +\[.*\] +[0-9.]+ +- +-$'
    mkdir "$folder/bin"
    for tool in sh env timeout; do ln -s "$(command -v $tool)" "$folder/bin/$tool"; done
    run 60 env PATH="$folder/bin" "$gdx" bench get_lat -s 8 --iters 8 --rounds 1 --peers
    expect_status 0 && expect 'ib_read_lat is not installed.*install Debian.s perftest$' && expect_no '^ib_read_lat '
    refused 'peers: both ends of perftest run on this machine' env GDX_RANK=1 "$gdx" bench --peers
    ;;
  compare)
    run 60 "$gdx" bench put_lat -s 8,64 --modes pull --rounds 6 --iters 20 --output "$folder/a.json"
    expect_status 0
    # A run that is three times as slow in all rounds.
    sed -E 's/"samples":\[[^]]*\]/"samples":[900000,910000,920000,930000,940000,950000]/' "$folder/a.json" >"$folder/b.json"
    run 20 "$gdx" bench --compare "$folder/a.json" "$folder/b.json"
    expect_status 0 && expect '^put lat pull 8 B .* slower$' && expect '^2 of 2 cases differ beyond noise$'
    run 20 "$gdx" bench --compare "$folder/a.json" "$folder/a.json"
    expect_status 0 && expect 'no difference seen' && expect '^0 of 2 cases differ beyond noise$'
    run 20 "$gdx" bench --compare "$folder/a.json" "$folder/b.json" --json
    expect_status 0 && expect '"b_is":"slower"'
    refused 'compare: 1 files: give two' "$gdx" bench --compare "$folder/a.json"
    refuses 127 'none.json: cannot be read' "$gdx" bench --compare "$folder/a.json" "$folder/none.json"
    echo rubbish >"$folder/c.json"
    refused 'c.json: no result of gdx bench' "$gdx" bench --compare "$folder/a.json" "$folder/c.json"
    ;;
  broken_memory)
    for test in put_bw get_bw fetch_add_bw put_signal_lat; do
      run 60 "$gdx" bench "$test" -s 64 --modes push "${few[@]}" --break-memory
      expect_status 1
      expect '^DAMAGED: .* B wrong$' && expect_no 'every one right'
    done
    ;;
  bad_input)
    refused "'teleport_bw' is no benchmark: use put_lat," "$gdx" bench teleport_bw
    refused "size: '0': use 1 to 64M" "$gdx" bench -s 0
    refused "size: '65M': use 1 to 64M" "$gdx" bench -s 65M
    refused "size: '64:8': use LEAST:MOST" "$gdx" bench -s 64:8
    refused "modes: 'teleport': use pull" "$gdx" bench --modes teleport
    refused "scopes: 'grid': use thread" "$gdx" bench --scopes grid
    refused "format: 'iperf': use gdx" "$gdx" bench --format iperf
    refused "endpoints: '65': use a whole number from 1 to 64" "$gdx" bench -q 65
    refused "iters: '0': use" "$gdx" bench -n 0
    refused "rounds: '101': use" "$gdx" bench --rounds 101
    refused "preset: 'mpi': use deepep" "$gdx" bench --preset mpi
    refused "model: 'FAR': use PIX" "$gdx" bench --model FAR
    refused 'chart-library requires --report' "$gdx" bench --chart-library x.js
    refused 'json excludes --csv' "$gdx" bench --csv --json
    refused 'hardware: options of the software HCA have no meaning' "$gdx" bench --hardware --loss 0.1
    refuses 1 'nosuch0.*gdx0' "$gdx" bench -d nosuch0
    if ls /sys/class/infiniband/* >/dev/null 2>&1; then
      echo "not tried: --hardware without an HCA; this machine has one"
    else
      refuses 1 'no RDMA HCA on this machine' "$gdx" bench --hardware put_lat
    fi
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
