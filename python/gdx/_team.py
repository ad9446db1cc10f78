"""Teams, and the arrays of their heaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gdx import _gdx
from gdx._error import Error
from gdx._torchrun import text_of_rank_0


class Team(_gdx.Team):
    """Ranks with a symmetric heap. Made by all of them, with equal arguments; `with` closes it.

    array(), free(), barrier() and close() are collective: all ranks make the same ones in the same order. Other calls
    are this rank's alone, and any of its threads may make them.
    """

    def __init__(self, heap_bytes: int = 64 << 20, timeout_s: float | None = None, gpu: int | None = None) -> None:
        """Joins the ranks of the launcher, or makes a team of one. Collective.

        heap_bytes: of each rank, all equal. timeout_s: of every collective call. gpu: ordinal of the GPU whose kernels
        use the team; the host then makes only collective calls.
        """
        with text_of_rank_0() as exchange:
            super().__init__(heap_bytes, timeout_s, exchange, gpu)

    def array(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
        """Returns a zeroed array at the same place of the heap at every rank. Collective.

        It shares the heap's memory, which lives as long as one of its arrays.
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"no array of {kind}: other ranks cannot use this one's objects")
        return self._allocate(math.prod(sizes) * kind.itemsize).view(kind).reshape(sizes)

    def subteam(self, ranks: Sequence[int], tag: int = 0) -> Team:
        """Returns the team of `ranks`, in their order, this one among them. Collective over them alone.

        It has arrays, barrier() and close() of its own, and ends with this team. Ranks make teams of one tag in the
        same order; threads that make teams at once give them tags of their own.
        """
        team = Team.__new__(Team)
        _gdx.Team.__init__(team, self, list(ranks), tag)
        return team

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Error:
            # The first failure says more than that of the end.
            if kind is None:
                raise
