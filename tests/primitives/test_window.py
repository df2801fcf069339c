"""`reduce_window`: what it refuses and how, computations beyond the fast ones, and JAX's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.naive_windows import meetings, window_counts
from volta_fn import lax
from volta_fn.errors import ArgumentError, DTypeError, ShapeError, TreeError


def values(*shape: int) -> np.ndarray:
    """Distinct values in random order."""
    return np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape).astype(np.float32) - 10


class TestErrors:
    def test_sequences_that_do_not_fit(self) -> None:
        with pytest.raises(ShapeError, match="window_dimensions must be 2 integers of at least 1"):
            lax.reduce_window(values(4, 4), 0.0, lax.add, (2,))
        with pytest.raises(ShapeError, match="window_dilation must be 2 integers of at least 1"):
            lax.reduce_window(values(4, 4), 0.0, lax.add, (2, 2), window_dilation=(1, 0))
        with pytest.raises(ArgumentError, match="padding='HALF'"):
            lax.reduce_window(values(4, 4), 0.0, lax.add, (2, 2), padding="HALF")

    @pytest.mark.wide
    def test_initial_values_that_do_not_fit(self) -> None:
        with pytest.raises(DTypeError, match="init_value is float64 but operand is float32"):
            lax.reduce_window(values(4), np.float64(0), lax.add, (2,))
        with pytest.raises(DTypeError, match="init_value is float32 but operand is int32"):
            lax.reduce_window(values(4).astype(np.int32), 1.5, lax.max, (2,))
        with pytest.raises(ShapeError, match=r"must be a scalar, got shape \(1,\)"):
            lax.reduce_window(values(4), np.zeros(1, np.float32), lax.add, (2,))


def test_an_identity_of_floats_is_that_of_integers() -> None:
    x = np.array([3, -1, 4, 1], np.int32)
    assert lax.reduce_window(x, -np.inf, lax.max, (2,), (2,)).tolist() == [3, 4]
    assert lax.reduce_window(x, np.inf, lax.min, (2,), (2,)).tolist() == [-1, 1]


CASES: dict[str, tuple[str, Any, tuple, dict[str, Any]]] = {
    "pool": ("max", -np.inf, (1, 2, 2), {"window_strides": (1, 2, 2)}),
    "same": ("max", -np.inf, (1, 3, 2), {"window_strides": (1, 2, 1), "padding": "SAME"}),
    "least": ("min", np.inf, (2, 2, 1), {"padding": ((1, 0), (0, 2), (0, 0))}),
    "sum": ("add", 0.0, (1, 3, 3), {"window_strides": (1, 2, 2), "padding": "SAME"}),
    "same-dilated": ("max", -np.inf, (1, 3, 3), {"window_strides": (1, 3, 3), "base_dilation": (1, 2, 2), "padding": "SAME"}),
    "sum-dilated": ("add", 0.0, (1, 2, 2), {"base_dilation": (1, 2, 3), "window_dilation": (1, 3, 1), "padding": ((0, 0), (1, 2), (2, 0))}),
    "sum-from-a-number": ("add", 2.0, (1, 2, 2), {"padding": ((0, 0), (1, 1), (0, 0))}),
    "product-from-a-number": ("mul", 2.0, (1, 2, 2), {"padding": ((0, 0), (1, 1), (0, 0)), "base_dilation": (1, 2, 1)}),
    "product": ("mul", 1.0, (1, 2, 2), {"window_strides": (1, 1, 2), "padding": "SAME_LOWER"}),
}


def reduction(module: Any, name: str) -> Callable[[Any], Any]:
    """Return the case as a function of the operand, from the given `lax`."""
    computation, init, taps, options = CASES[name]
    return lambda x: module.reduce_window(x, init, getattr(module, computation), taps, **options)


def cubes(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a scalar function with second derivatives."""
    return lambda x: (f(x) ** 3 + f(x * x)).sum()


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    x = values(2, 5, 6)
    np.testing.assert_array_equal(reduction(lax, name)(x), reduction(jax.lax, name)(x))


