#!/usr/bin/env bash
# bench_test.sh CASE GDX: one case of gdx bench, checked by what it prints, keeps, and how it exits. No figure is
# judged: only that it is there.
. "$(dirname "$0")/../program.sh"
gdx=$2
few=(--iters 8 --rounds 2)
soon=(env GDX_ACK_TIMEOUT=14 GDX_RETRY_COUNT=5)  # until a dead rank is found

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
    expect '^measured on the software HCA, kernels on the CPU layer; begun 20[0-9-]+T[0-9:]+Z$'
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
    run 100 "$gdx" bench put_lat put_bw -s 8,64 --modes pull,push "${few[@]}" --json --output "$folder/a.json"
    expect_status 0
    grep -v '^gdx bench: .* done' "$out" | cmp - "$folder/a.json" || fail "--json and --output differ"
    # --from prints what was kept, in any layout, and measures nothing.
    run 100 "$gdx" bench --from "$folder/a.json" --json
    cmp "$out" "$folder/a.json" || fail "--from prints another document"
    run 100 "$gdx" bench --from "$folder/a.json" --format perftest
    expect_status 0 && [ "$(grep -cE '^ (8|64) +16 +[0-9.]+ ' "$out")" -eq 8 ] || fail "not the rows that were kept"
    sed 's/"latency_us"/"latency"/' "$folder/a.json" >"$folder/other.json"
    refuses 2 'other.json: no result of gdx bench' "$gdx" bench --from "$folder/other.json"
    python3 - "$folder/a.json" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, os, sys
document = json.load(open(sys.argv[1]))
assert document["whole"] is True and document["ended_by"] is None
assert len(document["rows"]) == 8 and document["staging_violations"] == 0
assert document["command"].startswith("gdx bench put_lat put_bw -s 8,64")
here, there = document["conditions"]
for name in ("host", "cpu", "cores", "kernel", "hca", "firmware", "rdma_core", "path_class", "gdx_version", "clocks", "gpu"):
    assert name in here, name
assert here["hca_part"] == "MT4129 GDX0000000001" and here["gpu_clock"] is None and here["cuda"] is None, here
ranges = [part.partition("-") for part in here["processors"].split(",")]
allowed = {one for low, _, high in ranges for one in range(int(low), int(high or low) + 1)}
assert allowed == os.sched_getaffinity(0), here
assert here["address"] != there["address"]
for row in document["rows"]:
    assert row["series"] == "measured on the software HCA, kernels on the CPU layer", row
    assert row["rounds"] == 2 and row["messages"] == 16 and len(row["samples"]) == 2, row
    assert row["bad_bytes"] == 0 and row["pcie_counted_by"] == "the software HCA", row
    # A latency has one place; of 8 messages and one that warms up each has its own in a window of 16.
    assert row["bytes_verified"] == 2 * row["bytes"] * (8 if row["measure"] == "bw" else 1), row
    assert row["messages_per_s"]["median"] > 0 and row["pcie_reads_per_message"] > 0, row
    if row["measure"] == "lat":
        us = row["latency_us"]
        assert us["p50"] is None and us["p99"] is None and us["p99_9"] is None and 0 < us["least"] <= us["most"], us
        assert us["low"] <= us["median"] <= us["high"] and sum(c for _, c in row["histogram_ns"]) == 16, row
PYTHON
    # A NIC fetches no work request that was copied into its doorbell.
    run 100 "$gdx" bench put_lat -s 8 --modes push --doorbells plain,blueflame "${few[@]}" --output "$folder/rung.json"
    expect_status 0 && expect '^latency of a completion, us: warp scope, 1 endpoint, blueflame doorbells$'
    python3 - "$folder/rung.json" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
