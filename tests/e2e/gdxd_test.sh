#!/usr/bin/env bash
# gdxd_test.sh CASE GDXD GDX [BUILD_FOLDER]: gdxd and programs that come, share, and are killed.
. "$(dirname "$0")/../program.sh"
. "$(dirname "$0")/../settled.sh"
gdxd=$2
gdx=$3
check=$(dirname "$0")/trace_check.py
daemon=
trap '[ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true; rm -rf "$folder"' EXIT
export GDX_DAEMON=unix:$folder/socket
export GDXD_CONFIG=/dev/null  # not this machine's
unset GDX_ACK_TIMEOUT GDX_RETRY_COUNT  # both ends are gdxd's, so a stall stops both

listens_or_ends() { grep -q '^gdxd listens' "$folder/log" || ! kill -0 "$daemon" 2>/dev/null; }
start_gdxd() {
  : >"$folder/log"  # of the one before
  "$gdxd" --socket "$folder/socket" "$@" 2>"$folder/log" &
  daemon=$!
  until_true listens_or_ends || fail 'gdxd does not listen'
  grep -q '^gdxd listens' "$folder/log" || fail "gdxd did not start: $(cat "$folder/log")"
}
figures() { echo "$(ls "/proc/$daemon/fd" | wc -l) files $(ls "/proc/$daemon/task" | wc -l) threads"; }
# started PID LOG COMMAND...: waits until the command succeeds. PID writes LOG, and must live until then.
started() {
  local pid=$1 log=$2
  shift 2
  until "$@"; do
    kill -0 "$pid" 2>/dev/null || fail "it has ended: $(cat "$log")"
    sleep 0.05
  done
}
# Prints the ranks of the demo that have mapped the file $1, by process id. Other tests have ranks of their own.
ranks_with() {
  local process
  for process in $(pgrep -x gdx_demo); do
    grep -qsz "^$2\$" "/proc/$process/environ" && grep -qs "$1" "/proc/$process/maps" && echo "$process"
  done
}
a_rank_with() { [ -n "$(ranks_with "$@")" ]; }

