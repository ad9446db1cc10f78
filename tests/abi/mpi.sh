#!/usr/bin/env bash
# Usage: mpi.sh openmpi|mpich. mpi_peer.cpp under that MPI over UCX, each rank with an HCA of its own: `gdx run` around
# mpirun with 2 and 4 ranks, over rc_mlx5 and ud_mlx5. The last run is mpirun around a `gdx run` for each rank.
. "$(dirname "$0")/common.sh"
mpi=$1
need "mpirun.$mpi" "${mpi/openmpi/openmpi-bin}"
echo '#include <mpi.h>' | "mpicxx.$mpi" -x c++ -fsyntax-only - 2> /dev/null ||
  { echo "SKIPPED: mpicxx.$mpi finds no mpi.h; install Debian's lib$mpi-dev to run this test" >&2; exit 77; }
"mpicxx.$mpi" -std=c++17 -O1 -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX "$(dirname "$0")/mpi_peer.cpp" -o "$scratch/peer" ||
  fail "mpi_peer.cpp does not compile"

case $mpi in
  openmpi) launch=(mpirun.openmpi --allow-run-as-root --oversubscribe --mca pml ucx --mca osc ucx) ;;
  mpich)
    mpichversion | grep ch4:ucx > /dev/null ||
      { echo "SKIPPED: this MPICH is built without UCX; Debian 12's is built with it" >&2; exit 77; }
    # Other builds pass what stays on one host through memory.
    launch=(mpirun.mpich -genv MPIR_CVAR_NOLOCAL 1)
    ;;
esac
spare_old_ucx
on_hcas=("$GDX_TEST_GDX" run --)
export UCX_NET_DEVICES=gdx0:1 UCX_LOG_LEVEL=info

# all_verified RANKS TRANSPORT COMMAND...
all_verified() {
  local ranks=$1 transport=$2 status=0
  shift 2
  echo "== $ranks ranks over $transport: $*"
  timeout 250 "$@" > "$scratch/out" 2>&1 || status=$?
  grep -av 'UCX  *INFO' "$scratch/out"
  [ $status = 0 ] || fail "exited with $status"
  ! grep -aE 'UCX +(ERROR|WARN|FATAL)|gdx\[[0-9]+\] (warning|error)' "$scratch/out" > /dev/null || fail "complaints, above"
  grep -aEq "(ep_cfg|-node cfg).*$transport/gdx0:1" "$scratch/out" || fail "not over $transport"
  [ "$(grep -ac "of $ranks: all verified" "$scratch/out")" = "$ranks" ] || fail "not every rank has verified its data"
}

for ranks in 2 4; do
  UCX_TLS=rc_x,self UCX_RC_TIMEOUT=9s all_verified $ranks rc_mlx5 "${on_hcas[@]}" "${launch[@]}" -np $ranks "$scratch/peer" one-sided
  # No windows: Open MPI 4 ends their UD endpoints without a fence. A rank without its last ACK aborts after a minute,
  # on any HCA.
  UCX_TLS=ud_x,self all_verified $ranks ud_mlx5 "${on_hcas[@]}" "${launch[@]}" -np $ranks "$scratch/peer"
done
UCX_TLS=rc_x,self UCX_RC_TIMEOUT=9s all_verified 2 rc_mlx5 "${launch[@]}" -np 2 "${on_hcas[@]}" "$scratch/peer" one-sided
exit 0
