"""Run a program written for JAX: `python -m volta_fn.jax program.py …`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from volta_fn.jax.namespace import install

USAGE = "usage: python -m volta_fn.jax program.py [arguments]\n       python -m volta_fn.jax -m module [arguments]"


def main(arguments: list[str]) -> int:
    """Run the program that the arguments name, with the others as its own."""
    is_module = arguments[:1] == ["-m"]
    rest = arguments[is_module:]
    if not rest or rest[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if rest else 2
    install()
    sys.argv = rest
    if is_module:
        sys.path.insert(0, "")
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(rest[0]).resolve().parent)
        runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
