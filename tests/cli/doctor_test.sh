#!/usr/bin/env bash
# doctor_test.sh CASE GDX MACHINES FAKE KERNELS: gdx doctor on this machine, whatever it has; on the software HCA; as an ordinary
# user; bad usage; step by step, with each fault that the software HCA can be given; a report that cannot be written.
# MACHINES is a folder of hwloc's XML, FAKE that of the fake CUDA driver; KERNELS stands in for gdx_doctor_cuda.
. "$(dirname "${BASH_SOURCE[0]}")/../program.sh"
gdx=$2 machines=$3 fake=$4 kernels=$5
unset GDX_HCA GDX_CALIBRATION HWLOC_XMLFILE

# judge STATUS FILE: what the JSON in FILE says fits itself, and the status.
judge() {
  python3 - "$1" "$2" <<'PYTHON' || fail "its JSON is not what it should be"
import json, sys
status, told = int(sys.argv[1]), json.load(open(sys.argv[2]))
order = ["OK", "UNKNOWN", "WARN", "FAIL"]
found = told["findings"]
assert found, "no findings"
for one in found:
    assert set(one) == {"check", "subject", "verdict", "what", "reads", "evidence", "fix"}, one
    assert one["check"] and one["subject"] and one["what"] and one["evidence"] and one["reads"], one
    assert one["fix"] is None or one["verdict"] in ("WARN", "FAIL"), one
    assert one["fix"] != "", one
worst = max((one["verdict"] for one in found), key=order.index)
assert told["verdict"] == worst
assert told["counts"] == {v: sum(one["verdict"] == v for one in found) for v in told["counts"]}
assert list(told["counts"]) == order[::-1]
assert status == {"OK": 0, "FAIL": 1, "WARN": 3, "UNKNOWN": 4}[worst], (status, worst)
PYTHON
}

# The steps that find each planted fault: those that must say FAIL, those that may, and words of the first.
declare -A found_by=(
  [no_device]='1 2||^no RDMA device$'
  [rails]='||' # between HCAs, as unit/doctor/reachability_test.cpp sees
  [port_down]='2||port 1 of HCA gdx0 is down: bring its link up$'
  [infiniband_port]='2||port 1 of HCA gdx0 is InfiniBand and has no LID: start a subnet manager$'
  [no_overrun_ignore]='3||gdx needs what is not there: cq_oi is 0'
  [timestamp_format]='4||with ts_format 1: the HCA refused CREATE_QP: .*status 0x03, syndrome 0x'
  [query_qp]='4||QUERY_QP differs: mtu is 0x[0-9], wanted 0x[0-9]$'
  [cqe_counter]='5 6 7 13 14 15|11 12 16|pull of 64 B: the completion is .*WQE 1 .*wanted opcode 0, WQE 0 '
  [owner_bit]='5 7 11 12 14 15 16||3 laps of the ring: put 16: no completion of WQE 16 in 5 s'
  [inline_wrap]="5||4 blocks inline across the ring's end: of 220 bytes, byte 219 \\(3 mod 4, 11 mod 16\\) is"
  [lost_add]='5 11 16||signal add: the word is 0x0, wanted 0x5$'
  [returned_sum]='5||signal add: the add returned 0x5, wanted 0x0$'
  [syndrome]='5||bad rkey: the completion is .*syndrome 0x14, .*wanted .*syndrome 0x13$'
  [torn_blueflame]='6 13|12 16|8 x 8 B: opcode 13, .*syndrome 0x02'
  [backward_doorbell]='14|6 7 11 12 13 15 16|newest first: pair [0-9]+: the completion is .*syndrome 0x05'
  [stale_payload]='15 5 7 11 12||payload host, signal host: [0-9]+ of 10000 messages stale; the first: of 64 bytes, byte 0 '
  [force_relax]='15||payload host, signal host: [0-9]+ of 10000 messages stale; the first: of 64 bytes, byte 0 '
  [mute_blueflame]='13||on the CPU layer: one store .TMA.: failed: timed out; bursts of 8: failed: timed out; 4 x 16 B of a thread: 0 of 200 copies used; '
  [merged_doorbells]='11||32 lanes on pages of their own: lane [0-9]+: round [0-9]+: no completion of WQE [0-9]+ in 5 s; 32 lanes on the shared page: lane '
  [deaf_to_repeats]='11||index of the last WQE: a late record: put 0: no completion of WQE 0 in 5 s'
  [next_is_last]='||'   # with unread records, as unit/doctor/steps_test.cpp sees
  [no_gpu_atomics]='||' # by kernels that reach GPU memory, as the same test sees
  [dropped_force]='||' # told by step 4, as unit/doctor/steps_test.cpp sees
  [disguised]='||'
  [foreign_gid]='||' # of a network namespace, as unit/host/foreign_gid_test.cpp sees
  [no_ack_timeout]='||' # between two hosts, as the case peer sees
  [device_memory_tail]='7 12||words in, 1 to 67 B out: of 1 bytes, byte 0 \(0 mod 4, 0 mod 16\) is .*; wrong lengths: 1 2 3 5 6 7 9 .* 66 67$'
)

