#!/usr/bin/env bash
# Usage: case.sh server|client ipv4|ipv6|link_local MTU LOSS_PERCENT PROGRAM [OPTIONS]
# Our HCA runs PROGRAM in that role, Soft-RoCE in the guest the other one; both must end well. Packets are lost
# in both directions: those we send by our HCA, the guest's by netem.
. "$(dirname "$0")/common.sh"
our_role=$1 family=$2 mtu=$3 loss_percent=$4 program=$5
kRunLimit_s=100
port=18515
seed=${GDX_INTEROP_SEED:-$RANDOM}

if ! namespace=$(guest_pid); then
  [ -s "$GDX_INTEROP_FOLDER/skipped" ] && skip "$(cat "$GDX_INTEROP_FOLDER/skipped")"
  fail "no guest runs: let CTest start it, or guest.sh start"
fi
if [ "${GDX_INTEROP_INSIDE:-}" != "$namespace" ]; then
  GDX_INTEROP_INSIDE=$namespace exec nsenter -t "$namespace" -n "${enter_user[@]}" bash "$0" "$@"
fi
shift 5
scratch=$(mktemp -d)

# Runs a shell command in the guest: its output and its status.
in_guest() {
  local answer
  answer=$(exec 3<> "/dev/tcp/$guest_ipv4/7" &&
    printf '%s\n' "{ $1" "} 2>&1; printf '\\nstatus=%d\\n' \$?; exit" >&3 && timeout $((kRunLimit_s + 10)) cat <&3)
  case $answer in
    *$'\n'status=*) printf '%s\n' "${answer%$'\n'*}" && return "${answer##*status=}" ;;
    *) echo "the guest did not answer to: $1" && return 125 ;;
  esac
}

on_hca() {
  [ -n "${GDX_INTEROP_PCAP:-}" ] && export GDX_SOFTHCA_PCAP=$GDX_INTEROP_PCAP
  env LD_PRELOAD="$GDX_TEST_PRELOAD $linger" GDX_SOFTHCA_ADDR="$host_address" GDX_SOFTHCA_MTU="$mtu" \
    GDX_SOFTHCA_LOSS="$(awk "BEGIN { print $loss_percent / 100 }")" GDX_SOFTHCA_SEED="$seed" timeout $kRunLimit_s "$@"
}

clean_up() {
  [ "$loss_percent" = 0 ] || in_guest "full-tc qdisc del dev eth0 root" > /dev/null
  kill $(jobs -p) 2> /dev/null
  rm -rf "$scratch"
}
trap clean_up EXIT

# lose: from now on the guest loses what it sends. lost: how many packets it has.
lose() {
  in_guest "full-tc qdisc replace dev eth0 root netem loss $loss_percent%" || fail "the guest refused netem"
  echo "losing $loss_percent %: GDX_INTEROP_SEED=$seed repeats our losses; the guest's are its own"
}
lost() { in_guest "full-tc -s qdisc show dev eth0" | sed -n 's/.*dropped \([0-9]*\),.*/\1/p' | head -1; }

# wait_for_listener RUN: RUN executes a command where the server is.
wait_for_listener() {
  local listens
  listens="grep -Eqs '^ *[0-9]+: [0-9A-F]+:$(printf '%04X' $port) .* 0A ' /proc/net/tcp /proc/net/tcp6"
  for _ in $(seq 1200); do
    "$@" "$listens" > /dev/null && return
    [ -e "$scratch/server.status" ] && return
    sleep 0.05
  done
}

serve() {
  "$@" > "$scratch/server" 2>&1
  echo $? > "$scratch/server.status"
}

# perftest_line GID_INDEX OPTIONS. Our timeout is long: an emulated guest is slow, and Soft-RoCE misnumbers packets when
# it repeats without need.
perftest_line() {
  local gid=$1
  shift
  echo "$program -F -p $port -x $gid -m $mtu -u $([ "$loss_percent" = 0 ] && echo 21 || echo 16) $*"
}

# command_line GID_INDEX PEER OPTIONS: how either side is called, but for the server's name at the end.
command_line() {
  local gid=$1 peer=$2
  shift 2
  case $program in
    peer) echo "$peer $port $gid $mtu $([ "$loss_percent" = 0 ] && echo data+refusals || echo data)" ;;
    # READs in flight are what an mlx5 takes: Soft-RoCE would have 128, and perftest asks the other side for as many.
    ib_read_* | ib_atomic_*) perftest_line "$gid" -o 16 "$@" ;;
    ib_*) perftest_line "$gid" "$@" ;;
    # By events: two programs and an HCA that all spin would leave the guest no core of two.
    *) echo "$program -c -e -p $port -g $gid -m $mtu $*" ;;
  esac
}

# Nothing but its last message tells ibv_rc_pingpong when to leave; the others agree on it by TCP.
linger=
[ "$loss_percent" != 0 ] && [ "$program" = ibv_rc_pingpong ] && linger=$GDX_INTEROP_LINGER

host_gid=1 # a software HCA's own address
case $family in
  ipv4) host_address=$host_ipv4 guest_gid=1 ;;
  ipv6) host_address=$host_ipv6 guest_gid=2 ;;
  link_local) host_address=$(ip -6 -o addr show dev tap0 scope link | sed 's|.*inet6 \(.*\)/.*|\1|') guest_gid=0 ;;
esac
host_command=$(command_line $host_gid "$GDX_INTEROP_PEER" "$@")
guest_command="LD_PRELOAD=$linger timeout $kRunLimit_s $(command_line $guest_gid peer "$@")"

[ "$loss_percent" = 0 ] || lose
# shellcheck disable=SC2086 # a command is words
if [ "$our_role" = server ]; then
  serve on_hca $host_command &
  wait_for_listener bash -c
  in_guest "$guest_command $host_ipv4" > "$scratch/client" 2>&1
  client_status=$?
else
  serve in_guest "$guest_command" &
  wait_for_listener in_guest
  on_hca $host_command "$guest_ipv4" > "$scratch/client" 2>&1
  client_status=$?
fi
wait
server_status=$(cat "$scratch/server.status")
cat "$scratch/client" "$scratch/server"
[ "$client_status" = 0 ] || fail "the client exited with $client_status"
[ "$server_status" = 0 ] || fail "the server exited with $server_status"
# ibv_*_pingpong says so and succeeds.
! grep -h 'invalid data' "$scratch/client" "$scratch/server" || fail "what arrived is not what was sent"
if [ "$loss_percent" != 0 ]; then
  dropped=$(lost)
  echo "the guest lost ${dropped:-no} packets"
  # Only the peer moves enough that some are lost for certain.
  if [ "$program" = peer ]; then
    [ "${dropped:-0}" -gt 0 ] || fail "the guest lost nothing"
    grep -Eq '^this HCA lost [1-9][0-9]* packets' "$scratch/$our_role" || fail "our HCA lost nothing"
  fi
fi
