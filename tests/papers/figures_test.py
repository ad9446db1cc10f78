#!/usr/bin/env python3
"""figures_test.py PAPERS_FOLDER: figures that papers/*.md and README.md copy are those of the generated files, and one
that is not is found. Ends with 1 and a line for each figure that differs."""
import functools
import json
import pathlib
import re
import sys

MODES = ["pull", "push", "inline", "bounce", "proxy"]
PUSHES = ["pull", "bounce", "push", "push-flags", "push-ordered"]
CONDITIONS = {"fences free": "fences cost nothing", "queues in host memory": "queues in host memory",
              "plain doorbells": "plain doorbells"}
BYTES = {"8 B": 8, "4 KiB": 4096, "2 MiB": 2 << 20}


def table_under(page, header):
    """The cells of the Markdown table whose header row begins so, row by row."""
    lines = page.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(header)]
    if len(starts) != 1:
        raise ValueError("%d tables begin with %s" % (len(starts), header))
    rows = []
    for line in lines[starts[0] + 2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("| \n").split("|")])
    return rows


def model_rows(text):
    """(mode, bytes): (delivered us, Gb/s) of what gdx model printed."""
    rows = {}
    for line in text.splitlines():
        words = line.split()
        if words and words[0] in MODES + PUSHES:
            # No rate above what was published.
            rows[words[0], int(words[1])] = (float(words[2]), None if words[4] == "-" else float(words[4]))
    return rows


def differs(cell, exact):
    shown = re.sub("[ ,%]", "", cell)
    decimals = len(shown.partition(".")[2])
    return abs(float(shown) - exact) > 0.5001 * 10 ** -decimals


def pushes(page, read):
    header = "| | pull | bounce | push | push-flags | push-ordered |"
    times, _, rates = page.partition("Gb/s:")
    for label, *cells in table_under(times, header):
        path, size, *condition = label.split(", ")
        rows = model_rows(read("push-vs-pull/%s%s.txt" % (path, "-host" if condition else "")))
        for mode, cell in zip(PUSHES, cells, strict=True):
            yield "%s, %s" % (label, mode), cell, rows[mode, BYTES[size]][0]
    for path, *cells in table_under(rates, header):
        rows = model_rows(read("push-vs-pull/%s.txt" % path))
        for mode, cell in zip(PUSHES, cells, strict=True):
            yield "%s at 2 MiB, %s" % (path, mode), cell, rows[mode, BYTES["2 MiB"]][1]
    sections = {part.partition("\n")[0]: part for part in read("push-vs-pull/batches.txt").split("## ")}
    columns = [(mode, puts) for mode in PUSHES[:1] + PUSHES[2:0:-1] for puts in (1, 4, 16)]
    for path, *cells in table_under(rates, "| | pull, 1 |"):
        for (mode, puts), cell in zip(columns, cells, strict=True):
            section = sections["%s, queues in gpu memory, one endpoint, batches of %d puts" % (path, puts)]
            yield "%s, batches of %d, %s" % (path, puts, mode), cell, model_rows(section)[mode, BYTES["4 KiB"]][1]


def validation(page, read):
    exact = {}
    for line in read("push-vs-pull/validation.txt").splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if cells[0] in ("formula", "fitted", "predicted", "missed"):
            exact[cells[1], cells[2]] = cells
    shown = 0
    for basis, platform, figure, published, modelled, *_ in table_under(page, "| basis | platform | figure |"):
        kept = exact[figure, platform]
        if kept[0] != basis:
            raise ValueError("%s is %s by validation.txt" % (figure, kept[0]))
        shown += 1
        if " to " not in published:
            yield "%s, published" % figure, published, float(kept[3])
        yield figure, modelled, float(kept[4])
    if shown != len(exact):
        raise ValueError("%d of %d published figures are on the page" % (shown, len(exact)))


def break_even(page, read):
    exact = {}
    for line in read("push-vs-pull/break-even.txt").splitlines():
        words = line.split()
        if len(words) == 6 and words[2].isdigit():
            exact[words[0], words[1], int(words[2])] = float(words[5])
    for label, *cells in table_under(page, "| | 8 B | 256 B | 4 KiB | 16 KiB |"):
        path, _, doorbell = label.partition(", ")
        for size, cell in zip((8, 256, 4096, 16384), cells, strict=True):
            yield "break-even, %s, %d B" % (label, size), cell, exact[path, "plain" if doorbell else "blueflame", size]