# steps FILE FOUND [HARDWARE]: the steps of the bring-up in the JSON: those of FOUND, a row of the table above, say FAIL, and the
# first of them why. What comes after them is not tried, and the rest is as on a sound software HCA. HARDWARE: whether
# the HCA says that it is none of software.
steps() {
  python3 - "$1" "$2" "${3-}" <<'PYTHON' || fail "its steps are not what they should be"
import json, re, sys
told = json.load(open(sys.argv[1]))
numbers, may, words = sys.argv[2].split("|", 2)
failed = [int(word) for word in numbers.split()]
may = [int(word) for word in may.split()]
assert [one["step"] for one in told["steps"]] == list(range(1, 21))
verdicts = {one["step"]: one["verdict"] for one in told["steps"]}
values = {one["step"]: one["value"] for one in told["steps"]}
after = {5: 4, 6: 4, 7: 4}  # steps 3 and 4 need an HCA that opens, and no port
without_gpu = (11, 12, 13, 14, 15, 16)
for step, verdict in verdicts.items():
    wanted = "OK" if step in (2, 3, 4, 5, 6, 7) or (step == 1 and sys.argv[3]) else "UNKNOWN"
    if step in failed:
        wanted = "FAIL"
    elif 1 in failed:
        wanted = "UNKNOWN"
    elif step == 4 and verdicts[2] != "OK":
        wanted = "UNKNOWN"
        assert "ts_format 1 created" in values[4] and values[4].endswith("; no loopback: step 2 is not OK"), values[4]
    elif step in after and verdicts[after[step]] != "OK":
        wanted = "UNKNOWN"
    assert verdict == wanted or (step in may and verdict == "FAIL"), (step, verdict, wanted, values[step])
    if step in without_gpu and verdicts[4] == "OK" and verdict != "FAIL":
        assert values[step].endswith("; not tried by kernels on a GPU"), values[step]
assert all(values.values())
if failed:
    assert re.search(words, values[failed[0]]), values[failed[0]]
order = ["OK", "UNKNOWN", "WARN", "FAIL"]
assert told["verdict"] == max([*verdicts.values(), *(one["verdict"] for one in told["findings"])], key=order.index)
assert told["complete"] and told["running"] is None and told["software_hca"] == (not sys.argv[3])
for one in told["steps"]:
    facts = {fact["name"]: str(fact["value"]) for fact in one["facts"]}
    assert not [fact for fact in one["facts"] if str(fact["value"]).startswith("wrong") and fact.get("verdict") == "OK"], one
    broken = [fact["name"] for fact in one["facts"] if fact.get("verdict") == "FAIL"]
    assert bool(broken) == (one["verdict"] == "FAIL") or one["step"] not in (5, 6, 7, 14, 15), one
    assert one["tests"] and 0 <= one["seconds"] < 250, one
    for name, value in facts.items():
        # Wrong bytes alone are as on hardware; what a part that failed leaves is its completion and its queue pair.
        assert not re.search("as on hardware: (the|no) completion", value), value
        if one["step"] in (5, 6, 7, 14, 15) and name in broken:
            assert len(bytes.fromhex(facts[name + ": cqe"])) == 64, facts
            assert re.match("state [0-9]+$", facts[name + ": query_qp"]), facts
for one in told["steps"]:
    for command in one["commands"]:
        assert set(command) == {"command", "errno", "status", "syndrome", "input", "output"}
        assert bytes.fromhex(command["input"]) and bytes.fromhex(command["output"])
        assert (command["errno"] == 0) == (command["status"] == "0x00"), command
PYTHON
}

