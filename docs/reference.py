#!/usr/bin/env python3
"""Writes reference-device.md and reference-host.md from the public headers: reference.py [--check]

--check writes nothing. It fails when a page is not what this script would write.
A header's first comment introduces it. A comment describes the declarations below it, up to the next blank line or
comment. Public members follow their class. Namespaces impl and detail are left out.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = {
    "device": ["device/team.h", "device/collectives/collectives.h", "device/collectives/reduce.h",
               "device/collectives/through_piece.h", "device/collectives/on_stream.h", "device/exec/cuda_launch.h",
               "device/exec/cpu_stream.h", "device/export_kernel.h", "device/exec/export_kernel.h",
               "device/endpoint.h", "device/test.h", "device/options.h", "device/exec/scope.h", "proto/gpu/memory.h", "proto/gpu/queue.h", "proto/status.h"],
    "host": ["host/team/team_options.h", "host/queue/endpoint_address.h", "host/topo/topology.h"],
}
# The one header whose namespace exec is public: what a program launches by. The CPU layer has the same calls.
LAUNCH = "device/exec/cuda_launch.h"
LABELS = r"(Errors|Threads|Ordering|Ownership|Source|Layouts?)(?=[^.:;]{0,60}: )"


def host_headers():
    """The headers that host/gdx.h hands out, and those whose types they take and return."""
    exported = re.findall(r'#include "([^"]+)"', (ROOT / "host/gdx.h").read_text())
    return ["host/gdx.h", "base/result.h"] + exported + PAGES["host"]


def comment_text(line):
    return re.sub(r"^\s*// ?", "", line.rstrip())


def prose(lines):
    """Markdown of a comment: deeper lines are code, "- " begins a list, a label begins a paragraph."""
    blocks, kind = [], None
    for line in lines:
        text = line.strip()
        if not text:
            new = None
        elif text.startswith("- "):
            new = "list"
        elif line.startswith(" " * 2) and not (kind == "list" and not line.startswith(" " * 5)):
            new = "code"
        else:
            new = kind if kind == "list" and line.startswith(" ") else "text"
        if new is None:
            kind = None
            if blocks and blocks[-1][0] == "code":
                blocks[-1][1].append("")
        elif new == kind and not (new == "list" and text.startswith("- ")):
            blocks[-1][1].append(line if new == "code" else text)
        elif new == "code" and blocks and blocks[-1][0] == "code":
            kind = new
            blocks[-1][1].append(line)
        else:
            kind = new
            blocks.append((new, [line if new == "code" else text]))
    out = []
    for block, content in blocks:
        if block == "code":
            out.append("```\n" + textwrap.dedent("\n".join(content)).strip("\n") + "\n```")
            continue
        text = escaped(" ".join(content))
        if block == "text":
            parts = re.split(r"(?<=\. )(?=%s)" % LABELS.replace("(Errors", "(?:Errors"), text)
            out += [wrapped(re.sub("^" + LABELS + r"([^.:;]{0,60}): ", r"**\1\2:** ", part.strip())) for part in parts]
        else:
            out.append(wrapped(text, "  "))
    joined = ""
    for i, part in enumerate(out):
        both_lists = i > 0 and part.startswith("- ") and out[i - 1].startswith("- ")
        joined += ("\n" if both_lists else "\n\n" if i else "") + part
    return joined


def wrapped(text, indent=""):
    return textwrap.fill(text, 119, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def escaped(text):
    """Outside of code spans < would begin a tag, and * an emphasis."""
    parts = text.split("`")
    return "`".join(p if i % 2 else re.sub(r"([<*])", r"\\\1", p) for i, p in enumerate(parts))


class Scanner:
    """Lines of a header, taken as comments and whole declarations."""

    def __init__(self, lines):
        self.lines = lines
        self.at = 0

    def declaration(self):
        """(its lines without a body, lines of its body), from the line at hand on."""
        taken, depth, angle = [], 0, 0
        while self.at < len(self.lines):
            line = self.lines[self.at]
            code = re.sub(r'"(\\.|[^"\\])*"|//.*', lambda m: " " * len(m[0]), line)
            for i, c in enumerate(code):
                depth += c in "([" or 0
                depth -= c in ")]" or 0
                starts_body = c == "{" and depth == 0 and not re.search(r"(=|return)\s*$|=.*\w$", code[:i].strip())
                if starts_body:
                    head, body = taken + [line[:i].rstrip()], self.body(i)
                    if match := re.search(r"\}\s*(//.*)$", self.lines[self.at - 1]):
                        head[-1] += ";  " + match[1]
                    return head, body
                if c == "{":
                    depth += 1
                if c == "}":
                    depth -= 1
                if c == ";" and depth == 0:
                    self.at += 1
                    return taken + [line], None
            taken.append(line)
            self.at += 1
        return taken, None

    def body(self, column):
        """Lines between the brace at hand and its partner."""
        depth, inside = 0, []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            code = re.sub(r'"(\\.|[^"\\])*"|\'.\'|//.*', lambda m: " " * len(m[0]), line)
            begin = column if not inside and depth == 0 else 0
            depth += code[begin:].count("{") - code[begin:].count("}")
            inside.append(line)
            self.at += 1
            if depth == 0:
                return inside[1:-1] if len(inside) > 1 else []
        raise SystemExit("reference.py: a brace without a partner")


def cleaned(lines):
    """A declaration as its caller needs it: no body, no initialisers, no macros of ours."""
    out, cut = [], 0
    for line in textwrap.dedent("\n".join(lines)).split("\n"):
        short = re.sub(r"\bGDX_DEVICE |\[\[nodiscard\]\] (inline )?|^inline (?!constexpr)", "", line)
        if line[:1] == " " and cut:
            short = line[min(cut, len(line) - len(line.lstrip())):]
        elif short != line:
            cut = len(line) - len(short)
        out.append(short.rstrip())
    text = re.sub(r"\)\s*:\s.*$", ")", "\n".join(out), flags=re.S) if re.search(r"\)\s*:\s+\w+\(", "\n".join(out)) else "\n".join(out)
    return text if re.search(r";(\s*//.*)?$", text) else text + ";"


def name_of(declaration):
    flat = re.sub(r"template <.*?>\n", "", re.sub(r"//[^\n]*", "", declaration), flags=re.S)
    if match := re.match(r"(?:enum class|struct|class) (\w+)", flat):
        return match[1]
    if match := re.search(r"\b(operator\W+|~?\w+)\(", flat):
        return match[1]
    match = re.search(r"(\w+)(\[\])?\s*(=|;|\{)", flat)
    return match[1] if match else flat.strip().rstrip(";")


def is_left_out(declaration):
    return bool(re.search(r"= delete;|^using gdx::|static_assert|^(class|struct|enum class) \w+( : [\w:]+)?;|^using .*::expected;|^friend |^using Open =|^Status status_of\(",
                          declaration.strip()) or re.match(r"(\w+)(& operator=)?\((const )?\w+&&?.*\)", declaration.strip())
                and re.search(r"noexcept|= default", declaration) or re.match(r"\w+& operator=", declaration.strip()))


def inherited(name, base):
    """The declaration behind `using Open::name;`."""
    for header in sorted((ROOT / "device/impl").glob("open_*.h")):
        text = header.read_text()
        if "class %s {" % base not in text:
            continue
        if match := re.search(r"^  GDX_DEVICE ([^{\n]*\b%s\([^)]*\)( const)?)" % name, text, re.M):
            return match[1] + ";"
    raise SystemExit("reference.py: %s has no %s" % (base, name))


class Entry:
    def __init__(self, comment, declarations):
        self.comment = comment
        self.declarations = declarations
        self.members = []


def entries_of(lines, base=None):
    """Entries of a namespace's or a class's lines, in their order."""
    scan, found, comment, joins, public = Scanner(lines), [], [], False, True
    while scan.at < len(lines):
        line = lines[scan.at]
        text = line.strip()
        if re.match(r"(private|protected|public):", text):
            public, comment, joins = text.startswith("public"), [], False
            scan.at += 1
        elif text.startswith("//"):
            comment = comment + [comment_text(line)]
            joins = False
            scan.at += 1
        elif not text or text.startswith("#"):
            if comment and found is not None and not text:
                found.append(Entry(comment, []))
            comment, joins = [], False
            scan.at += 1
        else:
            begin = scan.at
            head, body = scan.declaration()
            if scan.at == begin:
                scan.at += 1
            said, comment = comment, []
            if not public:
                continue
            first = " ".join(part.strip() for part in head)
            if match := re.match(r"(inline )?namespace ?([\w:]*)", first):
                if not re.search(r"impl|detail|exec|^$", match[2]):
                    found += entries_of(body)
                continue
            if first.startswith(("struct", "enum")) and body is not None:
                whole = textwrap.dedent("\n".join(lines[begin:scan.at])).split("\n")
                entry = Entry(said, [without_private(whole)])
            elif re.match(r"(template <.*> ?)?class ", first) and body is not None:
                entry = Entry(said, [re.sub(r" : private .*", "", cleaned(head).rstrip(";"), flags=re.S) + ";"])
                derived = re.search(r"private impl::(\w+)<", first)
                entry.members = entries_of(body, derived and derived[1])
            else:
                declaration = cleaned(head)
                if match := re.match(r"using Open::(\w+);", declaration):
                    declaration = inherited(match[1], base)
                if is_left_out(declaration):
                    continue
                if declaration.startswith("~") and not said and not joins:
                    continue
                if joins and not said and (not found[-1].comment or declaration.startswith(("~", "inline constexpr"))):
                    found[-1].declarations.append(declaration)
                    continue
                entry = Entry(said, [declaration])
            found.append(entry)
            joins = True
    return found


def without_private(lines):
    text = "\n".join(lines)
    text = re.sub(r"\[\[nodiscard\]\] ", "", text)
    return re.sub(r"\n\s*private:.*?(?=\n\};)", "", text, flags=re.S)


def written(entry, level):
    out = ""
    if not entry.declarations:
        return "\n" + prose(entry.comment) + "\n"
    name = name_of(entry.declarations[0])
    if not entry.declarations[0].startswith("inline constexpr"):
        out += "\n%s `%s`\n" % ("#" * level, name)
    out += "\n```cpp\n" + "\n".join(entry.declarations) + "\n```\n"
    if entry.comment:
        out += "\n" + prose(entry.comment) + "\n"
    for member in entry.members:
        out += written(member, level + 1)
    return out


def macros_of(text):
    """(comment, name) of macros that a comment describes."""
    for match in re.finditer(r"((?:^//.*\n)+)#define (\w+\([^)]*\))", text, re.M):
        yield Entry([comment_text(line) for line in match[1].splitlines()], [match[2]])


def without_macros(text):
    text = re.sub(r"(?:^//[^\n]*\n)*^#define(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
    return [line for line in text.split("\n") if not line.startswith("#")]


def header_part(header, text):
    lines = text.split("\n")
    end = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    out = "\n## [%s](../%s)\n\n" % (header, header)
    out += prose([comment_text(line) for line in lines[:end]]) + "\n"
    for entry in entries_of(without_macros("\n".join(lines[end:]))):
        out += written(entry, 3)
    for macro in macros_of(text):
        out += "\n### `%s`\n\n%s\n" % (macro.declarations[0], prose(macro.comment))
    return out


def page(kind, read):
    headers = PAGES["device"] if kind == "device" else host_headers()
    out = "# Reference: %s\n\n" % {"device": "calls of a kernel", "host": "calls of the host"}[kind]
    out += wrapped("Declarations and comments of the public headers. [`reference.py`](reference.py) writes this page: change "
                   "the header, then run `python3 docs/reference.py`.") + "\n\n"
    if kind == "device":
        out += wrapped("Calls return [`Status`](#status). Its groups tell the parts that are still usable. The other "
                       "side: [reference-host.md](reference-host.md).") + "\n\n"
    else:
        out += wrapped("Calls that can fail return [`Result`](#result): a value, or a `Status` and a message. Errors are "
                       "values of [`Status`](reference-device.md#status). The other side: "
                       "[reference-device.md](reference-device.md).") + "\n\n"
    for header in headers:
        out += "- [%s](#%s)\n" % (header, re.sub(r"[^\w-]", "", header))
    for header in headers:
        out += header_part(header, read(header))
    return re.sub(r"\n{3,}", "\n\n", out)


def read_header(header):
    text = (ROOT / header).read_text()
    return text.replace("namespace gdx::exec {", "namespace gdx {") if header == LAUNCH else text


def returns_errors(declaration):
    """Is this a function whose caller needs to know its errors?"""
    flat = re.sub(r"^template <.*?>\n", "", declaration, flags=re.S)
    return bool(re.match(r"(static )?(Status|Result<.*>) \w+\(", flat)) and name_of(declaration) != "status"


def without_errors(header, text):
    """Functions of a header whose comments are silent on errors."""
    found = entries_of(without_macros(text))
    for entry in found + [member for one in found for member in one.members]:
        for declaration in entry.declarations:
            if returns_errors(declaration) and not re.search(r"\b[Ee]rrors\b", " ".join(entry.comment)):
                yield "%s: %s" % (header, name_of(declaration))


def check():
    """Pages are current and whole, and a changed or lost comment is seen."""
    for kind in ("device", "host"):
        kept = (ROOT / ("docs/reference-%s.md" % kind)).read_text()
        if kept != page(kind, read_header):
            sys.exit("docs/reference-%s.md is not what the headers say now: python3 docs/reference.py" % kind)
        headers = PAGES["device"] if kind == "device" else host_headers()
        for header in headers:
            text = read_header(header)
            for call in re.findall(r"^using gdx::(\w+);", text, re.M):
                if "\n### `%s`\n" % call not in header_part(header, text):
                    sys.exit("docs/reference-%s.md lacks %s of %s" % (kind, call, header))
            if silent := list(without_errors(header, text)):
                sys.exit("comments without Errors: " + ", ".join(silent))
            planted = re.sub(r"^(// \w)", r"\1x", text, count=1, flags=re.M)
            if header_part(header, planted) == header_part(header, text):
                sys.exit("the check does not see a changed comment of %s" % header)


if sys.argv[1:] == ["--check"]:
    check()
elif sys.argv[1:]:
    sys.exit("usage: reference.py [--check]")
else:
    for which in ("device", "host"):
        (ROOT / ("docs/reference-%s.md" % which)).write_text(page(which, read_header))
