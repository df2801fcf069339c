"""Library routines in programs on the GPU, where results may be made in the memory of operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.laws.common import host
from volta_fn import lax
from volta_fn import numpy as jnp

GPU = vf.devices("gpu")[0]


def updated(x: Any, i: Any, v: Any) -> Any:
    doubled = x + x
    return doubled.at[i].set(v), (doubled + 1).at[i].add(v), lax.dynamic_update_slice(x * x, v, (i[0], 0)), doubled


def carried(x: Any, i: Any, v: Any) -> Any:
    return lax.fori_loop(0, 3, lambda k, c: lax.dynamic_update_slice(c.at[i].add(v), v[:1], (k, 0)), x)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("function", [updated, carried])
def test_in_place(function: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, v = rng.integers(-9, 9, (50, 6)).astype(dtype), rng.integers(-9, 9, (40, 6)).astype(dtype)
    args = (x, rng.integers(0, 50, 40).astype(np.int32), v)
    expected = host(function(*map(jnp.asarray, args)))
    with vf.default_device(GPU):
        run, arguments = vf.jit(function), vf.device_put(args, GPU)
        for _ in range(2):
            for got, wanted in zip(vf.tree.leaves(run(*arguments)), expected, strict=True):
                np.testing.assert_array_equal(np.asarray(got), wanted)
    np.testing.assert_array_equal(np.asarray(arguments[0]), x)
