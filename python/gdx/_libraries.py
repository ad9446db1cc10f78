"""Loads gdx's extension. What a wheel leaves to the system may be missing."""

from __future__ import annotations

import ctypes

from gdx._error import Error
from gdx._status import Status

# A second libibverbs in a process would find no providers, so a wheel holds none.
_PACKAGES = {"libibverbs.so.1": "libibverbs1", "libmlx5.so.1": "ibverbs-providers"}


def load_extension() -> None:
    """Imports gdx._gdx. Raises Error, which says what to install where a library of the system is missing,
    and in an interpreter but the first."""
    # Teams and NumPy belong to a process, and nanobind's objects to one interpreter.
    if _interpreter("PyInterpreterState_Get") != _interpreter("PyInterpreterState_Main"):
        raise Error(
            "this is not the first interpreter of its process, which alone may have teams: make them there",
            Status.UNSUPPORTED,
            None,
        )
    try:
        import gdx._gdx
    except ImportError as error:
        library = str(error).partition(":")[0]
        if library not in _PACKAGES:
            raise
        packages = " ".join(_PACKAGES.values())
        raise Error(
            f"{library} is missing, by which gdx reaches RDMA devices: apt install {packages}", Status.NO_DEVICE, None
        ) from None


def _interpreter(function: str) -> int | None:
    call = ctypes.pythonapi[function]
    call.restype = ctypes.c_void_p
    address: int | None = call()
    return address
