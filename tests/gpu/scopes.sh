#!/usr/bin/env bash
# scopes.sh FOLDER: scopes of releases on queues in GPU memory. A pull is released at GPU scope. A push, into memory of
# the NIC, is released at system scope. That holds too when another call rings for it, once for all that it rings for,
# and on shared endpoints. Stores to a slot are never narrower than a NIC's memory takes them. What TMA stores is handed
# to it, and told of, in order.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v nvcc >/dev/null || { echo "SKIPPED: no nvcc in PATH: install the CUDA Toolkit"; exit 77; }
command -v python3 >/dev/null || { echo "SKIPPED: no python3: apt-get install python3"; exit 77; }
folder=$(mktemp -d "$1/scopes.XXXXXX")
trap 'rm -rf "$folder"' EXIT
nvcc --list-gpu-arch | grep compute_90 >/dev/null || { echo "SKIPPED: this nvcc cannot compile for sm_90: install CUDA 11.8 or later"; exit 77; }
nvcc -ptx -arch=sm_90 -O3 -std=c++17 --expt-relaxed-constexpr -I "$root" -o "$folder/scopes.ptx" "$root/tests/gpu/scopes.cu"
python3 - "$folder/scopes.ptx" "$root/perf" <<'PYTHON'
import re, sys

sys.path.insert(0, sys.argv[2])
import instructions

def without_owners(lines):
    """Leaves out the fence before the owner word is given back: what it releases is this GPU's."""
    kept = []
    for i, line in enumerate(lines):
        after = next((one for one in lines[i + 1 :] if re.match(r"red|st|atom|fence|@?%?\w* ?bra|ret", one)), "")
        if not (line.startswith("fence.release.gpu") and after.startswith("red.relaxed.gpu")):
            kept.append(line)
    return kept

kernels = {}  # and functions out of line
for name, body in re.findall(r"\.(?:entry|func +(?:\([^)]*\) )?)\s*(\w+)\(\n(.*?)^\}", open(sys.argv[1]).read(), re.S | re.M):
    kernels[name] = without_owners([line.strip() for line in body.split("\n") if line.startswith("\t")])

def fences_without_a_doorbell(lines):
    """Fences of system scope that no store to a doorbell follows before the code branches."""
    count = 0
    for i, line in enumerate(lines):
        if not line.startswith("fence.release.sys"):
            continue
        for after in lines[i + 1 :]:
            if after.startswith(("st.mmio", "st.relaxed.sys.global.v4")):
                break
            if re.match(r"(@%p\d+ )?(bra|ret)|st\.", after):
                count += 1
                break
    return count

for name in ("push", "push_signal"):
    narrow = [line for line in kernels[name] if ".release.gpu" in line]
    if narrow:
        sys.exit(f"{name} is released at GPU scope: " + narrow[0])
    if not any(line.startswith("st.release.sys") for line in kernels[name]):
        sys.exit(f"{name} rings without a release of system scope")
pull = [line for line in kernels["pull"] if ".release.sys" in line]
if pull:
    sys.exit("a pull on queues in GPU memory pays for system scope: " + pull[0])
for name in ("push_deferred", "push_batch"):
    if fences_without_a_doorbell(kernels[name]) == 0:
        sys.exit(f"{name} leaves its payload to a release at GPU scope")

def scopes_of_rings(lines):
    """The scopes of the two fences before each doorbell: before the record, and between the two."""
    fences, rings = [], []
    for line in lines:
        if fence := re.match(r"fence\.release\.(\w+)", line):
            fences.append(fence[1])
        elif line.startswith("st.mmio"):
            rings.append(fences[-2:])
    return rings

# Of a shared endpoint, by the thread in its turn and by one that waits for it (publish_late<Placement>).
for name, scope, others_late in (("push_shared", "sys", "PlacementE1"), ("bounce_shared", "sys", "PlacementE1"),
                                 ("push_shared_signal", "sys", "PlacementE1"), ("pull_shared", "gpu", "PlacementE0")):
    rings = scopes_of_rings(kernels[name])
    if not rings or any(fences != [scope, scope] for fences in rings):
        sys.exit(f"{name} rings behind releases of other scopes than {scope}: {rings}")
    if not any("publish_late" in line for line in kernels[name]):
        sys.exit(f"{name} has no late publication: the check looks for another name")
    if any("publish_late" in line and others_late in line for line in kernels[name]):
        sys.exit(f"{name} that waits for its turn is released at another scope than {scope}")