reads = {row["doorbell"]: row["pcie_reads_per_message"] for row in json.load(open(sys.argv[1]))["rows"]}
assert reads["plain"] > reads["blueflame"], reads
PYTHON
    # Proxies have endpoints of their own.
    run 100 "$gdx" bench put_lat -s 8 --modes pull,proxy --queues host "${few[@]}" --output "$folder/queues.json"
    expect_status 0 && expect '^latency of a completion, us: warp scope, 1 endpoint, queues in host memory$'
    expect "^  queues: kernels' in host memory, proxies' in host memory;|[; ]queues: kernels' in host memory,"
    grep -q '"mode":"proxy".*"queues":"host"' "$folder/queues.json" || fail "a proxy's row does not tell its queues"
    run 100 "$gdx" bench put_lat --queues gpu
    expect_status 2 && expect "^gdx: --queues: 'gpu': kernels on the CPU layer cannot use them: add --gpu, or --queues host$"
    run 100 "$gdx" bench put_lat get_bw -s 8 --modes pull "${few[@]}" --csv
    expect_status 0 && expect '^series,operation,' && expect '^"measured on .*,"get","bw","nic",8,'
    run 100 "$gdx" bench put_lat put_bw -s 8 --modes pull "${few[@]}" --format perftest
    expect_status 0 && expect '^ #bytes #iterations    t_min' && expect 'MsgRate\[Mpps\]$'
    [ "$(grep -cE '^ 8 +16 +[0-9.]+ ' "$out")" -eq 2 ] || fail "not two rows of figures"
    run 100 "$gdx" bench put_lat -s 8 --modes push "${few[@]}" --format nvshmem
    expect_status 0 && expect '^#gdx_put_lat_push$' && expect '^8 +warp +[0-9.]+'
    run 100 env NVSHMEM_MACHINE_READABLE_OUTPUT=1 "$gdx" bench put_lat -s 8 --modes push "${few[@]}" --format nvshmem
    expect_status 0 && expect '^&&&& PERF gdx_put_lat_push___warp___size__8___latency [0-9.]+ -us$'
    run 100 "$gdx" bench put_bw -s 8 -q 1,2 --modes push "${few[@]}" --format nvshmem
    expect_status 0 && expect '^#gdx_put_bw_push_depth16$' && expect '^#gdx_put_bw_push_x2_depth16$'
    run 100 "$gdx" bench put_bw -s 8 --modes push "${few[@]}" --format nccl-tests
    expect_status 0 && expect '^ +8 +8 +uint8 +none +-1 .* 0 +N/A'
    run 100 "$gdx" bench put_bw -s 8 --modes push,auto "${few[@]}" --model PHB,SYS
    expect_status 0 && expect '^modelled by gdx model: SYS, PCIe 5 x16, generic platform, plain doorbells, records read, queues in host memory, 1 endpoint$' && expect '^measured on '
    # A missing gdx_model is told, and what was measured is kept.
    mkdir "$folder/alone"
    cp "$gdx" "$(dirname "$gdx")/../bench/gdx_bench" "$folder/alone"
    export GDX_SOFTHCA_LIBRARY=$(dirname "$gdx")/../../../driver-shim/softhca/interpose/libgdx_softhca.so
    run 100 "$folder/alone/gdx" bench put_lat -s 8 --modes pull "${few[@]}"
    expect_status 0 && expect '^put +pull +8 B '
    run 100 "$folder/alone/gdx" bench put_lat -s 8 --modes pull "${few[@]}" --model SYS
    expect_status 127 && expect '^put +pull +8 B ' && expect 'no gdx_model beside the executable'
    # Files hold measured figures before anything is modelled: a model that looks and fails.
    printf '#!/bin/sh\ncp %q %q && cp %q %q\nexit 1\n' "$folder/b.json" "$folder/seen.json" "$folder/b.html" "$folder/seen.html" \
      >"$folder/alone/gdx_model"
    chmod +x "$folder/alone/gdx_model"
    run 100 "$folder/alone/gdx" bench put_lat -s 8 --modes pull "${few[@]}" --output "$folder/b.json" --report "$folder/b.html"
    expect_failure
    cmp "$folder/seen.json" "$folder/b.json" || fail "what was measured was not written before the model"
    grep -q 'data-at="/rows/0/latency_us/median"' "$folder/seen.html" || fail "the page was not written before the model"
    unset GDX_SOFTHCA_LIBRARY
    run 100 "$gdx" bench put_bw -s 8 --modes push "${few[@]}" --report "$folder/a.html" --output "$folder/none/a.json"
    expect_failure && expect 'none/a.json: cannot be written' && expect_no '^put '
    [ ! -e "$folder/a.html" ] || fail "a report was begun"
    ;;
  killed)
    # Half-way, in either rank: all that was measured is there, and the report says that it is not whole.
    for dead in 0 1; do
      tried others_told "${soon[@]}" "$gdx" bench put_signal_lat -s 8 --modes pull,push,inline --rounds 8 --iters 50 --kill-rank "$dead"
      expect_failure
      [ "$(grep -cE '^put_signal +(pull|push|inline) +8 B +[0-9.]+' "$out")" -eq 3 ] || fail "not 3 rows of figures"
      expect "was killed: Killed"
      expect '^PARTIAL: the run ended early: '
    done
    expect 'PARTIAL: .*rank 1 failed rank 0: .*syndrome 0x15.*; signal 9: Killed$'
    # A thread that posts finds the peer dead, and the kernel that waits for it says so.
    tried others_told "${soon[@]}" "$gdx" bench put_bw -s 64K --modes proxy --rounds 8 --iters 50 --kill-rank 1
    expect_failure
    expect 'PARTIAL: .*put bw proxy .*: rank 1 failed rank 0: .*syndrome 0x15'
    ;;
  interrupted)
    # Ctrl-C keeps what was measured. On a slow machine the run may be over before it comes.
    status=0
    while [ "$status" -eq 0 ]; do
      # A shell without job control starts programs that ignore SIGINT.
      env --default-signal=INT "$gdx" bench put_lat -s 8 --modes pull,push --rounds 100 --seconds 20 \
        --report "$folder/ended.html" --output "$folder/ended.json" >"$out" 2>&1 </dev/null &
      bench=$!
      # Each tenth is told.
      until_true grep -q 'bench: .* done, round [1-9]' "$out"
      kill -INT "$bench"
      wait "$bench"
      status=$?
    done
    expect_status 130
    expect '^PARTIAL: the run ended early: signal 2: Interrupt$'
    [ "$(grep -cE '^put +(pull|push) +8 B +[0-9.]+' "$out")" -eq 2 ] || fail "what was measured is lost"
    grep -q '"modelled": \[\]' "$folder/ended.json" || fail "a run that was ended waited for models"
    ;;
  browser)
    # The page as a reader sees it, on screens and on paper.
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
    if [ -z "$browser" ] || ! command -v python3 >/dev/null; then
      echo "SKIPPED: nobody looked at the page of gdx bench: install Debian's chromium, poppler-utils and python3"
      exit 77
    fi
    here=$(dirname "$0")
    run 100 "$gdx" bench put_lat put_bw get_lat -s 8,512,32K --modes pull,push "${few[@]}" --report "$folder/a.html"
    expect_status 0
    run 100 python3 "$here/bench_browser.py" "$folder/a.html" "$browser" ${GDX_TEST_PICTURES:+"$GDX_TEST_PICTURES"}
    expect_status 0 && expect '^no screen needs scrolling sideways$'
    cat "$out"
    # Paper on which columns are lost is found.
    sed 's/padding: 1pt 2pt; white-space: normal; }/white-space: nowrap; min-width: 3cm; }/' "$folder/a.html" >"$folder/wrong.html"
    cmp -s "$folder/a.html" "$folder/wrong.html" && fail "nothing was changed"
    run 100 python3 "$here/bench_browser.py" "$folder/wrong.html" "$browser"
    expect_failure && expect 'tables wider than their paper: '
    # A browser that ends is told at once, in its own words.
    printf '#!/bin/sh\necho "no display" >&2\n' >"$folder/browser" && chmod +x "$folder/browser"
    run 100 python3 "$here/bench_browser.py" "$folder/a.html" "$folder/browser"
    expect_failure && expect 'the browser ended: no display$'
    ;;
  page)
    # The page says what the document says.
    needs_python
    here=$(dirname "$0")
    run 100 "$gdx" bench put_lat put_bw get_lat -s 8,512,32K --modes pull,push "${few[@]}" --output "$folder/a.json" --report "$folder/a.html"
    expect_status 0
    run 100 python3 "$here/bench_page.py" "$folder/a.html" "$folder/a.json"
    expect_status 0 && expect '^[1-9][0-9]* figures and [1-9][0-9]* points are the document.s$'
    cat "$out"
    # wrong SED MESSAGE: the page so changed is found out.
    wrong() {
      sed -E "$1" "$folder/a.html" >"$folder/wrong.html"
      cmp -s "$folder/a.html" "$folder/wrong.html" && fail "nothing was changed by $1"
      run 100 python3 "$here/bench_page.py" "$folder/wrong.html" "$folder/a.json"
      expect_failure && expect "$2"
    }
    wrong '0,/(data-at="[^"]*latency_us.median">)[0-9.]+/s//\17.7777/' 'the page has 7.7777'
    wrong '0,/(mark[^"]*" transform="translate\([0-9.]+),[0-9.]+(\)" [^>]*data-at)/s//\1,1.0\2/' 'a point at '
    wrong '0,/<h2>/s//<p>4711<\/p><h2>/' "not in the document: \{'4711'\}"
    wrong 's/--push: #c04a00/--push: #ffb080/' 'push #ffb080 on #ffffff: contrast 1'
    ;;
  two_nodes)
    port=$(free_port) || exit 1
    run 100 "$gdx" bench put_lat --listen -p "$port" -s 8 --modes pull
    expect_status 1 && expect 'ranks that meet over TCP, at .*, need a secret: .* by GDX_SECRET_FILE'
    share_secret
    # Each rank started by itself, as on two machines; the first one reports, and different options are refused.
    port=$(free_port) || exit 1
    "$gdx" bench put_lat 127.0.0.1 -p "$port" -s 8 --modes pull "${few[@]}" >"$folder/other" 2>&1 </dev/null &
    other=$!
    run 100 "$gdx" bench put_lat --listen -p "$port" -s 8 --modes pull "${few[@]}"
    expect_status 0 && expect '^put +pull +8 B '
    expect "^gdx bench: meets the other node at 0.0.0.0:$port within [0-9]+ s; start it there with the same options and this HOST"
    wait "$other" || fail "status $? of rank 1: $(cat "$folder/other")"
    refused "listen: '10.0.0.1' is the node that listens: leave out one" "$gdx" bench put_lat 10.0.0.1 --listen
    # A second node tells its own faults, at the terminal where nobody else does.
    run 100 "$gdx" bench put_lat "127.0.0.1:$port" -x 99 --modes pull
    expect_status 1 && expect '^gdx bench: .* no RoCE v2 address at GID index 99: it has some at [0-9]'
    run 100 "$gdx" bench put_lat no-such-host -p "$port" --modes pull
    expect_status 2 && expect "^gdx: 'no-such-host' is no benchmark, and no host that has an address: use put_lat,"
    run 100 "$gdx" bench put_lat no-such.invalid -p "$port" --modes pull
    expect_status 2 && expect "^gdx bench: no address for the root .no-such.invalid:$port.: "
    # The same by variables, as under a launcher.
    export GDX_WORLD_SIZE=2 GDX_ROOT=127.0.0.1:$port
    GDX_RANK=1 "$gdx" bench put_lat -s 8 --modes pull "${few[@]}" >"$folder/other" 2>&1 </dev/null &
    other=$!
    run 100 env GDX_RANK=0 "$gdx" bench put_lat -s 8 --modes pull "${few[@]}"
    expect_status 0 && expect '^put +pull +8 B ' && expect '^rank 1, where it differs: address: '
    wait "$other" || fail "status $? of rank 1: $(cat "$folder/other")"
    [ -s "$folder/other" ] && fail "rank 1 printed: $(cat "$folder/other")"
    GDX_RANK=1 "$gdx" bench put_lat -s 16 --modes pull "${few[@]}" >"$folder/other" 2>&1 </dev/null &
    run 100 env GDX_RANK=0 "$gdx" bench put_lat -s 8 --modes pull "${few[@]}"
    wait "$!" && fail "rank 1 took other options than rank 0"
    grep -q '^gdx bench: the ranks were started with different options: ' "$folder/other" || fail "rank 1 does not say why it ends"
    expect_status 2 && expect 'started with different options: give all the same$' && expect_one_line
    ;;
  collectives)
    # Each operation between two and three ranks: every byte that a rank should have got was compared.
    needs_python
    for ranks in 2 3; do
      # 20 B are five floats, which no number of ranks divides.
      [ $ranks -eq 2 ] && modes=pull || modes=pull,push,inline,bounce,auto
      run 100 "$gdx" bench alltoall incast allreduce --ranks $ranks -s 20,8K --modes $modes --iters 4 --rounds 1 \
        --output "$folder/$ranks.json"
      expect_status 0 && expect "^time of a round, us: $ranks ranks, warp scope$" && expect 'every one right$'
      expect '^allreduce +pull +8 KiB +[0-9.]+ ' && expect 'slots written without a credit: 0$'
      python3 - "$folder/$ranks.json" $ranks <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
