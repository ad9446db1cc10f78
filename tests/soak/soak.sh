#!/usr/bin/env bash
# soak.sh GDX [SECONDS [SEED [RUN]]]: programs on the software HCA under signals, limits, closed descriptors and full
# disks, drawn by seed. Each run ends in time, verified, or with a failure and a line that names what was done; after it
# no process and no socket of ours is left. After the next good run no tree and no shared memory is left. RUN: that one
# alone, as often as the time allows.
set -uo pipefail
usage="soak.sh GDX [SECONDS [SEED [RUN]]]: whole numbers"
gdx=$(realpath "${1:?$usage}")
seconds=${2:-600}
seed=${3:-$RANDOM}
only=${4:-}
[[ $seconds$seed$only =~ ^[0-9]+$ ]] || { echo "'$*': $usage" >&2; exit 2; }

# Own namespaces hold all that is started, and nobody else's processes or sockets are in them.
if [ "${GDX_SOAK_INSIDE:-}" != yes ]; then
  own=(unshare --user --map-root-user --net --mount --pid --fork --kill-child --mount-proc)
  [ "$(id -u)" -eq 0 ] && own=(unshare --net --mount --pid --fork --kill-child --mount-proc)
  "${own[@]}" true 2>/dev/null ||
    { echo "SKIPPED: the soak needs namespaces of its own: run it as root, or allow user namespaces"; exit 77; }
  folder=$(mktemp -d -p /tmp) # not below /dev/shm, which it mounts over
  trap 'rmdir "$folder"' EXIT
  GDX_SOAK_INSIDE=yes GDX_SOAK_FOLDER=$folder "${own[@]}" "$0" "$gdx" "$seconds" "$seed" ${only:+"$only"}
  exit
fi
folder=$GDX_SOAK_FOLDER
mount -t tmpfs soak "$folder" && mount -t tmpfs soak /dev/shm && ip link set lo up || exit 1
export TMPDIR=$folder/tmp
# Calls, peers (8 tries of 8.6 s) and ranks that meet outlast a machine that stands still for a minute.
export GDX_CALL_TIMEOUT_S=200 GDX_ACK_TIMEOUT=21 GDX_RETRY_COUNT=7 GDX_BOOTSTRAP_TIMEOUT_S=200
unset GDX_SOAK_INSIDE GDX_SOAK_FOLDER
mkdir "$TMPDIR" && mount -t tmpfs -o size=8m soak "$TMPDIR" || exit 1
mkfifo "$folder/never"
exec 9<>"$folder/never" # nothing is ever written: a bounded wait without a process
out=$folder/out
err=$folder/err
demo=$(realpath "$(dirname "$gdx")/../../../demo/gdx_demo" 2>/dev/null || realpath "$(dirname "$gdx")/gdx_demo")

# pick VARIABLE VALUE...
pick() {
  local -n picked=$1
  local values=("${@:2}")
  picked=${values[RANDOM % ${#values[@]}]}
}
nap() { read -rt "$1" <&9; }

fail() {
  echo "FAIL: run $run of seed $seed: $workload, $trouble: $*"
  echo "--- stdout:" && head -c 2000 "$out" && echo "--- stderr:" && head -c 4000 "$err"
  echo "replay: tests/soak/soak.sh $gdx 60 $seed $run"
  exit 1
}

state_of() { sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null; }
alive() { [[ $(state_of "$1") =~ ^[^Z]$ ]]; }
others() {
  local process
  for process in /proc/[0-9]*; do
    process=${process#/proc/}
    [ "$process" -ne $$ ] && alive "$process" && echo "$process"
  done
}
tell_others() {
  local process
  for process in $(others); do tr '\0' ' ' <"/proc/$process/cmdline"; done 2>/dev/null
}

# bounded CONDITION...: whether it becomes true within 200 s, which only end a hang.
bounded() {
  local end=$((SECONDS + 200))
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    nap 0.05 || :
  done
}
ended() { ! alive "$pid"; }
alone() {
  local left process
  mapfile -t left < <(others)
  # Those that listed them are among them, and over.
  for process in "${left[@]}"; do ! alive "$process" || return 1; done
}

choose_workload() {
  local mode wire
  pick mode pull push inline bounce auto
  pick wire udp shm auto
  case $((RANDOM % 6)) in
    0) command=("$gdx" demo --modes "$mode" --max-bytes 4096 --wire "$wire") ;;
    1) command=("$gdx" demo --modes "$mode" --max-bytes 512 --json) ;;
    2) command=("$gdx" demo --modes "$mode" --max-bytes 512 --loss 0.01 --seed "$RANDOM") ;;
    3) command=("$gdx" demo --direct on --max-bytes 4096) ;;
    4) command=("$gdx" run --timeout-s 200 -- "$gdx" info --json) ;;
    5) command=("$gdx" run --ranks 2 -- sh -c
      "(trap '' TERM; setsid sleep 300) & exec $demo --modes $mode --max-bytes 512") ;;
  esac
  workload="${command[*]:1}"
}

# Words by which a shell reports the signal that killed a process.
declare -A words=([TERM]=Terminated [INT]=Interrupt [HUP]=Hangup [QUIT]=Quit [KILL]=Killed [USR1]='User defined signal 1'
  [PIPE]='Broken pipe')