@pytest.mark.parametrize("pads", [(-2, -2), (-4, 0), (0, -5), (-5, 3), (-5, 6), (6, -4), (-1, -1)])
@pytest.mark.parametrize("name", ["add", "max", "any"])
def test_padding_may_cut_more_than_there_is(name: str, pads: tuple[int, int]) -> None:
    """As in JAX, which cannot compute all of these."""
    x, (low, high) = values(3), pads
    init, step = {"add": (0.0, lax.add), "max": (-np.inf, lax.max), "any": (1.0, lambda a, b: a * b + a)}[name]
    for taps, stride, dilation, base in ((1, 1, 1, 1), (2, 2, 1, 1), (2, 1, 2, 1), (2, 1, 1, 2)):

        def windows(x: Any, geometry: Any = ((taps,), (stride,), (pads,), (base,), (dilation,))) -> Any:
            return lax.reduce_window(x, np.float32(init), step, *geometry)

        room = 2 * base + 1 + low + high - (taps - 1) * dilation - 1
        expected, uses = [], np.zeros(3, np.float32)
        for window in range(room // stride + 1 if room >= 0 else 0):
            total = np.float32(init)
            for position in [window * stride + k * dilation - low for k in range(taps)]:
                if position % base == 0 and 0 <= position // base < 3:
                    total = np.asarray(step(total, x[position // base]))
                    uses[position // base] += 1
            expected.append(total)
        np.testing.assert_array_equal(windows(x), np.array(expected, np.float32))
        if name == "add":
            np.testing.assert_array_equal(vf.jit(vf.grad(lambda x: windows(x).sum()))(x), uses)


@pytest.mark.parametrize("name", ["same", "same-dilated", "least", "sum-dilated"])
def test_gradients_and_second_derivatives_are_those_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    x = values(2, 5, 6)
    ours, theirs = (cubes(reduction(module, name)) for module in (lax, jax.lax))
    np.testing.assert_allclose(vf.grad(ours)(x), jax.jit(jax.grad(theirs))(x), rtol=1e-6)
    tangent = values(2, 5, 6)[::-1].copy()
    expected = jax.jit(lambda x, t: jax.jvp(jax.grad(theirs), (x,), (t,))[1])(x, tangent)
    np.testing.assert_allclose(vf.jvp(vf.grad(ours), (x,), (tangent,))[1], expected, rtol=1e-6)


def test_the_gradient_of_a_window_with_holes_goes_to_the_winners() -> None:
    """What JAX cannot do: reverse mode through dilated maxima."""
    x = np.array([1.0, 5.0, 2.0, 4.0, 3.0], np.float32)
    grad = vf.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (2,), window_dilation=(2,)).sum())(x)
    np.testing.assert_array_equal(grad, [0, 1, 1, 0, 1])


def test_of_equal_elements_the_first_wins() -> None:
    grad = vf.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2)).sum())(np.ones((2, 4), np.float32))
    np.testing.assert_array_equal(grad, [[1, 0, 1, 0], [0, 0, 0, 0]])


def test_any_computation() -> None:
    """One that is no primitive: the root of the sum of squares, from zero."""
    x = values(5)
    norm = lax.reduce_window(x, 0.0, lambda a, b: lax.sqrt(a * a + b * b), (3,), padding=((1, 0),))
    padded = np.concatenate([[0], x])
    np.testing.assert_allclose(norm, [np.linalg.norm(padded[i : i + 3]) for i in range(4)], rtol=1e-6)


def _greatest_first(a: Any, b: Any) -> Any:
    """Return the greater of two numbers and where it is, of equals the first."""
    first = a["number"] >= b["number"]
    return {name: lax.select(first, a[name], b[name]) for name in ("number", "position")}


