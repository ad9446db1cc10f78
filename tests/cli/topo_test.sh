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
run() { out=$(timeout 100 env "$@" 2>&1) || fail "status $? of $*"; }
expect() { grep -qE "$1" <<<"$out" || fail "no line matches: $1"; }
expect_no() { ! grep -qE "$1" <<<"$out" || fail "a line matches: $1"; }

# Recorded: the tree alone, with no driver asked.
run LD_LIBRARY_PATH="$fake" "$gdx" topo --xml "$machines/two-sockets.xml"
expect '^ +GPU0 +GPU1 +GPU2 +NIC0 +NIC1 +NIC2$'
expect '^GPU0 +X +PIX +SYS +PIX +PHB +NODE$'
expect '^NIC0 +PIX +PIX +SYS +X '
expect '^GPU2 uses NIC1 \(SYS\)$'
expect_no 'CUDA|ACS|link'
same() { diff <(sed 's/  */ /g; s/ $//' <<<"$out") - || fail "not these lines"; }
same <<'TEXT'
GPU0 0000:03:00.0 NUMA 0 10de:20b2
GPU1 0000:04:00.0 NUMA 0 10de:20b2
GPU2 0000:81:00.0 NUMA 1 10de:20b2
NIC0 0000:05:00.0 mlx5_0 NUMA 0 15b3:101b
NIC1 0000:10:00.0 mlx5_1 NUMA 0 15b3:101b
NIC2 0000:21:00.0 NUMA 0 15b3:101b

 GPU0 GPU1 GPU2 NIC0 NIC1 NIC2
GPU0 X PIX SYS PIX PHB NODE
GPU1 PIX X SYS PIX PHB NODE
GPU2 SYS SYS X SYS SYS SYS
NIC0 PIX PIX SYS X PHB NODE
NIC1 PHB PHB SYS PHB X NODE
NIC2 NODE NODE SYS NODE NODE X

GPU0 uses NIC0 (PIX)
GPU1 uses NIC0 (PIX)
GPU2 uses NIC1 (SYS)
TEXT
# without BUS...: the same machine without the devices there.
without() { sed "$(printf '/PCIDev.*pci_busid="0000:%s:/d;' "$@")" "$machines/two-sockets.xml" >"$folder/fewer.xml" && run "$gdx" topo --xml "$folder/fewer.xml"; }
without 04 81 10 21
same <<'TEXT'
GPU0 0000:03:00.0 NUMA 0 10de:20b2
NIC0 0000:05:00.0 mlx5_0 NUMA 0 15b3:101b

 GPU0 NIC0
GPU0 X PIX
NIC0 PIX X

GPU0 uses NIC0 (PIX)
TEXT
without 03 04 81 10 21
same <<<$'no GPU among the 2 PCI devices of this machine: no path to classify\nNIC0 0000:05:00.0 mlx5_0 NUMA 0 15b3:101b'
without 04 81 05 10 21
same <<<$'no RDMA NIC among the 2 PCI devices of this machine: no path to classify\nGPU0 0000:03:00.0 NUMA 0 10de:20b2'
without 03 04 81 05 10 21
same <<<'no GPU and no RDMA NIC among the 1 PCI devices of this machine: no path to classify'
run "$gdx" topo --json --xml "$machines/dgx-a100.xml"
python3 - "$out" <<'PYTHON' || fail "its JSON is not what it should be"
import json, sys
told = json.loads(sys.argv[1])
assert len(told["gpus"]) == len(told["nics"]) == 8 and len(told["paths"]) == 64 and len(told["pairs"]) == 8
rows = told["matrix"]
assert len(rows) == 16 and all(len(row) == 16 and row[i] == "X" for i, row in enumerate(rows))
assert told["bridge_redirects"] == {} and "cuda_ordinal" not in told["gpus"][0]
PYTHON
run "$gdx" topo --json --xml "$machines/two-sockets.xml"
python3 - "$out" <<'PYTHON' || fail "its JSON is not what it should be"
import json, sys
told = json.loads(sys.argv[1])
def device(bus, node, name, rdma=""):
    return {"bus_id": f"0000:{bus}:00.0", "name": name, "rdma_device": rdma, "runs_cuda": name[0] == "1" and name[1] == "0",
            "numa_node": node}
gpus, nics = ["03", "04", "81"], ["05", "10", "21"]
assert told["gpus"] == [device(bus, bus == "81", "10de:20b2") for bus in gpus], told["gpus"]
assert told["nics"] == [device("05", 0, "15b3:101b", "mlx5_0"), device("10", 0, "15b3:101b", "mlx5_1"),
                        device("21", 0, "15b3:101b")], told["nics"]
ways = [["PIX", "PHB", "NODE"], ["PIX", "PHB", "NODE"], ["SYS", "SYS", "SYS"]]
path = lambda gpu, nic: {"gpu": f"0000:{gpus[gpu]}:00.0", "nic": f"0000:{nics[nic]}:00.0", "path": ways[gpu][nic]}
assert told["paths"] == [path(gpu, nic) for gpu in range(3) for nic in range(3)], told["paths"]
assert told["pairs"] == [path(0, 0), path(1, 0), path(2, 1)], told["pairs"]
assert [row[3:] for row in told["matrix"][:3]] == ways and [row[:3] for row in told["matrix"][3:]] == [list(c) for c in zip(*ways)]
assert told["matrix"][0][:3] == ["X", "PIX", "SYS"] and told["matrix"][5][3:] == ["NODE", "NODE", "X"]
assert told["pci_devices"] == 7
PYTHON

# Unreadable input is bad input: status 2 and one line.
echo rubbish >"$folder/rubbish.xml"
for bad in /nonexist "$folder" "$folder/rubbish.xml"; do
  out=$(timeout 100 "$gdx" topo --xml "$bad" 2>&1)
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