case $case_name in
  gpu)
    # Steps 8 to 10 on the fake driver, and what spoils each.
    of_gpu=(LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DEVICES=1)
    # With no program for a GPU, steps of kernels name the target to build.
    cp "$gdx" "$folder/gdx"
    run 250 env "${of_gpu[@]}" "$gdx" run -- "$folder/gdx" doctor --hardware
    expect ' no LAG, '
    expect '^  OK       8 gpu-attributes +GPU 0 .*, sm_90'
    expect '^  OK       9 gpu-mappings +host page, doorbell page, device memory: works'
    expect '^  OK      10 gpu-payload +dmabuf, nvidia_peermem: works'
    [ "$(grep -c '^ *advice: build gdx_doctor_cuda, whose kernels run on the GPU: ' "$out")" -eq 5 ] || fail "not all five steps name the target"
    run 250 env "${of_gpu[@]}" GDX_FAKE_CUDA_PEER_MAPPING=0 "$gdx" run -- "$gdx" doctor --hardware
    expect_status 1
    expect '^  FAIL     9 gpu-mappings +host page: works; not doorbell page, device memory:'
    run 250 env "${of_gpu[@]}" GDX_FAKE_CUDA_DMABUF=0 "$gdx" run -- "$gdx" doctor --hardware
    expect '^  OK      10 gpu-payload +nvidia_peermem: works; not dmabuf:'
    # A way that registers and brings wrong bytes fails the step, though the other way works.
    run 250 env "${of_gpu[@]}" GDX_FAKE_CUDA_DMABUF=2 "$gdx" run -- "$gdx" doctor --hardware
    expect_status 1
    expect '^  FAIL    10 gpu-payload +nvidia_peermem: works; not dmabuf: read from the GPU: '
    run 250 env "${of_gpu[@]}" GDX_SOFTHCA_FAULT=stale_payload "$gdx" run -- "$gdx" doctor --hardware
    expect_status 1
    expect '^  FAIL    10 gpu-payload '
    run 250 env "${of_gpu[@]}" GDX_FAKE_CUDA_INIT=999 "$gdx" run -- "$gdx" doctor --hardware
    expect '^  UNKNOWN  8 gpu-attributes +no GPU here'
    # Step 13 asks the program of which the kernels are for a GPU, beside gdx. Here its kernels are the CPU layer's, or it
    # says what a GPU might.
    printf '#!/bin/sh\nexec %s "$@"\n' "$(dirname "$gdx")/../calibrate/gdx_calibrate" >"$folder/gdx_calibrate_cuda"
    chmod +x "$folder/gdx_calibrate_cuda"
    run 250 env "${of_gpu[@]}" "$gdx" run -- "$folder/gdx" doctor --hardware --json
    expect '"value": "CPU kernels; one store .TMA.: [1-9][0-9]* of 200 copies used; bursts of 8: .*lanes: 0 of 200 copies used"'
    for said in 'OK     :0 of 200 copies used' 'FAIL   :failed: timed out' 'UNKNOWN:not offered here'; do
      printf '#!/bin/sh\necho GPU N\necho "one store (TMA): %s"\n' "${said#*:}" >"$folder/gdx_calibrate_cuda"
      run 250 env "${of_gpu[@]}" "$gdx" run -- "$folder/gdx" doctor --hardware
      expect "^  ${said%%:*} 13 gpu-blueflame +GPU N; one store .TMA.: ${said#*:}"
    done
    ;;
  gpu_kernels)
    # Steps 11, 12, 14, 15 and 16 by the program of which the kernels are for a GPU, beside gdx: here one with kernels of the
    # CPU layer, which reach the fake GPU's memory.
    of_gpu=(LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DEVICES=1)
    cp "$gdx" "$folder/gdx"
    cp "$kernels" "$folder/gdx_doctor_cuda"
    # seen_in FILE WORDS: step 15 says WORDS of each placement of payload and signal.
    seen_in() {
      local place
      for place in 'host, signal host' 'GPU, signal GPU' 'GPU, signal host' 'host, signal GPU' 'GPU, add GPU'; do
        grep -A1 "\"name\": \"payload $place\"" "$1" | grep -E "\"value\": \"$2\",\$" >/dev/null || fail "payload $place: not: $2"
      done
    }
    run 250 env "${of_gpu[@]}" "$gdx" run -- "$folder/gdx" doctor --hardware --output "$folder/sound.json"
    ! grep -q 'advice: build gdx_doctor' "$out" || fail "the program was not started"
    for step in '11 gpu-doorbells' '12 gpu-push' '14 doorbells-backwards' '15 receiver-visibility' '16 shared-endpoint'; do
      expect "^  UNKNOWN $step +on the CPU layer as it should be: "
    done
    for mode in pull push bounce; do
      grep -A1 "\"name\": \"$mode\"" "$folder/sound.json" | grep '"value": "[0-9]* puts with signals by 31 warps"' >/dev/null ||
        fail "step 16 did not share an endpoint by $mode"
    done
    seen_in "$folder/sound.json" '[0-9]+ messages, 0 stale'
    run 250 env "${of_gpu[@]}" GDX_SOFTHCA_FAULT=stale_payload "$gdx" run -- "$folder/gdx" doctor --hardware --output "$folder/stale.json"
    expect_status 1
    expect '^  FAIL    15 receiver-visibility '
    seen_in "$folder/stale.json" '[1-9][0-9]* of [0-9]+ messages stale; .*'
    run 250 env "${of_gpu[@]}" GDX_SOFTHCA_FAULT=lost_add "$gdx" run -- "$folder/gdx" doctor --hardware
    expect '^  FAIL    11 gpu-doorbells ' && expect '^  FAIL    16 shared-endpoint '
    for mode in pull push bounce exclusive; do expect "$mode: +the signal is 0, +wanted|$mode:\$|$mode: the"; done
    run 250 env "${of_gpu[@]}" GDX_SOFTHCA_FAULT=device_memory_tail "$gdx" run -- "$folder/gdx" doctor --hardware
    expect '^  FAIL    12 gpu-push '
    # GPU memory that a hardware HCA's writes may reach out of order is refused.
    run 250 env "${of_gpu[@]}" GDX_FAKE_CUDA_MAJOR=7 GDX_FAKE_CUDA_WRITES_ORDERING=0 GDX_SOFTHCA_FAULT=disguised "$gdx" run -- \
      "$folder/gdx" doctor --hardware --short --output "$folder/refused.json"
    expect '^  FAIL     8 gpu-attributes +GPU 0 .*, sm_70'
    grep -A1 '"name": "GPU memory"' "$folder/refused.json" | grep '"value": "not tried: .*order' >/dev/null || fail "step 15 gives no reason"
    # The output of the program counts, and the way in which it ends.
    # says SCRIPT VERDICT WORDS: of the program that does SCRIPT.
    commit=$(sed -n 's/^  "commit": "\(.*\)",$/\1/p' "$folder/sound.json")
    says() {
      printf '#!/bin/sh\n%s\n' "$1" >"$folder/gdx_doctor_cuda"
      run 250 env "${of_gpu[@]}" "$gdx" run -- "$folder/gdx" doctor --hardware
      expect "^  $2 11 gpu-doorbells +$3"
    }
    of() { echo "echo '{\"commit\": \"$1\", \"verdict\": \"OK\", \"value\": \"GPU N: done\", \"facts\": []}'"; }
    says "$(of "$commit")" 'OK     ' 'GPU N: done$'
    says "$(of "$commit-older")" 'FAIL   ' 'gdx_doctor_cuda is of another commit than gdx, '
    says 'echo GPU N' 'FAIL   ' 'gdx_doctor_cuda printed no result$'
    says 'exit 77' 'FAIL   ' '/.*/gdx_doctor_cuda'
    expect 'exit status 77$'
    ;;
  infiniband)
    run 250 env GDX_SOFTHCA_LINK_LAYER=infiniband_grh "$gdx" run -- "$gdx" doctor --hardware \
      --output "$folder/report.json"
    expect '^  OK       2 hcas +gdx0 .software.: InfiniBand that requires a GRH, port 1 active'
    grep -q 'two queue pairs to each other in RTS with a GRH; ' "$folder/report.json" || fail "no GRH is told"
    expect '^steps on gdx0, a software HCA: 0 FAIL, 0 WARN, 14 UNKNOWN, 6 OK$'
    steps "$folder/report.json" '||'
    ;;
  hardware)
    # The loopback has timeouts of its own, so that its waits outlast its retries.
    run 250 env GDX_ACK_TIMEOUT=20 GDX_CALL_TIMEOUT_S=1 "$gdx" run -- "$gdx" doctor --hardware --output "$folder/report.json"
    expect '^  UNKNOWN  1 machine +a software HCA is below: nothing here speaks of hardware'
    expect '^  OK       4 devx '
    expect '^steps on gdx0, a software HCA: 0 FAIL, 0 WARN, 14 UNKNOWN, 6 OK$'
    # The checks are told and judged too: no ConnectX is a FAIL of theirs.
    expect '^  FAIL    hca +no ConnectX'
    expect '^documented fixes$'
    expect '^findings of the checks: [1-9][0-9]* FAIL, '
    expect_status 1
    steps "$folder/report.json" '||'
    python3 - "$folder/report.json" <<'PYTHON' || fail "its JSON lacks what a developer needs"