document, n = json.load(open(sys.argv[1])), int(sys.argv[2])
assert len(document["rows"]) == (6 if n == 2 else 27) and len(document["conditions"]) == n
parts = {"alltoall": n * n, "incast": n - 1, "allreduce": n}
factors = {"alltoall": (n - 1) / n, "incast": (n - 1) / n, "allreduce": 2 * (n - 1) / n}
for row in document["rows"]:
    operation, bus = row["operation"], row["bus"]
    assert row["bytes_verified"] == parts[operation] * row["bytes"] and row["bad_bytes"] == 0, row
    assert row["ranks"] == n and row["messages"] == 4 and len(row["cpu_us_per_message"]) == n, row
    assert bus["bytes"] == row["bytes"] * (1 if operation == "allreduce" else n), row
    assert abs(bus["busbw_gigabytes_per_s"] / bus["algbw_gigabytes_per_s"] / factors[operation] - 1) < 1e-2, row
PYTHON
    done
    run 100 "$gdx" bench --compare "$folder/2.json" "$folder/3.json"
    expect_status 0 && expect '^in B alone: allreduce lat pull 8192 B warp x1 depth 1 batch 1 3 ranks$' && expect 'plan: ranks'
    # Without a name all three.
    run 100 "$gdx" bench --ranks 3 -s 64 --modes pull --scopes thread --iters 2 --rounds 1 --format nccl-tests
    expect_status 0 && expect '^ +192 +64 +uint8 +none +-1 ' && expect '^ +192 +64 +uint8 +none +0 ' && expect '^ +64 +16 +float +sum +-1 '
    for test in alltoall incast allreduce; do
      run 100 "$gdx" bench $test --ranks 3 -s 64 --modes push --iters 2 --rounds 1 --break-memory
      expect_status 1 && expect "^DAMAGED: $test lat push .* 3 ranks: [1-9][0-9]* B wrong$"
      tried others_told "${soon[@]}" "$gdx" bench $test --ranks 3 -s 8 --modes pull --rounds 4 --iters 20 --kill-rank 2
      expect_failure
      expect '^PARTIAL: the run ended early: ' && expect "^$test +pull +8 B "
    done
    refused 'put_lat runs between 2 ranks: leave out --ranks, or use alltoall' "$gdx" bench alltoall put_lat --ranks 3
    refused 'alltoall is posted by kernels alone: leave proxy out' "$gdx" bench alltoall --modes pull,proxy
    refused 'incast is made by a team, with one endpoint to each other rank: leave out --endpoints' "$gdx" bench incast -q 2
    refused 'allreduce sums floats of 4 B: use --size of multiples of 4' "$gdx" bench allreduce -s 6
    refused "format: 'perftest' is a layout of two ranks" "$gdx" bench incast --format perftest
    for test in alltoall allreduce; do
      refused "memory: 'gpu': kernels on the CPU layer cannot copy or sum it" "$gdx" bench $test --modes pull --memory gpu
    done
    refused "kill-rank: '2': use 0 to 1, or more --ranks" "$gdx" bench incast --kill-rank 2
    refused "ranks: '17': use a whole number from 2 to 16" "$gdx" bench incast --ranks 17
    GDX_RANK=0 GDX_WORLD_SIZE=1 refused "ranks: '2': this world has 1 ranks: give that number" "$gdx" bench incast
    ;;
  presets)
    # Each preset's sizes, scopes and depths, and that an option beside it wins.
    needs_python
    preset() { run 100 "$gdx" bench "$@" --modes pull --iters 1 --rounds 1 --json; expect_status 0; }
    preset --preset deepep && cp "$out" "$folder/deepep"
    preset --preset deepep --ranks 3 -s 64 && cp "$out" "$folder/own"
    preset --preset kv && cp "$out" "$folder/kv"
    preset put_lat --preset nvshmem && cp "$out" "$folder/nvshmem"
    preset put_bw --quick && cp "$out" "$folder/quick"
    python3 - "$folder" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
