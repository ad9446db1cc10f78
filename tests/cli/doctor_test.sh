#!/usr/bin/env bash
# doctor_test.sh CASE GDX MACHINES FAKE: gdx doctor on this machine, whatever it has; on the software HCA; as an ordinary
# user; bad usage; step by step, with each fault that the software HCA can be given; a report that cannot be written.
# MACHINES is a folder of hwloc's XML, FAKE that of the fake CUDA driver.
. "$(dirname "${BASH_SOURCE[0]}")/../program.sh"
gdx=$2 machines=$3 fake=$4
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
  [port_down]='2||port 1 of HCA gdx0 is down: bring its link up$'
  [infiniband_port]='2||port 1 of HCA gdx0 is InfiniBand and has no LID: start a subnet manager$'
  [no_overrun_ignore]='3||gdx needs what is not there: cq_oi is 0'
  [timestamp_format]='4||with ts_format 1: the HCA refused CREATE_QP: .*status 0x03, syndrome 0x'
  [query_qp]='4||QUERY_QP differs: mtu is 0x[0-9], wanted 0x[0-9]$'
  [cqe_counter]='5 6 7 14 15|11 12 16|pull of 64 B: the completion is .*WQE 1 .*wanted opcode 0, WQE 0 '
  [owner_bit]='5 7 11 12 14 15 16||3 laps of the ring: put 16: no completion of WQE 16 in 5 s'
  [inline_wrap]="5||4 blocks inline across the ring's end: of 220 bytes, byte 219 \\(3 mod 4, 11 mod 16\\) is"
  [lost_add]='5 11 16||signal add: the word is 0x0, wanted 0x5$'
  [returned_sum]='5||signal add: the add returned 0x5, wanted 0x0$'
  [syndrome]='5||bad rkey: the completion is .*syndrome 0x14, .*wanted .*syndrome 0x13$'
  [torn_blueflame]='6|12 16|8 x 8 B: opcode 13, .*syndrome 0x02'
  [backward_doorbell]='14|6 7 11 12 15 16|newest first: pair [0-9]+: the completion is .*syndrome 0x05'
  [stale_payload]='15 5 7 12||host to host: [0-9]+ of 10000 messages stale; the first: of 64 bytes, byte 0 '
  [disguised]='||'
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
without_gpu = (11, 12, 14, 15, 16)
for step, verdict in verdicts.items():
    wanted = "OK" if step in (2, 3, 4, 5, 6, 7) or (step == 1 and sys.argv[3]) else "UNKNOWN"
    if step in failed:
        wanted = "FAIL"
    elif step == 4 and verdicts[2] != "OK":
        wanted = "UNKNOWN"
        assert "ts_format 1 created" in values[4] and values[4].endswith("; no loopback: step 2 is not OK"), values[4]
    elif step in after and verdicts[after[step]] != "OK":
        wanted = "UNKNOWN"
    assert verdict == wanted or (step in may and verdict == "FAIL"), (step, verdict, wanted, values[step])
    if step in without_gpu and verdicts[4] == "OK" and verdict != "FAIL":
        assert values[step].endswith("; not tried on a GPU"), values[step]
assert all(values.values())
if failed:
    assert re.search(words, values[failed[0]]), values[failed[0]]
