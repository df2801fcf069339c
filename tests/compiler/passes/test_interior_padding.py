"""Paddings between elements are kernels, whatever the size of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax

TARGETS = [vf.devices("cpu")[0], vf.devices("gpu")[0]]


def padded(x: np.ndarray, value: Any, config: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """Return the padded array, one axis after another: first between elements, then at the ends, where negative numbers drop some."""
    for axis, (low, high, interior) in enumerate(config):
        moved = np.moveaxis(x, axis, 0)
        apart = np.full((max(len(moved) + (len(moved) - 1) * interior, 0), *moved.shape[1:]), value, x.dtype)
        apart[:: interior + 1] = moved
        ends = [np.full((max(n, 0), *moved.shape[1:]), value, x.dtype) for n in (low, high)]
        x = np.moveaxis(np.concatenate([ends[0], apart[max(-low, 0) : len(apart) - max(-high, 0)], ends[1]]), 0, axis)
    return x


@pytest.mark.parametrize("device", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool", "complex64"])
@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((5,), ((0, 0, 1),)),
        ((4,), ((2, 1, 3),)),
        ((7,), ((-1, -2, 2),)),
        ((1,), ((0, 1, 6),)),
        ((3, 4), ((1, 0, 1), (0, 2, 2))),
        ((2, 3, 5), ((0, 0, 0), (-1, 3, 4), (1, -1, 1))),
        ((0, 3), ((1, 1, 2), (0, 0, 1))),
    ],
)
def test_values_are_those_of_numpy(device: Any, dtype: str, shape: tuple[int, ...], config: tuple[tuple[int, int, int], ...]) -> None:
    x = np.asarray(jnp.asarray(np.random.default_rng(0).normal(size=shape) * 4, dtype))
    value = np.asarray(jnp.asarray(1, dtype))
    with vf.default_device(device):
        program = vf.jit(lambda x, value: lax.pad(x, value, config))
        assert not program.lower(x, value).host_steps()
        np.testing.assert_array_equal(np.asarray(program(x, value)), padded(x, value, config))


@pytest.mark.parametrize("device", TARGETS, ids=str)
@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (vf.grad(lambda x: jnp.sum(x[::2] ** 2)), (11,)),
        (vf.grad(lambda x: jnp.sum(x[:, 1::3] ** 2)), (6, 16)),
        (jnp.diag, (4,)),
        (vf.vmap(jnp.diag), (3, 4)),
    ],
)
def test_gradients_of_strided_slices_and_diagonals_have_no_host_steps(device: Any, f: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype("float32")
    with vf.default_device(device):
        program = vf.jit(f)
        assert not program.lower(x).host_steps()
        expected = np.asarray(f(jnp.asarray(x)))
        np.testing.assert_array_equal(np.asarray(program(x)), expected)


def test_other_paddings_stay_as_they_are() -> None:
    x = np.ones((3, 4), np.float32)
    program = vf.jit(lambda x: lax.pad(x, np.float32(0), ((1, 2, 0), (0, 1, 1))))  # eight columns, a multiple of two
    assert "slice" not in program.lower(x).as_text("kernels")


@pytest.mark.parametrize("device", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", ["int4", "float8_e4m3fn"])
def test_numbers_that_no_kernel_moves_are_padded_by_one_step_of_the_host(device: Any, dtype: str) -> None:
    x, config = np.asarray(jnp.asarray([1, 2, 3, 4], dtype)), ((0, 0, 1),)
    with vf.default_device(device):
        program = vf.jit(lambda x, value: lax.pad(x, value, config))
        assert [step.primitive for step in program.lower(x, x[0]).host_steps()] == ["pad"]
        np.testing.assert_array_equal(np.asarray(program(x, x[0])), padded(x, x[0], config))
