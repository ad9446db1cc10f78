#!/usr/bin/env bash
# Discovery: what programs see, and what is left when they end.
. "$(dirname "$0")/common.sh"
need ibv_devices
need ibv_devinfo

# A process that holds an HCA waits at $hold, which never ends.
hold=$scratch/hold
mkfifo "$hold"
exec 9<> "$hold"
await_holder() {
  for _ in $(seq 600); do
    grep -q ready "$scratch/holder" && return
    sleep 0.1
  done
  fail "the holder did not start"
}

expect() {
  grep -Eq "$1" "$scratch/out" || { cat "$scratch/out" >&2; fail "no line matches: $1"; }
}

case $1 in
  list)
    on_hca ibv_devices > "$scratch/out" 2>&1 || fail "ibv_devices exited with $?"
    expect '^ *gdx0[[:space:]]+0067[0-9a-f]{12}$'
    ;;
  info)
    GDX_SOFTHCA_MTU=1024 on_hca ibv_devinfo -v > "$scratch/out" 2>&1 || fail "ibv_devinfo exited with $?"
    expect 'state:.*PORT_ACTIVE'
    expect 'link_layer:.*Ethernet'
    expect 'active_mtu:.*1024'
    expect 'vendor_part_id:.*4129'
    expect 'GID\[ *0\]:.*fe80::.*RoCE v2'
    expect 'GID\[ *1\]:.*::ffff:127\.0\..*RoCE v2'
    expect 'maximum available device memory:.*131072'
    ;;
  interface_mtu)
    PATH=$PATH:/usr/sbin:/sbin
    need ip iproute2
    if unshare -n true 2> /dev/null; then own_user=(); else own_user=(-r); fi
    unshare -n "${own_user[@]}" true 2> /dev/null ||
      { echo "SKIPPED: no network namespace may be made here: allow user namespaces, or run as root" >&2; exit 77; }
    # devinfo LO_MTU: on a loopback interface of its own.
    devinfo() {
      unshare -n "${own_user[@]}" bash -c "ip link set lo mtu $1 up && exec env LD_PRELOAD='$GDX_TEST_PRELOAD' \
        timeout 60 ibv_devinfo" > "$scratch/out" 2>&1
    }
    devinfo 1500 || fail "ibv_devinfo exited with $?"
    expect 'active_mtu:.*1024'
    devinfo 4192 || fail "ibv_devinfo exited with $?"
    expect 'active_mtu:.*4096'
    GDX_SOFTHCA_MTU=256 devinfo 4192 || fail "ibv_devinfo exited with $?"
    expect 'active_mtu:.*256'
    GDX_SOFTHCA_MTU=2048 devinfo 1500 && fail "ibv_devinfo found a device"
    expect 'carries an MTU of 1024, not of 2048: ask for that, or raise the interface.s to 2144'
    devinfo 300 && fail "ibv_devinfo found a device"
    expect 'carries no RoCE packet'
    # The network device of an HCA is the one that has its address.
    unshare -n "${own_user[@]}" ip link add gdxa type veth peer name gdxb 2> /dev/null ||
      { echo "SKIPPED: no veth pair may be made here: load the kernel's veth module" >&2; exit 77; }
    unshare -n "${own_user[@]}" bash -c "ip link set lo up && ip link add gdxa type veth peer name gdxb &&
      ip address add 10.77.0.1/24 dev gdxa && ip link set gdxa up &&
      exec env LD_PRELOAD='$GDX_TEST_PRELOAD' GDX_SOFTHCA_ADDR=10.77.0.1 timeout 60 \
        cat /sys/class/infiniband/gdx0/ports/1/gid_attrs/ndevs/1" > "$scratch/out" 2>&1 || fail "cat exited with $?"
    expect '^gdxa$'
    ;;
  bad_configuration)
    GDX_SOFTHCA_LOSS=often on_hca ibv_devinfo > "$scratch/out" 2>&1 && fail "ibv_devinfo found a device"
    expect 'GDX_SOFTHCA_LOSS=often: must be'
    expect 'IB devices'
    [ "$(grep -c GDX_SOFTHCA_LOSS "$scratch/out")" = 1 ] || fail "said more than once"
    ;;
  bad_number)
    GDX_SOFTHCA_HCAS=17 on_hca ibv_devinfo > "$scratch/out" 2>&1 && fail "ibv_devinfo found a device"
    expect 'GDX_SOFTHCA_HCAS=17: must be 1 to 16'
    ;;
  busy_second)
    # Of the second address another process has the port.
    address=127.78.$((RANDOM % 250 + 2)).$((RANDOM % 250 + 2))
    next=${address%.*}.$((${address##*.} + 1))
    GDX_SOFTHCA_ADDR=$next on_hca bash -c 'exec 3< /sys/class/infiniband/gdx0/node_guid; echo ready; read -r' \
      > "$scratch/holder" 2>&1 < "$hold" &
    holder=$!
    await_holder
    GDX_SOFTHCA_HCAS=2 GDX_SOFTHCA_ADDR=$address on_hca ibv_devinfo > "$scratch/out" 2>&1 && fail "two HCAs on $next"
    kill $holder
    expect "$next port 4791 is taken"
    ;;
  busy_address)
    address=127.77.$((RANDOM % 250 + 2)).$((RANDOM % 250 + 2))
    # The holder lists its devices, then keeps its HCA while it sleeps in the same process.
    GDX_SOFTHCA_ADDR=$address on_hca bash -c 'cd /sys/class/infiniband 2> /dev/null; exec 3< /sys/class/infiniband/gdx0/node_guid; echo ready; read -r' \
      > "$scratch/holder" 2>&1 < "$hold" &
    holder=$!
    await_holder
    GDX_SOFTHCA_ADDR=$address on_hca ibv_devinfo > "$scratch/out" 2>&1 && fail "two HCAs on $address"
    kill $holder
    expect "$address"
    expect 'IB devices'
    ;;
  leftovers)
    TMPDIR=$scratch on_hca ibv_devinfo > "$scratch/out" 2>&1 || fail "ibv_devinfo exited with $?"
    ls -d "$scratch"/gdx-softhca-* 2> /dev/null && fail "a tree was left behind"
    # One whose owner died without a word is cleared by the next process.
    mkdir "$scratch/gdx-softhca-$(id -u)-abcdef" && touch "$scratch/gdx-softhca-$(id -u)-abcdef/.lock"
    TMPDIR=$scratch on_hca ibv_devices > /dev/null || fail "ibv_devices exited with $?"
    ls -d "$scratch"/gdx-softhca-* 2> /dev/null && fail "a stale tree was not cleared"
    # So is one whose removal was cut short behind its lock.
    mkdir -p "$scratch/gdx-softhca-$(id -u)-abcdef/sys/class"
    TMPDIR=$scratch on_hca ibv_devices > /dev/null || fail "ibv_devices exited with $?"
    ls -d "$scratch"/gdx-softhca-* 2> /dev/null && fail "a tree without a lock was not cleared"
    # A link by that name is not ours.
    mkdir "$scratch/elsewhere" && touch "$scratch/elsewhere/.lock"
    ln -s elsewhere "$scratch/gdx-softhca-$(id -u)-abcdef"
    TMPDIR=$scratch on_hca ibv_devices > /dev/null || fail "ibv_devices exited with $?"
    [ -L "$scratch/gdx-softhca-$(id -u)-abcdef" ] || fail "a link was followed and cleared"
    ;;
  few_descriptors)
    # Inherited descriptors would count.
    for open in /proc/self/fd/*; do
      fd=${open##*/}
      [ "$fd" -le 2 ] || [ "$fd" -eq 255 ] || eval "exec $fd>&-"
    done
    # Either the program had enough descriptors and finds the device, or a line reports that it had not.
    for count in 7 8 9 10 11 12 13 14 16 18 20 24; do
      for wire in udp shm; do
        (ulimit -n $count && GDX_SOFTHCA_WIRE=$wire TMPDIR=$scratch on_hca ibv_devinfo) > "$scratch/out" 2>&1 && continue
        expect 'limit on open files|raise the limit|loading shared libraries|cannot be preloaded|Too many open files'
        ls -d "$scratch"/gdx-softhca-* 2> /dev/null && fail "ulimit -n $count left a tree"
      done
    done
    # The first file without a descriptor depends on the program's number of descriptors.
    (ulimit -n 16 && on_hca ibv_devinfo) > "$scratch/out" 2>&1
    expect 'raise the limit \(ulimit -n\) by [0-9]+|check the limit on open files'
    (ulimit -n 40 && GDX_SOFTHCA_HCAS=16 on_hca ibv_devinfo) > "$scratch/out" 2>&1 && fail "16 HCAs in 40 descriptors"
    expect 'raise the limit \(ulimit -n\) by [0-9]+'
    (ulimit -n 64 && on_hca ibv_devinfo) > "$scratch/out" 2>&1 || fail "ibv_devinfo exited with $?"
    ;;
  full_folder)
    if unshare -m true 2> /dev/null; then own_user=(); else own_user=(-r); fi
    unshare -m "${own_user[@]}" true 2> /dev/null ||
      { echo "SKIPPED: no mount namespace may be made here: allow user namespaces, or run as root" >&2; exit 77; }
    mkdir "$scratch/full"
    for limit in size=16k size=100k nr_inodes=30; do
      unshare -m "${own_user[@]}" bash -c "mount -t tmpfs -o $limit none '$scratch/full' && cd / &&
        TMPDIR='$scratch/full' LD_PRELOAD='$GDX_TEST_PRELOAD' exec timeout 60 ibv_devinfo" > "$scratch/out" 2>&1 &&
        fail "ibv_devinfo found a device"
      expect 'cannot fill .*: No space left on device; set TMPDIR'
    done
    ;;
  looked_at)
    # look PATTERN COMMAND...: it succeeds, complains of nothing, and a line matches.
    look() {
      local pattern=$1
      shift
      on_hca "$@" > "$scratch/out" 2> "$scratch/errors" || { cat "$scratch/errors" >&2; fail "$* exited with $?"; }
      [ ! -s "$scratch/errors" ] || { cat "$scratch/errors" >&2; fail "$* complains"; }
      expect "$pattern"
    }
    pci=/sys/devices/pci0000:67/0000:67:00.0
    hca=/sys/class/infiniband/gdx0
    look '^gdx0$' ls /sys/class/infiniband
    look '^l.* gdx0 -> \.\./\.\./devices/pci' ls -l /sys/class/infiniband
    look '^crw' ls -l /dev/infiniband/uverbs0
    look '^symbolic link$' stat -c %F $hca
    look '^directory$' stat -L -c %F $hca
    look '^  File: "/sys/class/infiniband/gdx0"$' stat -f $hca
    look '^character special file$' stat -c %F /dev/infiniband/uverbs0
    look "^$pci/infiniband/gdx0\$" realpath $hca
    look "^$pci\$" readlink -f $hca/device
    look '^\.\./\.\./\.\./0000:67:00\.0$|^\.\./\.\.$' readlink $hca/device
    look '/bus/pci$' readlink $hca/device/subsystem
    look '^/sys/bus/pci$' realpath $hca/device/subsystem
    look "^$hca\$" find /sys/class/infiniband -name gdx0
    look "^$hca/ports/1/state\$" find -L $hca/ports -name state
    look '^4: ACTIVE$' cat $hca/ports/1/state
    look '^readable$' sh -c "test -r $hca/node_guid && test -d $hca/ports && echo readable"
    look '^1$' sh -c "cd $hca/ports && echo *"
    ;;
  untouched)
    need strace strace
    TMPDIR=$scratch timeout 60 strace -f -o "$scratch/trace" -E LD_PRELOAD="$GDX_TEST_PRELOAD" \
      sh -c 'ls / > /dev/null; true' || fail "sh exited with $?"
    cost='memfd_create|gdx-softhca|socket\('
    # ThreadSanitizer's runtime has a thread of its own.
    case $GDX_TEST_PRELOAD in *tsan*) ;; *) cost="$cost|clone3?\(.*CLONE_THREAD" ;; esac
    grep -E "$cost" "$scratch/trace" > "$scratch/out" || exit 0
    cat "$scratch/out" >&2
    fail "a program without RDMA paid for the device"
    ;;
esac
exit 0
