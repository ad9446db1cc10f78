"""The program `gdx`, in the place of this process."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from gdx._error import Error
from gdx._files import gdx_program
from gdx._libraries import load_extension


def become_gdx(*words: str) -> NoReturn:
    """Replaces this process by `gdx WORDS...`. Exits with status 1 and a line where that cannot be."""
    try:
        load_extension()
        program = gdx_program()
        os.execv(program, ["gdx", *words])
    except (Error, ImportError, OSError) as error:
        sys.exit(f"gdx: {error}")
