#!/usr/bin/env bash
# instructions.sh FOLDER: device calls cost no more than perf/results/instructions.json says, and the check can fail.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kept=$root/perf/results/instructions.json
command -v python3 >/dev/null || { echo "SKIPPED: the count needs python3: install it"; exit 77; }
folder=$(mktemp -d "$1/instructions.XXXXXX")
trap 'rm -rf "$folder"' EXIT
python3 "$root/perf/instructions.py" --json >"$folder/fresh.json"
python3 "$root/perf/instructions.py" --fresh "$folder/fresh.json" --check "$kept"

# Planted: one instruction more, also where the WQE is in the doorbell; one atomic where none may be; a BlueFlame way
# that is no longer found; one case lost. By another compiler bars alone judge: one above each of BlueFlame's.
for plant in 'k["sm_90"]["put_thread_gpu"]["sass"]["path"] += 51' 'k["sm_80"]["put_thread_host"]["sass"]["atomics"] = 1' \
  'k["sm_90"]["put_warp_gpu"]["sass"]["blueflame_path"] += 1' 'k["sm_90"]["put_block_host"]["ptx"]["blueflame_path"] = 0' \
  'k["sm_90"]["put_signal_thread_gpu"]["sass"]["static"] += 1' \
  't["nvcc"] = "0"; k["sm_90"]["put_warp_gpu"]["sass"]["blueflame_path"] = 107' \
  't["nvcc"] = "0"; k["sm_90"]["put_block_host"]["sass"]["blueflame_path"] = 91' 'del k["sm_100"]["shared_put_gpu"]'; do
  python3 - "$folder" "$kept" "$plant" <<'PYTHON'
import json, sys
folder, kept, plant = sys.argv[1:]
table = json.load(open(folder + "/fresh.json"))
table["nvcc"] = json.load(open(kept))["nvcc"]
exec(plant, {"t": table, "k": table["kernels"]})
json.dump(table, open(folder + "/planted.json", "w"))
PYTHON
  if python3 "$root/perf/instructions.py" --fresh "$folder/planted.json" --check "$kept" >/dev/null 2>&1; then
    echo "the check did not see: $plant"
    exit 1
  fi
done
