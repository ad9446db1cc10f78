"""`python -m gdx` is the program `gdx`."""

import sys

from gdx._program import become_gdx

if __name__ == "__main__":
    become_gdx(*sys.argv[1:])
