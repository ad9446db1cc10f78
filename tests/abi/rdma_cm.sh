#!/usr/bin/env bash
# Usage: rdma_cm.sh CASE [PEER]. Debian's connection-managed programs, two processes with an HCA each; and what
# happens when there is nobody to connect to. PEER is the binary of rdma_cm_peer.cpp.
. "$(dirname "$0")/common.sh"
case=$1
peer=${2:-}
export GDX_SOFTHCA_LOSS=${GDX_TEST_LOSS:-0} GDX_SOFTHCA_SEED=${GDX_TEST_SEED:-$RANDOM}
[ "$GDX_SOFTHCA_LOSS" = 0 ] || echo "loss $GDX_SOFTHCA_LOSS, GDX_TEST_SEED=$GDX_SOFTHCA_SEED"

# rping_ended_well END STATUS. At its end rping's main thread closes the event channel, while its other thread may ask
# it for an event; that thread then exits with 255, on any HCA.
rping_ended_well() {
  if [ "$2" = 255 ] && grep -q 'DISCONNECT EVENT' "$scratch/$1" &&
    grep -q 'rdma_get_cm_event: Bad file descriptor' "$scratch/$1"; then
    cat "$scratch/$1"
  else
    must_end_well "$1" "$2"
  fi
}

# both SERVER... -- CLIENT...: both must exit with 0.
both() {
  local words=()
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  start "${words[@]}"
  at "$client_address" "$@" > "$scratch/client" 2>&1
  local client_status=$?
  wait $server
  local server_status=$?
  rping_ended_well client $client_status
  rping_ended_well server $server_status
}

# says CLIENT-LINE PROGRAM...: the client must print a line that matches.
says() {
  local line=$1
  shift
  at "$client_address" "$@" > "$scratch/client" 2>&1
  status=$?
  cat "$scratch/client"
  grep -Eq "$line" "$scratch/client" || fail "no line of the client matches: $line"
}

libfabric_pingpong() {
  need fi_pingpong libfabric-bin
  local port
  port=$(free_port) || exit 1
  # The exchange of names is by TCP, before the server has a listener to tell of.
  at "$server_address" fi_pingpong -p verbs -e "$1" -I 20 -B "$port" > "$scratch/server" 2>&1 &
  server=$!
  await_listener "$port" $server
  at "$client_address" fi_pingpong -p verbs -e "$1" -I 20 -P "$port" 127.0.0.1 > "$scratch/client" 2>&1
  client_status=$?
  wait $server
  server_status=$?
  must_end_well client $client_status
  must_end_well server $server_status
  # A line for each size, on both sides.
  for end in client server; do
    printed=$(grep -Ec '^[0-9]+[km]? +20 +=20 ' "$scratch/$end")
    [ "$printed" -ge "$2" ] || fail "the $end printed $printed lines of results, not $2"
  done
}

