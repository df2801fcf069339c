"""Views that repeated calls make again from their layout are the function's, for every layout of the operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.jit.fused import repeat_view

M = jnp.asarray(np.arange(1200).reshape(30, 40))
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "flip": jnp.flip,
    "flip of one axis": lambda x: jnp.flip(x, axis=0),
    "fliplr": jnp.fliplr,
    "rot90": jnp.rot90,
    "three quarters": lambda x: jnp.rot90(x, 3),
    "transpose": jnp.transpose,
    "swapaxes": lambda x: jnp.swapaxes(x, 0, 1),
    "diag": jnp.diag,
    "above the diagonal": lambda x: jnp.diag(x, 3),
}


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_repeated_views_are_views_of_what_they_are_given(name: str, dtype: str) -> None:
    function, x = FUNCTIONS[name], (M % 100).astype(dtype)
    first = function(x)
    for number in range(5):
        operand = (x, x, jnp.asarray(np.array(x)), x.T, x[::-1, ::2])[number]
        expected = function(vf.jit(lambda y: y)(np.ascontiguousarray(operand)))
        actual = function(operand)
        assert actual.aval == expected.aval
        np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))
    again = function(x)
    assert again.aval == first.aval
    if name not in ("diag", "above the diagonal"):
        assert np.shares_memory(again._buffer, x._buffer)


def test_a_view_keeps_its_memory() -> None:
    for _ in range(4):
        result = jnp.flip(M + 0)
    np.testing.assert_array_equal(result, np.asarray(M)[::-1, ::-1])
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(result)[0, 0] = 1


def test_views_are_differentiated_and_batched_as_ever() -> None:
    x = M.astype("float32")
    for _ in range(4):
        jnp.rot90(x)
    slope = vf.grad(lambda x: (jnp.rot90(x) * jnp.arange(30.0)).sum())(x)
    np.testing.assert_array_equal(slope, np.rot90(np.broadcast_to(np.arange(30.0), (40, 30)), -1))
    np.testing.assert_array_equal(vf.vmap(jnp.flip)(M), np.asarray(M)[:, ::-1])


def test_what_is_no_view_by_layout_is_left_alone() -> None:
    assert repeat_view(abs, M, M) is None
    assert repeat_view(abs, M + 0, M) is None
    assert repeat_view(abs, (M, M), M) is None
    assert repeat_view(abs, M[:0], M) is None
    assert repeat_view(abs, M.T[::-1], M.T) is None