def rows(name, *fields):
    with open(f"{sys.argv[1]}/{name}") as file:
        text = file.read()
    document = json.loads(text[text.index("{"):text.rindex("}") + 1])
    return [tuple(row[field] for field in fields) for row in document["rows"]]
shape = ("operation", "measure", "bytes", "depth")
assert rows("deepep", *shape) == [(test, "lat", size, 1) for test in ("dispatch", "combine") for size in (7168, 14336)]
assert rows("own", "operation", "bytes", "ranks") == [("dispatch", 64, 3), ("combine", 64, 3)]
assert rows("kv", *shape) == [(test, "bw", size, 64) for test in ("put", "get") for size in (32 << 10, 72 << 10)]
points = [(1 << power, scope) for power in range(3, 25) for scope in ("thread", "warp", "block")]
assert rows("nvshmem", "bytes", "scope") == points
assert rows("quick", "bytes") == [(8,), (512,), (32768,), (2097152,)]
PYTHON
    ;;
  gpu_memory)
    # Payload in a GPU's memory, as far as a machine without a GPU goes: a driver that pretends, and the NIC moves all of it.
    needs_python
    fake_folder=$3
    run 100 env LD_LIBRARY_PATH="$fake_folder" "$gdx" bench put_bw put_signal_lat get_bw fetch_add_lat -s 8,64K --modes pull,proxy -q 2 \
      --memory gpu "${few[@]}" --output "$folder/a.json"
    expect_status 0 && expect '^measured on the software HCA, kernels on the CPU layer, payload in GPU memory;$' && expect 'every one right$'
    expect 'payload: GPU memory, by dmabuf' && expect 'gpu_clock: at most 1000 MHz'
    run 100 env LD_LIBRARY_PATH="$fake_folder" "$gdx" bench put_bw get_bw -s 64 --modes pull --memory gpu --break-memory "${few[@]}"
    expect_status 1 && expect '^DAMAGED: put bw .* B wrong$' && expect '^DAMAGED: get bw .* B wrong$'
    refused 'memory: .gpu.: kernels on the CPU layer cannot read it: add --gpu, or --modes pull,proxy' "$gdx" bench put_lat --memory gpu
    refused "memory: 'disk': use host, gpu" "$gdx" bench put_lat --memory disk
    if [ -e /dev/nvidiactl ]; then
      echo "not tried: --memory gpu without a GPU; this machine has one"
    else
      refuses 77 'SKIPPED: ' "$gdx" bench put_lat -s 8 --modes pull --memory gpu
    fi
    ;;
  networks)
    # Two nodes, as far as one machine has them, and a bad network between them: the report is complete.
    needs_python
    command -v ip >/dev/null || { echo "SKIPPED: there is no ip; install Debian's iproute2 to join two networks"; exit 77; }
    # Without an address, each HCA has one of 127.0.0.0/8, which the other does not reach.
    run 100 python3 "$(dirname "$0")/networks.py" 7 0 0.1 "$gdx" bench put_lat -s 8 --modes pull "${few[@]}"
    [ "$status" -eq 77 ] && { cat "$out"; exit 77; }
    expect_status 2
    expect "the peer's HCA has the loopback address 127\\..* on another host: .*--addr"
    run 100 python3 "$(dirname "$0")/networks.py" 7 0.005 0.5 "$gdx" bench put_lat put_bw get_bw -s 8,64K --modes pull,push \
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
  proxy)
    # The proxy's messages stay as many as the depth says: as many doorbells as a kernel rings, where each has 16 messages.
    needs_python
    run 100 "$gdx" bench put_bw -s 8 --modes pull,proxy -t 16 --batch 16 -n 1600 --rounds 2 --output "$folder/a.json"
    expect_status 0
    python3 - "$folder/a.json" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