import datetime, json, os, socket, sys
told = json.load(open(sys.argv[1]))
assert told["software_hca"] and told["hca"] == "gdx0" and told["gdx_version"] and told["findings"]
assert told["commit"] and told["host"] == socket.gethostname(), told["host"]
started = datetime.datetime.strptime(told["started"], "%Y-%m-%dT%H:%M:%SZ")
assert abs((datetime.datetime.utcnow() - started).total_seconds()) < 600, started
step = {one["step"]: one for one in told["steps"]}
sent = [command["command"] for command in step[4]["commands"]]
to_rts = ["RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP"]
assert sent == ["CREATE_CQ", "CREATE_QP"] * 4 + (to_rts + ["QUERY_QP"]) * 2 + ["QUERY_QP"], sent
assert step[4]["commands"][0]["input"].startswith("0400")  # the opcode of CREATE_CQ
refused = [command for command in step[4]["commands"] if command["errno"] != 0]
# Strict, it has real-time timestamps only, and so refuses format 0.
assert [c["status"] for c in refused] == (["0x03"] if os.environ.get("GDX_STRICT") else []), refused
assert [c["command"] for c in step[3]["commands"]] == ["QUERY_HCA_CAP"] * 3
assert step[2]["value"].endswith("; chosen as the only one"), step[2]["value"]
there = told["environment"]
assert there["command_line"][1:] == ["doctor", "--hardware", "--output", sys.argv[1]], there["command_line"]
assert there["variables"]["GDX_ACK_TIMEOUT"] == "20" and "LD_PRELOAD" in there["variables"], there["variables"]
assert not [name for name in there["variables"] if name in ("HOME", "PATH", "USER")], there["variables"]
assert {"libibverbs.so", "libmlx5.so"} <= {os.path.basename(path).split(".so")[0] + ".so" for path in there["libraries"]}
hca = "/sys/class/infiniband/gdx0/"
for file, text in {"fw_ver": "28.0.0", "device/device": "0x1021", "device/numa_node": "-1", "ports/1/state": "4: ACTIVE",
                   "device/current_link_speed": "32.0 GT/s PCIe", "ports/1/gid_attrs/types/0": "RoCE v2"}.items():
    assert there["files"][hca + file] == text, (file, there["files"].get(hca + file))
