"""Files of gdx beside the package's own: the program `gdx`, and the library of the software HCA.

A wheel has them in the package. Otherwise they are those of an installed gdx, or of a build folder, whose program is in
PATH or whose libgdx.so.0 this process has loaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

# Path of the software HCA, which `gdx` obeys, too.
_SOFTHCA_VARIABLE = "GDX_SOFTHCA_LIBRARY"
# From the folder of the program: in an installation, in Debian's packages, and in a build folder.
_SOFTHCA_PLACES = (
    "../lib*/libgdx_softhca.so",
    "../lib/*/libgdx_softhca.so",
    "../../../driver-shim/softhca/interpose/libgdx_softhca.so",
)


def gdx_program() -> Path:
    """Returns the path of the program `gdx`. Raises FileNotFoundError, which says what to install."""
    for path in _programs():
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError("no program gdx in this package, nor in PATH: install gdx's wheel, or its Debian package")


def softhca_library() -> Path:
    """Returns the path of libgdx_softhca.so, to be preloaded. Raises FileNotFoundError, which says what to install."""
    given = os.environ.get(_SOFTHCA_VARIABLE)
    if given is not None:
        if Path(given).is_file():
            return Path(given)
        raise FileNotFoundError(f"{_SOFTHCA_VARIABLE} = '{given}' is no file: unset it, or name libgdx_softhca.so")
    program = gdx_program()
    for place in _SOFTHCA_PLACES:
        for path in sorted(program.parent.glob(place)):
            return path.resolve()
    raise FileNotFoundError(f"there is no libgdx_softhca.so beside {program}: name it in {_SOFTHCA_VARIABLE}")


def _programs() -> Iterator[Path]:
    yield Path(__file__).resolve().parent / "bin" / "gdx"
    found = shutil.which("gdx")
    if found is not None:
        yield Path(found).resolve()
    library = _loaded_library()
    if library is not None:
        yield from (above / "bin" / "gdx" for above in list(library.parents)[1:3])


def _loaded_library() -> Path | None:
    """Returns where libgdx.so.0 of this process is."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith("libgdx.so."):
                return Path("/" + path)
    return None
