#!/usr/bin/env python3
"""Usage: bench_page.py PAGE.html DOCUMENT.json. Every figure of the page is the document's: in the tables, in the data, and
in the drawn lines (by node, where it is installed)."""
import html.parser
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).parent


class Page(html.parser.HTMLParser):
    """Cells with their places, and scripts."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.scripts, self.data, self.links = [], [], None, []
        self.place, self.script, self.text = None, None, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag == "td":
            self.place, self.text = named.get("data-at", ""), ""
        if tag == "script":
            self.script, self.text = named.get("id", "code"), ""

    def handle_data(self, data):
        self.text += data

    def handle_endtag(self, tag):
        if tag == "td" and self.place:
            self.cells.append((self.place, self.text))
        if tag == "script":
            if self.script == "data":
                self.data = self.text
            else:
                self.scripts.append(self.text)


def at(document, pointer):
    for name in pointer.strip("/").split("/"):
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


def check_tables(page, document):
    assert json.loads(page.data) == document, "the page's data are not the document"
    assert not page.links, f"the page needs {page.links}"
    for pointer, text in page.cells:
        value = at(document, pointer)
        shown = text if isinstance(value, str) else json.loads(text)
        assert shown == value, f"{pointer} is {value}, the page has {text}"
    places = {pointer for pointer, _ in page.cells}
    for i, row in enumerate(document["rows"]):
        wanted = ["bytes", "rounds", "messages", "credit_stalls", "bytes_verified", "bad_bytes", "cpu_us_per_message/rank_0"]
        quantiles = [f for f in ("p99", "p99_9") if row["latency_us"] and row["latency_us"][f] is not None]
        wanted += ["latency_us/" + f for f in ("median", "low", "high", *quantiles)] if row["latency_us"] else \
            ["messages_per_s/median", "gigabytes_per_s/median", "gigabytes_per_s/low", "gigabytes_per_s/high"]
        for name in wanted:
            assert f"/rows/{i}/{name}" in places, f"the page lacks {name} of row {i}"
    for i, _ in enumerate(document["modelled"]):
        assert f"/modelled/{i}/latency_us" in places, f"the page lacks modelled row {i}"


def points_of(document, choice):
    """What a choice of the controls must show: (mode, x, y, low, high, series)."""
    operation, measure = choice["test"].split()
    wanted = set()
    for row in document["rows"]:
        if (row["operation"], row["measure"]) != (operation, measure):
            continue
        parent, _, name = choice["figure"].partition("/")
        if parent == "occupancy":
            wanted |= {(x, y, None, None, row["series"]) for x, y in zip(row[parent]["us"], row[parent][name])}
            continue
        value = row[parent] if not name else (row[parent] or {}).get(name)
        if value is None:
            continue
        interval = (row[parent]["low"], row[parent]["high"]) if name == "median" else (None, None)
        counted = parent.startswith("pcie_")
        wanted.add((row["bytes"], value, *interval, "counted by the software HCA" if counted else row["series"]))
    for row in document["peers"]:
        parent, _, name = choice["figure"].partition("/")
        value = (row.get(parent) or {}).get(name) if name else None
        if (row["operation"], row["measure"]) == (operation, measure) and value is not None:
            interval = (row[parent]["low"], row[parent]["high"]) if name == "median" else (None, None)
            wanted.add((row["bytes"], value, *interval, row["series"].split(":")[0] + ": " + row["mode"]))
    for row in document["modelled"]:
        parent, _, name = choice["figure"].partition("/")
        if operation == "put" and row["series"] == choice["model"] and name == "median":
            wanted.add((row["bytes"], row[parent], None, None, row["series"]))
    return wanted


def check_lines(page, document):
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder, name) for name in ("scripts", "data")]
        for file, text in zip(files, ("\n".join(page.scripts), page.data)):
            file.write_text(text)
        printed = subprocess.run(["node", FOLDER / "bench_page.js", *files], check=True, capture_output=True, text=True)
    choices = [json.loads(line) for line in printed.stdout.splitlines()]
    keys = choices.pop()
    assert keys["active"] == [{"datasetIndex": 0, "index": 2}], keys
    assert document["rows"][0]["series"] in keys["spoken"], keys
    drawn_points = 0
    for choice in choices:
        drawn = [(p["x"], p["y"], p.get("low"), p.get("high")) for line in choice["lines"] for p in line["data"]]
        wanted = points_of(document, choice)
        assert set(drawn) == {p[:4] for p in wanted}, choice
        shown = {(float(row[1]), float(row[2]), row[5]) for row in choice["table"]}
        assert shown == {(p[0], p[1], p[4]) for p in wanted}, choice
        modelled = [line for line in choice["lines"] if line["borderDash"]]
        assert all("(modelled)" in line["label"] for line in modelled), choice
        drawn_points += len(drawn)
    assert drawn_points > 0
    print(f"{len(choices)} choices, {drawn_points} points drawn as the document has them")


def main():
    page_file, document_file = sys.argv[1:]
    page = Page(pathlib.Path(page_file).read_text())
    document = json.loads(pathlib.Path(document_file).read_text())
    check_tables(page, document)
    print(f"{len(page.cells)} cells are the document's")
    if not page.scripts or "new Chart" not in page.scripts[-1]:
        raise AssertionError("the page draws nothing")
    elif shutil.which("node"):
        check_lines(page, document)
    else:
        print("not tried: the lines that the page draws; install Debian's nodejs")


if __name__ == "__main__":
    main()
