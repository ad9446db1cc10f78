#!/usr/bin/env python3
"""Counts the instructions of device calls: instructions.py [--json] [--arch sm_90]... [--check TABLE]

Compiles instructions.cu with nvcc and prints, per kernel and architecture, PTX and SASS. No disassembler is
needed: a SASS instruction is 16 bytes of the kernel's code, and its low 9 bits tell the few opcodes that matter.

What is counted. Every case is compiled twice, as a kernel that makes one call and as one that makes two with
arguments of their own. A *call* is the difference: what one more call costs a kernel, opening and closing the
endpoint left out, fetching and converting its own arguments included.
  path    instructions that a call executes which need not wait: of all ways through the kernel that take no
          function call and no loop, the one with the most doorbells of 8 B, then the most stores, and of those
          the shortest. Predicated instructions count as executed.
          A push loops over its slots and has no path. Its fences are all that stand in the code for the call.
  blueflame  the same with the WQE in the doorbell: the way with the fewest doorbells of 8 B.
  static  all instructions inlined for the call, calls of functions out of line included.
  kernel  the whole kernel of one call with its functions out of line: the number to hold against peers' counts
          of whole kernels.
Loads are those of memory (global, generic, local, shared); kernel parameters are operands.
"""

import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
LOOPS = "push_"
ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]

# Low 9 bits of a SASS instruction, Ampere and later, as found by compiling PTX of one instruction each.
NOP, BRA, CALL_ABS, CALL_REL, EXIT, RET = 0x118, 0x147, 0x143, 0x144, 0x14D, 0x150
BRA_CONDITION = 1 << 27  # a branch on a uniform predicate, or on divergence, which its guard does not show
LOADS = {0x180: "LD", 0x181: "LDG", 0x183: "LDL", 0x184: "LDS"}
STG, MMIO = 0x186, 8  # and, in bits 76 to 79, that a store is one to a device
STORES = {0x185: "ST", STG: "STG", 0x187: "STL", 0x188: "STS"}
ATOMICS = {0x18A: "ATOM", 0x18B: "ATOM.CAS", 0x18E: "RED", 0x1A8: "ATOMG", 0x1A9: "ATOMG.CAS"}
FENCES = {0x192: "MEMBAR"}


class Instruction:
    """One instruction, of either kind, as the search for the fast path needs it."""

    def __init__(self, kind="", target=None, falls_through=True, text=""):
        self.kind = kind  # load, store, atomic, fence, call, exit or nothing
        self.target = target  # index of a branch's target
        self.falls_through = falls_through
        self.text = text
        self.doorbell = kind == "store" and text.startswith("st.mmio")


def branch_offset(low, high, arch):
    """In instructions. Bits 34 to 81, in words; from sm_90 on bits 16 to 23 continue it below."""
    offset = (high & 0x3FFFF) << 30 | low >> 34
    offset -= (offset >> 47 & 1) << 48
    if arch != "sm_80":
        offset = offset << 8 | low >> 16 & 0xFF
    return offset // 4


def sass_instruction(low, high, index, arch):
    opcode = low & 0x1FF
    always = low >> 12 & 0xF == 7 and not (opcode == BRA and high & BRA_CONDITION)
    if opcode == BRA:
        return Instruction("branch", index + 1 + branch_offset(low, high, arch), not always)
    if opcode in (CALL_ABS, CALL_REL):
        return Instruction("call")
    if opcode in (EXIT, RET):
        return Instruction("exit", None, not always)
    for kind, table in (("load", LOADS), ("store", STORES), ("atomic", ATOMICS), ("fence", FENCES)):
        if opcode in table:
            return Instruction(kind, text="st.mmio" if opcode == STG and high >> 12 & 0xF == MMIO else "")
    return Instruction("nop" if opcode == NOP else "")