# Leaves what is to happen in: signal, delay, victim; limit; closed; full. And in cause what a failure must say; empty:
# nothing that happens is a reason to fail.
choose_trouble() {
  signal='' limit='' closed='' full='' victim='' cause=''
  case $((RANDOM % 8)) in
    0) trouble='no trouble' ;;
    1 | 2 | 3)
      pick signal TERM INT HUP QUIT KILL USR1 PIPE
      pick victim launcher group anyone
      printf -v delay '0.%03d' $((RANDOM % 900))
      trouble="SIG$signal to $victim after $delay s"
      cause="was killed: ${words[$signal]}"
      ;;
    4)
      limit="ulimit -n $((3 + RANDOM % 60))" trouble=$limit
      cause='open files|ulimit -n|: Error 24$'
      ;;
    5)
      limit="ulimit -v $((20000 + RANDOM * 20))" trouble=$limit
      cause='ulimit -v|memory|failed to map segment'
      ;;
    6)
      pick closed '<&-' '>&-' '2>&-' '<&- >&-' '>&- 2>&-' '<&- >&- 2>&-'
      trouble="closed: $closed"
      [[ $closed == *'>&-'* && $closed != '2>&-' ]] && cause='what it printed was lost'
      ;;
    7)
      pick full stdout stderr disk
      trouble="full $full"
      [ "$full" = stdout ] && cause='what it printed was lost'
      [ "$full" = disk ] && cause='No space left on device; set TMPDIR'
      ;;
  esac
}

start() {
  local to_out=$out to_err=$err
  [ "$full" = stdout ] && to_out=/dev/full
  [ "$full" = stderr ] && to_err=/dev/full
  [ "$full" != disk ] || cat /dev/zero >"$TMPDIR/filler" 2>/dev/null
  (
    exec 9<&-
    $limit 2>/dev/null
    ulimit -c 0 # against cores of SIGQUIT
    # Undoes that a shell's background, or nohup, ignores these signals.
    eval "exec env --default-signal=HUP,INT,QUIT setsid \"\${command[@]}\" $closed"
  ) </dev/null >"$to_out" 2>"$to_err" &
  pid=$!
}

strike() {
  local target crowd
  [ -n "$signal" ] || return 0
  nap "$delay"
  case $victim in
    launcher) target=$pid ;;
    group) target=-$pid ;;
    anyone)
      mapfile -t crowd < <(others)
      target=${crowd[RANDOM % ${#crowd[@]}]:-$pid}
      ;;
  esac
  kill -"$signal" -- "$target" 2>/dev/null
}

judge() {
  case $status in
    0)
      [ "$full" = stdout ] && fail "status 0 and nothing was written"
      [[ $closed == *'>&-'* && $closed != '2>&-' ]] && fail "status 0 without a stdout"
      grep -qE 'every byte of every message was right|"verified": true|"name": "gdx0"' "$out" ||
        fail "status 0 and not verified"
      ;;
    132 | 133 | 134 | 135 | 136 | 139) fail "crashed with status $status" ;;
    *)
      [ -n "$cause" ] || fail "status $status, and nothing was done to it"
      # Accepts a signal that was sent to the launcher alone, because its sender and the shell report it.
      [ -n "$signal" ] && [ "$status" -eq $((128 + $(kill -l "$signal"))) ] && return 0
      [[ $closed == *'2>&-'* ]] && return 0 # there is nowhere to say it
      grep -qE -- "$cause" "$err" || fail "status $status, and no line says: $cause"
      ;;
  esac
}

check_sockets() {
  ! grep -q ':12B7 ' /proc/net/udp /proc/net/udp6 || fail "a socket at port 4791 is left"
  ! grep -q ' 0A ' /proc/net/tcp || fail "a listening socket is left"
  ! grep -q '@' /proc/net/unix || fail "a UNIX socket is left: $(grep '@' /proc/net/unix)"
}

# The next run clears away what killed ones had to leave.
check_files() {
  trouble='clean-up'
  "$gdx" run -- "$gdx" info >"$out" 2>"$err" </dev/null 9<&- || fail "a good run fails"
  local left
  left=$(find "$TMPDIR" /dev/shm -mindepth 1 -maxdepth 1)
  [ -z "$left" ] || fail "left: $left"
}

echo "soak: $seconds s, seed $seed"
run=${only:-0}
runs=0
verified=0
end=$((SECONDS + seconds))
while [ "$SECONDS" -lt "$end" ]; do
  run=${only:-$((run + 1))}
  RANDOM=$(((seed * 31 + run * 7) % 32768))
  choose_workload
  choose_trouble
  start
  strike
  bounded ended || fail "still runs after 200 s"
  wait "$pid"
  status=$?
  bounded alone || fail "processes are left: $(tell_others)"
  rm -f "$TMPDIR/filler"
  judge
  check_sockets
  runs=$((runs + 1))
  [ "$status" -ne 0 ] || verified=$((verified + 1))
  [ $((runs % 10)) -ne 0 ] || check_files
done
check_files
echo "soak: seed $seed: $runs runs, $verified verified, $((runs - verified)) failed as they should, nothing left"
