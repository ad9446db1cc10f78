"""Stand-in for torch.distributed: a store in the folder GDX_TEST_STORE, with the calls that gdx makes."""

import os
import pathlib
import time
from collections.abc import Iterator
from datetime import timedelta


class Store:
    def _file(self, key: str) -> pathlib.Path:
        return pathlib.Path(os.environ["GDX_TEST_STORE"], key.replace("/", "_"))

    def set(self, key: str, text: str) -> None:
        new = self._file(key + ".new")
        new.write_text(text)
        new.rename(self._file(key))

    def get(self, key: str) -> bytes:
        return self._file(key).read_bytes()

    def wait(self, keys: list[str], bound: timedelta) -> None:
        end = time.monotonic() + bound.total_seconds()
        while not all(self._file(key).exists() for key in keys):
            if time.monotonic() > end:
                raise RuntimeError(f"nobody has set {keys}\nhere")
            time.sleep(0.01)

    def delete_key(self, key: str) -> bool:
        self._file(key).unlink()
        return True


def is_available() -> bool:
    return True


def rendezvous(url: str, timeout: timedelta) -> Iterator[tuple[Store, int, int]]:
    if url != "env://" or timeout < timedelta():
        raise ValueError(f"no rendezvous at {url} within {timeout}")
    yield Store(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
