"""The exception of gdx."""

from __future__ import annotations

from gdx._status import Status


class Error(RuntimeError):
    """A call that failed. str() is one line: what happened, to what, what to do next.

    status: the reason. rank: the rank that the call named, or that failed; None where no single one is known.
    syndrome: what the HCA reported of the connection to that rank, of `mlx5`'s values, such as 0x15 where it ran out of
    retries; None where it reported nothing.
    """

    status: Status
    rank: int | None
    syndrome: int | None

    def __init__(self, message: str, status: int, rank: int | None, syndrome: int | None = None) -> None:
        super().__init__(message)
        self.status = Status(status)
        self.rank = rank
        self.syndrome = syndrome

    def __reduce__(self) -> tuple[type[Error], tuple[str, Status, int | None, int | None]]:
        return Error, (str(self), self.status, self.rank, self.syndrome)
