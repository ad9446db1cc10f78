#!/usr/bin/env python3
"""Usage: bench_page.py PAGE.html DOCUMENT.json. Every number of the page is the document's: in tables, in charts by its place on
the axis, and in the text. The page needs no script and no other file, and its colours can be told from its paper."""
import base64
import collections
import html.parser
import json
import math
import pathlib
import re
import sys

NUMBER = re.compile(r"[0-9][0-9.]*(?:e[+-]?[0-9]+)?")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
MODES = ("pull", "push", "inline", "bounce", "auto", "proxy", "nic")


def numbers(text):
    return {token.rstrip(".") for token in NUMBER.findall(text)}


class Page(html.parser.HTMLParser):
    """Elements with a place in the document, lines of charts, text that has no place, and what can be saved."""

    def __init__(self, text):
        super().__init__()
        self.figures, self.charts, self.text, self.ticks, self.saved, self.links = [], [], [], [], {}, []
        self.place, self.hidden, self.tick = None, False, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        assert tag != "script", "the page has a script"
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if "download" in named:
            self.saved[named["download"]] = base64.b64decode(named["href"].partition("base64,")[2]).decode()
        kinds = named.get("class", "").split()
        self.hidden = tag == "style"
        self.tick = tag == "text" and "tick" in kinds
        self.place = named.get("data-at") if tag in ("td", "span") else None
        if tag == "svg":
            self.charts.append([])
        if tag == "g" and "mode" in kinds:
            self.charts[-1].append({"colour": kinds[1], "marks": [], "intervals": []})
        if tag == "path" and "mark" in kinds and "data-at" in named:
            y = float(named["transform"].rstrip(")").split(",")[1])
            self.charts[-1][-1]["marks"].append((named["data-at"], y, named["d"], "open" in kinds))
        if tag == "path" and "interval" in kinds:
            self.charts[-1][-1]["intervals"].append([float(y) for y in re.match(r"M[^,]*,([^V]*)V([^M]*)", named["d"]).groups()])

    def handle_data(self, data):
        if self.place:
            self.figures.append((self.place, data))
        elif self.tick:
            self.ticks.append(data)
        elif not self.hidden:
            self.text.append(data)
        self.place, self.tick = None, False

    def handle_endtag(self, tag):
        self.place, self.tick, self.hidden = None, False, False


def at(document, pointer):
    for name in pointer.strip("/").split("/"):
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


def shown_value(pointer, text, value):
    if isinstance(value, str):
        return text
    size = re.fullmatch(r"([0-9]+) (B|KiB|MiB)", text)
    return int(size[1]) * UNITS[size[2]] if size and pointer.endswith("bytes") else json.loads(text)


def check_figures(page, document):
    for pointer, text in page.figures:
        value = at(document, pointer)
        assert shown_value(pointer, text, value) == value, f"{pointer} is {value}, the page has {text}"
    places = {pointer for pointer, _ in page.figures}
    for i, row in enumerate(document["rows"]):
        wanted = ["bytes", "rounds", "messages", "credit_stalls", "bytes_verified", "cpu_us_per_message/rank_0"]
        quantiles = [f for f in ("p99", "p99_9") if row["latency_us"] and row["latency_us"][f] is not None]
        wanted += ["latency_us/" + f for f in ("median", "low", "high", *quantiles)] if row["latency_us"] else \
            ["messages_per_s/median", "gigabytes_per_s/median", "gigabytes_per_s/low", "gigabytes_per_s/high"]
        if row["ratio_to_pull"]:
            wanted.append("ratio_to_pull/says")
        for name in wanted:
            assert f"/rows/{i}/{name}" in places, f"the page lacks {name} of row {i}"
    for i, _ in enumerate(document["modelled"]):
        assert f"/modelled/{i}/latency_us" in places, f"the page lacks modelled row {i}"
    # Numbers beside: of sentences, names and conditions.
    stray = numbers(" ".join(page.text)) - numbers(json.dumps(document, ensure_ascii=False))
    sizes = {text.partition(" ")[0] for text in page.ticks if text.endswith("B")}  # in a chart's name
    assert not stray - sizes - {"0.0"}, f"not in the document: {stray - sizes}"


def check_charts(page, document):
    drawn, markers = set(), collections.defaultdict(set)
    for chart in page.charts:
        points = []  # (logarithm, y)
        for line in chart:
            intervals = iter(line["intervals"])
            for pointer, y, marker, is_open in line["marks"]:
                row = at(document, "/".join(pointer.split("/")[:3]))
                figures = at(document, pointer.rpartition("/")[0])
                assert line["colour"] == (row["mode"] if row["mode"] in MODES else "other"), (pointer, line["colour"])
                markers[line["colour"]].add(marker)
                points.append((math.log10(at(document, pointer)), y))
                drawn.add(pointer)
                if "low" in figures and figures["level"] > 0:
                    points += zip((math.log10(figures["low"]), math.log10(figures["high"])), next(intervals))
                    assert is_open == (figures["level"] < 0.95), f"{pointer}: a marker that tells another level"
            assert next(intervals, None) is None, "an interval of no point"
        if len(points) > 1 and min(points)[0] < max(points)[0]:
            (low, bottom), (high, top) = min(points), max(points)
            for value, y in points:
                wanted = bottom + (value - low) / (high - low) * (top - bottom)
                assert abs(y - wanted) < 1, f"a point at {y}, where {10 ** value:.4g} is at {wanted:.1f}"
    for i, row in enumerate(document["rows"]):
        of = "latency_us" if row["measure"] == "lat" else "gigabytes_per_s"
        assert f"/rows/{i}/{of}/median" in drawn, f"no chart has row {i}"
    assert all(len(one) == 1 for one in markers.values()), f"a mode with several markers: {markers}"
    assert len({marker for one in markers.values() for marker in one}) == len(markers), "a marker of several modes"
    return len(drawn)


def luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return sum(w * (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4) for w, p in zip((0.2126, 0.7152, 0.0722), parts))


def check_colours(text):
    sets = re.findall(r":root \{([^}]*)\}", text)[:2]
    assert len(sets) == 2, "no colours of light and dark"
    for one in sets:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", one))
        for name in (*MODES, "other", "ink", "quiet", "warn"):
            pair = sorted((luminance(colours[name]), luminance(colours["paper"])))
            contrast = (pair[1] + 0.05) / (pair[0] + 0.05)
            assert contrast >= 3, f"{name} {colours[name]} on {colours['paper']}: contrast {contrast:.2f}"


def main():
    page_file, document_file = sys.argv[1:]
    text = pathlib.Path(page_file).read_text()
    page = Page(text)
    document = json.loads(pathlib.Path(document_file).read_text())
    assert all(link.startswith("data:") for link in page.links), f"the page needs {page.links}"
    assert json.loads(page.saved["gdx-bench.json"]) == document, "the page's data are not the document"
    assert page.saved["gdx-bench.csv"].count("\n") > len(document["rows"]), "the page's CSV lacks rows"
    charts = [one for name, one in page.saved.items() if name.endswith(".svg")]
    assert charts and all(one.startswith("<svg") and "--pull: #" in one for one in charts), "no charts to save"
    check_figures(page, document)
    count = check_charts(page, document)
    check_colours(text)
    print(f"{len(page.figures)} figures and {count} points are the document's")


if __name__ == "__main__":
    main()
