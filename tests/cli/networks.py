#!/usr/bin/env python3
"""Usage: networks.py [--ranks N] SEED LOSS DELAY_MS COMMAND...: runs COMMAND as N ranks (2), each in a network namespace
of its own with an address of 10.99.0.0/24. A relay joins their TAPs: it delays every frame, and loses some by the seed. So
it needs no netem, which kernels may lack. The word ADDRESS in COMMAND stands for the rank's own address. The ranks share a
secret, unless GDX_INSECURE is 1. Exit: the first status other than 0, or 77 without the rights.
"""
import array
import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES = 65536


def open_tap(address):
    """In a namespace of this process's own; the error tells what is missing."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "no network namespace")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"tap0", IFF_TAP | IFF_NO_PI))
    for words in (f"address add {address}/24 dev tap0", "link set tap0 up", "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)
    return tap


def start_rank(rank, count, command):
    """Returns the pid and the TAP of a rank that waits for a byte on the socket, too."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid != 0:
        theirs.close()
        return pid, ours
    ours.close()
    address = f"10.99.0.{rank + 1}"
    try:
        tap = open_tap(address)
        theirs.sendmsg([b"t"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [tap]))])
        os.close(tap)
    except (OSError, subprocess.CalledProcessError) as error:
        theirs.send(f"SKIPPED: {error}: run it as root, with /dev/net/tun".encode())
        os._exit(77)
    theirs.recv(1)
    os.environ.update(GDX_RANK=str(rank), GDX_WORLD_SIZE=str(count), GDX_ROOT="10.99.0.1:5000")
    os.execvp(command[0], [address if word == "ADDRESS" else word for word in command])


def take_tap(channel):
    data, parts, _, _ = channel.recvmsg(200, socket.CMSG_SPACE(4))
    if not parts:
        print(data.decode())
        sys.exit(77)
    return array.array("i", parts[0][2])[0]


def relay(taps, pids, rng, loss, delay_s):
    """As a hub, until all ranks have ended. Returns their statuses, and how many frames passed and were lost."""
    statuses, queue, passed, lost = {}, [], 0, 0
    while len(statuses) < len(pids):
        wait_s = max(0.0, queue[0][0] - time.monotonic()) if queue else 0.05
        for tap in select.select(taps, [], [], min(wait_s, 0.05))[0]:
            frame = os.read(tap, FRAME_BYTES)
            if rng.random() < loss:
                lost += 1
                continue
            passed += 1
            heapq.heappush(queue, (time.monotonic() + delay_s, passed, tap, frame))
        while queue and queue[0][0] <= time.monotonic():
            _, _, origin, frame = heapq.heappop(queue)
            for to in taps:
                try:
                    if to != origin:
                        os.write(to, frame)
                except OSError:
                    lost += 1  # a rank that has ended takes nothing
        for pid in pids:
            if pid not in statuses:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
    return [statuses[pid] for pid in pids], passed, lost


def main():
    arguments = sys.argv[1:]
    count = 2
    if arguments[0] == "--ranks":
        count, arguments = int(arguments[1]), arguments[2:]
    seed, loss, delay_ms = int(arguments[0]), float(arguments[1]), float(arguments[2])
    secret = tempfile.NamedTemporaryFile()  # nobody else may open it
    secret.write(os.urandom(32))
    secret.flush()
    if os.environ.get("GDX_INSECURE") != "1":  # with which no secret goes
        os.environ["GDX_SECRET_FILE"] = secret.name
    ranks = [start_rank(rank, count, arguments[3:]) for rank in range(count)]
    pids = [pid for pid, _ in ranks]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))
    taps = [take_tap(channel) for _, channel in ranks]
    for _, channel in ranks:
        channel.send(b"g")
    statuses, passed, lost = relay(taps, pids, random.Random(seed), loss, delay_ms / 1e3)
    print(f"relay: seed {seed}, {passed} frames passed, {lost} lost", flush=True)
    sys.exit(next((status for status in statuses if status != 0), 0))


main()
