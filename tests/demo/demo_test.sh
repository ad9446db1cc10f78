#!/usr/bin/env bash
# demo_test.sh CASE GDX GDX_DEMO: one case of the demo, checked by what it prints and how it exits.
. "$(dirname "$0")/../program.sh"
gdx=$2
gdx_demo=$3

# column N of the table's data rows, summed.
sum_column() { awk -v n="$1" '$1 ~ /^(pull|push|inline|bounce|auto)$/ { sum += $(NF - n) } END { print sum + 0 }' "$out"; }
direct_rows() { grep -cE '^direct .* yes$' "$out"; }
rows() { grep -cE '^(pull|push|inline|bounce|auto) .* yes$' "$out"; }

# is_below PROCESS ANCESTOR
is_below() {
  local at=$1
  while [ "${at:-0}" -gt 1 ]; do
    at=$(ps -o ppid= -p "$at" | tr -d ' ')
    [ "$at" = "$2" ] && return 0
  done
  return 1
}

soon=(GDX_ACK_TIMEOUT=14 GDX_RETRY_COUNT=5)  # until a dead rank is found

case $case_name in
  clean)
    run 250 "$gdx" demo
    expect_status 0
    [ "$(rows)" -eq 28 ] || fail "$(rows) verified rows, wanted 3 modes of 8 sizes, and inline of 4"
    expect '^inline +4 KiB .* yes$' && expect '^inline +4 KiB is the longest put; larger messages go by the other modes$'
    expect '^push +16 MiB .* yes$'
    expect 'slots written without a credit: 0$'
    expect '^measured: software HCA, kernels on the CPU layer'
    stalls=$(awk '$1 == "push" && $2 == 16 { print $(NF - 2) }' "$out")
    [ "$stalls" -gt 0 ] || fail "16 MiB through 128 KiB of staging without a credit stall"
    ;;
  lossy)
    run 250 "$gdx" demo --loss 0.01 --corrupt 0.001 --seed 7
    expect_status 0
    [ "$(rows)" -eq 28 ] || fail "$(rows) verified rows, wanted 28"
    [ "$(sum_column 1)" -gt 0 ] || fail "packets were lost, and none was sent again"
    ;;
  broken_memory)
    run 100 "$gdx" demo --break-memory --max-bytes 4096 --modes push
    expect_failure
    expect 'NO \(1 B\)'
    expect 'DAMAGED'
    ;;
  infiniband)
    # Ports that drop what has no GRH, and their second partition.
    export GDX_SOFTHCA_LINK_LAYER=infiniband_grh GDX_SOFTHCA_PKEYS=0xffff,0x8001
    run 250 env GDX_PKEY=0x8001 GDX_SERVICE_LEVEL=15 "$gdx" demo --max-bytes 4096
    expect_status 0
    [ "$(rows)" -eq 16 ] || fail "$(rows) verified rows, wanted 4 modes of 4 sizes"
    run 100 "$gdx" run -- "$gdx" info
    expect '^  port +active, 100 Gb/s, InfiniBand, MTU 4096 B of 4096, requires a GRH, P_Keys 0xffff 0x8001$'
    ;;
  any_order)
    export GDX_SOFTHCA_DATA_ORDER=any
    run 250 "$gdx" demo --max-bytes 32768
    expect_status 0
    [ "$(rows)" -eq 19 ] || fail "$(rows) verified rows, wanted 19"
    run 100 "$gdx" run -- "$gdx" info
    expect '^  signals +fenced, set and added ones, which waits a round trip for the puts before them: firmware decides, and no queue'
    ;;
  provider)
    run 250 "$gdx" demo --hardware --provider tcp --max-bytes 32768 --messages 5
    if [ "$status" -ne 0 ] && grep -E 'without libfabric|no libfabric here' "$out" >/dev/null; then
      echo "SKIPPED: $(cat "$out")"
      exit 77
    fi
    expect_status 0
    [ "$(grep -cE '^proxied .* yes$' "$out")" -eq 5 ] || fail "not 5 verified rows"
    expect '^measured: a thread of the host posts by provider tcp, kernels on the CPU layer'
    expect '^every byte of every message was right$'
    run 100 "$gdx" demo --hardware --provider tcp --break-memory --max-bytes 4096 --messages 5
    expect_failure
    expect 'NO \(1 B\)'
    run 100 "$gdx" demo --hardware --provider nothing
    expect_failure
    expect "libfabric has no provider 'nothing'"
    ;;
  partitions)
    # One rank in either partition: each says so at once, long before a put would have been given up.
    export GDX_SOFTHCA_LINK_LAYER=infiniband GDX_SOFTHCA_PKEYS=0xffff,0x8001
    run 100 "$gdx" run --ranks 2 -- \
      bash -c '[ "$GDX_RANK" = 0 ] || export GDX_PKEY=0x8001; exec "$0" --modes pull --max-bytes 8' "$gdx_demo"
    expect_failure
    expect "the peer's P_Key is 0x(8001|ffff), and this endpoint's is 0x(ffff|8001): choose one partition for both by GDX_PKEY"
    ! grep -q 'unreachable\|timeout' "$out" || fail "packets were sent to find that out"
    ;;
  closed_output)
    # Output of a rank must not reach memory that it shares with the HCA. A demo may be over before it is looked at.
    looked=0
    while [ "$looked" -eq 0 ]; do
      timeout 100 "$gdx" demo --messages 3000 --modes pull --max-bytes 4096 >&- 2>"$out" </dev/null &
      launcher=$!
      while kill -0 "$launcher" 2>/dev/null; do
        for rank in $(pgrep -x gdx_demo); do
          is_below "$rank" "$launcher" || continue
          # Before it has such memory there is nothing to see.
          [[ $(readlink "/proc/$rank"/fd/* 2>/dev/null) == *memfd:gdx* ]] && looked=$((looked + 1))
          for number in 0 1 2; do
            case $(readlink "/proc/$rank/fd/$number" 2>/dev/null) in
              *memfd*) fail "descriptor $number of a rank is $(readlink "/proc/$rank/fd/$number")" ;;
            esac
          done
        done
      done
      wait "$launcher" && fail "status 0, and what it printed was lost"
    done
    ;;
  wrapped)
    if ! command -v python3 >/dev/null; then
      echo "SKIPPED: python3 is missing; install Debian's python3 to run ranks behind a wrapper that closes descriptors"
      exit 77
    fi
    # Two of them, one below the other.
    wrapper='import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)'
    run 100 "$gdx" run --ranks 2 -- python3 -c "$wrapper" python3 -c "$wrapper" \
      "$gdx_demo" --modes pull --max-bytes 512
    expect_status 0
    [ "$(rows)" -eq 3 ] || fail "$(rows) verified rows, wanted 3"
    ;;
  killed_receiver | killed_sender)
    dead=1
    [ "$case_name" = killed_sender ] && dead=0
    tried others_told env "${soon[@]}" "$gdx" demo --kill-rank "$dead" --modes push --min-bytes 16777216
    expect_failure
    expect "message [0-9]+ of 22: rank $dead failed rank $((1 - dead)): .*syndrome 0x15"
    ;;
  capture)
    run 100 "$gdx" demo --pcap "$folder/demo.pcap" --max-bytes 32768
    expect_status 0
    if ! command -v tshark >/dev/null; then
      echo "SKIPPED: tshark is missing; install Debian's tshark: the capture was written, not decoded"
      exit 77
    fi
    # By field, not by the protocol column: tshark guesses at payload whose first bytes look like an Ethertype.
    tshark -n -r "$folder/demo.pcap" -T fields -e frame.protocols -e infiniband.bth.opcode -e infiniband.invariant.crc \
      >"$out" 2>"$folder/err" || fail "tshark: $(cat "$folder/err")"
    total=$(wc -l <"$out")
    # Of the manufacturers' opcodes, the markers of windows, it shows the BTH and leaves the rest alone.
    decoded=$(awk '$1 ~ /udp:infiniband/ && $2 != "" && ($3 != "" || $2 == 248 || $2 == 249)' "$out" | wc -l)
    [ "$total" -gt 1000 ] || fail "only $total packets"
    [ "$decoded" -eq "$total" ] || fail "tshark decodes $decoded of $total packets as RRoCE"
    tshark -n -r "$folder/demo.pcap" >"$out" 2>/dev/null
    grep -q 'RDMA Write' "$out" || fail "no RDMA WRITE in the capture"
    ;;
  direct)
    run 100 "$gdx" demo --direct on --pcap "$folder/demo.pcap"
    expect_status 0
    [ "$(direct_rows)" -eq 8 ] || fail "$(direct_rows) verified rows, wanted 8 sizes"
    [ "$(rows)" -eq 0 ] || fail "rows of modes beside the direct ones"
    # 3 messages of 16 MiB passed, and none of it on the wire.
    [ "$(stat -c %s "$folder/demo.pcap")" -lt 1000000 ] || fail "payload went through the NIC"
    ;;
  direct_auto)
    run 100 env GDX_DIRECT=off GDX_LOG=info "$gdx" demo --direct auto --modes pull --max-bytes 512
    expect_status 0
    expect 'rank 1 is reached through the NIC: told not to'
    [ "$(rows)" -eq 3 ] || fail "$(rows) verified rows, wanted 3 through the NIC"
    run 100 env GDX_LOG=info "$gdx" demo --direct auto --modes pull --max-bytes 512
    expect_status 0
    expect 'rank 1 is reached by loads and stores'
    [ "$(direct_rows)" -eq 3 ] || fail "$(direct_rows) verified rows, wanted 3 direct ones"
    run 100 env GDX_DIRECT=maybe "$gdx" demo --direct auto
    expect_failure
    expect "GDX_DIRECT is 'maybe': use auto, on or off"
    ;;
  direct_broken_memory)
    run 100 "$gdx" demo --direct on --break-memory --max-bytes 4096
    expect_failure
    expect 'NO \(1 B\)'
    expect 'DAMAGED'
    ;;
  direct_killed_receiver | direct_killed_sender)
    dead=1
    [ "$case_name" = direct_killed_sender ] && dead=0
    tried others_told env "${soon[@]}" "$gdx" demo --direct on --kill-rank "$dead" --min-bytes 16777216
    expect_failure
    expect "direct of 16 MiB, message [0-9]+ of 22: rank $dead failed rank $((1 - dead)): .*syndrome 0x15"
    ;;
  no_device_memory)
    # An HCA's memory is for pushes: without them an HCA without any serves.
    run 100 "$gdx" demo --device-memory-bytes 0 --modes pull,inline,bounce --max-bytes 4096
    expect_status 0
    [ "$(rows)" -eq 12 ] || fail "$(rows) verified rows, wanted 3 modes of 4 sizes"
    run 100 "$gdx" demo --device-memory-bytes 0 --modes push --max-bytes 4096
    expect_failure
    expect 'no device memory to stage in: use another mode than push'
    ;;
  bad_input)
    refused 'hardware: options of the software HCA have no meaning' "$gdx" demo --hardware --loss 0.1
    refused "'maybe': use auto" "$gdx" demo --direct maybe
    refused 'nosuch0.*gdx0' "$gdx" demo --hca nosuch0
    refused 'min-bytes' "$gdx" demo --min-bytes 0
    refused "'-8'" "$gdx" demo --min-bytes -8
    refused 'multiple of 8' "$gdx" demo --min-bytes 12
    refused 'inline shows messages of up to 4096 bytes; add another mode' "$gdx" demo --modes inline --min-bytes 4104
    refused 'not above --max-bytes' "$gdx" demo --min-bytes 64 --max-bytes 8
    refused "'teleport': use pull" "$gdx" demo --modes pull,teleport
    refused '4096' "$gdx" demo --slots 4096
    refused 'nothing to push into' "$gdx" demo --slots 0
    refused 'kill-rank' "$gdx" demo --kill-rank 7
    refused 'no-such-option' "$gdx" demo --no-such-option
    refused 'leave out the --' "$gdx" demo -- --json
    refused 'loss' "$gdx" demo --loss 2
    refused '/nonexistent/x.pcap' "$gdx" demo --pcap /nonexistent/x.pcap
    refused 'device-memory-bytes.*1048576' "$gdx" demo --device-memory-bytes 2097152
    refused "'launch' is no command: use run," "$gdx" launch
    refused 'gdx run .OPTIONS. -- PROGRAM' "$gdx" run true
    refused 'no program' "$gdx" run -- ''
    refused "mtu.*'4k': use 256" "$gdx" run --mtu 4k -- true
    refused "loss.*''" "$gdx" run --loss '' -- true
    refused "timeout-s.*'nan'" "$gdx" run --timeout-s nan -- true
    refused "timeout-s.*'1e-10'" "$gdx" run --ranks 2 --timeout-s 1e-10 -- true
    refused "seed.*'-1'" "$gdx" run --seed -1 -- true
    refused 'seed.*18446744073709551616' "$gdx" run --seed 18446744073709551616 -- true
    refused '255.255.255.255' "$gdx" run --addr 255.255.255.255 -- true
    refused '/dev/zero is no file' "$gdx" topo --xml /dev/zero
    refused '100000' "$gdx" run --ranks 100000 -- "$gdx_demo"
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
    refused "preset 'bogus': use cpu" "$root/run" test --preset bogus
    refused "GDX_PRESET '../x': use cpu" env GDX_PRESET=../x "$root/run" demo
    for script in softhca shm; do refused "rounds '0'" "$root/perf/$script.sh" none --rounds 0; done
    for script in softhca shm profile; do refused "seconds '-1'" "$root/perf/$script.sh" none --seconds -1; done
    refused 'sm_75' python3 "$root/perf/instructions.py" --arch sm_75
    refused 'cannot read /nonexistent' python3 "$root/perf/instructions.py" --check /nonexistent --fresh /nonexistent
    run 100 env GDX_SOFTHCA_LIBRARY=/nonexistent.so "$gdx" run -- true
    expect_status 127 && expect 'GDX_SOFTHCA_LIBRARY.*/nonexistent.so' && expect_one_line
    run 100 env GDX_SOFTHCA_LIBRARY= "$gdx" run -- true
    expect_status 127 && expect 'GDX_SOFTHCA_LIBRARY' && expect_one_line
    run 100 env GDX_LOG=LOUD "$gdx" run -- "$gdx" info
    expect_status 0 && expect 'GDX_LOG=LOUD: use debug, info'
    # Names of devices need not be UTF-8. hwloc's own parser reads them; libxml2, which a plugin of hwloc takes, refuses.
    LC_ALL=C sed '/0000:03:00.0/s|></object>|><info name="PCIDevice" value="\xff\xfe"/></object>|' \
      "$root/tests/vectors/topology/two-sockets.xml" >"$folder/odd.xml"
    run 100 env HWLOC_LIBXML=0 "$gdx" topo --xml "$folder/odd.xml" --json
    expect_status 0 && expect '0000:05:00.0'
    # Ranks that end badly without a word of their own.
    run 100 "$gdx" run --ranks 2 -- sh -c 'exit 3'
    expect_status 3 && expect 'rank [01] \(pid [0-9]+\) of sh ended with status 3' && expect_one_line
    run 100 "$gdx" run --ranks 2 -- sh -c 'kill -KILL $$'
    expect_status 137 && expect 'rank [01] \(pid [0-9]+\) of sh was killed' && expect_one_line
    if busybox=$(command -v busybox) && ! ldd "$busybox" >/dev/null 2>&1; then
      run 100 "$gdx" run -- busybox true
      expect_status 0 && expect 'busybox is linked statically and sees no' && expect_one_line
      run 100 "$gdx" run --ranks 2 -- busybox true
      expect_status 0 && expect 'busybox is linked statically and sees no' && expect_one_line
    else
      echo "not tried: what a static program is told; install busybox-static"
    fi
    # Without an interpreter of its own, and yet no static program.
    linker=$(ldd /bin/true | grep -o '/[^ ]*/ld-[^ ]*' | head -n 1)
    run 100 "$gdx" run -- "${linker:-false}" /bin/true
    expect_status 0 && expect_no 'linked statically'
    # By hand: run takes 124 for a limit of its own.
    timeout --kill-after=5 100 "$gdx" run --timeout-s 0.2 -- sleep 600 >"$out" 2>&1
    status=$?
    expect_status 124 && expect 'sleep still ran after 0.2 s' && expect_one_line
    run 100 "$gdx" demo --help
    expect_status 0 && expect 'min-bytes.*multiple of 8'
    run 100 "$gdx" run --ranks 3 -- "$gdx_demo" && expect_failure && expect '2 ranks.* 3'
    run 100 "$gdx" run -- /nonexistent/program && expect_failure && expect '/nonexistent/program' && expect_one_line
    # A peer that never comes, and a port that somebody else has.
    share_secret
    port=$(free_port) || exit 1
    run 100 env GDX_RANK=0 GDX_WORLD_SIZE=2 "GDX_ROOT=127.0.0.1:$port" GDX_BOOTSTRAP_TIMEOUT_S=1 "$gdx" run -- "$gdx_demo"
    expect_failure && expect 'rank.* 1' && expect_one_line
    coproc holder { exec timeout 280 env GDX_RANK=0 GDX_WORLD_SIZE=2 "GDX_ROOT=127.0.0.1:$port" \
      GDX_BOOTSTRAP_TIMEOUT_S=280 "$gdx" run -- "$gdx_demo" 2>&1; }
    until_true listens "$port" || fail "the holder of the port does not listen"
    run 100 env GDX_RANK=0 GDX_WORLD_SIZE=2 "GDX_ROOT=127.0.0.1:$port" GDX_BOOTSTRAP_TIMEOUT_S=2 "$gdx" run -- "$gdx_demo"
    kill "$holder_PID" 2>/dev/null
    expect_failure && expect "127.0.0.1:$port" && expect_one_line
    # Without the software HCA and without hardware.
    if ! ls /sys/class/infiniband/* >/dev/null 2>&1; then
      run 100 env GDX_RANK=0 GDX_WORLD_SIZE=2 "GDX_ROOT=127.0.0.1:$port" "$gdx_demo" && expect_failure
      expect 'gdx run' && expect_one_line
      run 100 "$gdx" info && expect_failure && expect 'gdx run' && expect_one_line
    else
      echo "not tried: what programs say where there is no RDMA device; this machine has one"
    fi
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