# Packets that are sent again are read again.
resent = sum(row["retransmissions"] for row in rows)
if resent:
    print(f"not compared: transfers over PCIe of pull and proxy, because {resent} packets were sent again")
for figure in () if resent else ("pcie_writes_per_message", "pcie_reads_per_message"):
    pull, proxy = (row[figure] for row in rows)
    assert pull == proxy, (figure, pull, proxy)
PYTHON
    cat "$folder/err"
    # Blocks of several endpoints run on as many threads as is said.
    run 100 "$gdx" bench put_bw put_signal_lat -s 64 --modes pull,push,proxy -q 4 --workers 2 "${few[@]}"
    expect_status 0 && expect ' kernel_threads: 2;' && expect 'every one right$'
    ;;
  shared)
    # Blocks that share endpoints, more of them than a GPU has multiprocessors: every byte of each arrives.
    needs_python
    run 100 "$gdx" bench put_lat put_bw -s 8,3000 --modes pull,push,inline,bounce -q 2 --posters 2,5 -t 4 --iters 4 --rounds 1 \
      --output "$folder/a.json"
    expect_status 0 && expect 'every one right$' && expect '^latency of a completion, us: warp scope, 2 endpoints, 5 posters$'
    run 100 "$gdx" bench put_bw -s 8 --modes pull,push --scopes thread --posters 1,132 -t 2 --iters 4 --rounds 1 --output "$folder/b.json"
    expect_status 0 && expect 'every one right$'
    python3 - "$folder" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
