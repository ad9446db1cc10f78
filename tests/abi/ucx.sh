#!/usr/bin/env bash
# Usage: ucx.sh info DEVX [HCA] | ucx.sh TRANSPORT DEVX. TRANSPORT as UCX names it (rc_mlx5); DEVX y or n.
# Debian's ucx_perftest between two processes: both must succeed without a complaint. The connection must run over
# TRANSPORT on the software HCA. The last line of results must account for every iteration.
. "$(dirname "$0")/common.sh"
need ucx_perftest ucx-utils
need ucx_info ucx-utils

# Returns UCX's short name, which alone contains the transport of a connection's first messages.
alias_of() {
  case $1 in
    rc_verbs) echo rc_v ;;
    rc_mlx5) echo rc_x ;;
    ud_verbs) echo ud_v ;;
    ud_mlx5) echo ud_x ;;
    *) fail "no such transport: $1" ;;
  esac
}

no_complaint() {
  ! grep -E 'UCX +(ERROR|WARN|FATAL)|gdx\[[0-9]+\] (warning|error)|Assertion' "$@" >&2 || fail "complaints, above"
}

if [ "$1" = info ]; then
  UCX_IB_MLX5_DEVX=$2 on_hca ucx_info -d > "$scratch/out" 2>&1 || { cat "$scratch/out" >&2; fail "ucx_info exited with $?"; }
  no_complaint "$scratch/out"
  seen=$(grep -B1 "Device: ${3:-gdx0}:1\$" "$scratch/out" | sed -n 's/.*Transport: //p' | sort | xargs)
  # Nothing that is not there is offered: no dc_mlx5.
  [ "$seen" = "rc_mlx5 rc_verbs ud_mlx5 ud_verbs" ] || fail "ucx_info lists: $seen"
  exit 0
fi

transport=$1
export UCX_IB_MLX5_DEVX=$2 UCX_NET_DEVICES=gdx0:1 UCX_LOG_LEVEL=info
UCX_TLS=$(alias_of "$transport")
export UCX_TLS
# For all tries a minute, because a process may stand still. UD waits longer by itself.
[[ $transport != rc_* ]] || export UCX_RC_TIMEOUT=9s
[ "$UCX_IB_MLX5_DEVX" = n ] || spare_old_ucx

# Debian 13's is built with MPI, and without a terminal takes itself for one of its processes.
alone=()
! ucx_perftest -h 2>&1 | grep -- '^ *-P <0|1>' > /dev/null || alone=(-P 0)

# one TEST BYTES ITERATIONS
one() {
  echo "== $transport, DevX $UCX_IB_MLX5_DEVX: $1, $2 B"
  local status=0
  (both_ends ucx_perftest "${alone[@]}" -t "$1" -s "$2" -n "$3" -w 4 -f) > "$scratch/all" || status=$?
  # UCX 1.15 and later make the key of a remote flush by DevX alone, so on any ConnectX. The exit status may be 0.
  if [ "$UCX_IB_MLX5_DEVX" = n ] && grep -qs 'flush(remote)' "$scratch/all" "$scratch/client"; then
    echo "SKIPPED: $1 over $transport: this UCX flushes remotely through DevX only"
    return
  fi
  [ $status -eq 0 ] || { cat "$scratch/all" >&2; exit 1; }
  no_complaint "$scratch/client" "$scratch/server"
  grep -Eq "(ep_cfg|inter-node cfg).*$transport/gdx0:1" "$scratch/client" || { cat "$scratch/client" >&2; fail "not over $transport"; }
  # "inf": nothing was left to be done since the line of the second before.
  tail -1 "$scratch/client" | grep -E "^ *$3( +([0-9]+\.[0-9]+|inf)){5} +[0-9]+ +[0-9]+ *\$" > /dev/null ||
    { cat "$scratch/client" >&2; fail "no final line for $3 iterations"; }
}

one tag_lat 8 50
one tag_lat 4096 50
one tag_bw 65536 50
one tag_bw 1048576 20
one ucp_put_lat 8 50
one ucp_put_bw 8 200
one ucp_put_bw 1048576 20
one ucp_get 8 50
one ucp_get 2097152 10
one ucp_fadd 8 50
one ucp_swap 8 50
one ucp_cswap 8 50
one ucp_add 4 50
one ucp_fadd 4 50
one ucp_swap 4 50
one ucp_cswap 4 50