def elf_sections(image):
    """(name, bytes) of every section of a 64-bit little-endian ELF file."""
    offset, = struct.unpack_from("<Q", image, 0x28)
    _, count_, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * 64) for i in range(count_)]
    names = image[headers[names_index][4]:]
    return [(names[h[0]:names.index(b"\0", h[0])].decode(), image[h[4]:h[4] + h[5]]) for h in headers]


def sass_kernels(cubin, arch):
    """Kernel to (its own instructions, how many it has with its functions out of line)."""
    sections = elf_sections(cubin)
    symbols, strings = (dict(sections)[name] for name in (".symtab", ".strtab"))
    functions = {}  # section to where its functions begin
    for at in range(0, len(symbols), 24):
        name_at, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", symbols, at)
        if info & 0xF == 2:
            name = strings[name_at:strings.index(b"\0", name_at)].decode()
            functions.setdefault(sections[section][0], {})[name] = value // 16
    kernels = {}
    for section, code in sections:
        kernel = section[len(".text."):]
        if not section.startswith(".text.") or kernel not in functions[section]:
            continue
        whole = [sass_instruction(*struct.unpack_from("<QQ", code, at), at // 16, arch)
                 for at in range(0, len(code), 16)]
        others = [begin for name, begin in functions[section].items() if name != kernel]
        own = without_padding(whole[:min(others, default=len(whole))])
        kernels[kernel] = (own, len(own) + sum(i.kind != "nop" for i in whole[min(others, default=len(whole)):]))
    return kernels


def without_padding(code):
    """Behind the last instruction stands a branch to itself, which nothing reaches, and NOPs."""
    end = len(code)
    while code[end - 1].kind == "nop":
        end -= 1
    if code[end - 1].kind == "branch" and code[end - 1].target == end - 1:
        end -= 1
    return code[:end]


def ptx_instruction(text):
    predicated = text.startswith("@")
    body = text.split(None, 1)[1] if predicated else text
    opcode = body.split()[0]
    if opcode.split(".")[0] == "bra":
        return Instruction("branch", body.split()[-1], predicated, text)
    if opcode.startswith("call"):
        return Instruction("call", None, True, text)
    if opcode.split(".")[0] in ("ret", "exit", "trap"):
        return Instruction("exit", None, predicated, text)
    if ".param" in opcode:
        return Instruction("", None, True, text)
    for kind, names in (("load", ("ld", "ldu")), ("store", ("st",)), ("atomic", ("atom", "red")),
                        ("fence", ("fence", "membar"))):
        if opcode.split(".")[0] in names:
            return Instruction(kind, None, True, text)
    return Instruction("", None, True, text)


def ptx_kernels(ptx):
    """Kernel to its instructions."""
    ptx = re.sub(r"//[^\n]*", "", ptx)
    kernels = {}
    for match in re.finditer(r"\.visible \.entry (\w+)\s*\(.*?\)[^{]*\{(.*?)\n\}", ptx, re.S):
        code, labels = [], {}
        for statement in re.split(r"[;{}]|(?<=:)\s", match[2]):
            statement = " ".join(statement.split())
            if statement.endswith(":"):
                labels[statement[:-1]] = len(code)
            elif statement and not statement.startswith((".", ")", "(", "_")):
                code.append(ptx_instruction(statement))
        for instruction in code:
            if isinstance(instruction.target, str):
                instruction.target = labels[instruction.target]
        kernels[match[1]] = code
    return kernels


def fast_path(code, blueflame=False):
    """The instructions of the way through the kernel that the file's head describes."""
    unknown, underway = object(), object()
    best = [unknown] * len(code)  # (doorbells, stores, -length, next index) from each instruction to the end
    doorbell_worth = -1 if blueflame else 1

    def followers(at):
        if code[at].kind == "call":
            return
        if code[at].falls_through and at + 1 < len(code):
            yield at + 1
        if code[at].kind == "branch":
            yield code[at].target

    def best_way(at):
        ways = [(*best[to][:3], to) for to in followers(at) if isinstance(best[to], tuple)]
        if code[at].kind == "exit":
            ways.append((0, 0, 0, None))
        if not ways:
            return None
        doorbells, stores, negative_length, following = max(ways, key=lambda way: way[:3])
        return (doorbells + doorbell_worth * code[at].doorbell, stores + (code[at].kind == "store"),
                negative_length - 1, following)

    stack = [0]
    while stack:  # depth first; a way back into what is underway is a loop, and not taken
        at = stack[-1]
        best[at] = underway
        ahead = [to for to in followers(at) if best[to] is unknown]
        if ahead:
            stack.append(ahead[0])
        else:
            best[at] = best_way(at)
            stack.pop()
    if best[0] is None:
        raise SystemExit("instructions.py: a kernel has no way through that takes no call")
    path, at = [], 0
    while at is not None:
        path.append(code[at])
        at = best[at][3]
    return path


def count(instructions, kind):
    return sum(1 for i in instructions if i.kind == kind)


def blueflame(one, two):
    """The same with the WQE in the doorbell: length, loads, atomics. Zeros where a call never does that."""
    path_one, path_two = fast_path(one, True), fast_path(two, True)
    found = count(path_two, "store") > count(fast_path(two), "store")
    return {"blueflame_path": len(path_two) - len(path_one) if found else 0,
            **{"blueflame_%ss" % kind: count(path_two, kind) - count(path_one, kind) if found else 0
               for kind in ("load", "atomic")}}


def count_doorbells(code):
    return sum(i.doorbell for i in fast_path(code))


def tally(name, one, two):
    """What the second call adds."""
    if name.startswith(LOOPS):
        return {"static": len(two) - len(one), "fences": count(two, "fence") - count(one, "fence")}
    path_one, path_two = fast_path(one), fast_path(two)
    added = {"path": len(path_two) - len(path_one),
             **blueflame(one, two),
             "doorbells": sum(i.doorbell for i in path_two) - sum(i.doorbell for i in path_one)}
    for kind in ("load", "store", "atomic", "fence"):
        added[kind + "s"] = count(path_two, kind) - count(path_one, kind)
    added["static"] = len(two) - len(one)
    return added


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit("instructions.py: %s failed:\n%s" % (command[0], done.stdout + done.stderr))
    return done.stdout + done.stderr


def compile_for(arch, source, folder):
    """PTX, cubin, and what ptxas says of each kernel."""
    ptx, cubin = os.path.join(folder, arch + ".ptx"), os.path.join(folder, arch + ".cubin")
    run(["nvcc", "-ptx", "-arch=" + arch, "-O3", "-std=c++20", "--expt-relaxed-constexpr", "-Werror=all-warnings",
         "-I", ROOT, source, "-o", ptx])
    ptxas = os.path.join(os.path.dirname(os.path.realpath(shutil.which("nvcc"))), "ptxas")
    said = run([ptxas, "-v", "-O3", "-arch=" + arch, ptx, "-o", cubin])
    resources = {}
    for part in said.split("Compiling entry function ")[1:]:
        name = re.match(r"'(\w+)'", part)[1]
        used = part.split("Used ", 1)[1].splitlines()[0]
        stack = re.search(r"(\d+) bytes cumulative stack size", used)
        own = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        resources[name] = {"registers": int(used.split()[0]),
                           "stack_bytes": max(int(stack[1]) if stack else 0, int(own[1])),
                           "spill_bytes": int(own[2]) + int(own[3])}
    with open(ptx, encoding="utf-8") as text, open(cubin, "rb") as image:
        return ptx_kernels(text.read()), sass_kernels(image.read(), arch), resources


def measure(arch):
    with tempfile.TemporaryDirectory() as folder:
        ptx, sass, resources = compile_for(arch, os.path.join(HERE, "instructions.cu"), folder)
    table = {}
    for one in sorted(name for name in ptx if name.endswith("_1")):
        two = one[:-2] + "_2"
        if not one.startswith(LOOPS) and count_doorbells(ptx[one]) != count_doorbells(sass[one][0]):
            raise SystemExit("instructions.py: %s on %s: doorbells in PTX and in SASS differ: is a SASS instruction "
                             "misread?" % (one, arch))
        table[one[:-2]] = {
            "ptx": tally(one, ptx[one], ptx[two]),
            "sass": tally(one, sass[one][0], sass[two][0]),
            "kernel_sass": sass[one][1],
            **{key: max(resources[one][key], resources[two][key]) for key in resources[one]},
        }
    return table


def print_table(arch, table):
    columns = [("ptx", "path"), ("ptx", "blueflame_path"), ("ptx", "static"), ("sass", "path"), ("sass", "blueflame_path"), ("sass", "static"),
               ("sass", "loads"), ("sass", "stores"), ("sass", "atomics"), ("sass", "fences"), ("kernel_sass",),
               ("registers",), ("stack_bytes",)]
    print("%-24s  ------- PTX -------  ------ SASS --------  ------- on the path --------" % arch)
    print("%-24s %6s %6s %6s %6s %6s %6s %6s %6s %6s %6s %6s %6s %6s" % (
        "", "path", "bluefl", "static", "path", "bluefl", "static", "loads", "stores", "atomic", "fences", "kernel", "regs", "stack"))
    for name, row in table.items():
        print("%-24s %s" % (name, " ".join("%6s" % cell(row, path) for path in columns)))


def cell(row, path):
    """A number, or - where nothing is counted: a push has no path, what has one doorbell for many no BlueFlame."""
    for step in path:
        row = row.get(step) if row is not None else None
    return "-" if row is None or path[-1] == "blueflame_path" and row == 0 else row


# (cases, what of them, at most, on which architectures): what device calls are built to. Numbers of instructions
# and registers are bars on sm_90; elsewhere the kept table alone watches them.
PUTS = ("put_thread_gpu", "put_thread_host")
BARS = [
    (PUTS, ("sass", "path"), 50, ("sm_90",)),
    (PUTS, ("ptx", "path"), 60, ("sm_90",)),
    (PUTS, ("sass", "loads"), 0, ARCHITECTURES),
    (PUTS, ("sass", "atomics"), 0, ARCHITECTURES),
    (PUTS, ("registers",), 32, ("sm_90",)),
    (PUTS, ("stack_bytes",), 0, ARCHITECTURES),
    (("shared_put_gpu", "shared_put_host"), ("sass", "path"), 130, ("sm_90",)),
    (("shared_put_gpu", "shared_put_host"), ("sass", "atomics"), 1, ARCHITECTURES),
    (("team_put_gpu", "team_put_host"), ("sass", "path"), 110, ("sm_90",)),
    (("put_32_warp_gpu", "put_32_warp_host"), ("sass", "path"), 70, ("sm_90",)),
    (("put_signal_thread_gpu", "put_signal_thread_host"), ("sass", "path"), 80, ("sm_90",)),
    # A warp's with BlueFlame, by TMA. A block's has the load of its barrier, and a thread rings plainly.
    (("put_warp_gpu",), ("sass", "blueflame_path"), 106, ("sm_90",)),
    (("put_block_host",), ("sass", "blueflame_path"), 90, ("sm_90",)),
    (("put_warp_gpu",), ("sass", "blueflame_loads"), 0, ("sm_90", "sm_100")),
    (("put_warp_gpu", "put_block_host"), ("sass", "blueflame_atomics"), 0, ("sm_90", "sm_100")),
]


def value_at(row, path):
    for step in path:
        row = row.get(step, 0)
    return row


def broken_bars(kernels):
    for names, path, limit, architectures in BARS:
        for arch in architectures:
            for name in names:
                value = value_at(kernels[arch][name], path)
                if path[-1] == "blueflame_path" and value == 0:
                    yield "%s on %s: %s: no such way was found" % (name, arch, " ".join(path))
                if value > limit:
                    yield "%s on %s: %s is %d, at most %d" % (name, arch, " ".join(path), value, limit)


def regressions(kept, fresh):
    """What has grown since the table was kept. Fewer instructions are no offence, a missing case is one."""
    watched = [("ptx", "path"), ("ptx", "static"), ("registers",), ("stack_bytes",), ("spill_bytes",)]
    watched += [("sass", what) for what in ("path", "static", "loads", "atomics", "fences", "blueflame_path")]
    watched += [("ptx", "blueflame_path")]
    for arch in sorted(set(kept) | set(fresh)):
        for name in sorted(set(kept.get(arch, {})) | set(fresh.get(arch, {}))):
            if name not in kept.get(arch, {}) or name not in fresh.get(arch, {}):
                yield "%s on %s: in one table only" % (name, arch)
                continue
            for path in watched:
                before, now = value_at(kept[arch][name], path), value_at(fresh[arch][name], path)
                if path[-1] == "blueflame_path" and before > 0 and now == 0:
                    yield "%s on %s: %s: no such way was found" % (name, arch, " ".join(path))
                if now > before:
                    yield "%s on %s: %s was %d, is %d" % (name, arch, " ".join(path), before, now)


def check(kept, fresh):
    offences = list(broken_bars(fresh["kernels"]))
    if kept["nvcc"] == fresh["nvcc"]:
        offences += regressions(kept["kernels"], fresh["kernels"])
    else:
        print("the table was kept with nvcc %s, this is %s: only the bars were checked" % (kept["nvcc"], fresh["nvcc"]))
    for offence in offences:
        print(offence)
    if offences:
        print("if that is meant: ./run bench instructions --json > perf/results/instructions.json")
    return 1 if offences else 0


def counted(architectures):
    if shutil.which("nvcc") is None:
        print("SKIPPED: nothing to count with, no nvcc in PATH: install the CUDA Toolkit", file=sys.stderr)
        sys.exit(77)
    known = run(["nvcc", "--list-gpu-arch"]).split()
    missing = [arch for arch in architectures if arch.replace("sm", "compute") not in known]
    if missing:
        print("SKIPPED: this nvcc cannot compile for %s: install a newer CUDA Toolkit" % ", ".join(missing), file=sys.stderr)
        sys.exit(77)
    version = re.search(r"V([\d.]+)", run(["nvcc", "--version"]))[1]
    return {"nvcc": version, "kernels": {arch: measure(arch) for arch in architectures}}


class Options(argparse.ArgumentParser):
    def error(self, message):
        refuse("%s; see --help" % message)


def refuse(message):
    print("instructions.py: %s" % message, file=sys.stderr)
    sys.exit(2)


def kept_table(path):
    try:
        with open(path, encoding="utf-8") as text:
            table = json.load(text)
        for kernels in table["kernels"].values():
            kernels.keys()
        return {"nvcc": table["nvcc"], "kernels": table["kernels"]}
    except OSError as error:
        refuse("cannot read %s: %s; make one with --json" % (path, error.strerror))
    except (ValueError, KeyError, TypeError, AttributeError):
        refuse("%s is no table of counts; make one with --json" % path)


def main():
    options = Options(description="Instructions of device calls, counted.")
    options.add_argument("--json", action="store_true", help="print the table as it is kept")
    options.add_argument("--arch", action="append", choices=ARCHITECTURES, help="sm_80, sm_90 or sm_100; default all")
    options.add_argument("--check", metavar="TABLE", help="fail where a count is above a bar or above the kept table")
    options.add_argument("--fresh", metavar="TABLE", help="take the fresh counts from a file of --json")
    arguments = options.parse_args()
    if arguments.fresh:
        fresh = kept_table(arguments.fresh)
    else:
        fresh = counted(arguments.arch or ARCHITECTURES)
    if arguments.check:
        sys.exit(check(kept_table(arguments.check), fresh))
    if arguments.json:
        print(json.dumps(fresh, indent=1))
    else:
        for arch, table in fresh["kernels"].items():
            print_table(arch, table)


if __name__ == "__main__":
    main()
