"""Compiled backward passes are those of the program at hand, whatever was differentiated before."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.laws.common import on_gpu
from volta_fn import lax
from volta_fn.core.array import as_value
from volta_fn.primitives.reduction import reduce_sum
from volta_fn.transforms import replay

X = as_value(np.array([0.3, -0.7, 1.1], np.float32))
Y = as_value(np.array([2.0, 0.5, -1.5], np.float32))


def total(x: vf.Array) -> vf.Array:
    return reduce_sum(x, (0,))


def test_one_shape_of_derivative_is_compiled_once_and_takes_new_values() -> None:
    gradient = vf.grad(lambda x, y: total(lax.sin(x) * y + x * x))
    first = gradient(X, Y)
    known = len(replay._programs)
    second = gradient(Y, X)
    assert len(replay._programs) == known
    np.testing.assert_allclose(first, np.cos(X) * np.asarray(Y) + 2 * np.asarray(X), rtol=1e-6)
    np.testing.assert_allclose(second, np.cos(Y) * np.asarray(X) + 2 * np.asarray(Y), rtol=1e-6)


def test_replayed_and_interpreted_passes_agree_bit_for_bit() -> None:
    """But on a GPU, whose compiler may round once, of a product and a sum in one program."""
    function = lambda x, y: total(lax.tanh(x * y) / (1.0 + lax.exp(x)) + total(x) * y)
    _, pull_back = vf.vjp(function, X, Y)
    program, cotangents = pull_back._program, [as_value(np.float32(1.5))]
    for replayed, interpreted in zip(replay.pull_back(program, cotangents), replay.interpret(program, cotangents), strict=True):
        np.testing.assert_allclose(replayed, interpreted, rtol=1e-6 if on_gpu() else 0)


def test_scalars_constants_and_parameters_tell_shapes_apart() -> None:
    for power in (2, 3, 2):
        for factor in (2.0, 5.0):
            gradient = vf.grad(lambda x, power=power, factor=factor: total(factor * x**power))(X)
            np.testing.assert_allclose(gradient, factor * power * np.asarray(X) ** (power - 1), rtol=1e-6)


def test_which_inputs_the_result_depends_on_is_part_of_the_shape() -> None:
    used = vf.grad(lambda x, y: total(x * 3.0), argnums=(0, 1))(X, Y)
    swapped = vf.grad(lambda x, y: total(y * 3.0), argnums=(0, 1))(X, Y)
    assert [g.tolist() for g in used] == [[3, 3, 3], [0, 0, 0]]
    assert [g.tolist() for g in swapped] == [[0, 0, 0], [3, 3, 3]]


@pytest.mark.wide
def test_other_dtypes_and_shapes_are_other_programs() -> None:
    gradient = vf.grad(lambda x: total(x * x * 0.5))
    for dtype in (np.float32, np.float64, np.float16):
        for size in (0, 1, 4):
            x = as_value(np.arange(size).astype(dtype))
            assert gradient(x).dtype == dtype
            np.testing.assert_array_equal(gradient(x), np.arange(size))


def test_pulling_back_under_another_transform_is_interpreted() -> None:
    _, pull_back = vf.vjp(lambda x: lax.sin(x) * x, X)
    slope = np.cos(X) * np.asarray(X) + np.sin(X)
    np.testing.assert_allclose(vf.jit(lambda ct: pull_back(ct)[0])(Y), slope * np.asarray(Y), rtol=1e-6)
    np.testing.assert_allclose(vf.vmap(lambda ct: pull_back(ct * Y)[0])(X), slope * np.asarray(X)[:, None] * np.asarray(Y), rtol=1e-6)
    _, rate = vf.jvp(lambda ct: pull_back(ct)[0], (Y,), (X,))
    np.testing.assert_allclose(rate, slope * np.asarray(X), rtol=1e-6)


def test_second_derivatives() -> None:
    third = vf.grad(vf.grad(vf.grad(lambda x: x**5 + lax.sin(x))))
    for x in (0.5, 1.5):
        np.testing.assert_allclose(third(x), 60 * x**2 - np.cos(x), rtol=1e-5)


def test_results_without_dimensions_are_arrays_for_the_next_kernel() -> None:
    x, i = as_value(np.float32(3.0)), as_value(np.int32(0))
    update = lambda x: lax.dynamic_update_slice(lax.reshape(x * 2.0, (1,)), lax.reshape(x + 1.0, (1,)), (i * 1,))
    np.testing.assert_array_equal(vf.jit(update)(x), [4.0])
    np.testing.assert_array_equal(vf.grad(lambda x: total(update(x)))(x), 1.0)