def push_vs_pull(page, read):
    yield from validation(page, read)
    yield from break_even(page, read)
    sections = {part.partition("\n")[0]: part for part in read("push-vs-pull/one-at-a-time.txt").split("## ")}
    header = "| | pull | push | inline | bounce | proxy |"
    for label, *cells in table_under(page.partition("## Result 2")[0], header):
        path, size, *condition = label.split(", ")
        text = sections["%s, %s" % (CONDITIONS[condition[0]], path)] if condition else read("push-vs-pull/%s.txt" % path)
        for mode, cell in zip(MODES, cells, strict=True):
            yield "%s, %s" % (label, mode), cell, model_rows(text)[mode, BYTES[size]][0]
    for path, *cells in table_under(page.partition("## Result 2")[2], header):
        rows = model_rows(read("push-vs-pull/%s.txt" % path))
        for mode, cell in zip(MODES, cells, strict=True):
            yield "%s at 2 MiB, %s" % (path, mode), cell, rows[mode, BYTES["2 MiB"]][1]
    yield from pushes(page.partition("## Result 3")[2], read)
    production = read("push-vs-pull/production-code.txt")
    if not production.startswith("modelled, "):
        raise ValueError("production-code.txt does not say that it is modelled")


def overload(page, read):
    lines = [re.sub("tail drop", "tail_drop", line).split() for line in read("overload/table.txt").splitlines()]
    rows = {tuple(line[:4]): line[4:] for line in lines if len(line) == 9 and line[2][0].isdigit()}
    for where, staging, factor, *cells in table_under(page, "| where | staging |"):
        exact = rows[where.removesuffix(" time"), staging.replace(" ", "_"), "8", factor]
        for cell, figure in zip(cells, exact, strict=True):
            yield "%s, %s" % (where, staging), cell, float(figure.rstrip("%"))
    for senders, *cells in table_under(page, "| senders | credits | partition | pull |"):
        label = senders.replace(" of ", "/")
        kinds = [(staging, at) for staging in ("credits", "partition", "pull") for at in (3, 4)]
        pairs = [part for cell in cells for part in cell.split(" / ")]
        for (staging, at), cell in zip(kinds, pairs, strict=True):
            yield "%s, %s" % (senders, staging), cell, float(rows["virtual", staging, label, "8x"][at].rstrip("%"))


def scale(page, read):
    shown = re.search(r"an input\):\s+([\d.]+) ns,\s+([\d.]+) ns\s+and\s+([\d.]+) ns a byte", page)
    if shown is None:
        raise ValueError("L, g and G are no longer where they are looked for")
    rows = [line.split() for line in read("scale/growth.txt").partition("\n\n")[0].splitlines()[2:]]
    grows = re.search(r"takes\s+([\d.]+)\s+KB of heap.*?message\s+takes\s+([\d.]+)\s+us.*?at most\s+([\d.]+)", page, re.S)
    if grows is None:
        raise ValueError("heap and times are no longer where they are looked for")
    times_us = [float(row[5]) for row in rows]
    growth = [float(rows[-1][2]) / 1e3, times_us[0], max(times_us)]
    yield from zip(["heap", "time of a message, few", "time of a message, most"], grows.groups(), growth, strict=True)
    exact = json.loads(read("scale/loggp.json"))
    for name, cell in zip(["L_ns", "g_ns", "G_ns_per_byte"], shown.groups(), strict=True):
        yield name, cell, exact[name]


CHECKS = {"push-vs-pull.md": push_vs_pull, "overload.md": overload, "scale.md": scale}


def offences(name, page, read):
    try:
        figures = list(CHECKS[name](page, read))
    except (KeyError, ValueError) as error:
        return ["%s: not found or not as it should be: %s" % (name, error)]
    if not figures:
        return ["%s: no figure found" % name]
    return ["%s: %s: %s, generated %s" % (name, what, cell, exact) for what, cell, exact in figures if differs(cell, exact)]


def unseen(name, page, read):
    """Each figure of the page with another first digit, which must be an offence. Single digits are left out: as words
    they stand in labels too."""
    for what, cell, _ in CHECKS[name](page, read):
        if len(re.findall(r"\d", cell)) < 2:
            continue
        wrong = ("1" if cell[0] != "1" else "2") + cell[1:]
        planted = re.sub(r"(?<![\d.,])%s(?![\d.,])" % re.escape(cell), wrong, page)
        if not offences(name, planted, read):
            yield "%s: %s: %s is not seen to be wrong" % (name, what, wrong)


def main():
    folder = pathlib.Path(sys.argv[1])
    read = functools.cache(lambda name: (folder / name).read_text(encoding="utf-8"))
    found = [line for name in CHECKS for line in offences(name, read(name), read)]
    found = found or [line for name in CHECKS for line in unseen(name, read(name), read)]
    print("\n".join(found) or "the figures of %s are the generated ones" % ", ".join(CHECKS))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
