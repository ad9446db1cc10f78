#!/usr/bin/env bash
# Usage: case.sh server|client ipv4|ipv6 MTU LOSS_PERCENT PROGRAM [OPTIONS]
# Our HCA runs PROGRAM in that role, Soft-RoCE in the guest the other one; both must end well. Packets are lost
# in both directions: going out by our HCA, coming in by netem in the guest.
. "$(dirname "$0")/common.sh"
our_role=$1 family=$2 mtu=$3 loss_percent=$4 program=$5
kRunLimit_s=60
seed=${GDX_INTEROP_SEED:-$RANDOM}

namespace=$(guest_pid) || fail "no guest runs: let CTest start it, as the fixture of this test"
if [ "${GDX_INTEROP_INSIDE:-}" != "$namespace" ]; then
  own_user=()
  [ "$(id -u)" = 0 ] || own_user=(-U --preserve-credentials)
  GDX_INTEROP_INSIDE=$namespace exec nsenter -t "$namespace" -n "${own_user[@]}" bash "$0" "$@"
fi
shift 5

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"; kill $(jobs -p) 2> /dev/null' EXIT

# Runs a shell command in the guest; its output and its status.
in_guest() {
  local answer
  answer=$(exec 3<> "/dev/tcp/$guest_ipv4/7" && printf '%s\n' "{ $1" "} 2>&1; printf '\\nstatus=%d\\n' \$?; exit" >&3 &&
    timeout $((kRunLimit_s + 10)) cat <&3)
  printf '%s\n' "${answer%$'\n'*}"
  return "${answer##*status=}"
}

on_hca() {
  env ${GDX_INTEROP_PCAP:+GDX_SOFTHCA_PCAP=$GDX_INTEROP_PCAP} LD_PRELOAD="$GDX_TEST_PRELOAD" GDX_SOFTHCA_ADDR="$host_address" GDX_SOFTHCA_MTU="$mtu" \
    GDX_SOFTHCA_LOSS="$loss" GDX_SOFTHCA_SEED="$seed" timeout $kRunLimit_s "$@"
}

# Waits until HOST|GUEST listens on the port.
wait_for_listener() {
  local pattern
  pattern="^ *[0-9]+: [0-9A-F]+:$(printf '%04X' "$port") .* 0A "
  for _ in $(seq 200); do
    if [ "$1" = host ]; then
      grep -Eqs "$pattern" /proc/net/tcp /proc/net/tcp6 && return
    else
      in_guest "grep -Eqs '$pattern' /proc/net/tcp /proc/net/tcp6" > /dev/null && return
    fi
    [ -e "$scratch/server.status" ] && return
    sleep 0.05
  done
}

# serve SIDE COMMAND: in the background, output and status into the scratch folder.
case $family in
  ipv4) host_address=$host_ipv4 guest_gid=1 ;;
  ipv6) host_address=$host_ipv6 guest_gid=2 ;;
esac
host_gid=1 # a software HCA's own address
port=18515
loss=$(awk "BEGIN { print $loss_percent / 100 }")

# What each side is called with; only the peer takes an address as its last word and no name before it.
case $program in
  peer) host_command=("$GDX_INTEROP_PEER" $port $host_gid "$mtu") guest_command="peer $port $guest_gid $mtu" ;;
  ibv_*) host_command=("$program" -c -p $port -g $host_gid -m "$mtu" "$@") guest_command="$program -c -p $port -g $guest_gid -m $mtu $*" ;;
  ib_*) host_command=("$program" -F -p $port -x $host_gid -m "$mtu" "$@") guest_command="$program -F -p $port -x $guest_gid -m $mtu $*" ;;
esac
guest_command="timeout $kRunLimit_s $guest_command"

if [ "$loss_percent" != 0 ]; then
  netem="full-tc qdisc replace dev eth0 root netem loss $loss_percent%"
  in_guest "$netem" || fail "the guest cannot lose packets: $netem"
  trap 'in_guest "full-tc qdisc del dev eth0 root" > /dev/null; rm -rf "$scratch"; kill $(jobs -p) 2> /dev/null' EXIT
  echo "seed of our losses: $seed (set GDX_INTEROP_SEED to repeat; the guest's losses are its own)"
fi

serve() {
  "$@" > "$scratch/server" 2>&1
  echo $? > "$scratch/server.status"
}
if [ "$our_role" = server ]; then
  serve on_hca "${host_command[@]}" &
  wait_for_listener host
  in_guest "$guest_command $host_ipv4" > "$scratch/client" 2>&1
  client_status=$?
else
  serve in_guest "$guest_command" &
  wait_for_listener guest
  on_hca "${host_command[@]}" "$guest_ipv4" > "$scratch/client" 2>&1
  client_status=$?
fi
wait
server_status=$(cat "$scratch/server.status")
cat "$scratch/client" "$scratch/server"
[ "$client_status" = 0 ] || fail "the client exited with $client_status"
[ "$server_status" = 0 ] || fail "the server exited with $server_status"
