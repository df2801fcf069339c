"""Random programs of 5 to 40 operations: NumPy, eager, `jit` and `vmap` agree on their values, and all modes on their derivatives."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
from tests.laws.common import on_gpu
from tests.narrow_devices import has
from volta_fn import lax

SHAPE = (2, 3)
NEEDS_LLVM = pytest.mark.skipif(importlib.util.find_spec("llvmlite") is None, reason="llvmlite is not installed")


class Operation(NamedTuple):
    """An operation on arrays of `SHAPE`, in volta_fn and in NumPy; its values stay moderate."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    arity: int = 1


def _folded(x: Any) -> Any:
    """Transpose between two reshapes."""
    return lax.reshape(lax.transpose(lax.reshape(x, (3, 2)), (1, 0)), SHAPE)


def _rolled(x: Any) -> Any:
    """Cut in two and joined the other way round."""
    return lax.concatenate([lax.slice(x, (0, 1), SHAPE), lax.slice(x, (0, 0), (2, 1))], 1)


def _shifted(x: Any, fill: Any) -> Any:
    """Drop one column and add another."""
    return lax.pad(x, lax.reduce_max(fill, (0, 1)), [(0, 0, 0), (1, -1, 0)])


def _shifted_numpy(x: np.ndarray, fill: np.ndarray) -> np.ndarray:
    return np.concatenate([np.full((2, 1), fill.max()), x[:, :-1]], 1)


def _product(x: Any, y: Any) -> Any:
    """Compute x yᵀ x / 9, written with sums."""
    gram = lax.reduce_sum(lax.reshape(x, (2, 1, 3)) * lax.reshape(y, (1, 2, 3)), (2,))
    return lax.reduce_sum(lax.reshape(gram, (2, 2, 1)) * lax.reshape(x, (1, 2, 3)), (1,)) / 9.0


def _branches(x: Any, y: Any) -> Any:
    return lax.select_n(lax.lt(x, y), lax.sin(y), lax.mul(x, x) / (lax.mul(x, x) + 1.0))


OPERATIONS = [
    Operation("sin", lax.sin, np.sin),
    Operation("tanh", lax.tanh, np.tanh),
    Operation("logistic", lax.logistic, lambda x: 1 / (1 + np.exp(-x))),
    Operation("gauss", lambda x: lax.exp(-x * x), lambda x: np.exp(-x * x)),
    Operation("root", lambda x: lax.sqrt(x * x + 1.0), lambda x: np.sqrt(x * x + 1)),
    Operation("log1p", lambda x: lax.log1p(lax.abs(x)), lambda x: np.log1p(np.abs(x))),
    Operation("square", lambda x: lax.integer_pow(lax.tanh(x), 2), lambda x: np.tanh(x) ** 2),
    Operation("clamp", lambda x: lax.clamp(-0.5, x, 0.5), lambda x: np.clip(x, -0.5, 0.5)),
    Operation("floor", lambda x: x - lax.floor(x), lambda x: x - np.floor(x)),
    Operation(
        "whole", lambda x: x * lax.convert_element_type(lax.convert_element_type(x, "int32"), x.dtype) / 4.0, lambda x: x * np.trunc(x) / 4
    ),
    Operation("fold", _folded, lambda x: x.reshape(3, 2).T.reshape(SHAPE)),
    Operation("roll", _rolled, lambda x: np.roll(x, -1, 1)),
    Operation("rev", lambda x: lax.rev(x, (0, 1)), lambda x: x[::-1, ::-1]),
    Operation("mean", lambda x: lax.broadcast_in_dim(lax.reduce_sum(x, (0,)) / 2.0, SHAPE, (1,)), lambda x: np.tile(x.mean(0), (2, 1))),
    Operation("centre", lambda x: x - lax.expand_dims(lax.reduce_max(x, (1,)), (1,)), lambda x: x - x.max(1, keepdims=True)),
    Operation("prod", lambda x: x + lax.tanh(lax.reduce_prod(x, (0, 1))), lambda x: x + np.tanh(x.prod())),
    Operation("call", vf.jit(lambda x: lax.cos(x) * 0.5 + x), lambda x: np.cos(x) * 0.5 + x),
    Operation("add", lambda x, y: (x + y) / 2.0, lambda x, y: (x + y) / 2, 2),
    Operation("mul", lambda x, y: lax.tanh(x) * y, lambda x, y: np.tanh(x) * y, 2),
    Operation("div", lambda x, y: x / (1.0 + y * y), lambda x, y: x / (1 + y * y), 2),
    Operation("max", lax.max, np.maximum, 2),
    Operation("atan2", lambda x, y: lax.atan2(x, y * y + 1.0), lambda x, y: np.arctan2(x, y * y + 1), 2),
    Operation("select", _branches, lambda x, y: np.where(x < y, x * x / (x * x + 1), np.sin(y)), 2),
    Operation("shift", _shifted, _shifted_numpy, 2),
    Operation("product", _product, lambda x, y: x @ y.T @ x / 9, 2),
]

