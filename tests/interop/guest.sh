#!/usr/bin/env bash
# Usage: guest.sh start | stop. Boots a Debian kernel with Soft-RoCE under QEMU, and leaves it running for the cases.
# Its network card is a tap in a network namespace of its own; `stop` ends the guest and with it the namespace.
. "$(dirname "$0")/common.sh"
here=$(cd "$(dirname "$0")" && pwd)
state=$GDX_INTEROP_FOLDER/guest
kLifeLimit_s=1500 # should nobody call `stop`
ethernet_mtu=4200 # the least that gives a RoCE MTU of 4096

stop() {
  local pid
  pid=$(guest_pid) || return 0
  kill -- "-$pid" 2> /dev/null
  for _ in $(seq 100); do
    [ -e "/proc/$pid" ] || return 0
    sleep 0.05
  done
  kill -9 -- "-$pid" 2> /dev/null
}

# Within the namespace; becomes QEMU.
inside() {
  ip link set lo up &&
    ip tuntap add tap0 mode tap &&
    echo 0 > /proc/sys/net/ipv6/conf/tap0/accept_dad &&
    ip link set tap0 mtu "$ethernet_mtu" up &&
    ip addr add "$host_ipv4/24" dev tap0 &&
    ip -6 addr add "$host_ipv6/64" dev tap0 || { echo "SETUP FAILED"; exit 1; }
  echo $$ > "$state/pid"
  exec timeout "$kLifeLimit_s" qemu-system-x86_64 -accel $1 -M q35 -m 256 -nodefaults -display none -no-reboot \
    -serial "file:$state/console" -netdev tap,id=net,ifname=tap0,script=no,downscript=no \
    -device virtio-net-pci,netdev=net -kernel "$GDX_INTEROP_FOLDER/kernel/kernel" -initrd "$GDX_INTEROP_FOLDER/initramfs" \
    -append "console=ttyS0 quiet panic=-1 gdx_ipv4=$guest_ipv4/24 gdx_ipv6=$guest_ipv6/64 gdx_ethernet_mtu=$ethernet_mtu"
}

# boot DEADLINE_S ACCELERATOR: whether the guest became ready.
boot() {
  local deadline=$((SECONDS + $1))
  rm -rf "$state"
  mkdir -p "$state"
  # Nothing of the test's is left open: CTest waits for whoever holds its output.
  setsid unshare -n "${own_user[@]}" bash "$here/guest.sh" inside "$2" < /dev/null > "$state/log" 2>&1 &
  local job=$!
  while [ $SECONDS -lt $deadline ]; do
    grep -q "^GUEST READY" "$state/console" 2> /dev/null && return 0
    grep -q "^GUEST FAILED" "$state/console" 2> /dev/null && break
    kill -0 $job 2> /dev/null || break
    sleep 0.1
  done
  cat "$state/log" >&2
  stop
  return 1
}

start() {
  rm -f "$GDX_INTEROP_FOLDER/skipped"
  [ "$(uname -m)" = x86_64 ] || skip "the guest is x86-64, this machine is $(uname -m)"
  need qemu-system-x86_64 qemu-system-x86
  need busybox busybox-static
  for program in ip rdma tc; do need "$program" iproute2; done
  need xz xz-utils
  need ibv_rc_pingpong ibverbs-utils
  need ib_write_bw perftest
  [ -w /dev/net/tun ] || skip "/dev/net/tun is not writable here: allow it (docker: --device /dev/net/tun)"
  unshare -n "${own_user[@]}" true 2> /dev/null ||
    skip "no network namespace may be made here: allow user namespaces, or run as root"
  stop
  local status=0
  bash "$here/image.sh" "$GDX_INTEROP_FOLDER" "$GDX_INTEROP_PEER" "$GDX_INTEROP_LINGER" || status=$?
  [ $status = 0 ] || exit $status
  # Emulation follows KVM, which may open and still run no guests; the last one that worked comes first.
  local accelerators=("tcg,tb-size=128 -cpu max") accelerator
  [ -w /dev/kvm ] && [ ! -e "$GDX_INTEROP_FOLDER/no_kvm" ] && accelerators=("kvm -cpu host" "${accelerators[@]}")
  for accelerator in "${accelerators[@]}"; do
    case $accelerator in
      kvm*) boot 15 "$accelerator" || { touch "$GDX_INTEROP_FOLDER/no_kvm"; continue; } ;;
      *) boot 120 "$accelerator" || continue ;;
    esac
    echo "$(grep '^GUEST READY' "$state/console" | tr -d '\r') by ${accelerator%%[, ]*}"
    return 0
  done
  grep -q "SETUP FAILED" "$state/log" && skip "no tap may be made here ($(head -1 "$state/log")): run as root"
  tail -20 "$state/console" >&2
  fail "the guest did not become ready; its console is $state/console"
}

case $1 in
  start) start ;;
  stop)
    # A skipped start is no pass.
    [ ! -e "$GDX_INTEROP_FOLDER/skipped" ] || exit 77
    stop
    ;;
  inside) inside "$2" ;;
esac
