"""Holds uverbs_table.txt against the kernel's headers and against the software HCA that this process runs on.

Usage: uverbs_table.py TABLE headers FOLDER    FOLDER has rdma/ib_user_ioctl_cmds.h
       uverbs_table.py TABLE hca
"""
import ctypes
import errno
import fcntl
import os
import re
import struct
import sys

RDMA_VERBS_IOCTL = 0xC0181B01
MLX5 = 1  # RDMA_DRIVER_MLX5
INVOKE_WRITE, GET_CONTEXT = 0, 3
WRITE_CMD, UHW_IN, UHW_OUT = 2, 0x1000, 0x1001
MANDATORY = 1
REFUSED = {"M": errno.EPROTONOSUPPORT, "A": errno.EPROTONOSUPPORT, "W": errno.EOPNOTSUPP}

HEADERS = ("ib_user_ioctl_cmds.h", "mlx5_user_ioctl_cmds.h", "ib_user_verbs.h")
# Column of the table with an enumerator's value.
COLUMNS = ((re.compile(r"\w+_OBJECT_\w+"), 0), (re.compile(r"\w+_METHOD_\w+"), 1), (re.compile(r"\w+_ATTR_\w+"), 2),
           (re.compile(r"IB_USER_VERBS_(EX_)?CMD_\w+"), 1))
# Values, though in headers that hold ids besides.
NO_IDS = ("mlx5_ib_create_flow_flags", "mlx5_ib_flow_type")
# Starts of ranges of ids, in Linux 6.12 and later.
RANGES = ("UVERBS_ID_DRIVER_NS", "UVERBS_ID_DRIVER_NS_WITH_UHW")


class Row:
    def __init__(self, number, line):
        words, _, self.reason = (part.strip() for part in line.partition("|"))
        *ids, self.verdict, self.name = words.split()
        self.number = number
        self.write = ids[0] == "write"
        self.ids = tuple(None if each in ("-", "write") else int(each, 0) for each in ids)
        if len(ids) != 3 or self.verdict not in ("ok", *REFUSED) or (self.verdict == "ok") == bool(self.reason):
            sys.exit(f"FAILED: line {number} of the table: three ids, a verdict, a name, and why not")


def read_table(path):
    with open(path) as table:
        return [Row(number, line) for number, line in enumerate(table, 1) if line.strip() and line[0] != "#"]


