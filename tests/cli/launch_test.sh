#!/usr/bin/env bash
# launch_test.sh CASE GDX EXAMPLES: ranks that a launcher starts, each on a software HCA of its own. EXAMPLES is the
# folder of the programs. A launcher that is missing skips its case (exit 77), with a line.
. "$(dirname "$0")/../program.sh"
gdx=$2
ring=$3/ring_allreduce
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 GDX_LOG=info
PATH=$PATH:/usr/sbin

need() {
  local program=$1 package=$2
  command -v "$program" >/dev/null || { echo "SKIPPED: no $program; install Debian's $package to run this test" >&2; exit 77; }
}

# launched COMMAND...: as run 100, and again where Slurm could not start a step, because the one before is still ending.
launched() {
  local end=$((SECONDS + 120))
  run 100 "$@"
  while grep -q ' launch failed: ' "$out" && [ $SECONDS -lt $end ]; do
    sleep 1
    run 100 "$@"
  done
}

# ring_of_4 WAY LAUNCHER...: each rank checks its sums, and has an HCA at an address of its own.
ring_of_4() {
  local way=$1
  shift
  launched "$@" "$gdx" run -- "$ring"
  expect_status 0
  expect '4 ranks: .* sums are right'
  expect "bootstrap: rank 3( of 4)? by $way"
  [ "$(grep -o 'software HCA gdx0 at .*' "$out" | sort -u | wc -l)" -eq 4 ] || fail "not four software HCAs"
}

# Stands between launcher and program as rank 2, which HOW ends: `exit` and `kill` before it meets the others, `late` amid
# rounds.
cat >"$folder/as" <<'TEXT'
[ "${PMIX_RANK:-${PMI_RANK:-$SLURM_PROCID}}" = 2 ] || exec "$@"
case $HOW in
  exit) exit 0 ;;
  kill) kill -KILL $$ ;;
esac
"$@" &
until grep -q 'gdx memory' /proc/$!/maps; do sleep 0.1; done  # the heap
sleep 1
kill -KILL $!
wait $!
TEXT

# loses_rank_2 HOW PATTERN LAUNCHER...: somebody names rank 2.
loses_rank_2() {
  local how=$1 pattern=$2 rounds=()
  shift 2
  [ "$how" != late ] || rounds=(10007 1000000000)
  launched env HOW="$how" GDX_LOG=warn GDX_BOOTSTRAP_TIMEOUT_S=5 GDX_CALL_TIMEOUT_S=5 GDX_ACK_TIMEOUT=14 GDX_RETRY_COUNT=5 \
    "$@" bash "$folder/as" "$gdx" run -- "$ring" "${rounds[@]}"
  expect "$pattern"
}
never_came='rank 2 of 4 never came to rank 0 at|closed its connection before rank 2 had come'
closed='rank 0: kernel: .*world: rank 2 closed its connection'

# says_line LINE LAUNCHER... PROGRAM...: what is started without gdx run gets one line.
says_line() {
  local line=$1
  shift
  run 100 env -u LD_PRELOAD GDX_LOG=warn "$@"
  expect "no RDMA HCA on this machine: run it under \`$line\` to use the software HCA"
}
has_hca() { [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ]; }