assert "Max locked memory" in there["files"]["/proc/self/limits"] and "Linux" in there["files"]["/proc/version"]
assert "/sys/module/nvidia/version" in there["files"]
assert [one["bus_id"] for one in there["pci_functions"]] == ["0000:67:00.0"], there["pci_functions"]
assert isinstance(there["kernel_log"], list)
assert {"gpus", "nics", "matrix", "bridge_redirects"} <= set(there["topology"])
copies = {fact["name"]: fact["value"] for fact in step[6]["facts"]}
assert copies["plain"] == "200 NOPs, none completed unasked", copies
assert {fact["name"]: fact["value"] for fact in step[5]["facts"]}["signal add"] == "returned 0, then 5"
assert int(copies["8 x 8 B"].split()[0]) > 0, copies
PYTHON
    ;;
  chosen)
    # As if gdx1 were on the switch of the GPU that CUDA shows, and gdx0 behind a root complex.
    sed -e 's/0000:03:00\.0/0000:f0:00.0/; s/mlx5_0/gdx1/; s/mlx5_1/gdx0/' "$machines/two-sockets.xml" >"$folder/this.xml"
    near=(HWLOC_XMLFILE="$folder/this.xml" HWLOC_THISSYSTEM=1 LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DEVICES=1)
    run 250 env "${near[@]}" "$gdx" run --hcas 2 -- "$gdx" doctor --hardware --json
    python3 - "$out" <<'PYTHON' || fail "not the nearest HCA"
import json, sys
told = json.load(open(sys.argv[1]))
step = {one["step"]: one for one in told["steps"]}
assert told["hca"] == "gdx1" and step[4]["verdict"] == "OK", (told["hca"], step[2])
assert step[2]["value"].endswith("; chosen as the nearest that serves: PIX from GPU 0000:f0:00.0"), step[2]["value"]
assert [fact["name"] for fact in step[2]["facts"]] == ["gdx0", "gdx1"], step[2]["facts"]
assert step[2]["advice"] == "--hca chooses another HCA", step[2]["advice"]
PYTHON
    # A program gets the same one, and is told.
    run 100 env "${near[@]}" GDX_LOG=info "$gdx" run --hcas 2 -- "$gdx" info
    expect 'info: HCA gdx1: chosen as the nearest that serves: PIX from GPU 0000:f0:00\.0$'
    expect '^  chosen +as the nearest that serves: PIX from GPU 0000:f0:00\.0$'
    [ "$(grep -c '^  chosen ' "$out")" -eq 1 ] || fail "not one HCA is chosen"
    # A name has the last word, and the option's before the variable's.
    run 250 env "${near[@]}" GDX_HCA=gdx0 "$gdx" run --hcas 2 -- "$gdx" doctor --hardware --json
    expect '"value": "gdx0 .*; chosen by GDX_HCA"'
    expect '"hca": "gdx0"'
    run 250 env GDX_HCA=gdx0 "$gdx" run --hcas 2 -- "$gdx" doctor --hardware --json --hca gdx1
    expect '"value": "gdx1 .*; chosen by --hca"'
    expect '"hca": "gdx1"'
    run 100 "$gdx" run -- "$gdx" doctor --hardware --hca mlx5_7
    expect '^  FAIL     2 hcas +no HCA named mlx5_7: there are gdx0$'
    expect '^  UNKNOWN  3 capabilities +not tried: no HCA was opened$'
    expect '^steps on no HCA: 1 FAIL, '
    expect_status 1
    ;;
  unanswered)
    run 250 "$gdx" run --loss 1 -- "$gdx" doctor --hardware --output "$folder/report.json"
    expect_status 1
    steps "$folder/report.json" '5 7 11 12 14 15 16||pull of 64 B: the completion is opcode 13, .*syndrome 0x15, '
    expect '15 receiver-visibility +on the CPU layer: payload host, signal host: signal 1 never came:$'
    ;;
  interrupted)
    # With this fault step 5 and others wait for seconds: it is ended there.
    env GDX_SOFTHCA_FAULT=owner_bit "$gdx" run -- "$gdx" doctor --hardware --output "$folder/report.json" >"$out" 2>&1 </dev/null &
    doctor=$!
    until_true grep -Eqs '"running": ([5-9]|1[0-9])' "$folder/report.json"
    kill -KILL "$doctor"
    wait "$doctor" 2>/dev/null
    expect '^  OK       4 devx '
    python3 - "$folder/report.json" <<'PYTHON' || fail "its JSON lacks what was done"
