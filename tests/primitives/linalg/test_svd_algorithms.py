"""JAX's names of algorithms for singular values, which all mean the target's own."""

from __future__ import annotations

import numpy as np
import pytest

from volta_fn import lax


@pytest.mark.parametrize("algorithm", lax.linalg.SvdAlgorithm)
def test_every_algorithm_gives_the_same(algorithm: lax.linalg.SvdAlgorithm) -> None:
    x = np.array([[3.0, 0.0], [0.0, -4.0]], np.float32)
    assert lax.linalg.svd(x, compute_uv=False, algorithm=algorithm).tolist() == [4.0, 3.0]
