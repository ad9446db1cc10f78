"""`python -m gdx.run` is `gdx run`."""

import sys

from gdx._program import become_gdx

if __name__ == "__main__":
    become_gdx("run", *sys.argv[1:])
