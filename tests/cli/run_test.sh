#!/usr/bin/env bash
# run_test.sh CASE GDX: whom gdx run ends and why, and what it does with that which ranks print.
. "$(dirname "$0")/../program.sh"
gdx=$2
export FIFO=$folder/fifo
mkfifo "$FIFO"
exec 7<>"$FIFO"

# Ranks but the last are deaf to SIGTERM, and the last one acts when they are.
deaf='if [ $GDX_RANK != 2 ]; then trap "" TERM; echo >"$FIFO"; exec sleep 600; fi; read -r _ <"$FIFO"; read -r _ <"$FIFO"'
both='rank 0 \(pid [0-9]+\), rank 1 \(pid [0-9]+\)'
all="$both, rank 2 \(pid [0-9]+\)"

case $case_name in
  ended)
    run 100 "$gdx" run --ranks 3 --grace-s 0.125 -- sh -c "$deaf; exit 3"
    expect_status 3
    expect '^gdx: rank 2 \(pid [0-9]+\) of sh ended with status 3; 2 other ranks have 10 s to end$'
    expect "^gdx: 10 s have passed since that failure: ending $both\$"
    expect "^gdx: killed, because SIGTERM did not end them within 0.125 s: $both\$"
    [ "$(grep -c . "$out")" -eq 3 ] || fail "not three lines"
    run 100 "$gdx" run --ranks 3 --grace-s 0.125 -- sh -c "$deaf; kill -TERM \$PPID; exec sleep 600"
    expect_status 143
    expect "^gdx: Terminated: ending $all\$"
    expect "^gdx: killed, because SIGTERM did not end them within 0.125 s: $both(, rank 2 .*)?\$"
    # Ranks that end by SIGTERM are not named again.
    timeout --kill-after=5 250 "$gdx" run --ranks 3 --grace-s 200 --timeout-s 0.25 -- sleep 600 >"$out" 2>&1
    status=$?
    expect_status 124
    expect "^gdx: sleep still ran after 0.25 s \(allow it more time\): ending $all\$"
    expect_one_line
    run 100 "$gdx" run --ranks 10 -- sh -c '[ "$GDX_RANK" != 0 ] || kill -TERM $PPID; exec sleep 600'
    expect 'rank 7 \(pid [0-9]+\) and 2 more$'
    # A rank that stands still is named while the others wait for it.
    run 100 "$gdx" run --ranks 2 -- sh -c \
      '[ "$GDX_RANK" = 0 ] && { echo $$ >"$FIFO"; kill -STOP $$; exit; }; read -r pid <"$FIFO"
       until grep -q "^State:.T" "/proc/$pid/status"; do :; done; kill -CONT "$pid"'
    expect_status 0
    expect '^gdx: rank 0 \(pid [0-9]+\) of sh stands still: Stopped \(signal\); continue it with kill -CONT [0-9]+$'
    expect_one_line
    # A rank alone has a launcher, too, where it is to be ended.
    run 100 "$gdx" run --grace-s 0.125 -- sh -c 'trap "" TERM; kill -TERM $PPID; exec sleep 600'
    expect_status 143 && expect 'killed, because SIGTERM did not end them within 0.125 s: rank 0'
    for bad in 0 -1 nan 1s 1000001; do
      refused "grace-s: '$bad': use a number from 0.001 to 1000000" "$gdx" run --grace-s "$bad" -- true
    done
    ;;
  options)
    # Each option of the software HCA is a variable of the program, and has its range.
    run 100 "$gdx" run --hcas 2 --addr 127.0.0.9 --wire udp --mtu 1024 --loss 0.01 --corrupt 0.02 --duplicate 0.03 --reorder 0.04 \
      --mark 0.05 --death 0.06 --rate-gbps 12.5 --congestion-control none --seed 7 --pcap "$folder/a.pcap" --device-memory-bytes 8192 -- env
    expect_status 0
    variables=$(grep ^GDX_SOFTHCA_ "$out" | LC_ALL=C sort | sed 's/^GDX_SOFTHCA_//' | paste -sd ' ')
    wanted="ADDR=127.0.0.9 CONGESTION_CONTROL=none CORRUPT=0.02 DEATH=0.06 DEVICE_MEMORY_BYTES=8192 DUPLICATE=0.03 HCAS=2 LOSS=0.01"
    wanted+=" MARK=0.05 MTU=1024 PCAP=$folder/a.pcap RATE_GBPS=12.5 REORDER=0.04 SEED=7 WIRE=udp"
    [ "$variables" = "$wanted" ] || fail "not these variables"
    for bad in "hcas 0" "hcas 17" "corrupt 1.1" "duplicate -1" "reorder 2" "mark 1.01" "death 1.01" "rate-gbps 0" "congestion-control no" "seed -1" \
      "ranks 16385" "timeout-s 0" "timeout-s 1000001"; do
      # shellcheck disable=SC2086 # an option and its value
      refused "^gdx: --${bad% *}: '${bad#* }': use " "$gdx" run --$bad -- true
    done
    # Nor does a program run without the software HCA where that is missing.
    cp "$gdx" "$folder/gdx"
    refuses 127 "no libgdx_softhca.so for the executable in $folder: build the target gdx_softhca" "$folder/gdx" run -- true
    ;;
  pin)
    processors=$(nproc)
    # The shell alone reads it: an address sanitizer below would judge every program that is started.
    both=(sh -c 'while read -r name list; do [ "$name" != Cpus_allowed_list: ] || echo "$list"; done </proc/self/status')
    run 100 taskset -c 0 "$gdx" run --ranks 2 --pin -- true
    expect_status 2
    expect '^gdx: --pin: more ranks \(2\) than processors \(1\): leave it out, or start fewer ranks$'
    [ "$processors" -ge 2 ] || { echo "SKIPPED: a share of one needs two processors; this machine has $processors"; exit 77; }
    run 100 taskset -c 0,1 "$gdx" run --ranks 2 --pin -- "${both[@]}"
    [ "$(sort "$out")" = $'0\n1' ] || fail "the ranks share a processor"
    run 100 taskset -c 0,1 "$gdx" run --ranks 2 -- "${both[@]}"
    [ "$(sort -u "$out")" = 0-1 ] || fail "ranks are pinned unasked"
    ;;
  preloads)
    # Programs of sanitizers, and what else insists on a place in the list, start and find the HCA. Of AddressSanitizer's
    # also with its runtime preloaded as its message tells, and below a shell; and it still finds a fault.
    cat >"$folder/opens.c" <<'END'
