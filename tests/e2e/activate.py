#!/usr/bin/env python3
"""activate.py [--stream] SOCKET STATES COMMAND...: runs COMMAND as a service manager does.

The command gets a listening socket at the path SOCKET as descriptor 3. What it tells the manager is written to the file
STATES. $MANAGER names its socket, an abstract one by a leading @. SIGTERM is passed on.
"""
import os
import signal
import socket
import sys

arguments = sys.argv[1:]
kind = socket.SOCK_SEQPACKET
if arguments[0] == "--stream":
    kind = socket.SOCK_STREAM
    arguments = arguments[1:]
path, states, *command = arguments

listener = socket.socket(socket.AF_UNIX, kind)
listener.bind(path)
listener.listen(64)
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
name = os.environ.get("MANAGER", states + ".socket")
manager.bind("\0" + name[1:] if name.startswith("@") else name)

child = os.fork()
if child == 0:
    os.environ["LISTEN_PID"] = str(os.getpid())
    os.environ["LISTEN_FDS"] = os.environ.get("LISTEN_COUNT", "1")
    os.environ["NOTIFY_SOCKET"] = name
    if listener.fileno() == 3:
        os.set_inheritable(3, True)
    else:
        os.dup2(listener.fileno(), 3)
    os.execv(command[0], command)

signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
manager.settimeout(0.05)
status = None
with open(states, "w", buffering=1) as told:
    while True:
        # The last words of an ended process are there already.
        ended, code = (child, status) if status is not None else os.waitpid(child, os.WNOHANG)
        if ended:
            status = code
        try:
            told.write(manager.recv(4096).decode() + "\n")
        except TimeoutError:
            if status is not None:
                break
sys.exit(os.waitstatus_to_exitcode(status))