# lid ADDRESS: the LID for which 127.0.x.y stands.
lid() { printf '%#x' $(($(echo "$1" | cut -d . -f 3) << 8 | ${1##*.})); }

case $case in
  rping)
    need rping rdmacm-utils
    both rping -s -V -C 10 -S 4096 -- rping -c -a "$server_address" -v -V -C 10 -S 4096
    [ "$(grep -c '^ping data: ' "$scratch/client")" = 10 ] || fail "not ten pings"
    ;;
  rping_named)
    need rping rdmacm-utils
    both rping -s -a "$server_address" -p 9999 -V -C 5 -- \
      rping -c -a "$server_address" -I "$client_address" -p 9999 -V -C 5
    ;;
  rping_second)
    need rping rdmacm-utils
    # Each process has two HCAs; the server listens on all of them, and both ends use their second.
    second() { echo "${1%.*}.$((${1##*.} + 1))"; }
    client_address=${server_address%.*}.3
    start rping -s -p 9999 -V -C 5
    at "$client_address" rping -c -a "$(second "$server_address")" -I "$(second "$client_address")" -p 9999 -V -C 5 \
      > "$scratch/client" 2>&1
    client_status=$?
    wait $server
    server_status=$?
    rping_ended_well client $client_status
    rping_ended_well server $server_status
    grep -q "gdx1: rdma_cm listens at $(second "$server_address") port 9999" "$scratch/server" || fail "not on both"
    ;;
  ucmatose)
    need ucmatose rdmacm-utils
    both ucmatose -c 4 -C 20 -S 1000 -- ucmatose -s "$server_address" -c 4 -C 20 -S 1000
    for end in client server; do
      grep -q 'return status 0' "$scratch/$end" || fail "the $end reports a failure"
      grep -q 'data transfers complete' "$scratch/$end" || fail "the $end moved no data"
    done
    ;;
  udaddy)
    need udaddy rdmacm-utils
    both udaddy -c 3 -- udaddy -s "$server_address" -c 3
    for end in client server; do
      grep -q 'return status 0' "$scratch/$end" || fail "the $end reports a failure"
      grep -q 'data transfers complete' "$scratch/$end" || fail "the $end moved no data"
    done
    ;;
  rdma_client)
    need rdma_client rdmacm-utils
    both rdma_server -- rdma_client -s "$server_address"
    grep -q 'rdma_client: end 0' "$scratch/client" || fail "the client reports a failure"
    grep -q 'rdma_server: end 0' "$scratch/server" || fail "the server reports a failure"
    ;;
  fi_info)
    need fi_info libfabric-bin
    at "$server_address" fi_info -p verbs -v > "$scratch/out" 2>&1 || { cat "$scratch/out" >&2; fail "fi_info exited with $?"; }
    grep -q "src_addr: fi_sockaddr_in://$server_address:0" "$scratch/out" || fail "the HCA's address is not listed"
    for type in MSG DGRAM RDM; do grep -q "FI_EP_$type" "$scratch/out" || fail "no FI_EP_$type"; done
    ;;
  fi_info_second)
    need fi_info libfabric-bin
    at "$server_address" fi_info -p verbs -v > "$scratch/out" 2>&1 || { cat "$scratch/out" >&2; fail "fi_info exited with $?"; }
    for address in "$server_address" "${server_address%.*}.2"; do
      grep -q "src_addr: fi_sockaddr_in://$address:0" "$scratch/out" || fail "$address is not listed"
    done
    for name in gdx0 gdx1; do grep -q "name: $name\$" "$scratch/out" || fail "$name is not listed"; done
    ;;
  fi_pingpong_msg) libfabric_pingpong msg 6 ;;
  fi_pingpong_rdm) libfabric_pingpong rdm 6 ;;
  fi_pingpong_dgram) libfabric_pingpong dgram 3 ;;
  by_lid)
    # Type of service 96 has precedence 3, which is the service level here.
    server_lid=$(lid "$server_address") client_lid=$(lid "$client_address")
    start "$peer" accept 7001
    says "^route slid $client_lid dlid $server_lid sl 3 hops 0 life 14\$" "$peer" connect "$server_address" 7001 96
    wait $server || fail "the server exited with $?"
    cat "$scratch/server"
    grep -q "^route slid $server_lid dlid $client_lid sl 3 hops 0 life 14\$" "$scratch/server" || fail "the server's route"
    grep -q "^queue pair dlid $server_lid sl 3 global 0\$" "$scratch/client" || fail "the client's queue pair"
    grep -q "^queue pair dlid $client_lid sl 3 global 0\$" "$scratch/server" || fail "the server's queue pair"
    # An address that stands for no LID has no path.
    says '^RDMA_CM_EVENT_ADDR_ERROR -113 ' "$peer" connect 127.77.0.1 7001
    ;;
  other_layer)
    # InfiniBand refuses a GID of RoCE, and RoCE a path by LID.
    start "$peer" hold 7001
    GDX_SOFTHCA_LINK_LAYER=ethernet says '^RDMA_CM_EVENT_REJECTED 12 ' "$peer" connect "$server_address" 7001
    kill "$(server_pid)"
    GDX_SOFTHCA_LINK_LAYER=ethernet start "$peer" hold 7001
    says '^RDMA_CM_EVENT_REJECTED 13 ' "$peer" connect "$server_address" 7001
    kill "$(server_pid)"
    ;;
  nobody_listens)
    start "$peer" hold 7001
    says '^RDMA_CM_EVENT_REJECTED 8 ' "$peer" connect "$server_address" 7002
    need rping rdmacm-utils
    says 'RDMA_CM_EVENT_REJECTED, error 8' rping -c -a "$server_address" -p 7002 -C 1
    [ $status != 0 ] || fail "rping reports success"
    kill "$(server_pid)"
    ;;
  nobody_there) says '^RDMA_CM_EVENT_UNREACHABLE -110 ' "$peer" connect "$server_address" 7001 ;;
  killed_before_accepting)
    start "$peer" hold 7001
    at "$client_address" "$peer" connect "$server_address" 7001 > "$scratch/client" 2>&1 &
    client=$!
    for _ in $(seq 2400); do grep -q CONNECT_REQUEST "$scratch/server" && break; sleep 0.05; done
    grep -q CONNECT_REQUEST "$scratch/server" || fail "the server got no request"
    kill -9 "$(server_pid)"
    wait $client || fail "the client exited with $?"
    grep -Eq '^RDMA_CM_EVENT_UNREACHABLE -110 ' "$scratch/client" || { cat "$scratch/client"; fail "not told"; }
    ;;
  rejected)
    start "$peer" reject 7001 no-thank-you
    says '^RDMA_CM_EVENT_REJECTED 28 no-thank-you$' "$peer" connect "$server_address" 7001
    wait $server || fail "the server exited with $?"
    ;;
  bad_address)
    need rping rdmacm-utils
    says 'rdma_bind_addr: Cannot assign requested address' rping -s -a 192.0.2.200 -C 1
    [ $status != 0 ] || fail "rping bound an address that the host has not"
    says 'RDMA_CM_EVENT_ADDR_ERROR, error -19' rping -c -a ::1 -C 1
    [ $status != 0 ] || fail "rping resolved an address of another family"
    ;;
  peer_leaves)
    # The end of a process says goodbye for a program that did not.
    start "$peer" accept 7001
    says '^RDMA_CM_EVENT_ESTABLISHED 0 ' "$peer" leave "$server_address" 7001
    wait $server || fail "the server exited with $?"
    cat "$scratch/server"
    grep -q '^RDMA_CM_EVENT_ESTABLISHED 0 ' "$scratch/server" || fail "the server was not told of the connection"
    grep -q '^RDMA_CM_EVENT_DISCONNECTED 0 ' "$scratch/server" || fail "the server was not told of its end"
    ;;
  captured)
    need tshark tshark
    need rping rdmacm-utils
    GDX_SOFTHCA_PCAP=$scratch/%p.pcap both rping -s -C 1 -- rping -c -a "$server_address" -C 1
    for file in "$scratch"/*.pcap; do
      tshark -r "$file" 2> /dev/null > "$scratch/out"
      for message in ConnectRequest ConnectReply ReadyToUse DisconnectRequest; do
        grep -q "CM: $message" "$scratch/out" || { cat "$scratch/out" >&2; fail "tshark sees no $message"; }
      done
      tshark -r "$file" -V 2> /dev/null > "$scratch/out"
      if [ "${GDX_SOFTHCA_LINK_LAYER:-}" = infiniband ]; then
        grep -q "Primary Remote Port LID: $(($(lid "$server_address")))\$" "$scratch/out" || fail "tshark sees no LID"
        grep -q 'Primary Subnet Local: 0x1' "$scratch/out" || fail "tshark sees a path that leaves the subnet"
      else
        grep -q "Primary Remote Port GID: $server_address" "$scratch/out" || fail "tshark sees no path"
      fi
      grep -q 'IP CM Private Data' "$scratch/out" || fail "tshark sees no IP header"
      grep -qi malformed "$scratch/out" && fail "tshark calls a packet malformed"
    done
    ;;
  *) fail "no case $case" ;;
esac
exit 0
