#!/usr/bin/env bash
# gdxd.sh GDXD GDX CLIENT [SECONDS [SEED]]: one gdxd, programs that put and verify, and beside them a client of another
# user. The client sends and stores anything, asks for more than its quotas permit, and is killed again and again.
# Nobody else may see an error. In the end gdxd has no more descriptors, threads, mappings and memory than before.
# SECONDS are for that; then clients come and go one after another, ten thousand for 600 s.
set -uo pipefail
. "$(dirname "$0")/../settled.sh"
usage="gdxd.sh GDXD GDX CLIENT [SECONDS [SEED]]: whole numbers"
gdxd=${1:?$usage} gdx=${2:?$usage} client=${3:?$usage}
seconds=${4:-60}
seed=${5:-$RANDOM}
[[ $seconds$seed =~ ^[0-9]+$ ]] || { echo "'$*': $usage" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "SKIPPED: a client of another user needs root: run it as root"; exit 77; }
folder=$(mktemp -d)
export GDXD_CONFIG=/dev/null  # not this machine's
chmod 711 "$folder"
daemon=
trap '[ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null; rm -rf "$folder"' EXIT
export GDX_DAEMON=unix:$folder/socket
# Ten processes share two cores, and whoever hangs does so for minutes, too.
export GDX_CALL_TIMEOUT_S=200 GDX_BOOTSTRAP_TIMEOUT_S=200
fail() {
  echo "FAIL (seed $seed): $*"
  tail -n 20 "$folder/log"
  exit 1
}

# For each of two users a pool of the demo's rules, and one of the default rules. Other quotas are what the programs need.
GDX_SOFTHCA_DEVICE_MEMORY_BYTES=524288 "$gdxd" --socket "$folder/socket" --mode 0666 --pools 4 --quota-nic-pools 2 \
  --quota-clients 10 --quota-endpoints 40 --quota-regions 48 --quota-registered-bytes $(((64 + 73) << 20)) 2>"$folder/log" &
daemon=$!
until grep -qs '^gdxd listens' "$folder/log"; do
  kill -0 "$daemon" 2>/dev/null || fail 'gdxd did not start'
  sleep 0.05
done

figures() {
  echo "$(ls "/proc/$daemon/fd" | wc -l) files," "$(ls "/proc/$daemon/task" | wc -l) threads," \
    "$(grep -c memfd "/proc/$daemon/maps") mappings"
}
# Sessions end on threads of their own.
as_before() {
  local end=$((SECONDS + 200))
  until no_more "$before" figures; do
    [ $SECONDS -lt $end ] || fail "gdxd has $(figures); it had $before"
    sleep 0.1
  done
}
resident_kib() { awk '/^RssAnon/ { print $2 }' "/proc/$daemon/status"; }
steady() {
  local round=0 until=$((SECONDS + $1))
  while [ $SECONDS -lt $until ]; do
    "$gdx" demo --max-bytes 65536 --messages 20 >"$folder/demo" 2>&1 || return 1
    round=$((round + 1))
  done
  echo "$round" >"$folder/demos"
}
quotas=(clients endpoints 'registered regions' 'registered bytes')
# Counts how often the hostile client met the quota $1.
refusals_of() { grep -c "no more than [0-9]* $1" "$folder/attacker"; }
all_met() {
  local quota
  for quota in "${quotas[@]}"; do [ "$(refusals_of "$quota")" -gt 0 ] || return 1; done
}
# A hostile client is killed at a moment of chance; on a slow machine the last ones once all quotas have been met, or after a
# minute.
attack() {
  local until=$((SECONDS + $1)) attacker begun kills=0
  while [ $SECONDS -lt $until ] || ! all_met; do
    [ $SECONDS -lt $((until + 600)) ] || { echo "the hostile client met not all of its quotas: ${quotas[*]}"; return 1; }
    setpriv --reuid 65534 --regid 65534 --clear-groups "$client" hostile $((seed + kills)) >>"$folder/attacker" 2>&1 &
    attacker=$!
    begun=$SECONDS
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    until [ $SECONDS -lt $until ] || all_met || [ $((SECONDS - begun)) -gt 60 ]; do sleep 0.1; done
    kill -9 $attacker 2>/dev/null || { echo "attacker: $(tail -n 5 "$folder/attacker")"; return 1; }
    wait $attacker 2>/dev/null  # bash tells of each kill
    kills=$((kills + 1))
  done
  echo "$kills" >"$folder/kills"
}

RANDOM=$seed
"$client" cycles 200 || fail 'a program could not do its work before anybody attacked'
"$gdx" demo --max-bytes 65536 >"$folder/demo" 2>&1 || fail "$(cat "$folder/demo")"
before=$(settled figures)
echo "before: $before, $(resident_kib) KiB"
steady "$seconds" &
steady=$!
(for ((i = 0; i < 1000000; ++i)); do
  "$client" cycles 50 || exit 1
  [ $SECONDS -lt "$seconds" ] || exit 0
done) >"$folder/cycles" 2>&1 &
cycles=$!
attack "$seconds" || fail 'the hostile client came to an end of its own'
wait $steady || fail "beside a hostile client: $(cat "$folder/demo")"
wait $cycles || fail "beside a hostile client: $(cat "$folder/cycles")"
as_before
for quota in "${quotas[@]}"; do echo "the quota of $quota refused the hostile client $(refusals_of "$quota") times"; done
# The pool lives as long as one program of its user does.
mkfifo "$folder/hold"
"$client" idle 1 <"$folder/hold" >"$folder/held" 2>&1 &
held=$!
exec 8>"$folder/hold"
until grep -q idle "$folder/held"; do
  kill -0 $held 2>/dev/null || fail "an idle program: $(cat "$folder/held")"
  sleep 0.05
done
"$gdx" stat --json >"$folder/stat" || fail "gdx stat: $(cat "$folder/stat")"
grep -q '"leased_slots": 0' "$folder/stat" || fail "no pool is shown: $(cat "$folder/stat")"
grep -q '"leased_slots": [1-9]' "$folder/stat" && fail "slots are still leased: $(cat "$folder/stat")"
exec 8>&-
wait $held || fail "an idle program: $(cat "$folder/held")"
echo "after $(cat "$folder/kills") kills beside $(cat "$folder/demos") demos: $before, $(resident_kib) KiB"

# The heap's own ups and downs stay below 512 KiB; a cycle that loses 64 B passes the bound in 20,000.
resident=$(resident_kib)
most=$((seconds * 50 / 3))
count=0
while [ $count -lt $most ] || [ $count -lt 1000 ]; do
  "$client" cycles 500 || fail 'a program could not do its work'
  count=$((count + 500))
done
grown=$(($(resident_kib) - resident))
[ $grown -lt $((512 + count / 32)) ] || fail "$count cycles cost $grown KiB"
as_before
echo "after $count cycles: $before, $(resident_kib) KiB"
kill "$daemon"
wait "$daemon" || fail "gdxd ended with status $?"
daemon=
echo "ok: seed $seed"