rows = json.load(open(sys.argv[1] + "/a.json"))["rows"]
assert len(rows) == 2 * 2 * 4 * 2, len(rows)
for row in rows:
    places = 4 if row["measure"] == "bw" else 1
    assert row["messages"] == 4 * row["posters"] and row["bytes_verified"] == places * row["bytes"] * row["posters"], row
rows = json.load(open(sys.argv[1] + "/b.json"))["rows"]
assert sorted((row["mode"], row["posters"], row["messages"]) for row in rows) == \
    [(mode, n, 4 * n) for mode in ("pull", "push") for n in (1, 132)], rows
PYTHON
    ;;
  experts)
    # Every token of every rank arrives where it is routed, and comes back.
    needs_python
    run 100 "$gdx" bench dispatch combine --ranks 3 -s 512,7168 --modes pull,push,bounce --iters 2 --rounds 1 --model PIX \
      --output "$folder/a.json"
    expect_status 0 && expect '^time of a round, us: 3 ranks, warp scope$' && expect 'every one right$'
    expect 'slots written without a credit: 0$'
    python3 - "$folder/a.json" <<'PYTHON' >"$folder/err" 2>&1 || fail "$(cat "$folder/err")"
import json, sys
document = json.load(open(sys.argv[1]))
assert len(document["rows"]) == 2 * 2 * 3
for row in document["rows"]:
    bus = row["bus"]
    routes = row["bytes_verified"] / row["bytes"]
    assert bus["bytes"] == 1024 * row["bytes"] and 0.9 * 2 / 3 < bus["factor"] < 1.1 * 2 / 3, bus
    assert abs(routes - 3 * 1024 * bus["factor"]) < 0.05 * 3 * 1024, (routes, bus)
modelled = {(row["operation"], row["ranks"], row["mode"]): row for row in document["modelled"] if row["bytes"] == 7168}
# Of 64 ranks no push: 63 endpoints are more than the slots.
assert len(modelled) == 2 * (3 + 2) and all(row["latency_of"] == "round" for row in modelled.values()), modelled.keys()
# All messages for others at the modelled rate, and the time of one.
for row in document["rows"]:
    if row["bytes"] == 7168:
        one = modelled[row["operation"], 3, row["mode"]]
        rest_us = one["latency_us"] - (1024 * row["bus"]["factor"] - 1) / one["messages_per_s"] * 1e6
        assert 0 < rest_us < 20, (rest_us, one)
