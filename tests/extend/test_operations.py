"""Functions of `jax.lax` that programs here do not need, against JAX."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.extend import operations

SIZES = {"N": 2, "H": 7, "W": 8, "C": 3, "O": 5, "I": 3}
WINDOW = {"H": 3, "W": 2}
ORDERS = (("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NHWC"), ("NCHW", "OIHW", "NCHW"))


@pytest.mark.parametrize(
    ("padding", "strides", "order"), list(itertools.product(("SAME", "VALID", [(1, 2), (0, 1)]), ((1, 1), (2, 3)), ORDERS))
)
def test_shapes_of_convolutions_are_those_of_jax(padding, strides, order) -> None:
    lhs, rhs = tuple(SIZES[c] for c in order[0]), tuple((SIZES | WINDOW)[c] for c in order[1])
    assert operations.conv_general_permutations(order) == tuple(map(tuple, jax.lax.conv_general_permutations(order)))
    arguments = (lhs, rhs, strides, padding, order)
    assert operations.conv_general_shape_tuple(*arguments) == tuple(jax.lax.conv_general_shape_tuple(*arguments))
    assert operations.conv_transpose_shape_tuple(*arguments) == tuple(jax.lax.conv_transpose_shape_tuple(*arguments))


def test_bad_shapes_of_convolutions() -> None:
    assert operations.conv_shape_tuple((4, 3, 8), (5, 3, 2), (1,), [(0, 0)], batch_group_count=2) == (2, 5, 7)
    with pytest.raises(ShapeError, match="2 pairs"):
        operations.conv_shape_tuple((1, 3, 8, 8), (4, 3, 3, 3), (1, 1), [(0, 0)])
    with pytest.raises(ShapeError, match="more than"):
        operations.conv_shape_tuple((1, 3, 2), (4, 3, 1), (1,), [(-3, 0)])
    with pytest.raises(ShapeError, match="must divide"):
        operations.conv_shape_tuple((3, 3, 2), (4, 3, 1), (1,), [(0, 0)], 2)
    with pytest.raises(ArgumentTypeError, match="no letter twice"):
        operations.conv_general_permutations(("NHHC", "HWIO", "NHWC"))
    with pytest.raises(ArgumentTypeError, match="same spatial"):
        operations.conv_general_permutations(("NHDC", "HWIO", "NHWC"))
    with pytest.raises(ArgumentError, match="SAME"):
        operations.conv_transpose_shape_tuple((1, 8, 3), (2, 3, 3), (1,), "FULL", ("NWC", "WIO", "NWC"))


@pytest.mark.parametrize(
    "arguments",
    [
        ((8, 9), (2, 3), (2, 1), [(0, 0), (1, 1)]),
        ((8, 9), (2, 3), (2, 1), [(0, 0), (1, 1)], (2, 1), (1, 3)),
        ((1, 2), (2, 3), (1, 1), [(0, 0), (0, 0)]),
    ],
)
def test_shapes_of_reduced_windows(arguments) -> None:
    assert operations.reduce_window_shape_tuple(*arguments) == jax.lax.reduce_window_shape_tuple(*arguments)


def test_shapes_as_values() -> None:
    for shape in ((), (2, 3), (0,)):
        ours, theirs = operations.shape_as_value(shape), jax.lax.shape_as_value(shape)
        np.testing.assert_array_equal(ours, theirs)
    traced = vf.jit(lambda n: operations.shape_as_value((n, 2)))(jnp.int32(5))
    np.testing.assert_array_equal(traced, [5, 2])


def test_values_in_programs() -> None:
    assert operations.dce_sink({"x": 1.0}) is None
    assert vf.jit(lambda x: operations.stage(2.0) * x)(3.0) == 6 and operations.stage(np.ones(2, np.float32)).shape == (2,)
    with pytest.raises(ArgumentTypeError):
        operations.dce_sink("text")


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64"])
def test_broadcasts_along_an_axis(dtype: str) -> None:
    x = jnp.array([[0, 1], [1, 1], [1, 0]]).astype(dtype)
    result = vf.vmap(lambda x: operations.pbroadcast({"x": x}, "i", 2), axis_name="i")(x)["x"]
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, np.broadcast_to(np.asarray(x)[2], (3, 2)))


def test_a_broadcast_value_may_be_nan_elsewhere() -> None:
    result = vf.vmap(lambda x: operations.pbroadcast(x, "i", 0), axis_name="i")(jnp.array([1.0, jnp.nan]))
    np.testing.assert_array_equal(result, [1, 1])


def test_ragged_exchange_is_that_of_loops() -> None:
    rng = np.random.default_rng(0)
    members, rows = 3, 8
    sizes = rng.integers(0, 3, (members, members))
    operand = rng.standard_normal((members, rows, 2)).astype(np.float32)
    starts = np.cumsum(sizes, 1) - sizes
    targets = np.cumsum(sizes, 0) - sizes
    expected = np.full((members, rows, 2), -1, np.float32)
    for sender, receiver in np.ndindex(members, members):
        n, at, to = sizes[sender, receiver], starts[sender, receiver], targets[sender, receiver]
        expected[receiver, to : to + n] = operand[sender, at : at + n]

    def exchange(x, *tables):
        return operations.ragged_all_to_all(x, jnp.full((rows, 2), -1.0), *tables, axis_name="i")

    tables = [jnp.asarray(t, "int32") for t in (starts, sizes, targets, sizes.T)]
    np.testing.assert_array_equal(vf.jit(vf.vmap(exchange, axis_name="i"))(jnp.asarray(operand), *tables), expected)
    with pytest.raises(ShapeError, match="same shape"):
        operations.ragged_all_to_all(jnp.ones((2, 3)), jnp.ones((2, 2)), *tables, axis_name="i")


@pytest.mark.parametrize("with_scales", [False, True])
def test_scaled_products(with_scales: bool) -> None:
    rng = np.random.default_rng(1)
    lhs, rhs = rng.standard_normal((2, 3, 64)), rng.standard_normal((2, 64, 4))
    scales = [rng.integers(1, 4, s) for s in ((2, 3, 2), (2, 2, 4))] if with_scales else [None, None]
    wide = [np.ones(1), np.ones(1)] if not with_scales else [np.repeat(scales[0], 32, 2), np.repeat(scales[1], 32, 1)]
    options = {n: None if s is None else jnp.asarray(s, "float32") for n, s in zip(("lhs_scale", "rhs_scale"), scales, strict=True)}
    result = operations.scaled_dot(jnp.asarray(lhs, "float32"), jnp.asarray(rhs, "float32"), **options, preferred_element_type="float32")
    np.testing.assert_allclose(result, (lhs * wide[0]) @ (rhs * wide[1]), rtol=2e-5, atol=2e-5)
    assert operations.scaled_dot(jnp.ones((2, 4)), jnp.ones((4, 2))).dtype == jnp.bfloat16


def test_bad_scales() -> None:
    with pytest.raises(ShapeError, match="must divide"):
        operations.scaled_dot(jnp.ones((2, 4)), jnp.ones((4, 2)), lhs_scale=jnp.ones((2, 3)))
    with pytest.raises(ArgumentTypeError, match="two dimensions"):
        operations.scaled_dot(jnp.ones(4), jnp.ones(4))


def test_numbers_from_a_hidden_state() -> None:
    draw = vf.jit(lambda: operations.rng_uniform(2.0, 4.0, (500,)))
    first, second = np.asarray(draw()), np.asarray(draw())
    assert not np.array_equal(first, second) and first.min() >= 2 and first.max() < 4 and 2.8 < first.mean() < 3.2
    numbers = operations.rng_uniform(jnp.int32(-1), jnp.int32(2), (200,))
    assert numbers.dtype == "int32" and {*map(int, numbers)} == {-1, 0, 1}
    assert operations.rng_uniform(0.0, 1.0, ()).shape == () and operations.rng_uniform(0.0, 1.0, (0, 2)).shape == (0, 2)
    with pytest.raises(ArgumentTypeError, match="two scalars"):
        operations.rng_uniform(jnp.ones(2), 1.0, (2,))


@pytest.mark.parametrize("shape", [(4, 3), (3, 5), (2, 3, 3)])
@pytest.mark.parametrize("full_matrices", [False, True])
def test_pivoted_factors(shape: tuple[int, ...], full_matrices: bool) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    results = operations.qr(x, pivoting=True, full_matrices=full_matrices)
    for result, expected in zip(results, jax.lax.linalg.qr(x, pivoting=True, full_matrices=full_matrices), strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(expected), atol=1e-5)
    assert results[2].dtype == "int32" and len(operations.qr(x)) == 2


def test_one_minus_square_is_precise_near_one_and_its_derivative_near_zero() -> None:
    x = np.array([-1.0000001, -0.3, 0.0, 1e-9, 0.5, 0.9999999], np.float32)
    np.testing.assert_allclose(operations.one_minus_square(x), 1 - x.astype(float) ** 2, rtol=3e-7)
    np.testing.assert_array_equal(vf.vmap(vf.grad(operations.one_minus_square))(x), -2 * x)
    assert float(vf.grad(vf.grad(operations.one_minus_square))(0.5)) == -2.0
    assert complex(operations.one_minus_square(2j)) == 5


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "complex64"])
def test_polynomials_begin_with_the_constant(dtype) -> None:
    x, row = np.array([[1, 2, -3]] * 2, dtype), np.array([1, 5, 2], np.int32)
    result = operations.polynomial(x, [1, row, 2], unroll=4)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, 1 + row.astype(dtype) * x + 2 * x * x)
    assert operations.polynomial(x, []).tolist() == np.zeros_like(x).tolist()
    assert operations.polynomial(x, [7]).shape == x.shape
    assert float(vf.grad(operations.polynomial)(3.0, [1.0, 5.0, 2.0])) == 17.0
