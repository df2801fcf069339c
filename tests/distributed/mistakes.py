"""Programs whose processes disagree; every process runs this file with the name of a mistake."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

import volta_fn as vf
from volta_fn import P, lax


def main(mistake: str) -> None:
    """Make a mistake."""
    vf.distributed.initialize()
    rank, mesh = vf.process_index(), vf.make_mesh({"data": vf.process_count()})

    def total(scale: float) -> Callable[..., vf.Array]:
        return vf.jit(vf.shard_map(lambda x: lax.psum(lax.sin(x) * scale, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()))

    f, x = total(1.0), np.ones(3, np.float32)
    f(x)
    match mistake:
        case "an exception" if rank == 1:
            raise ValueError("the data are missing")
        case "other programs":
            total(2.0 + rank)(x)
        case "other shapes":
            f(np.ones(4 + rank, np.float32))
        case "one shape more":
            f(np.ones(3 + rank, np.float32))
        case "too few steps" if rank == 1:
            return
        case "waiting" if rank == 1:
            sys.stdin.read() or __import__("threading").Event().wait()
    for _ in range(100):
        f(x)


if __name__ == "__main__":
    main(sys.argv[1])
