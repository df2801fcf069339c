"""`examples/data_parallel.py` in float64; every process runs this file, with the example's arguments."""

from __future__ import annotations

from typing import Any

import data_parallel
import numpy as np

import volta_fn as vf


def wide(tree: Any) -> Any:
    """Return a pytree with float64 in place of float32."""
    return vf.tree.map(lambda x: x.astype("float64") if getattr(x, "dtype", None) == np.float32 else x, tree)


def main() -> None:
    """Run the example."""
    build = data_parallel.build

    def wide_build(name: str) -> Any:
        model, state, loss, examples = build(name)
        return wide(model), wide(state), loss, wide(examples)

    data_parallel.build = wide_build
    data_parallel.main()


if __name__ == "__main__":
    main()
