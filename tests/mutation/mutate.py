#!/usr/bin/python3
"""Usage: mutate.py COMPILED OUT [--since COMMIT] [--sample N] [--seed S] [--drop FILE]

Copies the sources of the working tree to OUT/source with N mutants (400) of production code in them, each behind a switch
(mutant.h), and writes OUT/mutants.json: number, path, line, kind, text, and what replaces it.
COMPILED holds compile_commands.json. With --since, of lines alone that differ from COMMIT. FILE names sites (PATH:OFFSET)
that a compiler refused. Run it from the root of the tree, with Debian's python3-clang.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys

from clang import cindex
from clang.cindex import CursorKind as Kind

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tidy"))
from changed_code import changed_lines, compiles

FOLDERS = ("base", "device", "driver-shim", "host", "proto")
OPERATORS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-",
             "-": "+", "*": "+", "/": "*", "%": "/", "&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<"}
ASSIGNMENTS = {"+=": "-=", "-=": "+=", "*=": "+=", "|=": "&=", "&=": "|=", "<<=": ">>=", ">>=": "<<=", "^=": "|="}
STEPS = {"++": "--", "--": "++"}
MACRO = re.compile(r"[A-Z][A-Z0-9_]+\(")
CONSTANT = {Kind.STATIC_ASSERT, Kind.ENUM_CONSTANT_DECL, Kind.TEMPLATE_TYPE_PARAMETER, Kind.TEMPLATE_NON_TYPE_PARAMETER}
DECLARED = {Kind.VAR_DECL, Kind.FIELD_DECL, Kind.PARM_DECL, Kind.FUNCTION_DECL, Kind.CXX_METHOD}
LAST_IS_BODY = {Kind.FOR_STMT, Kind.WHILE_STMT, Kind.CXX_FOR_RANGE_STMT, Kind.CASE_STMT, Kind.DEFAULT_STMT}


class Reader:
    """The mutants of one file's part of a translation unit."""

    def __init__(self, path, cursors):
        self.path = path
        self.text = pathlib.Path(path).read_bytes()
        self.found = {}
        for cursor in cursors:
            self.visit(cursor, None)

    def source(self, cursor):
        return self.text[cursor.extent.start.offset:cursor.extent.end.offset].decode()

    def add(self, kind, cursor, replaced, whole=None):
        if replaced is None:
            return
        first, last = cursor.extent.start.offset, cursor.extent.end.offset
        text = self.source(cursor)
        if not text or text != text.strip() or MACRO.match(text):
            return
        self.found[first, last] = {"path": self.path, "line": cursor.extent.start.line, "first": first, "last": last,
                                   "kind": kind, "text": text, "replaced": replaced, "source": self.line_of(first),
                                   "whole": whole or f"(gdx_mutant(@) ? ({replaced}) : ({text}))"}

    def line_of(self, offset):
        return self.text[self.text.rfind(b"\n", 0, offset) + 1:].split(b"\n", 1)[0].decode().strip()

    def operator(self, cursor, left, right):
        """Returns what stands between two operands, without comments: the operator."""
        between = self.text[left.extent.end.offset:right.extent.start.offset].decode()
        return between.strip().rstrip("( \n")if "//" not in between else ""

    def visit(self, cursor, parent):
        kind = cursor.kind
        if kind in CONSTANT or self.is_computed_by_compiler(cursor, parent) or self.source(cursor).startswith("log::debug("):
            return
        children = list(cursor.get_children())
        try:
            self.mutate(cursor, parent, kind, children)
        except (UnicodeDecodeError, ValueError):
            pass
        if kind == Kind.CASE_STMT or self.is_constexpr_if(cursor):
            children = children[1:]
        for child in children:
            self.visit(child, cursor)

    def is_constexpr_if(self, cursor):
        return cursor.kind == Kind.IF_STMT and self.source(cursor).startswith("if constexpr")

    def is_computed_by_compiler(self, cursor, parent):
        """Whether no switch could change it: a constant, a length of an array, an argument of a template."""
        if cursor.kind == Kind.VAR_DECL:
            text = self.source(cursor)
            if re.match(r"(static |inline |thread_local )*constexpr\b", text):
                return True
            lasts = cursor.storage_class == cindex.StorageClass.STATIC or parent is None or parent.kind == Kind.NAMESPACE
            return (lasts or text.startswith("const ")) and all(
                one.kind != Kind.CALL_EXPR and (one.kind != Kind.DECL_REF_EXPR or re.match("k[A-Z]", one.spelling))
                for one in cursor.walk_preorder())
        if parent is None or not cursor.kind.is_expression():
            return False
        if parent.kind in DECLARED and cursor.extent.end.offset <= parent.location.offset:
            return True
        before = self.text[:cursor.extent.start.offset].rstrip()[-1:]
        after = self.text[cursor.extent.end.offset:].lstrip()[:1]
        if parent.kind in DECLARED and before == b"[" and after == b"]":
            return True
        return parent.kind != Kind.BINARY_OPERATOR and (before == b"<" or (before == b"," and after == b">"))

    @staticmethod
    def is_body(cursor, parent):
        """Whether a statement of `parent`, and no condition or step of a loop."""
        inside = list(parent.get_children())
        return (parent.kind == Kind.COMPOUND_STMT or (parent.kind == Kind.IF_STMT and cursor != inside[0]) or
                (parent.kind in LAST_IS_BODY and cursor == inside[-1]))

    def mutate(self, cursor, parent, kind, children):
        is_statement = parent is not None and self.is_body(cursor, parent)
        if kind == Kind.BINARY_OPERATOR and len(children) == 2:
            self.binary(cursor, children, is_statement)
        elif kind == Kind.COMPOUND_ASSIGNMENT_OPERATOR and is_statement and len(children) == 2:
            operator = self.operator(cursor, *children)
            if operator in ASSIGNMENTS:
                other = f"{self.source(children[0])} {ASSIGNMENTS[operator]} {self.source(children[1])}"
                self.add("assignment", cursor, other, f"(gdx_mutant(@) ? (void)({other}) : (void)({self.source(cursor)}))")
        elif kind == Kind.UNARY_OPERATOR and children:
            self.unary(cursor, children[0], is_statement)
        elif kind in (Kind.CALL_EXPR, Kind.CXX_DELETE_EXPR) and is_statement:
            self.delete(cursor)
        elif kind in (Kind.BREAK_STMT, Kind.CONTINUE_STMT) and parent is not None:
            self.delete(cursor)
        elif kind == Kind.CXX_BOOL_LITERAL_EXPR:
            self.add("constant", cursor, {"true": "false", "false": "true"}.get(self.source(cursor)))
        elif kind == Kind.INTEGER_LITERAL:
            text = self.source(cursor)
            if text[:1].isdigit():
                self.add("constant", cursor, f"{text} + 1")
        elif kind in (Kind.IF_STMT, Kind.WHILE_STMT, Kind.CONDITIONAL_OPERATOR) and children and not self.is_constexpr_if(cursor):
            condition = children[0]
            if condition.kind.is_expression():
                text = self.source(condition)
                self.add("condition", condition, f"!({text})", f"(gdx_mutant(@) ? !({text}) : static_cast<bool>({text}))")
        elif kind == Kind.RETURN_STMT and children and children[0].type.get_canonical().kind == cindex.TypeKind.BOOL:
            text = self.source(children[0])
            self.add("returned", children[0], f"!({text})")

    def binary(self, cursor, children, is_statement):
        operator = self.operator(cursor, *children)
        if operator == "=" and is_statement:
            self.delete(cursor)
        pointers = [child.type.get_canonical().kind == cindex.TypeKind.POINTER for child in children]
        if operator in OPERATORS and not (any(pointers) and operator in "*/%&|^") and not (operator == "-" and all(pointers)):
            self.add("operator", cursor, f"({self.source(children[0])}) {OPERATORS[operator]} ({self.source(children[1])})")

    def unary(self, cursor, operand, is_statement):
        text = self.source(cursor)
        if text.startswith("!") and not text.startswith("!="):
            self.add("condition", cursor, f"static_cast<bool>({text[1:]})")
        elif is_statement:
            for step, other in STEPS.items():
                if step in text:
                    self.add("assignment", cursor, text.replace(step, other))
                    break

    def delete(self, cursor):
        text = self.source(cursor)
        self.add("deleted", cursor, "", f"if (gdx_mutant(@)) {{}} else {text}")