case $case_name in
  # Two jobs of two ranks at once on one HCA and one pool of staging slots.
  two_jobs)
    start_gdxd
    jobs=()
    for job in 1 2; do
      "$gdx" demo --max-bytes 262144 >"$folder/$job" 2>&1 &
      jobs+=($!)
    done
    for job in 1 2; do
      wait "${jobs[job - 1]}" || fail "job $job: $(cat "$folder/$job")"
      grep -q 'slots written without a credit: 0' "$folder/$job" || fail "job $job: $(cat "$folder/$job")"
    done
    # A client's own variable chooses its address, although gdxd opens the HCA.
    GDX_GID_INDEX=0 run 100 "$gdx" demo --max-bytes 8
    expect_status 0
    GDX_GID_INDEX=9 run 100 "$gdx" demo --max-bytes 8
    expect_failure
    expect 'no RoCE v2 address at GID index 9:'
    GDX_GID_INDEX=256 run 100 "$gdx" demo --max-bytes 8
    expect_failure
    expect "GDX_GID_INDEX = '256': use a number from 0 to 255"
    ;;
  # Ranks are killed once they hold staging memory. Others notice nothing, and gdxd keeps nothing of them.
  killed_clients)
    start_gdxd
    "$gdx" demo --max-bytes 4096 >/dev/null
    before=$(settled figures)
    steady=0
    (for _ in $(seq 6); do "$gdx" demo --max-bytes 32768 >"$folder/steady" 2>&1 || exit 1; done) &
    steady=$!
    for _ in $(seq 6); do
      VICTIM=1 "$gdx" demo --min-bytes 1048576 --messages 100000 >"$folder/victim" 2>&1 &
      launcher=$!
      started $launcher "$folder/victim" a_rank_with gdx-softhca VICTIM=1
      kill -9 "$(ranks_with gdx-softhca VICTIM=1 | head -1)"
      wait $launcher && fail 'a launcher whose rank was killed ended with 0'
    done
    wait $steady || fail "a client that was left alone saw: $(cat "$folder/steady")"
    # Sessions end on threads of their own.
    until_true no_more "$before" figures || fail "gdxd has $(figures); it had $before"
    ;;
  # gdxd is killed. Ranks end, each with the reason, and a new gdxd serves at the same place.
  killed_daemon)
    start_gdxd
    "$gdx" demo --min-bytes 16777216 --modes pull --messages 100000 >"$folder/out" 2>&1 &
    launcher=$!
    started $launcher "$folder/out" a_rank_with 'gdx memory' "GDX_DAEMON=$GDX_DAEMON"
    kill -9 "$daemon"
    wait "$daemon" || true
    wait $launcher && fail 'the demo went on without gdxd'
    grep -qE 'gdxd at .* has ended' "$folder/out" || fail "$(cat "$folder/out")"
    start_gdxd
    run 100 "$gdx" demo --max-bytes 4096
    expect_status 0
    ;;
  # An operator sees two ranks, ends one, and lets gdxd end with the other.
  operator)
    start_gdxd
    "$gdx" demo --modes push --min-bytes 65536 --max-bytes 65536 --messages 1000000 >"$folder/demo" 2>&1 &
    launcher=$!
    two_are_shown() {
      run 100 "$gdx" stat --json
      expect_status 0
      # Users and clients are read one after the other.
      [ "$(grep -c '"peer": "QP' "$out")" = 2 ] && grep -q '"endpoints": 2' "$out"
    }
    started $launcher "$folder/demo" two_are_shown
    expect '"program": "gdx_demo"'
    expect '"memory": "nic"'
    run 100 "$gdx" stat
    expect "^user $(id -u): 3 clients, 2 endpoints, [0-9]+ regions, [0-9]+ MiB registered\$"
    expect '^  gdx0 at [0-9.]+: [0-9]+ resent, [0-9]+ timeouts, [0-9]+ NAKs, 0 staging violations$'
    expect '^  pool in nic memory of gdx0: [0-9]+ of 32 slots leased, 0 bad returns$'
    expect '^     pid    uid program +QP peer +stalls  WQEBB/s fault$'
    [ "$(grep -cE "^ +[0-9]+ +$(id -u) gdx_demo +0x[0-9a-f]+ QP 0x[0-9a-f]+ at [0-9.]+ +[0-9]+ +- -\$" "$out")" = 2 ] || fail 'not both endpoints'
    expect "^ +[0-9]+ +$(id -u) gdx +\$"
    # Ranks that get no processor between two looks send nothing there.
    rates_are_shown() {
      run 100 "$gdx" top --count 2 --interval-s 0.25
      expect_status 0
      grep -qE 'gdx_demo .* QP 0x[0-9a-f]+ at .* [1-9][0-9]* -$' "$out" && grep -qE '[1-9][0-9]* packets/s sent' "$out"
    }
    started $launcher "$folder/demo" rates_are_shown
    run 100 "$gdx" kick 1
    expect_status 1
    expect 'process 1 is no client'
    run 100 "$gdx" kick "$("$gdx" stat --json | grep -m1 '"pid"' | tr -dc 0-9)"
    expect_status 0
    wait $launcher && fail 'the demo went on without its rank'
    grep -qE "gdxd tells: user $(id -u) has kicked this process\$" "$folder/demo" || fail "$(cat "$folder/demo")"
    grep -qE 'gdxd at .* has kicked this process, and its objects are lost' "$folder/demo" || fail "$(cat "$folder/demo")"
    run 100 "$gdx" drain
    expect_status 0
    wait "$daemon" || fail "gdxd ended with status $?: $(cat "$folder/log")"
    daemon=
    run 100 "$gdx" stat
    expect_status 1
    expect 'no gdxd at'
    ;;
  # Flags beat the environment, that the file, and that the defaults; what is printed reads back. Quotas hold.
  configuration)
    printf 'mode = "0660"\nmetrics = "[::1]:9464"\n[quota]\nendpoints = 7\nslots = 5\n' >"$folder/a.toml"
    export GDXD_CONFIG=$folder/a.toml GDXD_QUOTA_SLOTS=6 GDXD_QUOTA_ENDPOINTS=8
    run 100 "$gdxd" --quota-slots 9 --print-config
    expect_status 0
    expect "^mode = '0660' +# $folder/a.toml:1$"
    expect '^endpoints = 8 +# GDXD_QUOTA_ENDPOINTS$'
    expect '^slots = 9 +# --quota-slots$'
    expect '^users = 16 +# default$'
    sed 's/ *#.*//' "$out" >"$folder/wanted"
    cp "$out" "$folder/b.toml"
    unset GDXD_QUOTA_SLOTS GDXD_QUOTA_ENDPOINTS
    # Defaults, then each number at both ends of its range and beyond them, by flag and by variable.
    GDXD_CONFIG=/dev/null run 100 "$gdxd" --print-config
    [ "$(sed "s|^socket = '/.*'|socket|; s/  # default$//" "$out" | tr '\n' ' ')" = "socket mode = '0600' group = '' monitor_group = '' hardware = false \
metrics = '' users = 16 clients = 1024 pools = 1  [quota] clients = 256 endpoints = 1024 regions = 1536 registered_bytes = 17179869184 \
pools = 32 nic_pools = 1 slots = 65536 requests_per_s = 20000 " ] || fail 'not these defaults'
    while read -r key least most; do
      flag=--${key//[._]/-} variable=GDXD_$(tr 'a-z.' 'A-Z_' <<<"$key")
      parts=GDXD_POOLS=256
      [ "$key" != pools ] || parts=GDXD_CLIENTS=1
      run 100 env "$parts" "$gdxd" "$flag" "$most" --print-config
      expect_status 0 && expect "^${key#quota.} = $most  # $flag\$"
      run 100 env "$parts" "$variable=$least" "$gdxd" --print-config
      expect_status 0 && expect "^${key#quota.} = $least  # $variable\$"
      range="use a whole number from $least to $most"
      refused "^gdxd: $flag: '$((most + 1))': $range; see" "$gdxd" "$flag" "$((most + 1))"
      refused "^gdxd: $variable: '$((least - 1))': $range\$" env "$variable=$((least - 1))" "$gdxd"
    done <<'RANGES'
users 1 65530
clients 1 65530
pools 1 256
quota.clients 1 65530
quota.endpoints 1 32765
quota.regions 1 65530
quota.registered_bytes 1 70368744177664
quota.pools 1 256
quota.nic_pools 1 256
quota.slots 1 1048576
quota.requests_per_s 100 1000000
RANGES
    run 100 "$gdxd" --config "$folder/b.toml" --print-config
    expect "^slots = 9 +# $folder/b.toml:[0-9]+$"
    sed 's/ *#.*//' "$out" | diff - "$folder/wanted" || fail 'what is printed reads back as something else'
    for line in 'mode = 660' 'mode = "9"' 'sockte = "/x"' 'socket = "x"' 'quota.slots = 0' 'quota.slots = -1' \
      'quota.requests_per_s = "x"' 'quota.none = 1' 'quota = 1' 'other.slots = 1' 'hardware = "yes"' 'x = ' 'pools = 1.5' \
      'metrics = "localhost:1"' 'metrics = "127.0.0.1:65536"' 'group = "no-such-group"'; do
      printf '\n%s\n' "$line" >"$folder/bad.toml"
      refused "^gdxd: $folder/bad.toml:[23]: " "$gdxd" --config "$folder/bad.toml" --print-config
    done
    refused 'cannot read the configuration' "$gdxd" --config "$folder"
    refused 'cannot read the configuration' "$gdxd" --config "$folder/none"
    GDXD_POOLS=0 refused '^gdxd: GDXD_POOLS: ' "$gdxd"
    GDXD_POOL=2 refused '^gdxd: GDXD_POOL: no such variable' "$gdxd"
    refuses 1 "cannot listen at $folder/none/socket: .*: No such file" "$gdxd" --socket "$folder/none/socket"
    refused "--socket: '$folder' is no socket" "$gdxd" --socket "$folder"
    [ ! -e "$folder/none" ] || fail 'a folder that nobody asked for was made'
    refused 'quota.nic_pools 3 \(--quota-nic-pools\) is more than the 2 parts of pools \(--pools\)' "$gdxd" --pools 2 --quota-nic-pools 3
    export GDXD_CONFIG=/dev/null
    printf 'mode = "0660"\n[quota]\nendpoints = 1\nrequests_per_s = 100\n' >"$folder/a.toml"
    group=$(id -gn)
    [ "$(id -u)" -ne 0 ] || group=nogroup
    start_gdxd --config "$folder/a.toml" --users 60000 --quota-regions 60000 --group "$group"
    grep -qE "quotas permit [0-9]{10} mappings, and vm.max_map_count is" "$folder/log" || fail "no warning of mappings: $(cat "$folder/log")"
    [ "$(stat -c '%a %u %G' "$folder/socket")" = "660 $(id -u) $group" ] || fail 'the rights are not those of the options'
    run 100 "$gdx" demo --max-bytes 4096
    expect_failure
    expect 'gdxd gives a user no more than 1 endpoints'
    ;;
  # A service manager passes the socket, and is told when gdxd is ready and when it ends, by either kind of name.
  activation)
    for manager in "$folder/manager" "@$folder/abstract"; do
      MANAGER=$manager "$(dirname "$0")/activate.py" "$folder/socket" "$folder/states" "$gdxd" 2>"$folder/log" &
      daemon=$!
      started "$daemon" "$folder/log" grep -qsx READY=1 "$folder/states"
      grep -qx "gdxd listens at $folder/socket, with a software HCA" "$folder/log" || fail "gdxd does not listen: $(cat "$folder/log")"
      run 100 "$gdx" demo --max-bytes 8 --messages 10
      expect_status 0
      kill "$daemon"
      wait "$daemon" || fail "gdxd ended with status $?: $(cat "$folder/log")"
      daemon=
      [ "$(cat "$folder/states")" = "$(printf 'READY=1\nSTOPPING=1')" ] || fail "states: $(cat "$folder/states")"
      [ -S "$folder/socket" ] || fail 'gdxd removed the socket of the service manager'
      rm "$folder/socket" "$folder/states"
    done
    # Passed to another process.
    LISTEN_PID=1 LISTEN_FDS=1 start_gdxd
    refuses 2 'no listening UNIX socket of packets' "$(dirname "$0")/activate.py" --stream "$folder/s" "$folder/t" "$gdxd"
    LISTEN_COUNT=2 refuses 2 'pass gdxd one listening socket' \
      "$(dirname "$0")/activate.py" "$folder/u" "$folder/v" "$gdxd"
    ;;
  # systemd's own opinion of the units.
  units)
    command -v systemd-analyze >/dev/null || { echo 'SKIPPED: no systemd-analyze: the units are not verified'; exit 77; }
    sed "s|^ExecStart=[^ ]*|ExecStart=$gdxd|" "$4/gdxd.service.in" >"$folder/gdxd.service"
    cp "$4/gdxd.socket" "$folder"
    run 100 systemd-analyze verify --man=no "$folder/gdxd.service" "$folder/gdxd.socket"
    expect_status 0
    expect_no 'gdxd\.(service|socket)'
    ;;
  # Every line of the metrics keeps the rules of the format, and tells what stat tells.
  metrics)
    run 100 "$gdxd" --socket "$folder/socket" --metrics 192.0.2.1:9464
    expect_status 1
    expect "metrics at 192.0.2.1:9464 show every user's programs"
    ! grep -q 'built without prometheus-cpp' "$out" || { echo 'SKIPPED: no prometheus-cpp: gdxd has no metrics'; exit 77; }
    expect 'cannot listen at 192.0.2.1:9464'
    start_gdxd --metrics 127.0.0.1:0
    "$gdx" demo --modes push --min-bytes 65536 --max-bytes 65536 --messages 1000000 >"$folder/demo" 2>&1 &
    launcher=$!
    both_work() {
      run 100 "$gdx" stat --json
      [ "$(grep -cE '"completed_blocks": [1-9]' "$out")" = 2 ]
    }
    started $launcher "$folder/demo" both_work
    # Neither posts or completes anything while stat and the metrics are compared.
    ranks=$(grep -B2 '"program": "gdx_demo"' "$out" | grep '"pid"' | tr -dc '0-9\n')
    [ "$(wc -w <<<"$ranks")" = 2 ] || fail 'two working ranks are not shown'
    # shellcheck disable=SC2086
    kill -STOP $ranks
    for rank in $ranks; do until_true grep -q '^State:.T' "/proc/$rank/status" || fail "rank $rank does not stop"; done
    # Callers that never end their requests take nobody's place.
    port=$(sed -nE 's|^gdxd.s metrics are at http://127.0.0.1:([0-9]+)/.*|\1|p' "$folder/log")
    for _ in $(seq 200); do
      exec {half}<>"/dev/tcp/127.0.0.1/$port"
      printf 'GET /met' >&"$half"
    done
    if [ "$(id -u)" -eq 0 ]; then  # root can be another user
      run 100 setpriv --reuid 65534 --clear-groups bash -c \
        "exec {caller}<>/dev/tcp/127.0.0.1/$port; printf 'GET /metrics HTTP/1.1\r\n\r\n' >&\$caller; cat <&\$caller"
      expect '^HTTP/1.1 403 Forbidden'
    else
      echo 'SKIPPED: needs root: what another user gets of the metrics'
    fi
    run 100 "$(dirname "$0")/scrape.py" "$(sed -n 's/^gdxd.s metrics are at //p' "$folder/log")" "$gdx" stat --json
    # shellcheck disable=SC2086
    kill -KILL $ranks
    expect_status 0
    expect '^[0-9]+ lines, 2 endpoints'
    wait $launcher
    ;;
  # The newest events of endpoints: of traffic under loss, of a fault, and on hardware, which has no recorder.
  trace)
    # demo: one that goes on for long.
    demo() {
      GDX_LOG=info "$gdx" demo --modes pull --min-bytes 65536 --max-bytes 65536 --messages 1000000 >"$folder/demo" 2>&1 &
      launcher=$!
    }
    GDX_SOFTHCA_LOSS=0.1 start_gdxd
    demo
    much_is_traced() {
      run 100 "$gdx" trace
      [ "$status" -eq 0 ] && [ "$(grep -c ' resend .* from PSN' "$out")" -gt 2 ] && [ "$(grep -c ' complete ' "$out")" -gt 8 ]
    }
    started $launcher "$folder/demo" much_is_traced
    expect '^process [0-9]+ \(gdx_demo\), gdx0 QP 0x[0-9a-f]+ towards QP .*: [0-9]+ events of the engine, [0-9]+ older'
    python3 "$check" text "$out" || fail 'these events are in no order of theirs'
    qp=$(sed -nE '1s/.*, gdx0 QP (0x[0-9a-f]+) towards.*/\1/p' "$out")
    run 100 "$gdx" trace --qp "$qp" --output "$folder/trace.json"
    expect_status 0
    python3 "$check" json "$folder/trace.json" "$qp" || fail 'the trace is not of the format'
    refuses 1 'no such endpoint' "$gdx" trace --pid 1
    refuses 1 'cannot write /proc/none' "$gdx" trace --output /proc/none
    while :; do
      run 100 "$gdx" kick "$("$gdx" stat --json | grep -m1 '"pid"' | tr -dc 0-9)"
      wait $launcher && fail 'the demo went on without its rank'
      # On a slow machine the other rank is ended before its retries are over.
      grep -q 's have passed since that failure' "$folder/demo" || break
      demo
      started $launcher "$folder/demo" much_is_traced
    done
    grep -qE ' complete +WQE [0-9]+: syndrome 0x15 ' "$folder/demo" || fail "no fault's events: $(cat "$folder/demo")"
    grep -qE 'gdxd: gdx_demo, QP .* ends with syndrome 0x15; its newest events' "$folder/log" ||
      fail "gdxd logs no fault: $(cat "$folder/log")"
    kill "$daemon"
    wait "$daemon"
    GDX_SOFTHCA_FAULT=disguised start_gdxd
    demo
    completion_is_traced() {
      run 100 "$gdx" trace
      grep -q ' complete ' "$out"
    }
    started $launcher "$folder/demo" completion_is_traced
    expect 'events of the rings'
    expect ' doorbell +up to WQE [0-9]+$'
    expect ' fetch +WQE [0-9]+: RDMA WRITE of '
    expect ' complete +WQE [0-9]+$'
    expect ' state +RTS$'
    kill $launcher
    wait $launcher
    ;;
  # A client's namespaces change neither its user nor its service. In one of its own gdxd names root alone.
  namespaces)
    if [ "$(id -u)" -ne 0 ] || ! unshare --map-root-user --pid --fork true 2>/dev/null; then
      echo 'SKIPPED: user and process namespaces are for root: run this as root, where they are permitted'
      exit 77
    fi
    start_gdxd --mode 0666
    run 100 unshare --pid --fork --mount-proc "$gdx" demo --max-bytes 8
    expect_status 0
    run 100 unshare --map-root-user "$gdx" demo --max-bytes 8
    expect_status 0
    kill "$daemon" && wait "$daemon"
    printf '#!/bin/sh\nexec unshare --map-root-user %s "$@"\n' "$gdxd" >"$folder/gdxd"
    chmod +x "$folder/gdxd" && chmod 755 "$folder"
    gdxd=$folder/gdxd
    start_gdxd --mode 0666
    run 100 "$gdx" demo --max-bytes 8
    expect_status 0
    run 100 setpriv --reuid 1234 --regid 1234 --clear-groups "$gdx" demo --max-bytes 8
    expect_failure
    expect "gdxd runs in a user namespace that names you 65534"
    ;;
  bad_input)
    unset GDX_DAEMON
    for arguments in '--socket relative' '--mode 9' '--group no-such-group' '--pools 0' '--nonsense'; do
      # shellcheck disable=SC2086
      run 100 "$gdxd" $arguments
      expect_status 2
      expect "$(echo "$arguments" | cut -d' ' -f1)"
    done
    run 100 "$gdxd" --socket /proc/no/such/folder/socket
    expect_status 1
    expect 'cannot listen'
    run 100 "$gdxd" --help
    expect_status 0
    GDX_DAEMON=unix:$folder/none run 100 "$gdx" demo
    expect_status 2
    expect 'no gdxd at'
    GDX_DAEMON=unix:$folder/none run 100 "$gdx" demo --loss 0.1
    expect_status 2
    expect 'options of the software HCA'
    ;;
esac
if [ -n "$daemon" ]; then
  kill "$daemon"
  wait "$daemon" || fail "gdxd ended with status $?: $(cat "$folder/log")"
  daemon=
  [ ! -e "$folder/socket" ] || fail 'gdxd left its socket behind'
fi
echo "ok: $case_name"
