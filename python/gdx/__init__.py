"""gdx: ranks that put into each other's memory. docs/python.md has the calls.

    with gdx.Team() as team:
        x = team.array(1000, "f4")
        arrived = team.array(1, "u8")
        team.put_signal(x, x, arrived, 1, rank=(team.rank + 1) % team.size)
        team.wait(arrived, ">=", 1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gdx._error import Error
from gdx._libraries import load_extension
from gdx._status import Status

if TYPE_CHECKING:
    from gdx._gdx import Kernels
    from gdx._team import Team

__all__ = ["Error", "Kernels", "Status", "Team"]


def __getattr__(name: str) -> Any:
    # Loads libgdx and NumPy with the first use, because a process may import gdx for other parts, and without the
    # libraries of RDMA.
    if name not in ("Kernels", "Team"):
        raise AttributeError(f"module 'gdx' has no attribute '{name}'")
    load_extension()
    from gdx._gdx import Kernels
    from gdx._team import Team

    globals().update(Kernels=Kernels, Team=Team)
    return globals()[name]