def read_unit(work):
    """Returns the mutants of the files `wanted` that this source is the one to be read for."""
    entry, wanted = work
    words = [word for word in shlex.split(entry["command"])[1:] if word not in ("-c", "-o", "-include", "-Winvalid-pch")]
    words = [word for word in words if not word.endswith((".o", ".cpp", ".cu", ".hxx"))]
    index = cindex.Index.create()
    here = os.getcwd()
    os.chdir(entry["directory"])
    try:
        unit = index.parse(entry["file"], args=words + ["-x", "c++"] * entry["file"].endswith(".cu"))
    finally:
        os.chdir(here)
    cursors = {os.path.abspath(path): [] for path in wanted}
    for cursor in unit.cursor.get_children():
        file = cursor.location.file
        if file is not None and file.name in cursors:
            cursors[file.name].append(cursor)
    return [mutant for path in wanted for mutant in Reader(path, cursors[os.path.abspath(path)]).found.values()]


def all_mutants(compiled, base):
    """Returns every mutant of production code; with `base`, of lines that differ from it."""
    commands = {}
    for entry in json.load(open(f"{compiled}/compile_commands.json")):
        commands.setdefault(os.path.relpath(entry["file"]), entry)
    lines = changed_lines(base) if base else None
    tracked = subprocess.run(["git", "ls-files", "--", *FOLDERS], check=True, capture_output=True, text=True).stdout.split()
    wanted = {}
    for path in tracked:
        if path.endswith((".cpp", ".h", ".cu")) and (lines is None or path in lines):
            for source in compiles(path, commands)[:1]:
                wanted.setdefault(source, []).append(path)
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(read_unit, [(commands[source], paths) for source, paths in sorted(wanted.items())], chunksize=1)
        mutants = [mutant for of_unit in found for mutant in of_unit]
    if lines is not None:
        mutants = [one for one in mutants if any(first <= one["line"] <= last for first, last in lines[one["path"]])]
    return sorted(mutants, key=lambda one: (one["path"], one["first"], one["last"]))