Step = tuple[int, tuple[int, int]]

#: Each step applies an operation to two earlier values, counted backwards.
programs = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), st.tuples(st.integers(0, 6), st.integers(0, 6))), min_size=5, max_size=40
)


def run(steps: Sequence[Step], inputs: Sequence[Any], ours: bool) -> Any:
    """Return the last value of a program."""
    values = list(inputs)
    for number, sources in steps:
        operation = OPERATIONS[number]
        operands = [values[-1 - s % len(values)] for s in sources[: operation.arity]]
        values.append((operation.ours if ours else operation.theirs)(*operands))
    return values[-1]


def drawn(seed: int, count: int, dtype: type) -> list[np.ndarray]:
    return [x.astype(dtype) for x in np.random.default_rng(seed).normal(size=(count, *SHAPE))]


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=NEEDS_LLVM)])
@given(steps=programs, seed=st.integers(0, 1000), dtype=st.sampled_from([np.float32, np.float64] if has("float64") else [np.float32]))
@settings(max_examples=60)
def test_values(native: bool, steps: list[Step], seed: int, dtype: type) -> None:
    """Eager against NumPy; `jit` against eager, to the last bit where NumPy computes both; `vmap` against a loop."""
    vf.devices("cpu")[0].backend.native = native  # type: ignore[attr-defined]  # the CPU's; put back after the test
    inputs = drawn(seed, 2, dtype)

    def program(x: Any, y: Any) -> Any:
        return run(steps, (x, y), True)

    eager = np.asarray(program(*map(vf.device_put, inputs)))
    assert eager.dtype == dtype
    if dtype is np.float64:
        assert np.allclose(eager, run(steps, inputs, False), rtol=1e-9, atol=1e-9)
    exact = not native and not on_gpu()  # else sums in another order, another exp, products and sums rounded once
    error = 0.0 if exact else 1e-12 if dtype is np.float64 else 1e-5
    assert np.allclose(vf.jit(program)(*inputs), eager, rtol=error, atol=error)
    stacked = np.stack([inputs[0], *drawn(seed + 1, 3, dtype)])
    looped = np.stack([program(x, vf.device_put(inputs[1])) for x in map(vf.device_put, stacked)])
    assert np.allclose(vf.vmap(program, in_axes=(0, None))(stacked, inputs[1]), looped, rtol=1e-5, atol=1e-5)
    assert np.allclose(vf.jit(vf.vmap(program, in_axes=(-1, None)))(np.moveaxis(stacked, 0, -1), inputs[1]), looped, rtol=1e-5, atol=1e-5)


@pytest.mark.wide
@given(steps=programs, seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_derivatives(steps: list[Step], seed: int) -> None:
    """grad against jvp, under `jit` and outside; and the second derivative, forward over reverse, against itself under `jit`.

    On NumPy: gradients as machine code are compared in `targets/cpu/test_four_ways.py`.
    """
    vf.devices("cpu")[0].backend.native = False  # type: ignore[attr-defined]  # the CPU's; put back after the test
    x, y, along_x, along_y, weights = drawn(seed, 5, np.float64)

    def loss(a: Any, b: Any) -> Any:
        return lax.reduce_sum(run(steps, (a, b), True) * weights, (0, 1))

    gradient = vf.grad(loss, argnums=(0, 1))
    slopes = [np.asarray(g) for g in gradient(x, y)]
    _, rate = vf.jvp(loss, (x, y), (along_x, along_y))
    assert float(rate) == pytest.approx(float((slopes[0] * along_x).sum() + (slopes[1] * along_y).sum()), rel=1e-8, abs=1e-8)
    for eager, compiled in zip(slopes, vf.jit(gradient)(x, y), strict=True):
        assert np.allclose(compiled, eager, rtol=1e-9, atol=1e-9)

    def curvature(a: Any, b: Any) -> Any:
        return vf.jvp(lambda *xs: gradient(*xs), (a, b), (along_x, along_y))[1]

    for eager, compiled in zip(curvature(x, y), vf.jit(curvature)(x, y), strict=True):
        assert np.allclose(compiled, eager, rtol=1e-7, atol=1e-7)