import json, sys
told = json.load(open(sys.argv[1]))
assert told["running"] >= 5 and not told["complete"] and told["hca"] == "gdx0", told
assert [one["step"] for one in told["steps"]] == list(range(1, told["running"])) and told["findings"], told
PYTHON
    share_secret
    # Ended while it waits for a second host, it has kept what it had read.
    port=$(free_port) || exit 1
    "$gdx" run -- "$gdx" doctor --hardware --listen --port $port --output "$folder/waits.json" >"$out" 2>&1 </dev/null &
    doctor=$!
    until_true grep -qs '"running": 17' "$folder/waits.json"
    kill -KILL "$doctor"
    wait "$doctor" 2>/dev/null
    expect "^gdx doctor: meets the other host at 0.0.0.0:$port within 5 min; run there: gdx doctor --hardware --peer THIS_HOST --port $port\$"
    python3 - "$folder/waits.json" <<'PYTHON' || fail "its JSON lacks what was read"
import json, sys
told = json.load(open(sys.argv[1]))
assert told["running"] == 17 and told["steps"] == [] and told["findings"] and told["environment"] and told["host"], told
PYTHON
    ;;
  peer)
    share_secret
    # two LISTENER DIALER [LOSS]: both hosts go through section D, each with its environment, and end alike.
    two() {
      local listener port ended=0
      port=$(free_port) || exit 1
      env $1 "$gdx" run ${3:-} -- "$gdx" doctor --hardware --listen --port $port >"$folder/listener" 2>&1 </dev/null &
      listener=$!
      run 250 env $2 "$gdx" run -- "$gdx" doctor --hardware --peer 127.0.0.1 --port $port --output "$folder/report.json"
      wait $listener || ended=$?
      [ $ended = "$status" ] || fail "the listener ended with status $ended: $(cat "$folder/listener")"
      grep '^  [A-Z][A-Z]* *\(1[7-9]\|20\) ' "$folder/listener" | cut -c3-13 >"$folder/there"
      grep '^  [A-Z][A-Z]* *\(1[7-9]\|20\) ' "$out" | cut -c3-13 | diff - "$folder/there" >&2 || fail "the hosts differ: $(grep -A9 ^D "$folder/listener")"
    }
    # Both hosts end their tries within 0.7 s, whatever the environment says.
    in_time() { ! grep -qE '^  FAIL +(17|18|20) .*(peer unreachable|timed out)' "$out" || fail "too slow: a host that lives was given up"; }
    two A=1 B=1
    in_time
    expect '^  OK      17 rendezvous +.*, path MTU [0-9]+ here and [0-9]+ there: 8 B each'
    expect '^  OK      18 modes-and-sizes +9 sizes by pull in, pull out, inline in, inline out, push in'
    expect '^  OK      19 killed-peer +a put to a peer that is gone ends with syndrome 0x15'
    expect '^  (OK     |UNKNOWN) 20 bandwidth +puts of 1 MiB, posted by a processor: '
    two GDX_SOFTHCA_FAULT=no_ack_timeout GDX_SOFTHCA_FAULT=stale_payload
    in_time
    expect '^  OK      17 rendezvous '
    expect '^  FAIL    18 modes-and-sizes +here: pull of 64 B: of 64 bytes, byte 0'
    expect '^  FAIL    19 killed-peer +at the peer: a put to a queue pair that is gone: timed out'
    expect '^  FAIL    20 bandwidth +here: pull of 1048576 B: of 1048576 bytes, byte '
    python3 - "$folder/report.json" <<'PYTHON' || fail "its JSON is not what both told"