#include <infiniband/verbs.h>
#include <stdlib.h>
int main(int count, char** words) {
  struct ibv_device** all = ibv_get_device_list(NULL);
  struct ibv_context* context = all != NULL && all[0] != NULL ? ibv_open_device(all[0]) : NULL;
  if (context == NULL) return 3;
  char* byte = malloc(1);
  free(byte);
  if (count > 1) return *byte + (words == NULL);
  ibv_free_device_list(all);
  return ibv_close_device(context);
}
END
    tried=0
    opens() {  # LIBRARIES COMMAND...
      local libraries=$1
      shift
      DUMP_HEAPTRACK_OUTPUT=$folder/heap LD_PRELOAD=$libraries run 100 "$gdx" run -- "$@"
      expect_status 0
      tried=$((tried + 1))
    }
    for sanitizer in address thread undefined leak; do
      if ! cc -g -fsanitize=$sanitizer "$folder/opens.c" -o "$folder/$sanitizer" -libverbs >"$out" 2>&1; then
        echo "SKIPPED: no compiler here that links -fsanitize=$sanitizer and libibverbs"
        continue
      fi
      opens '' "$folder/$sanitizer"
      [ $sanitizer = address ] || continue
      opens '' sh -c "$folder/address; exit \$?"
      opens "$(cc -print-file-name=libasan.so)" "$folder/address"
      timeout --kill-after=5 200 "$gdx" run -- "$folder/address" fault >"$out" 2>&1
      expect 'AddressSanitizer: heap-use-after-free'
    done
    for library in libjemalloc.so.2 libtcmalloc.so.4 libmimalloc.so.[0-9] libprofiler.so.0 heaptrack/libheaptrack_preload.so; do
      found=$(find -L /usr/lib /usr/local/lib -path "*/$library" 2>/dev/null | head -n 1)
      [ -n "$found" ] || { echo "SKIPPED: no $library here"; continue; }
      opens "$found" ibv_devinfo
    done
    [ $tried -gt 0 ] || exit 77
    ;;
  label)
    run 100 "$gdx" run --label --ranks 11 -- sh -c '[ $GDX_RANK = 3 ] && printf "a\n\nc"; [ $GDX_RANK != 10 ] || echo d'
    expect_status 0
    [ "$(sort "$out")" = "$(printf ' 3: \n 3: a\n 3: c\n10: d' | sort)" ] || fail "not the four lines"
    # Four ranks that print much: lines whole and in order, stderr apart.
    timeout --kill-after=5 250 "$gdx" run --label --ranks 4 -- sh -c 'seq 100000 & seq 20000 >&2; wait' >"$out" 2>"$folder/err" </dev/null ||
      fail "status $?"
    for file in "$out 100000" "$folder/err 20000"; do
      awk -v most="${file##* }" '!/^[0-3]: [0-9]+$/ || $2 != ++lines[$1] { exit bad = 1 }
        END { for (rank in lines) total += lines[rank]; exit bad || total != 4 * most }' "${file% *}" ||
        fail "not what ranks printed: ${file% *}"
    done
    # A line without end is broken into parts, and nothing of it is lost.
    run 100 "$gdx" run --label -- awk 'BEGIN { while (i++ < 500000) printf "xxxxxxxxxx" }'
    expect_status 0
    [ "$(tr -cd x <"$out" | wc -c)" -eq 5000000 ] || fail "bytes are lost"
    expect_no '^[^0]'
    run 100 "$gdx" run --label --ranks 2 -- sh -c 'test $GDX_RANK = 0 || exit 3'
    expect_status 3
    [ "$(echo told | timeout 250 "$gdx" run --label -- cat)" = '0: told' ] || fail "stdin did not come"
    # A reader that stops ends all ranks, by a signal.
    timeout --kill-after=5 250 "$gdx" run --label --ranks 2 -- yes 2>"$out" | head -n 1 >"$folder/head"
    status=${PIPESTATUS[0]}
    expect_status 141
    grep -qx '[01]: y' "$folder/head" || fail "no labelled line"
    # A rank has the terminal unless there are labels.
    for options in '' --label; do
      run 100 python3 -c 'import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))' \
        "$gdx" run --ranks 2 $options -- sh -c 'test -t 1'
      expect_status "$([ -z "$options" ]; echo $?)"
    done
    ;;
  label_held)
    # A process that is no rank's keeps a rank's stdout, and is no reason to wait.
    mkfifo "$folder/stdin"
    exec 6<>"$folder/stdin"
    timeout --kill-after=5 250 "$gdx" run --label -- sh -c '(echo $$ >"$FIFO"); read -r line; printf "$line\nunended"' \
      >"$out" 2>&1 <&6 6>&- &
    read -r rank <&7
    exec 8>"/proc/$rank/fd/1"
    echo opened >&6
    wait $!
    status=$?
    exec 8>&-
    expect_status 0 && expect '^0: opened$' && expect '^0: unended$'
    [ "$(grep -c . "$out")" -eq 2 ] || fail "not two lines"
    # A process that a rank left behind in a session of its own is none, either.
    run 100 "$gdx" run --label --ranks 2 -- sh -c 'setsid sleep 600 & echo bye'
    expect_status 0 && expect '^1: bye$' && expect '2 processes that sh had started'
    # A stdout that takes nothing does not keep the launcher from its end, and loss is told.
    dd if=/dev/zero of="$FIFO" bs=4096 oflag=nonblock 2>/dev/null || true  # until it is full
    export BEGUN=$folder/begun-lost
    timeout --kill-after=30 250 "$gdx" run --label -- sh -c 'echo lost; : >"$BEGUN"; exec sleep 600' >"$FIFO" 2>"$out" </dev/null &
    until [ -e "$BEGUN" ]; do sleep 0.05; done
    kill -TERM $!
    wait $!
    status=$?
    expect_status 143 && expect 'was lost: stdout takes nothing; give it another place'
    # Nor does a full pipe as stderr.
    for options in '' --label; do
      export BEGUN=$folder/begun$options
      timeout --kill-after=30 250 "$gdx" run $options --ranks 2 -- sh -c ': >"$BEGUN"; exec sleep 600' >"$FIFO" 2>&1 </dev/null &
      until [ -e "$BEGUN" ]; do sleep 0.05; done
      kill -TERM $!
      wait $!
      status=$?
      expect_status 143
    done
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
