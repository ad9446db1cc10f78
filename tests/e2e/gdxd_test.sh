#!/usr/bin/env bash
# gdxd_test.sh CASE GDXD GDX: gdxd and programs that come, share, and are killed.
. "$(dirname "$0")/../program.sh"
gdxd=$2
gdx=$3
daemon=
trap '[ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true; rm -rf "$folder"' EXIT
export GDX_DAEMON=unix:$folder/socket
# Two cores may have ten ranks to run, and whoever hangs does so for a minute, too.
export GDX_CALL_TIMEOUT_S=60

start_gdxd() {
  : >"$folder/log"  # of the one before
  "$gdxd" --socket "$folder/socket" "$@" 2>"$folder/log" &
  daemon=$!
  for _ in $(seq 600); do
    grep -q '^gdxd listens' "$folder/log" && return
    kill -0 "$daemon" || fail "gdxd did not start: $(cat "$folder/log")"
    sleep 0.05
  done
  fail 'gdxd does not listen'
}
figures() { echo "$(ls "/proc/$daemon/fd" | wc -l) files $(ls "/proc/$daemon/task" | wc -l) threads"; }
# Prints the ranks of the demo that have mapped the file $1, by process id. Other tests have ranks of their own.
ranks_with() {
  local process
  for process in $(pgrep -x gdx_demo); do
    grep -qsz "^$2\$" "/proc/$process/environ" && grep -qs "$1" "/proc/$process/maps" && echo "$process"
  done
}
# Sessions end on threads of their own.
until_figures_are() {
  for _ in $(seq 600); do
    [ "$(figures)" = "$1" ] && return
    sleep 0.05
  done
  fail "gdxd has $(figures) instead of $1"
}

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
    ;;
  # Ranks are killed once they hold staging memory. Others notice nothing, and gdxd keeps nothing of them.
  killed_clients)
    start_gdxd
    "$gdx" demo --max-bytes 4096 >/dev/null
    sleep 1
    before=$(figures)
    steady=0
    (for _ in $(seq 6); do "$gdx" demo --max-bytes 32768 >"$folder/steady" 2>&1 || exit 1; done) &
    steady=$!
    for round in $(seq 6); do
      VICTIM=1 "$gdx" demo --min-bytes 1048576 --messages 100000 >"$folder/victim" 2>&1 &
      launcher=$!
      rank=
      for _ in $(seq 600); do
        rank=$(ranks_with gdx-softhca VICTIM=1 | head -1)
        [ -n "$rank" ] && break
        sleep 0.02
      done
      [ -n "$rank" ] || fail "round $round: no rank holds staging memory: $(cat "$folder/victim")"
      kill -9 "$rank"
      wait $launcher && fail 'a launcher whose rank was killed ended with 0'
    done
    wait $steady || fail "a client that was left alone saw: $(cat "$folder/steady")"
    until_figures_are "$before"
    ;;
  # gdxd is killed. Ranks end, each with the reason, and a new gdxd serves at the same place.
  killed_daemon)
    start_gdxd
    "$gdx" demo --min-bytes 16777216 --modes pull --messages 100000 >"$folder/out" 2>&1 &
    launcher=$!
    until [ -n "$(ranks_with 'gdx memory' "GDX_DAEMON=$GDX_DAEMON")" ]; do
      kill -0 $launcher || fail "$(cat "$folder/out")"
      sleep 0.02
    done
    kill -9 "$daemon"
    wait "$daemon" || true
    wait $launcher && fail 'the demo went on without gdxd'
    grep -qE 'aborted by the host|gdxd at .* has ended' "$folder/out" || fail "$(cat "$folder/out")"
    start_gdxd
    run 60 "$gdx" demo --max-bytes 4096
    expect_status 0
    ;;
  # An operator sees two ranks, ends one, and lets gdxd end with the other.
  operator)
    start_gdxd
    "$gdx" demo --modes push --min-bytes 65536 --max-bytes 65536 --messages 1000000 >"$folder/demo" 2>&1 &
    launcher=$!
    seen=
    for _ in $(seq 600); do
      run 20 "$gdx" stat --json
      expect_status 0
      seen=$(grep -c '"peer": "QP' "$out")
      [ "$seen" = 2 ] && grep -q '"endpoints": 2' "$out" && break  # users and clients are read one after the other
      sleep 0.05
    done
    [ "$seen" = 2 ] || fail 'two connected endpoints are not shown'
    expect '"program": "gdx_demo"'
    expect '"memory": "nic"'
    run 20 "$gdx" top --count 2 --interval-s 0.3
    expect_status 0
    expect 'gdx_demo .* QP 0x[0-9a-f]+ at .* [1-9][0-9]* -$'
    expect '[1-9][0-9]* packets/s sent'
    run 20 "$gdx" kick 1
    expect_status 127
    expect 'process 1 is no client'
    run 20 "$gdx" kick "$("$gdx" stat --json | grep -m1 '"pid"' | tr -dc 0-9)"
    expect_status 0
    wait $launcher && fail 'the demo went on without its rank'
    grep -qE 'aborted by the host|gdxd at .* has ended' "$folder/demo" || fail "$(cat "$folder/demo")"
    run 20 "$gdx" drain
    expect_status 0
    wait "$daemon" || fail "gdxd ended with status $?: $(cat "$folder/log")"
    daemon=
    run 20 "$gdx" stat
    expect_status 127
    expect 'no gdxd at'
    ;;
  bad_input)
    unset GDX_DAEMON
    for arguments in '--socket relative' '--mode 9' '--group no-such-group' '--pools 0' '--nonsense'; do
      # shellcheck disable=SC2086
      run 20 "$gdxd" $arguments
      expect_status 2
      expect "$(echo "$arguments" | cut -d' ' -f1)"
    done
    run 20 "$gdxd" --socket /proc/no/such/folder/socket
    expect_status 1
    expect 'cannot listen'
    run 20 "$gdxd" --help
    expect_status 0
    GDX_DAEMON=unix:$folder/none run 20 "$gdx" demo
    expect_status 2
    expect 'no gdxd at'
    GDX_DAEMON=unix:$folder/none run 20 "$gdx" demo --loss 0.1
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