import json, sys
told = {one["step"]: one for one in json.load(open(sys.argv[1]))["steps"]}
assert [told[step]["verdict"] for step in (17, 18, 19, 20)] == ["OK", "FAIL", "FAIL", "FAIL"], told
names = [fact["name"] for fact in told[17]["facts"]]
assert {"address here", "primary address path", "traffic class"} <= set(names), names
PYTHON
    # A host that cannot take part says so to the other, which does not wait.
    two GDX_SOFTHCA_FAULT=timestamp_format B=1
    expect '^  FAIL    17 rendezvous +at the peer: step 4 is not OK'
    grep -q '^  FAIL    17 rendezvous  *here: step 4 is not OK' "$folder/listener" || fail "$(cat "$folder/listener")"
    two A=1 B=1 '--loss 1'
    expect '^  FAIL    17 rendezvous +at the peer: pull of 8 B: peer unreachable'
    expect '^  UNKNOWN 18 modes-and-sizes +not tried: step 17 is not OK'
    ;;
  peer_lost)
    share_secret
    # A wrong name shows before the first step, which goes on.
    run 250 "$gdx" run -- "$gdx" doctor --hardware --peer no-such-host.invalid
    sed '/^A  /q' "$out" | grep '^gdx doctor: no second host, so step 17 will fail: no address for the root' >/dev/null || fail "the wrong name shows late"
    expect '^  FAIL    17 rendezvous +no address for the root .no-such-host.invalid:18520.: '
    expect "advice: give --peer the other host's name or IPv4 address\$"
    # lose PATTERN: both start, and the listener is killed once its report matches. before: the other's report by then.
    lose() {
      local listener port
      port=$(free_port) || exit 1
      : >"$folder/listener"
      : >"$out"
      "$gdx" run -- "$gdx" doctor --hardware --listen --port $port >"$folder/listener" 2>&1 </dev/null &
      listener=$!
      (while kill -0 $listener; do
        grep -q "$1" "$folder/listener" && cp "$out" "$folder/before" && kill -9 $listener && break
        sleep 0.05
      done) 2>/dev/null &
      run 250 "$gdx" run -- "$gdx" doctor --hardware --peer 127.0.0.1 --port $port
      kill $! 2>/dev/null
      wait
    }
    # A host that ends early is missed at once: before section D, which must still be far.
    lose '^  OK       3 '
    while grep -qE '^  [A-Z]+ +6 ' "$folder/before"; do lose '^  OK       3 '; done
    sed '/^D  /q' "$out" | grep '^gdx doctor: the other host has ended, see its report: ' >/dev/null || fail "its end shows late"
    expect '^  FAIL    17 rendezvous +'
    # The peer is killed in the middle. A busy machine may delay the kill past the end, or keep the hosts from meeting.
    lose '17 rendezvous'
    while grep -qE '^  [A-Z]+ +20 ' "$folder/listener" || ! grep -q '^  OK      17 ' "$out"; do lose '17 rendezvous'; done
    expect_status 1
    expect '^  FAIL    (18|19|20) .*the peer: '
    ;;
  no_hca)
    [ ! -e /sys/class/infiniband ] || { echo "SKIPPED: this machine has RDMA devices; run it where there are none"; exit 77; }
    run 100 "$gdx" doctor --hardware --output "$folder/report.json"
    expect_status 1
    expect '^steps on no HCA: [0-9]+ FAIL, .* 0 OK$'
    expect '^  FAIL     1 machine +no RDMA device'
    expect 'advice: .*gdx run -- gdx doctor --hardware$'
    ;;
  fault_*)
    fault=${case_name#fault_}
    [ -n "${found_by[$fault]-}" ] || fail "no step is said to find $fault"
    # Numbers of hardware take minutes here.
    [ "$fault" = disguised ] && hardware=(hardware) short=(--short) || hardware=() short=()
    [ "$fault" = no_device ] && hardware=(hardware)
    run 250 env GDX_SOFTHCA_FAULT="$fault" "$gdx" run -- "$gdx" doctor --hardware "${short[@]}" --output "$folder/report.json"
    expect_status 1
    expect "the software HCAs of this process have a planted fault: GDX_SOFTHCA_FAULT=$fault$"
    steps "$folder/report.json" "${found_by[$fault]}" "${hardware[@]}"
    ;;
  faults)
    run 100 env GDX_SOFTHCA_FAULT=none_such "$gdx" run -- "$gdx" info
    expect 'GDX_SOFTHCA_FAULT=none_such: must be one of '
    names=$(sed -n 's/.*must be one of \([a-z_, ]*\).*/\1/p' "$out" | head -1 | tr -d ' ' | tr ',' '\n' | sort)
    [ "$names" = "$(printf '%s\n' "${!found_by[@]}" | sort)" ] || fail "not found by any step, or not known: $names"
    ;;
  lost)
    for way in '>/dev/full' '>&-'; do
      for options in '' '--json' '--hardware'; do
        echo "+ gdx doctor $options $way"
        # shellcheck disable=SC2086
        eval 'timeout --kill-after=5 100 "$gdx" doctor $options 2>"$out" </dev/null' "$way"
        status=$?
        expect_status 5
        expect 'what it printed was lost'
      done
    done
    run 100 "$gdx" doctor --output /dev/full
    expect_status 5
    expect '^gdx: cannot write /dev/full: No space left on device; name another file by --output$'
    run 100 "$gdx" doctor --output "$folder/none/report.json"
    expect_status 5
    expect 'cannot write .*/none/report.json: No such file or directory'
    # Told before the first step.
    refuses 5 'cannot write .*/none/report.json: No such' "$gdx" doctor --hardware --output "$folder/none/report.json"
    ;;
  here)
    run 100 "$gdx" doctor --json
    judge "$status" "$out"
    first=$status
    counts=$(python3 -c 'import json,sys; print(", ".join(f"{n} {v}" for v, n in json.load(open(sys.argv[1]))["counts"].items()))' "$out")
    run 100 "$gdx" doctor
    expect_status "$first"
    [ "$(tail -1 "$out")" = "$counts" ] || fail "the last line is not: $counts"
    # Fixes are for copying, and so is a path: they stay whole.
    sed '/^documented fixes$/,$d' "$out" | awk 'length > 100 && NF > 2 { print; bad = 1 } END { exit bad }' || fail "a line is too long"
    if [ ! -e /sys/class/infiniband ]; then
      expect '^  FAIL    hca +no ConnectX that gdx could drive \(/sys/class/infiniband: absent\)$'
      expect '^  hca  +with a ConnectX: .*; without one: gdx run -- PROGRAM'
      expect_status 1
    fi
    ;;
  softhca)
    run 100 "$gdx" run --hcas 2 -- "$gdx" doctor --json
    judge "$status" "$out"
    [ "$(grep -c 'software HCA: nothing here speaks of hardware' "$out")" -eq 2 ] || fail "not both are named"
    python3 - "$out" <<'PYTHON' || fail "a software HCA makes a check OK"
