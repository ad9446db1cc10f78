#!/usr/bin/env python3
"""readme_counts.py ROOT: README says of device calls what perf/results/instructions.json counts, figure by figure."""
import json
import pathlib
import re
import sys

SENTENCE = (
    "on sm_90 a thread {}, a warp {} and by BlueFlame {}, a block {} and {}; on sm_100 a thread {}. A thread on a shared "
    "endpoint takes {}.")
FIGURES = [
    ("sm_90", "put_thread_gpu", "path"),
    ("sm_90", "put_warp_gpu", "path"), ("sm_90", "put_warp_gpu", "blueflame_path"),
    ("sm_90", "put_block_host", "path"), ("sm_90", "put_block_host", "blueflame_path"),
    ("sm_100", "put_thread_gpu", "path"),
    ("sm_90", "shared_put_gpu", "path")]


def is_said(readme, figures):
    return SENTENCE.format(*figures) in re.sub(r"\s+", " ", readme)


root = pathlib.Path(sys.argv[1])
readme = (root / "README.md").read_text()
kernels = json.loads((root / "perf/results/instructions.json").read_text())["kernels"]
figures = [kernels[arch][kernel]["sass"][count] for arch, kernel, count in FIGURES]
if not is_said(readme, figures):
    sys.exit("README.md does not say: " + SENTENCE.format(*figures))
# Planted: each figure off by one.
for i, figure in enumerate(figures):
    if is_said(readme, figures[:i] + [figure + 1] + figures[i + 1:]):
        sys.exit("the check does not see figure %d change" % i)
print("ok: %d figures" % len(figures))
