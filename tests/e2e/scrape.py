#!/usr/bin/env python3
"""scrape.py URL COMMAND...: reads metrics, checks each line, and compares them to the JSON that COMMAND prints.

Source: Prometheus, Exposition formats, text format 0.0.4.
"""
import json
import re
import subprocess
import sys
import urllib.request

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL},?)*)\}})? ([0-9.e+-]+|Nan)")


def statistics(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def parse(text):
    """Returns {(name, labels): value}."""
    kinds, helped, samples = {}, set(), {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if found := re.fullmatch(rf"# HELP ({NAME}) .+", line):
            assert found[1] not in helped, line
            helped.add(found[1])
        elif found := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|summary)", line):
            assert found[1] not in kinds, line
            kinds[found[1]] = found[2]
        else:
            found = SAMPLE.fullmatch(line)
            assert found, f"no sample: {line}"
            name, labels = found[1], tuple(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
            family = name if name in kinds else re.sub("_(sum|count)$", "", name)
            assert kinds.get(family) and family in helped, line
            assert name.endswith("_total") == (kinds[family] == "counter"), line
            assert len({key for key, _ in labels}) == len(labels) <= 4, line
            key = (name, frozenset(labels))
            assert key not in samples, f"twice: {line}"
            samples[key] = float(found[3])
    return samples


def series(all_of):
    """Returns what the statistics should look like as metrics."""
    wanted = {}

    def add(name, value, **labels):
        key = (name, frozenset((label, str(text)) for label, text in labels.items()))
        wanted[key] = wanted.get(key, 0) + float(value)

    add("gdx_daemon_info", 1, version=all_of["gdxd_version"])
    add("gdx_daemon_draining", all_of["draining"])
    counters = {}
    for user in all_of["users"]:
        for name in ("clients", "endpoints", "regions", "registered_bytes"):
            add(f"gdx_user_{name}", user[name], uid=user["uid"])
        for pool in user["pools"]:
            where = {"uid": user["uid"], "hca": pool["hca"], "memory": pool["memory"]}
            for name, key in (("bytes", "bytes"), ("slots", "slots"), ("leased_slots", "leased_slots"),
                              ("bad_returns_total", "bad_returns")):
                add(f"gdx_pool_{name}", pool[key], **where)
        counters |= {(hca["name"], name): value for hca in user["hcas"] for name, value in hca["counters"].items()}
    for (hca, name), value in counters.items():
        add(f"gdx_hca_{name}_total", value, hca=hca)
    for client in all_of["clients"]:
        who = {"uid": client["uid"], "pid": client["pid"]}
        add("gdx_client_endpoints", len(client["endpoints"]), program=client["program"], **who)
        for name in ("regions", "registered_bytes"):
            add(f"gdx_client_{name}", client[name], program=client["program"], **who)
        for endpoint in client["endpoints"]:
            where = {"hca": client["hca"], "qpn": endpoint["qpn"], **who}
            for name, key in (("posted_wqebbs_total", "posted_blocks"), ("completed_wqebbs_total", "completed_blocks"),
                              ("credit_stalls_total", "stalls"), ("syndrome", "syndrome")):
                add(f"gdx_endpoint_{name}", endpoint[key], **where)
    return wanted


def without_observer(samples):
    """Leaves out the connection of whoever asked for statistics, and what the HTTP server tells of itself."""
    return {key: value for key, value in samples.items()
            if key[0].startswith("gdx_") and ("program", "gdx") not in key[1] and key[0] != "gdx_user_clients"}


command = sys.argv[2:]
settled = False
while not settled:
    before = without_observer(series(statistics(command)))
    with urllib.request.urlopen(sys.argv[1]) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain"), answer.headers
        body = answer.read().decode()
    after = without_observer(series(statistics(command)))
    scraped = without_observer(parse(body))
    # Threads of gdxd may still follow what the programs have done before they were stopped.
    settled = all(key[0].startswith("gdx_hca_") or before.get(key) == value for key, value in after.items())

assert before.keys() == after.keys() == scraped.keys(), before.keys() ^ scraped.keys()
for key, value in scraped.items():
    # The HCA goes on resending to stopped programs.
    assert before[key] <= value <= after[key], (key, before[key], value, after[key])
    assert key[0].startswith("gdx_hca_") or before[key] == after[key], (key, before[key], after[key])
endpoints = [key for key in scraped if key[0] == "gdx_endpoint_posted_wqebbs_total"]
assert endpoints and all(scraped[key] > 0 for key in endpoints)
print(f"{len(body.splitlines())} lines, {len(endpoints)} endpoints")