def enumerators(text, known):
    """Name and value of every enumerator but those of NO_IDS and RANGES. `known` gathers the values."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    for name, value in re.findall(r"#define\s+(\w+)\s+(\w+)\s*$", text, flags=re.M):
        if value.isdigit() or value in known:
            known[name] = int(value) if value.isdigit() else known[value]
    for kind, body in re.findall(r"enum\s*(\w*)\s*\{(.*?)\}", text, flags=re.S):
        value = -1
        for each in filter(None, (part.strip() for part in body.split(","))):
            name, _, expression = (part.strip() for part in each.partition("="))
            # (1U << UVERBS_ID_NS_SHIFT), another's name, a number
            terms = [int(term, 0) if term[0].isdigit() else known.get(term)
                     for term in re.sub(r"\b(\d\w*?)U?L*\b", r"\1", expression.strip("()")).split(" << ") if term]
            if None in terms or len(terms) > 2:
                sys.exit(f"FAILED: cannot read the value of {name}: {expression}")
            value = value + 1 if not terms else terms[0] << (terms[1] if len(terms) == 2 else 0)
            known[name] = value
            if kind not in NO_IDS and name not in RANGES:
                yield name, value


def check_headers(table, folder):
    known = {"UVERBS_UDATA_DRIVER_DATA_FLAG": 0x1000}
    found = 0
    for header in HEADERS:
        with open(os.path.join(folder, "rdma", header)) as text:
            for name, value in enumerators(text.read(), known):
                column = next((column for pattern, column in COLUMNS if pattern.fullmatch(name)), None)
                if column is None:
                    # The commands' structures and their values are in one header.
                    if header.endswith("_cmds.h"):
                        yield f"{header} names {name} ({value:#06x}), which is no id that uverbs_table.py knows"
                    continue
                found += 1
                if name.startswith("IB_USER_VERBS_EX"):
                    value |= 0x80000000  # IB_USER_VERBS_CMD_FLAG_EXTENDED
                rows = [row for row in table if row.name == name]
                if not rows:
                    yield f"{header} names {name} ({value:#06x}), for which uverbs_table.txt has no row"
                for row in rows:
                    if row.ids[column] != value:
                        yield f"line {row.number} of the table: {name} is {value:#06x} in {header}"
    print(f"{found} ids in {folder}")
    if found < 200:
        yield f"{folder} has only {found} ids: are these the kernel's headers?"


class Hca:
    def __init__(self):
        self.fd = os.open("/dev/infiniband/uverbs0", os.O_RDWR)
        request, answer = ctypes.create_string_buffer(64), ctypes.create_string_buffer(256)
        # As libmlx5 does: struct mlx5_ib_alloc_ucontext_req_v2.
        error = self.send(0, GET_CONTEXT, (UHW_IN, 32, ctypes.addressof(request)),
                          (UHW_OUT, 128, ctypes.addressof(answer)))
        if error:
            sys.exit(f"FAILED: no context: {os.strerror(error)}")

    def send(self, thing, method, *attributes):
        """The errno that a request of these attributes is answered with."""
        body = b"".join(struct.pack("=HHHHQ", at, length, MANDATORY, 0, data) for at, length, data in attributes)
        header = struct.pack("=HHHHQII", 24 + len(body), thing, method, len(attributes), 0, MLX5, 0)
        try:
            fcntl.ioctl(self.fd, RDMA_VERBS_IOCTL, bytearray(header + body))
        except OSError as refusal:
            return refusal.errno
        return 0

    def error_of(self, row):
        """0 where the id is handled: nothing is asked for that could be done, so what is known has another errno."""
        thing, method, attribute = row.ids
        if row.write:
            error = self.send(0, INVOKE_WRITE, (WRITE_CMD, 8, method))
            return 0 if error == errno.ENOSPC else error
        if method is None:
            return None
        if attribute is None:
            error = self.send(thing, method)
            return error if error == errno.EPROTONOSUPPORT else 0
        # One that is known may not come twice.
        error = self.send(thing, method, (attribute, 0, 0), (attribute, 0, 0))
        return 0 if error == errno.EINVAL else error


def check_hca(table):
    hca = Hca()
    for row in table:
        error = hca.error_of(row)
        if error is not None and error != REFUSED.get(row.verdict, 0):
            yield f"line {row.number} of the table: {row.name} is {row.verdict}, and the HCA answers {error}"
    for row in table:
        below = [other.verdict for other in table if not other.write and other.ids[0] == row.ids[0] and other.ids[1] is not None]
        if not row.write and row.ids[1] is None and ("ok" in below) != (row.verdict == "ok"):
            yield f"line {row.number} of the table: {row.name} is {row.verdict}, its methods are not"
    # Every handled id has a row, too.
    rows = {row.ids for row in table if not row.write}
    near = [*range(0x20), *range(0x1000, 0x1010)]
    for thing in near:
        for method in near:
            if hca.send(thing, method) == errno.EPROTONOSUPPORT:
                continue
            if (thing, method, None) not in rows:
                yield f"the HCA has method {method:#x} on object {thing:#x}, for which uverbs_table.txt has no row"
            for attribute in near:
                twice = hca.send(thing, method, (attribute, 0, 0), (attribute, 0, 0))
                if twice == errno.EINVAL and (thing, method, attribute) not in rows:
                    yield f"the HCA heeds attribute {attribute:#x} of {thing:#x} {method:#x}, which has no row"


def main():
    table, command = read_table(sys.argv[1]), sys.argv[2]
    objections = list(check_headers(table, sys.argv[3]) if command == "headers" else check_hca(table))
    for each in objections:
        print("FAILED:", each)
    sys.exit(1 if objections else 0)


main()