def scopes_of_counters(lines):
    """The scopes of the fences whose next store is of GPU scope."""
    stores = [line for line in lines if re.match(r"fence\.release|st\.(?!param)", line)]
    return sorted(one.split(".")[2].rstrip(";") for one, after in zip(stores, stores[1:])
                  if one.startswith("fence") and after.startswith("st.relaxed.gpu"))

# Marks are for other threads, which publish. The turn goes to another thread of this GPU, and a failure to the host.
for placement, scope in (("PlacementE1", "gpu"), ("PlacementE0", "sys")):
    [late] = [kernels[name] for name in kernels if re.search("12publish_late.*" + placement, name)]
    if scopes_of_rings(late) != [[scope, scope]]:
        sys.exit(f"publish_late of {placement} rings behind releases of other scopes than {scope}: {scopes_of_rings(late)}")
    if scopes_of_counters(late) != sorted(["gpu", scope, "sys"]):
        sys.exit(f"publish_late of {placement}: turn, mark and failure have the scopes {scopes_of_counters(late)}")

def narrow_stores(lines):
    return [line for line in lines if re.search(r"\bst\.(?!shared|local|param)\S*\.[busf](8|16)\b", line)]

for name in ("push", "push_signal", "push_shared", "bounce_shared", "push_shared_signal"):
    if narrow_stores(kernels[name]):
        sys.exit(f"{name} stores less than 4 B at once: " + narrow_stores(kernels[name])[0])
    if not narrow_stores([line.replace("st.global.v4.u32", "st.global.u8") for line in kernels[name]]):
        sys.exit(f"the check sees no store of {name} to a slot")

# (of each way from this, to this, something stands between), by kernel
ORDERS = {"push_in_bulk": [
    ("st.shared", "cp.async.bulk.global", "fence.proxy.async"),
    ("fence.proxy.async", "cp.async.bulk.global", "bar.sync"),
    ("cp.async.bulk.wait_group.read 1", "st.shared", "bar.sync"),
    ("cp.async.bulk.global", "cp.async.bulk.wait_group", "cp.async.bulk.commit_group"),
    ("cp.async.bulk.commit_group", "st.release.", "cp.async.bulk.wait_group 0"),
    ("cp.async.bulk.commit_group", "st.mmio", "cp.async.bulk.wait_group 0"),
], "pull_signal_warp": [
    ("st.release.", "cp.async.bulk.global", "fence.release"),
    ("st.shared", "cp.async.bulk.global", "fence.proxy.async"),
    ("cp.async.bulk.commit_group", "st.shared", "cp.async.bulk.wait_group 0"),
    ("cp.async.bulk.commit_group", "cp.async.bulk.global", "cp.async.bulk.wait_group 0"),
], "push_batch": [  # no release but for a doorbell between one put and the next
    ("fence.release.sys", "st.global.v4", "st.mmio"),
]}

def is_open(code, begin, end, between):
    """Is there a way from `begin` to `end` that meets no `between`?"""
    ahead, seen = [i + 1 for i, one in enumerate(code) if begin in one.text], set()
    while ahead:
        at = ahead.pop()
        if at in seen or at >= len(code) or between in code[at].text:
            continue
        seen.add(at)
        if end in code[at].text:
            return True
        if code[at].falls_through:
            ahead.append(at + 1)
        if isinstance(code[at].target, int):
            ahead.append(code[at].target)
    return False

for name, (begin, end, between) in ((name, order) for name in ORDERS for order in ORDERS[name]):
    code = instructions.ptx_kernels(open(sys.argv[1]).read())[name]
    for one in code:  # a block's doorbells by BlueFlame are not its push
        if name == "push_in_bulk" and re.search(r"^cp\.async\.bulk\.global.* 64$", one.text):
            one.text = "copy of a WQE"
    for text in (begin, end, between):
        if not any(text in one.text for one in code):
            sys.exit(f"{name} has no {text}")
    if is_open(code, begin, end, between):
        sys.exit(f"{name}: {end} is not behind {between}, which {begin} needs")
    # Planted: another instruction stands there.
    lost = [instructions.Instruction(one.kind, one.target, one.falls_through, one.text.replace(between, "nop"))
            for one in code]
    if not is_open(lost, begin, end, between):
        sys.exit(f"the check does not see that {between} is missing")
PYTHON
echo ok
