#!/usr/bin/env bash
# topo_test.sh GDX MACHINES FAKE: gdx topo on recorded machines, and with the fake CUDA driver of FAKE on one of them;
# there too what `auto` goes by. MACHINES is a folder of hwloc's XML.
set -uo pipefail
gdx=$1 machines=$2 fake=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset GDX_CALIBRATION GDX_PATH_CLASS GDX_HCA GDX_FAKE_CUDA_DEVICES HWLOC_XMLFILE
export GDX_CALIBRATION=  # keeps this machine's calibration out of the test
fail() {
  echo "FAIL: $*"
  echo "--- output:"
  echo "$out"
  exit 1
}
run() { out=$(timeout 30 env "$@" 2>&1) || fail "status $? of $*"; }
expect() { grep -qE "$1" <<<"$out" || fail "no line matches: $1"; }
expect_no() { ! grep -qE "$1" <<<"$out" || fail "a line matches: $1"; }

# Recorded: the tree alone, with no driver asked.
run LD_LIBRARY_PATH="$fake" "$gdx" topo --xml "$machines/two-sockets.xml"
expect '^ +GPU0 +GPU1 +GPU2 +NIC0 +NIC1 +NIC2$'
expect '^GPU0 +X +PIX +SYS +PIX +PHB +NODE$'
expect '^NIC0 +PIX +PIX +SYS +X '
expect '^GPU2 uses NIC1 \(SYS\)$'
expect_no 'CUDA|ACS|link'
run "$gdx" topo --json --xml "$machines/dgx-a100.xml"
python3 - "$out" <<'PYTHON' || fail "its JSON is not what it should be"
import json, sys
told = json.loads(sys.argv[1])
assert len(told["gpus"]) == len(told["nics"]) == 8 and len(told["paths"]) == 64 and len(told["pairs"]) == 8
rows = told["matrix"]
assert len(rows) == 16 and all(len(row) == 16 and row[i] == "X" for i, row in enumerate(rows))
assert told["bridge_redirects"] == {} and "cuda_ordinal" not in told["gpus"][0]
PYTHON

# Unreadable input is bad input: status 2 and one line.
echo rubbish >"$folder/rubbish.xml"
for bad in /nonexist "$folder" "$folder/rubbish.xml"; do
  out=$(timeout 30 "$gdx" topo --xml "$bad" 2>&1)
  status=$?
  [ "$status" -eq 2 ] && [ "$(grep -c . <<<"$out")" -eq 1 ] || fail "--xml $bad: status $status"
  expect "^gdx: .*$bad.*lstopo --of xml$"
done

# Stands for this machine: two GPUs where the fake driver's are, the third hidden, and a GPU of AMD's.
sed -e 's/0000:81:00\.0/0000:f0:00.0/; s/0000:03:00\.0/0000:f1:00.0/; s/mlx5_0/gdx0/' "$machines/two-sockets.xml" \
  >"$folder/this.xml"
here=(HWLOC_XMLFILE="$folder/this.xml" HWLOC_THISSYSTEM=1 LD_LIBRARY_PATH="$fake")
run "${here[@]}" GDX_FAKE_CUDA_DEVICES=2 "$gdx" topo
expect '^GPU[0-9] +0000:f0:00\.0 +NUMA . +CUDA 0 +link \?'
expect '^GPU[0-9] +0000:f1:00\.0 +NUMA . +CUDA 1 '
expect '^GPU[0-9] +0000:04:00\.0 +NUMA . +hidden '
expect '^whether bridges redirect \(ACS\) is for root to know: run gdx topo as root$'
if ! ldconfig -p | grep 'libcuda\.so\.1' >/dev/null; then
  run HWLOC_XMLFILE="$folder/this.xml" HWLOC_THISSYSTEM=1 "$gdx" topo
  expect '^GPUs are numbered by PCI address alone: no CUDA driver here'
fi

# Ranks on hardware have the GPUs in turn, each with its NIC.
run "${here[@]}" "$gdx" run --hardware --ranks 2 -- sh -c 'echo "$GDX_RANK: GPU $CUDA_VISIBLE_DEVICES, ${GDX_HCA-any}, $LD_PRELOAD"'
expect '^0: GPU 0, (gdx0|mlx5_1), $'
expect '^1: GPU 1, (gdx0|mlx5_1), $'

# The GPU decides the table of `auto`: the nearest, with a warning, and each its own.
run "${here[@]}" GDX_FAKE_CUDA_DEVICES=2 "$gdx" run -- "$gdx" info
expect '^ +defaults for a PIX path'
expect 'warning: auto on HCA gdx0 goes by the nearest GPU, PIX away, and others are SYS away: say which one'
[ "$(grep -c 'goes by the nearest GPU' <<<"$out")" -eq 1 ] || fail "not one warning"
expect '^  GPU 0 .* at 0000:F0:00\.0, sm_90, SYS path; '
expect '^  GPU 1 .* at 0000:F1:00\.0, sm_90, PIX path; '
expect '^ +defaults for a SYS path'
# A program that maps memory to its GPU first needs to name none; this one is told.
run "${here[@]}" GDX_PATH_CLASS=NODE "$gdx" run -- "$gdx" info
expect_no 'goes by the nearest GPU'

# Devices of other vendors run no CUDA: they are shown, and pair with nothing.
sed 's/10de/1002/' "$machines/two-sockets.xml" >"$folder/amd.xml"
run "$gdx" topo --xml "$folder/amd.xml"
expect '^GPU0 .* no CUDA '
expect '^GPU0 +X '
expect_no 'uses NIC'
echo ok
