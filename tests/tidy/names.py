#!/usr/bin/env python3
"""Usage: names.py SOURCE_DIR. A name of gdx's own that a page has in code style is a name in the sources, too, so that
a reader can look it up. Decision records name what was there at their time and are left out."""
import pathlib
import re
import subprocess
import sys

SPAN = re.compile(r"`([^`\n]+)`")
# Of gdx: what has `::` or its prefix, constants, and names of types.
NAME = re.compile(r"(?<![\w./<-])(?:\w+(?:::~?\w+)+|gdx_\w+|GDX_\w+|k[A-Z]\w+|[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+)(?![\w*]|\.\w)")
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".txt", ".cmake", ".in", ".pml", ".toml", ""}
# Of systemd's units, and metrics whose names are put together.
EXCEPTIONS = {"SocketMode", "SocketGroup", "gdx_pool_bytes", "gdx_hca_NAME_total"}


def missing(page, words):
    """Yields (line, name) of what the text of a page names and no source has."""
    text = re.sub(r"^```.*?^```", lambda fence: "\n" * fence.group().count("\n"), page, flags=re.M | re.S)
    for span in SPAN.finditer(text):
        for name in NAME.findall(span.group(1)):
            if name not in EXCEPTIONS and any(part.lstrip("~") not in words for part in name.split("::")):
                yield text.count("\n", 0, span.start()) + 1, name


def main():
    root = pathlib.Path(sys.argv[1])
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True).stdout.split()
    files = [root / name for name in listed] or [path for path in root.rglob("*") if "build" not in path.parts]
    words = set()
    for path in files:
        if path.is_file() and path.suffix in SOURCES and path.parent.name != "docs":
            words.update(re.findall(r"\w+", path.read_text(errors="ignore")))
    planted = ["Endpoint::start_no_" "call", "gdx_no_" "put", "kNo" "Status", "NoSuch" "Type"]
    assert [name for _, name in missing("".join(f"`{name}()` `int`" for name in planted), words)] == planted

    found = [f"{path.relative_to(root)}:{line}: no source has '{name}'"
             for path in files if path.suffix == ".md" and not {"adr", "papers"} & set(path.parts)
             for line, name in missing(path.read_text(), words)]
    print("\n".join(found))
    return bool(found)


sys.exit(main())
