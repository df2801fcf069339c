"""Arrays in NumPy's files."""

from __future__ import annotations

import io

import numpy as np

import volta_fn.numpy as vnp


def test_bfloat16_comes_back_from_a_file() -> None:
    x = vnp.array([1.5, -2.0, np.inf], "bfloat16")
    file = io.BytesIO()
    vnp.save(file, x)
    file.seek(0)
    found = vnp.load(file)
    assert found.dtype == x.dtype
    assert found.tolist() == x.tolist()
