#!/usr/bin/env bash
# Usage: rdma_tool.sh dev|link|statistic|resource|others|refused. iproute2's `rdma` on the software HCA.
. "$(dirname "$0")/common.sh"
PATH=$PATH:/usr/sbin:/sbin
need rdma iproute2
export GDX_SOFTHCA_HCAS=2
mkdir "$scratch/alone"
export TMPDIR=$scratch/alone  # no other process's HCA is there

# rdma_tells STATUS ARGUMENTS...: into $scratch/out.
rdma_tells() {
  local wanted=$1 status
  shift
  on_hca rdma "$@" > "$scratch/out" 2>&1
  status=$?
  cat "$scratch/out"
  [ $status = "$wanted" ] || fail "rdma $* exited with $status"
}
expect() { grep -Eq "$1" "$scratch/out" || fail "no line matches: $1"; }

case $1 in
  dev)
    rdma_tells 0 dev
    # iproute2 6.6 and later print the protocol too, and a counter a line.
    expect '^0: gdx0: node_type ca (protocol roce )?fw 28\.0\.0 node_guid 0067:'
    expect '^1: gdx1: node_type ca '
    [ "$(wc -l < "$scratch/out")" = 2 ] || fail "not two devices"
    ;;
  link)
    rdma_tells 0 link show gdx1/1
    expect '^link gdx1/1 state ACTIVE physical_state LINK_UP netdev lo'
    rdma_tells 0 -d link
    expect 'link gdx0/1 '
    expect 'caps: <CM, '
    ;;
  statistic)
    rdma_tells 0 statistic
    tr -s ' \n' ' ' < "$scratch/out" > "$scratch/flat" && mv "$scratch/flat" "$scratch/out"
    expect '^link gdx0/1 local_ack_timeout_err 0 .*np_cnp_sent 0 .*link gdx1/1 '
    ;;
  resource)
    rdma_tells 0 resource
    expect '^0: gdx0: .*pd 0 cq 0 qp 0 '
    for kind in qp cq mr pd; do
      rdma_tells 0 resource show $kind
      [ ! -s "$scratch/out" ] || fail "a process that made nothing has a $kind"
    done
    ;;
  others)
    # A server that waits for its client, in a folder where no other process of the user has an HCA.
    need ibv_rc_pingpong
    port=$(free_port) || exit 1
    GDX_SOFTHCA_HCAS=3 on_hca ibv_rc_pingpong -d gdx1 -g 1 -p "$port" > "$scratch/server" 2>&1 &
    await_listener "$port" $!
    rdma_tells 0 resource show qp
    expect '^link gdx1/1 lqpn [0-9]+ rqpn 0 type RC state INIT .* pid [0-9]+ comm ibv_rc_pingpong'
    pid=$(sed 's/.* pid //; s/ .*//' "$scratch/out")
    for kind in cq mr pd; do
      rdma_tells 0 resource show $kind
      expect "^dev gdx1 .* pid $pid comm ibv_rc_pingpong"
    done
    rdma_tells 0 resource
    expect '^1: gdx1: .*pd 1 cq 1 qp 1 mr 1 '
    GDX_SOFTHCA_HCAS=1 rdma_tells 0 resource show qp
    expect 'objects on HCAs up to gdx1: set GDX_SOFTHCA_HCAS=2 '

    # Beside it the file of the process, cut and damaged.
    published=$(echo "$TMPDIR"/gdx-softhca-*/.inventory)
    for lie in cut noise empty; do
      tree=$TMPDIR/gdx-softhca-$(id -u)-$lie
      mkdir "$tree"
      : > "$tree/.lock"
      exec {lock}< "$tree/.lock"  # or a later process clears the folder
      flock -x $lock
      case $lie in
        cut) head -c 100 "$published" > "$tree/.inventory" ;;
        noise) { head -c 64 "$published"; head -c 100000 /dev/urandom; } > "$tree/.inventory" ;;
        empty) : > "$tree/.inventory" ;;
      esac
    done
    rdma_tells 0 resource show qp
    [ "$(grep -c '^link ' "$scratch/out")" = 1 ] || fail "not the one queue pair"

    kill -KILL "$pid"
    wait
    rdma_tells 0 resource show qp
    [ ! -s "$scratch/out" ] || fail "a dead process has a queue pair"
    ;;
  refused)
    rdma_tells 1 resource show cm_id
    rdma_tells 1 dev set gdx0 name other
    ;;
  *) fail "no case $1" ;;
esac
exit 0