case $case_name in
  openmpi)
    need mpirun.openmpi openmpi-bin
    mpirun=(mpirun.openmpi -n 4)
    ring_of_4 'PMIx of mpirun' "${mpirun[@]}"
    has_hca || says_line 'mpirun ... gdx run -- PROGRAM' "${mpirun[@]}" "$ring"
    loses_rank_2 exit "$never_came" "${mpirun[@]}" --enable-recovery
    loses_rank_2 kill "$never_came" "${mpirun[@]}" --enable-recovery
    loses_rank_2 late "$closed" "${mpirun[@]}" --enable-recovery
    # Without that option mpirun ends the job at once, and names the rank itself.
    loses_rank_2 late 'Process name: \[\[[0-9]+,1\],2\]' "${mpirun[@]}"
    : >"$folder/libpmix.so.2"
    run 100 "${mpirun[@]}" env LD_LIBRARY_PATH="$folder" "$gdx" run -- "$ring"
    expect_failure
    expect 'PMIx of mpirun cannot be used, because libpmix.so.2 cannot be loaded .*: install it'
    run 100 "${mpirun[@]}" env -u PMIX_NAMESPACE "$gdx" run -- "$ring"
    expect_failure
    expect 'PMIX_NAMESPACE is not set, and this process has other variables of PMIx of mpirun'
    ;;
  mpich)
    need mpiexec.mpich mpich
    mpiexec=(mpiexec.mpich -n 4)
    ring_of_4 'PMI of mpiexec' "${mpiexec[@]}"
    ring_of_4 'PMI of mpiexec' mpiexec.mpich -pmi-port -n 4
    has_hca || says_line 'mpiexec ... gdx run -- PROGRAM' "${mpiexec[@]}" "$ring"
    loses_rank_2 exit 'rank 0 of 4 waited at the barrier of PMI of mpiexec, and a rank has not come' "${mpiexec[@]}"
    # hydra ends the job at once, and names the process, or ends by an assertion of its own.
    hydra_ends='EXIT CODE: 9|assert \(!closed\) failed'
    loses_rank_2 kill "$hydra_ends" "${mpiexec[@]}"
    loses_rank_2 late "$hydra_ends" "${mpiexec[@]}"
    # shellcheck disable=SC2016
    run 100 "${mpiexec[@]}" bash -c 'exec "$@" {PMI_FD}>&-' - "$gdx" run -- "$ring"
    expect_failure
    expect "PMI_FD = '[0-9]+' is no open socket: a program between the launcher and this one closed it"
    run 100 "${mpiexec[@]}" env LD_PRELOAD=libmpich.so.12 "$gdx" run -- "$ring"
    expect_failure
    expect 'this program uses MPI, to which the connection to PMI of mpiexec belongs: give gdx its MPI_Allgather'
    ;;
  openmpi_allgather | mpich_allgather)
    mpi=${case_name%_allgather}
    [ -x "$4" ] || { echo "SKIPPED: this gdx was built without lib$mpi-dev" >&2; exit 77; }
    # Keeps MPI's own traffic away from the HCAs: MPICH takes them else.
    run 100 env UCX_TLS=^ib UCX_LOG_LEVEL=info "mpirun.$mpi" -n 3 "$gdx" run -- "$4"
    expect_status 0
    for rank in 0 1 2; do expect "rank $rank has 'hello from rank $(((rank + 2) % 3))'"; done
    expect_no 'looked for, in this order'
    expect_no 'ep_cfg.*gdx0'
    ;;
  two_hosts)
    # Each host is a network namespace, which the launchers enter as by ssh.
    need mpiexec.mpich mpich
    need mpirun.openmpi openmpi-bin
    need nsenter util-linux
    cat >"$folder/ssh" <<'TEXT'
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1
shift
exec nsenter -n -t "$(cat "${0%/*}/$host")" bash -c "$*"
TEXT
    cat >"$folder/host" <<'TEXT'
#!/bin/bash
folder=${0%/*} address=$1
shift
unset GDX_RANK GDX_WORLD_SIZE GDX_ROOT
echo $$ >"$folder/$address.new" && mv "$folder/$address.new" "$folder/$address"
until [ -e "$folder/10.99.0.1" ] && [ -e "$folder/10.99.0.2" ]; do sleep 0.1; done
[ "$address" = 10.99.0.1 ] || { until [ -e "$folder/done" ]; do sleep 0.1; done; exit 0; }
trap 'touch "$folder/done"' EXIT
"$@"
TEXT
    cat >"$folder/rank" <<'TEXT'
#!/bin/bash
address=$(ip -4 -o address show dev tap0 | sed -E 's|.*inet ([0-9.]+)/.*|\1|')
exec "$1" run --addr "$address" -- "$2"
TEXT
    chmod +x "$folder/ssh" "$folder/host" "$folder/rank"
    for launcher in "mpiexec.mpich -launcher ssh -launcher-exec $folder/ssh -hosts 10.99.0.1,10.99.0.2 -ppn 1" \
      "mpirun.openmpi --mca plm_rsh_agent $folder/ssh --host 10.99.0.1,10.99.0.2 --map-by node -x GDX_LOG"; do
      rm -f "$folder/done" "$folder"/10.99.*
      # shellcheck disable=SC2086
      run 100 python3 "$(dirname "$0")/networks.py" 1 0 0 "$folder/host" ADDRESS $launcher -n 2 "$folder/rank" \
        "$gdx" "$ring"
      [ "$status" -ne 77 ] || { cat "$out" >&2; exit 77; }
      expect_status 0
      expect '2 ranks: .* sums are right'
      expect 'software HCA gdx0 at 10.99.0.2'
    done
    ;;
  torchrun)
    # Variables as torchrun 2 sets them for one node.
    worker() {
      env TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 RANK="$1" WORLD_SIZE=4 LOCAL_RANK="$1" LOCAL_WORLD_SIZE=4 \
        MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 "${@:2}"
    }
    for rank in 1 2 3; do
      worker $rank env GDX_ROOT="unix:gdx-launch-$$" "$gdx" run -- "$ring" >"$folder/$rank" 2>&1 </dev/null &
    done
    export -f worker
    # shellcheck disable=SC2016
    run 100 bash -c 'worker 0 "$@"' - env GDX_ROOT="unix:gdx-launch-$$" "$gdx" run -- "$ring"
    expect_status 0
    expect '4 ranks: .* sums are right'
    expect 'bootstrap: rank 0 of 4 by torchrun, meeting at GDX_ROOT'
    wait
    # shellcheck disable=SC2016
    refuses 1 "torchrun started this as rank 1 of 4: MASTER_PORT is torchrun's own: set GDX_ROOT=HOST:PORT" \
      env GDX_LOG=warn bash -c 'worker 1 "$@"' - "$gdx" run -- "$ring"
    # shellcheck disable=SC2016
    has_hca || says_line 'gdx run -- torchrun ...' bash -c 'worker 1 "$@"' - "$gdx" info
    ;;
  slurm)
    for program in slurmctld slurmd srun munged; do need $program "slurmctld slurmd slurm-client munge"; done
    . "$(dirname "$0")/slurm.sh"
    start_slurm
    ring_of_4 'PMI of srun' srun -n 4 --mpi=pmi2
    ring_of_4 'PMIx of srun' srun -n 4 --mpi=pmix
    GDX_ROOT="unix:gdx-launch-$$" ring_of_4 'srun, meeting at GDX_ROOT' srun -n 4 --mpi=none
    run 100 srun -n 4 --mpi=none "$gdx" run -- "$ring"
    expect_failure
    expect 'srun started this as rank 3 of 4: start it by srun --mpi=pmi2 or --mpi=pmix, or set GDX_ROOT=HOST:PORT'
    has_hca || says_line 'srun ... gdx run -- PROGRAM' srun -n 4 --mpi=pmi2 "$ring"
    loses_rank_2 kill 'task 2: Killed' srun -n 4 --mpi=pmi2
    loses_rank_2 late "$closed" srun -n 4 --mpi=pmi2
    loses_rank_2 exit "$never_came" srun -n 4 --mpi=pmix
    loses_rank_2 late 'task 2: Exited with exit code 137' srun -n 4 --mpi=pmix
    ;;
esac
echo "ok: $case_name"
