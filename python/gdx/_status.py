"""The statuses of gdx, which have the values of proto/status.h."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """Outcome of a call."""

    OK = 0x0000
    PENDING = 0x0001
    INVALID_ARGUMENT = 0x0101
    INVALID_LENGTH = 0x0102
    TIMEOUT = 0x0103
    ABORTED = 0x0104
    NOT_FOUND = 0x0105
    BUSY = 0x0106
    UNSUPPORTED = 0x0107
    VERSION_MISMATCH = 0x0108
    NOT_CONNECTED = 0x0109
    QUEUE_ERROR = 0x0201
    LOCAL_PROTECTION = 0x0202
    FLUSHED = 0x0203
    PEER_UNREACHABLE = 0x0301
    PEER_NOT_READY = 0x0302
    REMOTE_ACCESS = 0x0303
    REMOTE_INVALID = 0x0304
    REMOTE_OPERATION = 0x0305
    PEER_GONE = 0x0306
    NO_DEVICE = 0x0401
    NO_MEMORY = 0x0402
    SYSTEM = 0x0403
    DAEMON_GONE = 0x0404
    HCA_FAILED = 0x0405
