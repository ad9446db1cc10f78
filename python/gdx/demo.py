"""`python -m gdx.demo`: two ranks put messages into each other's arrays, and each checks every byte of the other's.

With --here it is one of the two, of whoever has started it.
"""

from __future__ import annotations

import sys

import gdx
from gdx._program import become_gdx

_SIZES_BYTES = [8, 4096, 1 << 20, 16 << 20]
_ROUNDS = 3


def put_and_check() -> int:
    """Is one of the two ranks. Returns how many bytes were right."""
    import numpy as np

    checked_bytes = 0
    with gdx.Team(heap_bytes=64 << 20) as team:
        if team.size != 2:
            sys.exit(f"gdx.demo: {team.size} ranks, and it takes two: start two")
        peer = 1 - team.rank
        sent, received = team.array(max(_SIZES_BYTES), "u1"), team.array(max(_SIZES_BYTES), "u1")
        signals = team.array(2, "u8")
        arrived, checked = signals[:1], signals[1:]
        for message in range(1, _ROUNDS * len(_SIZES_BYTES) + 1):
            size_bytes = _SIZES_BYTES[message % len(_SIZES_BYTES)]
            sent[:size_bytes] = np.random.default_rng([message, team.rank]).integers(0, 256, size_bytes, "u1")
            team.put_signal(received[:size_bytes], sent[:size_bytes], arrived, message, peer)
            team.wait(arrived, ">=", message, peer)
            expected = np.random.default_rng([message, peer]).integers(0, 256, size_bytes, "u1")
            wrong = np.flatnonzero(received[:size_bytes] != expected)
            if wrong.size:
                sys.exit(f"gdx.demo: rank {team.rank}: byte {wrong[0]} of message {message} is wrong")
            checked_bytes += size_bytes
            team.signal(checked, message, peer)
            team.wait(checked, ">=", message, peer)
    return checked_bytes


def main(words: list[str]) -> None:
    if words == ["--here"]:
        try:
            checked_bytes = put_and_check()
        except gdx.Error as error:
            sys.exit(f"gdx.demo: {error}")
        print(f"{checked_bytes} bytes in {_ROUNDS * len(_SIZES_BYTES)} messages verified")
        return
    # Options are those of `gdx run`, such as --loss.
    become_gdx("run", "--ranks", "2", "--label", *words, "--", sys.executable, "-m", "gdx.demo", "--here")


if __name__ == "__main__":
    main(sys.argv[1:])
