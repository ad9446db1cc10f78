#!/usr/bin/env python3
"""trace_check.py text FILE | json FILE QPN: what gdx trace wrote is in order, or in the Trace Event Format."""
import json
import re
import sys


def need(condition, reason):
    if not condition:
        sys.exit(f"trace_check: {reason}")


def check_endpoint(lines):
    """Checks a WQE's events of one endpoint, which may begin in the middle of its life."""
    stages = ["fetch", "send", "complete"]
    seen = {}
    before = 0.0
    announced = None
    complete = resends_after_send = 0
    for line in lines:
        time, kind, text = re.match(r" *(\d+\.\d{9}) (\w+) +(.*)", line).groups()
        need(float(time) >= before, f"time goes back: {line}")
        before = float(time)
        number = re.search(r"WQE (\d+)", text)
        if kind == "doorbell":
            announced = int(number[1])
        elif kind == "resend":
            resends_after_send += any(stage == "send" for stage in seen.values())
        elif kind in stages:
            wqe = int(number[1])
            need(kind != "fetch" or announced is None or (announced - wqe - 1) % 65536 < 32768,
                 f"fetched before its doorbell: {line}")
            if kind != "fetch" and wqe in seen:
                need(stages.index(seen[wqe]) + 1 == stages.index(kind), f"out of order: {line}")
                complete += kind == "complete"
            if kind == "fetch" or wqe in seen:
                seen[wqe] = kind
    return complete, resends_after_send


def check_text(path):
    endpoints = []
    for line in open(path, encoding="utf-8").read().splitlines():
        if line.startswith("process "):
            endpoints.append([])
        elif re.match(r" *\d+\.\d{9} ", line):
            endpoints[-1].append(line)
    need(endpoints, "no endpoint")
    results = [check_endpoint(lines) for lines in endpoints]
    need(any(complete for complete, _ in results), "no WQE is there from fetch to completion")
    need(any(resends for _, resends in results), "no resend after a WQE's first packet")


def check_json(path, qpn):
    trace = json.load(open(path, encoding="utf-8"))
    need(trace["displayTimeUnit"] in ("ms", "ns"), "unit of the display")
    names = {"process_name": set(), "thread_name": set()}
    begun = {}
    kinds = set()
    slices = 0
    for event in trace["traceEvents"]:
        need(event["ph"] in ("M", "i", "b", "e"), f"phase {event}")
        need(isinstance(event["pid"], int) and isinstance(event["tid"], int), f"process and thread {event}")
        need(isinstance(event["ts"], (int, float)) and event["ts"] >= 0, f"time {event}")
        need(isinstance(event["name"], str) and event["name"], f"name {event}")
        if event["ph"] == "M":
            track = (event["pid"], event["tid"])
            need(event["name"] != "thread_name" or track not in names["thread_name"], f"track named twice {event}")
            names[event["name"]].add(event["pid"] if event["name"] == "process_name" else track)
            need(event["args"]["name"], f"metadata {event}")
            need(event["name"] != "thread_name" or f" QP {qpn:#x} towards" in event["args"]["name"],
                 f"another endpoint's {event}")
            continue
        need(event["pid"] in names["process_name"], f"process without a name {event}")
        need((event["pid"], event["tid"]) in names["thread_name"], f"track without a name {event}")
        if event["ph"] == "i":
            need(event["s"] in ("g", "p", "t"), f"scope {event}")
            kinds.add(event["name"])
            continue
        key = (event["pid"], event["cat"], event["id"])
        if event["ph"] == "b":
            need(key not in begun, f"begun twice {event}")
            begun[key] = event
        else:
            need(key in begun, f"ended before it began {event}")
            begin = begun.pop(key)
            need(event["name"] == begin["name"] and event["ts"] >= begin["ts"], f"pair {begin} {event}")
            slices += 1
    need(not begun, f"never ended: {begun}")
    need(slices > 2, f"only {slices} slices")
    need({"doorbell", "send"} <= kinds, f"instants of {kinds} only")


if sys.argv[1] == "text":
    check_text(sys.argv[2])
else:
    check_json(sys.argv[2], int(sys.argv[3], 0))