import json, sys
assert not [one for one in json.load(open(sys.argv[1]))["findings"] if "gdx" in one["subject"] and one["verdict"] == "OK"]
PYTHON
    ;;
  ordinary_user)
    chmod 755 "$folder"
    cp "$gdx" "$folder/gdx"
    as_user=(bash -c 'ulimit -l 64; exec "$@"' bash)
    [ "$(id -u)" -ne 0 ] || as_user+=(setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all)
    run 100 "${as_user[@]}" "$folder/gdx" doctor --json
    judge "$status" "$out"
    expect 'CapEff: 0+"'
    run 100 "${as_user[@]}" "$folder/gdx" doctor
    expect '^  WARN    locked-memory +Max locked memory: registered memory counts against it$'
    expect '^ {27}/proc/self/limits: Max locked memory 65536$'
    expect '^documented fixes$'
    expect '^  locked-memory +\* soft memlock unlimited and \* hard memlock unlimited in .*; of containers --ulimit memlock=-1$'
    ;;
  bad_input)
    refused '^gdx: .*--jso' "$gdx" doctor --jso
    refused '^gdx: .*--output' "$gdx" doctor --output ''
    refused '^gdx: .*--hca' "$gdx" doctor --hardware --hca ''
    for option in '--hca gdx0' --short --listen '--peer 10.0.0.1' '--port 7'; do
      # shellcheck disable=SC2086
      refused "^gdx: .*${option%% *}.*--hardware" "$gdx" doctor $option
    done
    refused '^gdx: .*--peer' "$gdx" doctor --hardware --peer ''
    for host in 10.0.0.1:7 fe80::1; do
      refused "^gdx: --peer: use a host's name or IPv4 address; --port has its port" "$gdx" doctor --hardware --peer $host
    done
    refused '^gdx: .*--peer.*--listen|^gdx: .*--listen.*--peer' "$gdx" doctor --hardware --peer 10.0.0.1 --listen
    for port in 0 65536; do refused "^gdx: .*--port.*$port" "$gdx" doctor --hardware --listen --port $port; done
    refused '^gdx: .*mlx5_0' "$gdx" doctor mlx5_0
    refused '^gdx: only gdx run takes -- and a program' "$gdx" doctor -- ls
    run 100 "$gdx" doctor --help
    expect_status 0
    expect '0 all OK, 1 a FAIL, 3 a WARN and no FAIL, 4 nothing worse than UNKNOWN'
    ;;
  *) fail "no such case" ;;
esac
echo ok