@pytest.mark.parametrize(
    "geometry",
    [
        ((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
        ((2, 3), (2, 1), ((1, 0), (2, 2)), (1, 1), (1, 1)),
        ((1, 3), (1, 2), ((0, 1), (-1, 3)), (1, 2), (1, 2)),
        ((7, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    ],
)
def test_operands_are_reduced_together(geometry: Any) -> None:
    x = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 9], [3, 2, 3, 8, 4]], np.float32)
    positions = np.arange(x.size, dtype=np.int32).reshape(x.shape)
    counts = window_counts(x.shape, *geometry)
    numbers, places = np.full(counts, -np.inf, np.float32), np.full(counts, -1, np.int32)
    for position, met in meetings(x.shape, *geometry):
        if met:
            best = max((at for _, at in met), key=lambda at: x[at])  # the first of equals
            numbers[position], places[position] = x[best], positions[best]
    function = lambda x: lax.reduce_window(
        {"number": x, "position": vf.numpy.asarray(positions)}, {"number": -np.inf, "position": -1}, _greatest_first, *geometry
    )
    for result in (function(vf.numpy.asarray(x)), vf.jit(function)(x), vf.tree.map(lambda y: y[1], vf.vmap(function)(np.stack([-x, x])))):
        np.testing.assert_array_equal(result["number"], numbers)
        np.testing.assert_array_equal(result["position"], places)
    gradient = vf.grad(lambda x: vf.numpy.where(vf.numpy.isfinite(y := function(x)["number"]), y, 0).sum())(x)
    np.testing.assert_array_equal(gradient.ravel(), np.bincount(places[places >= 0].ravel(), minlength=x.size))


def test_several_operands_that_do_not_fit() -> None:
    x = vf.numpy.ones(3)
    for operands, inits, computation, error in (
        ((), (), _greatest_first, ArgumentError),
        ((x, x[:2]), (0.0, 0.0), lambda a, b: a, ShapeError),
        ((x, x), (0.0,), lambda a, b: a, TreeError),
        ((x, x), (0.0, np.float64(0)), lambda a, b: a, DTypeError),
        ((x, x), (0.0, 0.0), lambda a, b: a[0], TreeError),
        ((x, x), (0.0, 0.0), lambda a, b: (a[0], a[1] > 0), DTypeError),
    ):
        with pytest.raises(error, match="reduce_window"):
            lax.reduce_window(operands, inits, computation, (2,))


def test_logical_windows() -> None:
    x = np.array([True, False, False, True])
    np.testing.assert_array_equal(lax.reduce_window(x, False, lax.bitwise_or, (2,)), [True, False, True])
    np.testing.assert_array_equal(lax.reduce_window(x, False, lax.max, (2,)), [True, False, True])


def test_the_product_differentiates_where_a_factor_is_zero() -> None:
    grad = vf.grad(lambda x: lax.reduce_window(x, 1.0, lax.mul, (3,)).sum())(np.array([2.0, 0.0, 5.0], np.float32))
    np.testing.assert_array_equal(grad, [0, 10, 0])


@pytest.mark.wide
def test_a_maximum_from_a_number() -> None:
    np.testing.assert_array_equal(lax.reduce_window(np.array([1.0, 5.0, 2.0]), 3.0, lax.max, (2,), padding=((1, 1),)), [3, 5, 5, 3])


def test_an_initial_value_under_a_trace() -> None:
    result = vf.jit(lambda x, start: lax.reduce_window(x, start, lax.max, (2,)))(np.array([1.0, 2.0, 0.0], np.float32), np.float32(1.5))
    np.testing.assert_array_equal(result, [2, 2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
@pytest.mark.parametrize(("computation", "init"), [("max", -np.inf), ("min", np.inf), ("add", 0.0)])
def test_an_initial_value_that_changes_nothing_is_left_out_under_a_trace(computation: str, init: float, dtype: Any) -> None:
    program = vf.make_jaxpr(lambda x: lax.reduce_window(x, init, getattr(lax, computation), (2,)))(np.zeros(5, dtype))
    assert len(program.eqns) == 1


def test_pooling_batches_over_any_axis() -> None:
    x = values(4, 6, 3)
    pool = lambda image: lax.reduce_window(image, -np.inf, lax.max, (2, 2), (2, 2))
    np.testing.assert_array_equal(vf.vmap(pool, in_axes=2)(x), np.stack([pool(x[..., i]) for i in range(3)]))