order = ["OK", "UNKNOWN", "WARN", "FAIL"]
assert told["verdict"] == max([*verdicts.values(), *(one["verdict"] for one in told["findings"])], key=order.index)
assert told["complete"] and told["running"] is None and told["software_hca"] == (not sys.argv[3])
for one in told["steps"]:
    facts = {fact["name"]: str(fact["value"]) for fact in one["facts"]}
    for name, value in facts.items():
        # Wrong bytes alone are as on hardware; what a part that failed leaves is its completion and its queue pair.
        assert not re.search("as on hardware: (the|no) completion", value), value
        if one["step"] in (5, 6, 7, 14, 15) and not re.match("done|not tried here|.*: (cqe|query_qp)$", value + ": " + name):
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
    run 200 env "${of_gpu[@]}" "$gdx" run -- "$gdx" doctor --hardware
    expect '^  OK       8 gpu-attributes +GPU 0 .*, sm_90'
    expect '^  OK       9 gpu-mappings +host page, doorbell page, device memory: works'
    expect '^  OK      10 gpu-payload +dmabuf, nvidia_peermem: works'
    run 200 env "${of_gpu[@]}" GDX_FAKE_CUDA_PEER_MAPPING=0 "$gdx" run -- "$gdx" doctor --hardware
    expect_status 1
    expect '^  FAIL     9 gpu-mappings +host page: works; not doorbell page, device memory:'
    run 200 env "${of_gpu[@]}" GDX_FAKE_CUDA_DMABUF=0 "$gdx" run -- "$gdx" doctor --hardware
    expect '^  OK      10 gpu-payload +nvidia_peermem: works; not dmabuf:'
    run 200 env "${of_gpu[@]}" GDX_SOFTHCA_FAULT=stale_payload "$gdx" run -- "$gdx" doctor --hardware
    expect_status 1
    expect '^  FAIL    10 gpu-payload '
    run 200 env "${of_gpu[@]}" GDX_FAKE_CUDA_MAJOR=7 "$gdx" run -- "$gdx" doctor --hardware
    expect '^  FAIL     8 gpu-attributes +GPU 0 .*, sm_70'
    run 200 env "${of_gpu[@]}" GDX_FAKE_CUDA_INIT=999 "$gdx" run -- "$gdx" doctor --hardware
    expect '^  UNKNOWN  8 gpu-attributes +no GPU here'
    ;;
  infiniband)
    run 200 env GDX_SOFTHCA_LINK_LAYER=infiniband "$gdx" run -- "$gdx" doctor --hardware \
      --output "$folder/report.json"
    expect '^  OK       2 hcas +gdx0 .software.: InfiniBand, port 1 active'
    expect '^steps on gdx0, a software HCA: 0 FAIL, 0 WARN, 14 UNKNOWN, 6 OK$'
    steps "$folder/report.json" '||'
    ;;
  hardware)
    # The loopback has timeouts of its own, so that its waits outlast its retries.
    run 200 env GDX_ACK_TIMEOUT=20 GDX_CALL_TIMEOUT_S=1 "$gdx" run -- "$gdx" doctor --hardware --output "$folder/report.json"
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
import json, os, sys
told = json.load(open(sys.argv[1]))
assert told["software_hca"] and told["hca"] == "gdx0" and told["gdx_version"] and told["findings"]
step = {one["step"]: one for one in told["steps"]}
sent = [command["command"] for command in step[4]["commands"]]
to_rts = ["RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP"]
assert sent == ["CREATE_CQ", "CREATE_QP"] * 4 + to_rts * 2 + ["QUERY_QP"], sent
assert step[4]["commands"][0]["input"].startswith("0400")  # the opcode of CREATE_CQ
refused = [command for command in step[4]["commands"] if command["errno"] != 0]
# Strict, it has real-time timestamps only, and so refuses format 0.
assert [c["status"] for c in refused] == (["0x03"] if os.environ.get("GDX_STRICT") else []), refused
assert [c["command"] for c in step[3]["commands"]] == ["QUERY_HCA_CAP"] * 3
assert step[2]["value"].endswith("; chosen as the first that serves: CUDA shows no GPU"), step[2]["value"]
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
assert copies["plain"] == "done 200 NOPs, none completed unasked", copies
assert {fact["name"]: fact["value"] for fact in step[5]["facts"]}["signal add"] == "done returned 0, then 5"
assert int(copies["8 x 8 B"].split()[1]) > 0, copies
PYTHON
    ;;
  chosen)
    # As if gdx1 were on the switch of the GPU that CUDA shows, and gdx0 behind a root complex.
    sed -e 's/0000:03:00\.0/0000:f0:00.0/; s/mlx5_0/gdx1/; s/mlx5_1/gdx0/' "$machines/two-sockets.xml" >"$folder/this.xml"
    near=(HWLOC_XMLFILE="$folder/this.xml" HWLOC_THISSYSTEM=1 LD_LIBRARY_PATH="$fake" GDX_FAKE_CUDA_DEVICES=1)
    run 200 env "${near[@]}" "$gdx" run --hcas 2 -- "$gdx" doctor --hardware --json
    python3 - "$out" <<'PYTHON' || fail "not the nearest HCA"
import json, sys
told = json.load(open(sys.argv[1]))
step = {one["step"]: one for one in told["steps"]}
assert told["hca"] == "gdx1" and step[4]["verdict"] == "OK", (told["hca"], step[2])
assert step[2]["value"].endswith("; chosen as the nearest that serves: PIX from GPU 0000:f0:00.0"), step[2]["value"]
assert [fact["name"] for fact in step[2]["facts"]] == ["gdx1", "gdx0"], step[2]["facts"]
assert step[2]["advice"] == "--hca chooses another HCA", step[2]["advice"]
PYTHON
    # A name has the last word, and the option's before the variable's.
    run 200 env "${near[@]}" GDX_HCA=gdx0 "$gdx" run --hcas 2 -- "$gdx" doctor --hardware --json
    expect '"value": "gdx0 .*; chosen by GDX_HCA"'
    expect '"hca": "gdx0"'
    run 200 env GDX_HCA=gdx0 "$gdx" run --hcas 2 -- "$gdx" doctor --hardware --json --hca gdx1
    expect '"value": "gdx1 .*; chosen by --hca"'
    expect '"hca": "gdx1"'
    run 60 "$gdx" run -- "$gdx" doctor --hardware --hca mlx5_7
    expect '^  FAIL     2 hcas +no HCA named mlx5_7: there are gdx0$'
    expect '^  UNKNOWN  3 capabilities +not tried: no HCA was opened$'
    expect_status 1
    ;;
  unanswered)
    run 200 "$gdx" run --loss 1 -- "$gdx" doctor --hardware --output "$folder/report.json"
    expect_status 1
    steps "$folder/report.json" '5 7 11 12 14 15 16||pull of 64 B: the completion is opcode 13, .*syndrome 0x15, '
    expect '15 receiver-visibility +host to host: signal 1 never came: the completion is'
    ;;
  interrupted)
    # With this fault step 5 waits for seconds: it is ended there.
    env GDX_SOFTHCA_FAULT=owner_bit "$gdx" run -- "$gdx" doctor --hardware --output "$folder/report.json" >"$out" 2>&1 </dev/null &
    doctor=$!
    for ((i = 0; i < 600; ++i)); do
      grep -qs '"running": 5' "$folder/report.json" && break
      sleep 0.1
    done
    kill -KILL "$doctor"
    wait "$doctor" 2>/dev/null
    expect '^  OK       4 devx '
    python3 - "$folder/report.json" <<'PYTHON' || fail "its JSON lacks what was done"