PYTHON
    for test in dispatch combine; do
      run 100 "$gdx" bench $test --ranks 3 -s 64 --modes pull --iters 2 --rounds 1 --break-memory
      expect_status 1 && expect "^DAMAGED: $test lat pull .* 3 ranks: [1-9][0-9]* B wrong$"
    done
    ;;
  peers)
    if ! command -v ib_write_bw >/dev/null; then
      echo "SKIPPED: perftest is missing; install Debian's perftest to run it beside gdx bench"
      exit 77
    fi
    # perftest leaves memory behind when it ends.
    export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
    # A client tries for a few seconds until its server listens. One that gave no figures is left out.
    both_ran() { grep -q '^ib_write_bw ' "$out" && grep -q '^ib_read_lat ' "$out"; }
    tried both_ran "$gdx" bench put_bw get_lat -s 4K --modes pull --iters 20 --rounds 2 -t 8 -q 1,2 --batch 3 -b --peers --output "$folder/a.json"
    expect_status 0
    expect '^ib_write_bw +put +4 KiB +[0-9]+ +[0-9.]+ +\[.*\] +[0-9.e+]+$'
    expect '^ib_read_lat +get +4 KiB +[0-9]+ +[0-9.]+ +\[.*\] +-$'
    expect '^[0-9]+ ratios to pull have no verdict: too few rounds$'
    grep -q 'by a CPU: ib_write_bw -F -n 42 -s 4096 -t 8 -q 2 -l 3 -b"' "$folder/a.json" || fail "perftest has other conditions"
    for tool in ucx_perftest fi_pingpong; do
      if ! command -v $tool >/dev/null; then
        echo "not tried: $tool, which is not installed"
        continue
      fi
      # Strictness refuses what UCX before 1.14 does.
      it_ran() { grep -q "^$tool " "$out"; }
      tried it_ran env -u GDX_STRICT "$gdx" bench put_signal_lat -s 64 --modes pull --iters 20 --rounds 2 --peers
      expect_status 0 && expect "^$tool +put_signal +64 B +[0-9]+ +[0-9.]+ "
    done
    # A program that is missing is told once, and one that fails, too.
    mkdir "$folder/bin"
    for tool in sh env timeout sleep; do ln -s "$(command -v $tool)" "$folder/bin/$tool"; done
    run 100 env PATH="$folder/bin" "$gdx" bench get_lat -s 8,16 --iters 8 --rounds 2 --peers
    expect_status 0 && expect 'ib_read_lat is not installed.*install Debian.s perftest$' && expect_no '^ib_read_lat '
    [ "$(grep -c 'ib_read_lat is not installed' "$out")" -eq 1 ] || fail "a missing program is told more than once"
    # One that fails is not run again, one that fails twice not at all, and none gets a rank's capture. Its server ends
    # when SIGTERM does not end it.
    printf '#!/bin/sh\necho "capture: ${GDX_SOFTHCA_PCAP-none}" >>%q\ncase "$*" in *127.*) exit 1 ;; esac\ntrap "" TERM\nexec sleep 1200\n' \
      "$folder/ran" >"$folder/bin/ib_read_lat"
    chmod +x "$folder/bin/ib_read_lat"
    run 100 env PATH="$folder/bin" "$gdx" bench get_lat -s 8,16,32 --iters 8 --rounds 3 --peers --pcap "$folder/a.pcap"
    expect_status 0 && expect_no '^ib_read_lat '
    [ "$(grep -c 'ib_read_lat gave no figures and is left out here: ' "$out")" -eq 1 ] || fail "not left out once"
    [ "$(grep -c 'ib_read_lat gave no figures and is left out from now on: ' "$out")" -eq 1 ] || fail "not left out for good"
    [ "$(sort -u "$folder/ran")" = 'capture: none' ] || fail "a standard benchmark got a rank's capture: $(sort -u "$folder/ran")"
    # Their time counts.
    printf '#!/bin/sh\nsleep 0.2\necho " #bytes t_typical[usec]"\necho " 8 20 1 2 3.25 4 5 6 7"\n' >"$folder/bin/ib_read_lat"
    run 100 env PATH="$folder/bin" "$gdx" bench get_lat -s 8 --seconds 0.5 --rounds 50 --peers
    expect_status 0 && expect '^ib_read_lat +get +8 B +[0-9]+ +3.25 ' && expect '^PARTIAL: .*no time for all of its plan: allow more --seconds$'
    refused "peers: --addr gives a rank's address" "$gdx" bench get_lat --peers --addr 127.0.0.5
    ;;
  compare)
    run 100 "$gdx" bench put_lat -s 8,64 --modes pull --rounds 6 --iters 20 --output "$folder/a.json"
    expect_status 0
    # Two runs of which one is three times as slow in all rounds, whatever was measured.
    at_pace() { sed -i -E "s/\"samples\":\[[^]]*\]/\"samples\":[${1}00000,${1}10000,${1}20000,${1}30000,${1}40000,${1}50000]/" "$2"; }
    cp "$folder/a.json" "$folder/b.json"
    at_pace 3 "$folder/a.json" && at_pace 9 "$folder/b.json"
    run 100 "$gdx" bench --compare "$folder/a.json" "$folder/b.json"
    expect_status 0 && expect '^put lat pull 8 B .* slower$' && expect '^2 of 2 cases differ beyond noise; by chance alone about 0.0[0-9]+ would$'
    run 100 "$gdx" bench --compare "$folder/a.json" "$folder/a.json"
    expect_status 0 && expect 'no difference seen' && expect '^0 of 2 cases differ beyond noise; by chance '
    run 100 "$gdx" bench --compare "$folder/a.json" "$folder/b.json" --json
    expect_status 0 && expect '"b_is":"slower"'
    refused 'compare: 1 files: give two' "$gdx" bench --compare "$folder/a.json"
    refuses 2 'none.json: cannot be read' "$gdx" bench --compare "$folder/a.json" "$folder/none.json"
    echo rubbish >"$folder/c.json"
    refused 'c.json: no result of gdx bench' "$gdx" bench --compare "$folder/a.json" "$folder/c.json"
    ;;
  broken_memory)
    for test in put_bw get_bw fetch_add_bw put_signal_lat; do
      run 100 "$gdx" bench "$test" -s 64 --modes push "${few[@]}" --break-memory
      expect_status 1
      expect '^DAMAGED: .* B wrong$' && expect_no 'every one right'
      # The round that is dropped has damage in its messages and before them; of the two others only what warms up counts.
      awk '/^DAMAGED.* warms up$/ { dropped += $(NF - 8) } /^DAMAGED.* B wrong$/ { kept += $(NF - 2) }
           END { exit !(kept > 0 && dropped == 2 * kept) }' "$out" || fail "damage in what is dropped is not all told"
    done
    ;;
  bad_input)
    refused "'teleport_bw' is no benchmark, and no host that has an address: use put_lat," "$gdx" bench teleport_bw
    refused "size: '0': use 1 to 64M" "$gdx" bench -s 0
    refused "size: '65M': use 1 to 64M" "$gdx" bench -s 65M
    refused "size: '64:8': use LEAST:MOST" "$gdx" bench -s 64:8
    refused "modes: 'teleport': use pull" "$gdx" bench --modes teleport
    refused "scopes: 'grid': use thread" "$gdx" bench --scopes grid
    refused "format: 'iperf': use gdx" "$gdx" bench --format iperf
    refused "endpoints: '1025': use a whole number from 1 to 1024" "$gdx" bench -q 1025
    refused 'posters: nothing has so many: they are as many as --endpoints' "$gdx" bench get_lat --posters 2
    refused 'dispatch has up to 1024 messages a round: use --size up to 64K' "$gdx" bench dispatch -s 128K
    refused "iters: '0': use" "$gdx" bench -n 0
    refused "workers: '0': use" "$gdx" bench --workers 0
    refused "batch: '5': a window of --depth 4 has fewer messages" "$gdx" bench put_bw -t 4 --batch 1,5
    refused "'alltoal' is no benchmark, and no host that has an address: use put_lat," "$gdx" bench alltoal
    refused "rounds: '101': use" "$gdx" bench --rounds 101
    for bad in "gid-index 256" "port 0" "port 65536" "seconds 0.09" "seconds 1000001" "depth 0" "batch 0" "kill-rank 16" "ranks 1"; do
      # shellcheck disable=SC2086 # an option and its value
      refused "^gdx: --${bad% *}: '${bad#* }': use " "$gdx" bench --$bad
    done
    for bad in 127.0.0.1:0 127.0.0.1:65536 node-1.example:x; do
      refused "^gdx: '$bad': use HOST or HOST:PORT\$" "$gdx" bench put_lat $bad
    done
    # Of an IPv6 address no part is a port.
    run 100 env GDX_BOOTSTRAP_TIMEOUT_S=1 "$gdx" bench put_lat ::1 -p 1 --modes pull
    expect_failure
    expect '^gdx bench: meets the other node at \[::1\]:1 within 1 s; start it there with the same options and --listen, without a HOST$'
    refused "preset: 'mpi': use deepep" "$gdx" bench --preset mpi
    refused "model: 'FAR': use PIX" "$gdx" bench --model FAR
    refused 'json excludes --csv' "$gdx" bench --csv --json
    refused 'hardware: options of the software HCA have no meaning' "$gdx" bench --hardware --loss 0.1
    refuses 1 'nosuch0.*gdx0' "$gdx" bench -d nosuch0
    GDX_CALL_TIMEOUT_S=3601 refused "GDX_CALL_TIMEOUT_S = '3601': use a number from 1 to 3600" "$gdx" bench put_lat -s 8 --modes pull "${few[@]}"
    share_secret
    # A fault that all ranks have is told by the first one; one that a rank has alone, by that rank.
    # rank NUMBER HCA OPTIONS...: what a rank tells that finds no other.
    rank() {
      local number=$1 hca=$2
      shift 2
      run 100 "$gdx" run -- env GDX_RANK=$number GDX_WORLD_SIZE=2 GDX_ROOT=127.0.0.1:1 GDX_BOOTSTRAP_TIMEOUT_S=1 \
        "$(dirname "$gdx")/../bench/gdx_bench" --plan '{"tests":["put_lat"],"modes":["pull"],"sizes":[8],"scopes":["warp"],"endpoints":[1],
          "posters":[],"depths":[1],"batches":[1],"doorbells":[],"queues":[],"ranks":2,"both_ways":false,"adaptive_routing":false,"rounds":1,"messages":1,"seconds":1,
          "hca":"'"$hca"'","memory":"host","workers":0,"peers":false,"kill_rank":-1,"break_memory":false}' "$@"
    }
    rank 1 nosuch0 && expect_status 1 && expect_no 'gdx bench:'
    rank 0 nosuch0 && expect_status 1 && expect '^gdx bench: no HCA named nosuch0: there are gdx0$'
    rank 1 nosuch0 --alone && expect_status 1 && expect '^gdx bench: no HCA named nosuch0: there are gdx0$'
    rank 1 gdx0 && expect_status 1 && expect '^gdx bench: .*127.0.0.1:1'
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
