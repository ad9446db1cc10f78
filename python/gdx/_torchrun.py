"""torchrun's store, by which rank 0 tells the others where it listens."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from gdx._error import Error
from gdx._status import Status

_teams = itertools.count()  # of this process: all ranks make them in the same order


@contextlib.contextmanager
def text_of_rank_0() -> Iterator[Callable[[str, float], str] | None]:
    """Yields a function of rank 0's text and of seconds, which returns that text to every rank; others give none.

    Yields None where torchrun has not started this process, or where torch is missing. The text leaves the store in the
    end, because it has a secret.
    """
    distributed = _distributed() if "TORCHELASTIC_RUN_ID" in os.environ else None
    if distributed is None:
        yield None
        return
    # A job that torchrun starts again may find the store of the one before.
    job = [os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RUN_ID", "RESTART_COUNT")]
    key = "/".join(["gdx", *job, str(next(_teams))])
    stores: list[Any] = []

    def exchange(text: str, timeout_s: float) -> str:
        end_s = time.monotonic() + timeout_s

        def bound() -> timedelta:
            # A store takes 0 for a default, or for no bound.
            return timedelta(seconds=max(end_s - time.monotonic(), 0.001))

        try:
            store = next(distributed.rendezvous("env://", timeout=bound()))[0]
            if text:
                stores.append(store)
                store.set(key, text)
                return text
            store.wait([key], bound())
            return str(store.get(key), "ascii")
        except (RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise Error(f"rank 0 cannot be found by torchrun's store: {reason}", Status.SYSTEM, None) from error

    try:
        yield exchange
    finally:
        for store in stores:
            with contextlib.suppress(RuntimeError):
                store.delete_key(key)


def _distributed() -> Any | None:
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        return None
    return distributed if distributed.is_available() else None