import json, sys
told = json.load(open(sys.argv[1]))
assert told["running"] == 5 and not told["complete"] and told["hca"] == "gdx0", told
assert [one["step"] for one in told["steps"]] == [1, 2, 3, 4] and told["findings"], told
PYTHON
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
    run 200 env GDX_SOFTHCA_FAULT="$fault" "$gdx" run -- "$gdx" doctor --hardware --output "$folder/report.json"
    expect_status 1
    expect "the software HCAs of this process have a planted fault: GDX_SOFTHCA_FAULT=$fault$"
    steps "$folder/report.json" "${found_by[$fault]}" "$([ "$fault" = disguised ] && echo hardware)"
    ;;
  faults)
    run 30 env GDX_SOFTHCA_FAULT=none_such "$gdx" run -- "$gdx" info
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
    run 60 "$gdx" doctor --output /dev/full
    expect_status 5
    expect '^gdx: cannot write /dev/full: No space left on device; name another file by --output$'
    run 60 "$gdx" doctor --output "$folder/none/report.json"
    expect_status 5
    expect 'cannot write .*/none/report.json: No such file or directory'
    # Told before the first step.
    refuses 5 'cannot write .*/none/report.json: No such' "$gdx" doctor --hardware --output "$folder/none/report.json"
    ;;
  here)
    run 60 "$gdx" doctor --json
    judge "$status" "$out"
    first=$status
    counts=$(python3 -c 'import json,sys; print(", ".join(f"{n} {v}" for v, n in json.load(open(sys.argv[1]))["counts"].items()))' "$out")
    run 60 "$gdx" doctor
    expect_status "$first"
    [ "$(tail -1 "$out")" = "$counts" ] || fail "the last line is not: $counts"
    # Fixes are for copying, and so is a path: they stay whole.
    sed '/^documented fixes$/,$d' "$out" | awk 'length > 100 && NF > 2 { print; bad = 1 } END { exit bad }' || fail "a line is too long"
    if [ ! -e /sys/class/infiniband ]; then
      expect '^  FAIL    hca +no ConnectX that gdx could drive \(/sys/class/infiniband: absent\)$'
      expect '^  hca  +without a ConnectX: gdx run -- PROGRAM'
      expect_status 1
    fi
    ;;
  softhca)
    run 60 "$gdx" run --hcas 2 -- "$gdx" doctor --json
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
    run 60 "${as_user[@]}" "$folder/gdx" doctor --json
    judge "$status" "$out"
    expect 'CapEff: 0+"'
    run 60 "${as_user[@]}" "$folder/gdx" doctor
    expect '^  WARN    locked-memory +Max locked memory: registered memory counts against it$'
    expect '^ {26}/proc/self/limits: Max locked memory 65536$'
    expect '^documented fixes$'
    expect '^  locked-memory +\* soft memlock unlimited and \* hard memlock unlimited in .*; of containers --ulimit memlock=-1$'
    ;;
  bad_input)
    refused '^gdx: .*--jso' "$gdx" doctor --jso
    refused '^gdx: .*--output' "$gdx" doctor --output ''
    refused '^gdx: .*--hca' "$gdx" doctor --hardware --hca ''
    refused '^gdx: .*--hca.*--hardware' "$gdx" doctor --hca gdx0
    refused '^gdx: .*mlx5_0' "$gdx" doctor mlx5_0
    refused '^gdx: only gdx run takes -- and a program' "$gdx" doctor -- ls
    run 30 "$gdx" doctor --help
    expect_status 0
    expect '0 all OK, 1 a FAIL, 3 a WARN and no FAIL, 4 nothing worse than UNKNOWN'
    ;;
  *) fail "no such case" ;;
esac
echo ok
