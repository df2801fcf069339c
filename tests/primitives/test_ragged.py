"""Ragged contraction against JAX and products of slices."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.contraction import expanded_ragged_dot
from volta_fn.test_util import check_grads

RNG = np.random.default_rng(3)
LHS = RNG.normal(size=(2, 5, 7)).astype(np.float32)
RHS = RNG.normal(size=(2, 7, 4)).astype(np.float32)
GROUPED = RNG.normal(size=(3, 2, 7, 4)).astype(np.float32)
CASES = {
    "contracting": (((((2,), (1,)), ((0,), (0,))), [2], []), RHS, [3, 2, 1]),
    "contracting, sizes by batch": (((((2,), (1,)), ((0,), (0,))), [2], []), RHS, [[3, 2, 1], [1, 1, 4]]),
    "batch": (((((2,), (1,)), ((0,), (0,))), [0], []), RHS, [1, 1]),
    "free": (((((2,), (2,)), ((0,), (1,))), [1], [0]), GROUPED, [3, 0, 1]),
    "free, sizes by batch": (((((2,), (2,)), ((0,), (1,))), [1], [0]), GROUPED, [[3, 1, 1], [1, 1, 2]]),
}


@pytest.mark.parametrize("case", CASES)
def test_general_form_is_jaxs(case):
    jax = pytest.importorskip("jax")
    numbers, rhs, sizes = CASES[case]
    sizes = np.asarray(sizes, np.int32)
    ours = lax.ragged_dot_general(LHS, rhs, sizes, lax.RaggedDotDimensionNumbers(*numbers))
    theirs = jax.lax.ragged_dot_general(LHS, rhs, sizes, jax.lax.RaggedDotDimensionNumbers(*numbers))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [[2, 0, 4], [7, 0, 0], [0, 0, 0], [1, 2, 3]])
def test_rows_are_multiplied_by_their_groups_matrix(sizes):
    lhs, rhs = RNG.normal(size=(7, 3)).astype(np.float32), RNG.normal(size=(3, 3, 4)).astype(np.float32)
    group = np.repeat(np.arange(3), sizes)
    wanted = np.zeros((7, 4), np.float32)
    wanted[: len(group)] = np.einsum("mk,mkn->mn", lhs[: len(group)], rhs[group])
    for dot in (lax.ragged_dot, vf.jit(lax.ragged_dot)):
        np.testing.assert_allclose(np.asarray(dot(lhs, rhs, np.asarray(sizes, np.int32))), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("sizes", [[150, 0, 3, 97], [0, 0, 0, 0], [250, 30, 0, 0], [60, 60, 60, 60]])
def test_many_rows_fall_into_blocks(sizes, dtype):
    lhs, rhs = (RNG.integers(-3, 4, shape).astype(dtype) for shape in ((250, 5), (4, 5, 6)))
    group = np.repeat(np.arange(4), sizes)[:250]
    wanted = np.zeros((250, 6))
    wanted[: len(group)] = np.einsum("mk,mkn->mn", lhs[: len(group)].astype(float), rhs[group].astype(float))
    actual = vf.jit(lax.ragged_dot)(lhs, rhs, np.asarray(sizes, np.int32))
    assert actual.dtype == dtype
    np.testing.assert_allclose(np.asarray(actual).astype(float), wanted)
    swapped = lax.RaggedDotDimensionNumbers((((0,), (1,)), ((), ())), [1], [2])
    actual = vf.jit(lambda x, y, s: lax.ragged_dot_general(x, y, s, swapped))(lhs.T, rhs.transpose(2, 1, 0), np.asarray(sizes, np.int32))
    np.testing.assert_allclose(np.asarray(actual).astype(float), wanted)


@pytest.mark.parametrize("sizes", [[150, 0, 3, 97], [0, 0, 0, 0], [10, 20, 30, 40]])
def test_gradients_of_many_rows(sizes):
    x, w, ct = (RNG.normal(size=shape).astype(np.float32) for shape in ((250, 5), (4, 5, 6), (250, 6)))
    to_x, to_w = vf.jit(lambda x, w, s, ct: vf.vjp(lambda x, w: lax.ragged_dot(x, w, s), x, w)[1](ct))(x, w, np.int32(sizes), ct)
    ends = np.cumsum(sizes)
    expected_x, expected_w = np.zeros((250, 5)), np.zeros((4, 5, 6))
    for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        expected_x[start:end] = ct[start:end] @ w[group].T
        expected_w[group] = x[start:end].T @ ct[start:end]
    np.testing.assert_allclose(to_x, expected_x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(to_w, expected_w, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "rows, matrices, preferred",
    [
        ("bfloat16", "bfloat16", "float32"),
        ("float16", "float16", "float32"),
        ("bfloat16", "float32", None),
        ("float32", "bfloat16", None),
        ("float16", "bfloat16", None),
    ],
)
def test_gradients_of_narrow_operands_in_wide_sums(rows, matrices, preferred):
    """Cotangents are wider than the operand that a gradient belongs to."""
    x, w, ct = (RNG.integers(-3, 4, shape).astype(np.float32) for shape in ((19, 5), (3, 5, 6), (19, 6)))
    sizes = np.int32([4, 0, 13])
    group = np.repeat(np.arange(3), sizes)

    def gradient(x, w):
        x, w = x.astype(rows), w.astype(matrices)
        result, pull = vf.vjp(lambda x, w: lax.ragged_dot(x, w, sizes, preferred_element_type=preferred), x, w)
        assert result.dtype == np.float32
        return pull(ct)

    for to_x, to_w in (gradient(jnp.asarray(x), jnp.asarray(w)), vf.jit(gradient)(x, w)):
        assert (str(to_x.dtype), str(to_w.dtype)) == (rows, matrices)
        expected_x, expected_w = np.zeros((19, 5)), np.zeros((3, 5, 6))
        expected_x[:17] = np.einsum("mn,mkn->mk", ct[:17], w[group])
        np.add.at(expected_w, group, x[:17, :, None] * ct[:17, None])
        np.testing.assert_array_equal(np.asarray(to_x.astype(np.float32)), expected_x.astype(to_x.dtype).astype(np.float32))
        np.testing.assert_array_equal(np.asarray(to_w.astype(np.float32)), expected_w.astype(to_w.dtype).astype(np.float32))


def test_sums_are_no_narrower_than_their_operands():
    x, w = jnp.ones((4, 5), jnp.bfloat16), jnp.ones((2, 5, 6), jnp.float32)
    with pytest.raises(DTypeError, match="preferred_element_type=bfloat16"):
        lax.ragged_dot(x, w, np.int32([3, 1]), preferred_element_type=jnp.bfloat16)


def test_rows_meet_only_their_groups_matrix():
    """The products of compiled programs have blocks of rows, and one matrix each."""
    x, w = np.ones((64, 5), np.float32), np.ones((8, 5, 6), np.float32)
    text = str(
        vf.make_jaxpr(lambda *a: expanded_ragged_dot(*a, kind="rows", rounds=False, dtype=np.dtype(np.float32)))(x, w, np.ones(8, np.int32))
    )
    assert text.count("dot_general") == 1
    assert "f32[8,6] = dot_general" in text


def test_derivatives_and_batching():
    lhs, rhs, sizes = RNG.normal(size=(5, 3)), RNG.normal(size=(2, 3, 2)), np.array([3, 1], np.int32)
    check_grads(lambda x, y: lax.ragged_dot(x, y, sizes), (lhs, rhs), 2)
    stacked = vf.vmap(lax.ragged_dot, in_axes=(0, None, None))(np.stack([lhs, 2 * lhs]), rhs, sizes)
    np.testing.assert_allclose(np.asarray(stacked[1]), 2 * np.asarray(stacked[0]), rtol=1e-12)
    every = vf.vmap(lax.ragged_dot)(np.stack([lhs, 2 * lhs]), np.stack([rhs, rhs]), np.stack([sizes, sizes[::-1]]))
    np.testing.assert_allclose(every[1], lax.ragged_dot(2 * lhs, rhs, sizes[::-1]), rtol=1e-12)


def test_bad_operands():
    numbers = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [0, 1], [])
    with pytest.raises(ArgumentError, match="names one axis"):
        lax.ragged_dot_general(np.ones((2, 2)), np.ones((2, 2)), np.array([2]), numbers)
    with pytest.raises(ArgumentError, match="group_offset"):
        lax.ragged_dot(np.ones((2, 2)), np.ones((1, 2, 2)), np.array([2]), group_offset=np.array([0]))
    with pytest.raises(DTypeError, match="integers"):
        lax.ragged_dot(np.ones((2, 2)), np.ones((1, 2, 2)), np.array([2.0]))
    with pytest.raises(ShapeError, match="axis of groups"):
        lax.ragged_dot(np.ones((2, 2)), np.ones((1, 2, 2)), np.int32(2))
    with pytest.raises(ShapeError, match="fits neither"):
        lax.ragged_dot(np.ones((2, 2)), np.ones((1, 2, 2)), np.ones((2, 1), np.int32))


def test_group_sizes_must_fit_the_axes_before_the_ragged_one() -> None:
    numbers = lax.RaggedDotDimensionNumbers((((3,), (2,)), ((0, 1), (0, 1))), (1,), ())
    x, y = np.ones((2, 3, 4, 5), np.float32), np.ones((2, 3, 5, 6), np.float32)
    assert lax.ragged_dot_general(x, y, np.ones((2, 3), np.int32), numbers).shape == (2, 3, 4, 6)
    with pytest.raises(ShapeError, match="group_sizes"):
        lax.ragged_dot_general(x, y, np.ones((3, 3), np.int32), numbers)


def test_only_a_free_ragged_axis_takes_an_axis_of_groups() -> None:
    numbers = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (1,), (0,))
    with pytest.raises(ArgumentError, match="axis of groups"):
        lax.ragged_dot_general(np.ones((4, 5)), np.ones((2, 5, 3)), np.array([2, 3]), numbers)
