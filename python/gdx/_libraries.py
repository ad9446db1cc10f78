"""Loads gdx's extension. What a wheel leaves to the system may be missing."""

from __future__ import annotations

from gdx._error import Error
from gdx._status import Status

# A second libibverbs in a process would find no providers, so a wheel holds none.
_PACKAGES = {"libibverbs.so.1": "libibverbs1", "libmlx5.so.1": "ibverbs-providers"}


def load_extension() -> None:
    """Imports gdx._gdx. Raises Error, which says what to install, where a library of the system is missing."""
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