def choose(mutants, sample, seed, refused):
    """Returns a sample by chance of mutants whose texts do not overlap, in order, numbered from 1."""
    random.Random(seed).shuffle(mutants)
    taken, chosen = {}, []
    for mutant in mutants:
        others = taken.setdefault(mutant["path"], [])
        if len(chosen) == sample:
            break
        if all(mutant["last"] <= first or last <= mutant["first"] for first, last in others):
            others.append((mutant["first"], mutant["last"]))
            chosen.append(mutant)
    chosen.sort(key=lambda one: (one["path"], one["first"]))
    for number, mutant in enumerate(chosen, 1):
        mutant["number"] = number
    # Numbers stay, so that few files are compiled again.
    return [mutant for mutant in chosen if f'{mutant["path"]}:{mutant["first"]}' not in refused]


def write_tree(out, chosen):
    """Writes OUT/source; files that stay as they are keep their time, so that a build does not read them again."""
    by_path = {}
    for mutant in chosen:
        by_path.setdefault(mutant["path"], []).append(mutant)
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True,
                             text=True).stdout.split("\n")
    for path in filter(os.path.isfile, tracked):
        target = pathlib.Path(out, "source", path)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = pathlib.Path(path).read_bytes()
        for mutant in reversed(by_path.get(path, [])):
            whole = mutant["whole"].replace("@", str(mutant["number"]))
            if "\n" in whole:  # a compiler's messages name lines of the original
                whole += f'\n#line {mutant["line"] + mutant["text"].count(chr(10))}\n'
            text = text[:mutant["first"]] + whole.encode() + text[mutant["last"]:]
        if path in by_path:
            text = b'#include "tests/mutation/mutant.h"\n#line 1\n' + text
        if not target.exists() or target.read_bytes() != text:
            target.write_bytes(text)
            shutil.copymode(path, target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiled")
    parser.add_argument("out")
    parser.add_argument("--since")
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drop", default=os.devnull)
    arguments = parser.parse_args()
    found = pathlib.Path(arguments.out, "found.json")  # of an earlier call on the same tree
    if found.exists():
        mutants = json.loads(found.read_text())
    else:
        mutants = all_mutants(arguments.compiled, arguments.since)
        found.write_text(json.dumps(mutants))
    count = len(mutants)
    refused = set(pathlib.Path(arguments.drop).read_text().split()) if os.path.exists(arguments.drop) else set()
    chosen = choose(mutants, arguments.sample, arguments.seed, refused)
    write_tree(arguments.out, chosen)
    json.dump(chosen, open(f"{arguments.out}/mutants.json", "w"), indent=1)
    print(f"== mutation: {len(chosen)} of {count} mutants")


if __name__ == "__main__":
    main()
