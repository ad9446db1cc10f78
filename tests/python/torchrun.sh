#!/usr/bin/env bash
# torchrun.sh CASE BUILD_FOLDER ROOT [TORCHRUN]: workers in Python meet by torchrun's store, on one host and as on two. They
# have the package gdx that python_test.sh has built. Without TORCHRUN the one in PATH is taken.
. "$(dirname "$0")/../program.sh"
gdx=$2/host/programs/cli/gdx root=$3 torchrun=${4:-torchrun}
venv=$2/python/venv
skip() {
  echo "SKIPPED: $*: torchrun's own store was not tested" >&2
  exit 77
}
command -v "$torchrun" >/dev/null || skip "no torchrun in PATH, as torch's package has it"
[ -d "$2/python/gdx" ] || skip "no package gdx: the test python.package builds it"
packages=$("$venv/bin/python3" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
export PYTHONPATH=$packages GDX_TEST_PYTHON=$venv/bin/python3 GDX_TEST_STORE=$folder/store GDX_LOG=info
export GDX_STATUS_HEADER=$root/proto/status.h OMP_NUM_THREADS=1
mkdir "$GDX_TEST_STORE"

# workers TORCHRUN'S OPTIONS AND PROGRAM...
workers() { run 200 "$gdx" run -- "$torchrun" "$@"; }
ring=$root/examples/ring.py

workers --nproc-per-node=4 --master-port="$(free_port)" "$ring"
expect_status 0
expect 'ranks 0 to 3 add up to 6'
expect 'bootstrap: rank 3 of 4 by torchrun'
expect 'rank 3 of 4 meets the others at unix:.*; they recognise each other by the user'
[ -z "$(ls -A "$GDX_TEST_STORE")" ] || fail "rank 0's text stays in the store: $(ls "$GDX_TEST_STORE")"

# Nodes of two workers each. They have one address each, so that TCP and a secret carry what they say.
port=$(free_port)
two_nodes() { "$gdx" run -- "$torchrun" --nnodes=2 --node-rank="$1" --nproc-per-node=2 --master-port="$port" "$ring"; }
export -f two_nodes
export gdx torchrun port ring
# shellcheck disable=SC2016
run 200 bash -c 'two_nodes 1 & two_nodes 0; status=$?; wait $! && exit $status'
expect_status 0
expect 'ranks 0 to 3 add up to 6'
expect "by the job's secret, over TLS 1.3; torchrun's store has carried it.*or listens on the network, can read it"
expect_no '[0-9a-f]{64}'

# Many teams, one after another.
GDX_LOG=warn workers --nproc-per-node=2 --master-port="$(free_port)" "$root/tests/python/calls_test.py" Calls.test_get \
  Calls.test_atomics Calls.test_closed_team_refuses_and_leaves_arrays
expect_status 0
[ $# -lt 4 ] || exit 0

# The first life of rank 1 ends at once, and torchrun starts all workers again.
export python
python=$(sed -n '1s/^#!//p' "$(command -v "$torchrun")")
# shellcheck disable=SC2016
run 200 "$gdx" run -- "$torchrun" --nproc-per-node=4 --max-restarts=1 --master-port="$(free_port)" --no-python \
  bash -c '[ "$TORCHELASTIC_RESTART_COUNT$RANK" != 01 ] || exit 3; exec "$python" "$@"' - "$ring"
expect_status 0
expect 'ranks 0 to 3 add up to 6'
