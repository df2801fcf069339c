"""`dot_general` and its kin: what they refuse and how they say it, programs that they make, and JAX's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta_fn as vf
from volta_fn import dtypes, lax
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

MATRIX = (((1,), (0,)), ((), ()))


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


class TestErrors:
    def test_sizes_that_differ_name_both_shapes_and_the_pair(self) -> None:
        with pytest.raises(
            ShapeError, match=r"contracting dimension 1 of lhs has size 3.*dimension 0 of rhs, has size 4.*\(2, 3\).*\(4, 5\)"
        ):
            lax.dot_general(ones(2, 3), ones(4, 5), MATRIX)
        with pytest.raises(ShapeError, match="batch dimension 0 of lhs has size 2"):
            lax.dot_general(ones(2, 3), ones(4, 3), (((1,), (1,)), ((0,), (0,))))

    def test_axes_that_do_not_pair_up(self) -> None:
        with pytest.raises(ShapeError, match=r"pairs contracting dimensions, got \(0, 1\) of lhs and \(0,\) of rhs"):
            lax.dot_general(ones(2, 3), ones(2, 3), (((0, 1), (0,)), ((), ())))
        with pytest.raises(ShapeError, match="both contracting"):
            lax.dot_general(ones(2, 3), ones(2, 3), (((0,), (0,)), ((0,), (0,))))
        with pytest.raises(ShapeError, match="out of range"):
            lax.dot_general(ones(2, 3), ones(2, 3), (((2,), (0,)), ((), ())))
        with pytest.raises(ArgumentError, match="dimension_numbers must be"):
            lax.dot_general(ones(2, 3), ones(3, 2), ((1,), (0,), ()))

    def test_preferred_dtypes_of_another_kind_or_narrower(self) -> None:
        with pytest.raises(DTypeError, match="of the kind of float32"):
            lax.dot_general(ones(2, 3), ones(3, 2), MATRIX, preferred_element_type="int32")
        with pytest.raises(DTypeError, match="no narrower"):
            lax.dot_general(ones(2, 3), ones(3, 2), MATRIX, preferred_element_type="float16")
        with pytest.raises(DTypeError, match="no narrower"):
            lax.dot_general(ones(2, 3, dtype=np.int32), ones(3, 2, dtype=np.int32), MATRIX, preferred_element_type="float16")

    def test_an_unknown_precision(self) -> None:
        with pytest.raises(ArgumentError, match="precision='lowest'"):
            lax.dot_general(ones(2, 3), ones(3, 2), MATRIX, precision="lowest")

    def test_dot_and_batch_matmul_say_what_they_take(self) -> None:
        with pytest.raises(ShapeError, match=r"got shapes \(2, 3\) and \(2, 3\)"):
            lax.dot(ones(2, 3), ones(2, 3))
        with pytest.raises(ShapeError, match="dot takes vectors and matrices"):
            lax.dot(ones(2, 3, 4), ones(4))
        with pytest.raises(ShapeError, match="one rank, two or more"):
            lax.batch_matmul(ones(2, 3, 4), ones(4, 3))


@pytest.mark.parametrize(
    "precision",
    [
        "highest",
        "default",
        lax.Precision.HIGH,
        (lax.Precision.HIGHEST, None),
        lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
        "F32_F32_F32",
        lax.DotAlgorithm("f4", "f4", "f4"),
    ],
)
def test_every_precision_of_jax_is_accepted(precision: Any) -> None:
    np.testing.assert_array_equal(lax.dot(ones(2, 3), ones(3), precision=precision), [3, 3])


def test_gradients_of_a_matrix_product_need_no_transposition_of_the_result() -> None:
    """The weights' gradient comes out with its axes in order, so that it lies in memory as the weights do."""
    program = vf.make_jaxpr(vf.grad(lambda w, x: lax.dot(x, w).sum()))(ones(3, 4), ones(2, 3))
    assert [eqn.primitive.name for eqn in program.eqns if eqn.primitive.name in ("dot_general", "transpose")][-1] == "dot_general"


def test_the_gradient_of_a_widened_product_has_the_operands_dtypes() -> None:
    product = lambda x, y: lax.dot(x, y, preferred_element_type="float32").sum()
    by_x, by_y = vf.grad(product, (0, 1))(ones(2, 3, dtype=np.float16), ones(3, 4, dtype=np.float16))
    assert by_x.dtype == by_y.dtype == np.float16
    np.testing.assert_array_equal(by_x, np.full((2, 3), 4))
    np.testing.assert_array_equal(by_y, np.full((3, 4), 2))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("preferred", ["int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"])
def test_sums_have_any_wider_dtype_with_the_numbers_of_the_operands(dtype: str, preferred: str) -> None:
    """As in JAX, which also converts where numbers are lost."""
    jax = pytest.importorskip("jax")
    x, y = np.arange(6).reshape(2, 3) % 2, np.arange(12).reshape(3, 4) % 3

    def product(api: Any, xnp: Any) -> Any:
        return api.lax.dot(xnp.asarray(x).astype(dtype), xnp.asarray(y).astype(dtype), preferred_element_type=preferred)

    kinds = [dtypes.BOOL, dtypes.INTEGERS, dtypes.FLOATS, dtypes.COMPLEX]
    rank = lambda name: next(number for number, kind in enumerate(kinds) if dtypes.as_dtype(name) in kind)
    is_wider = dtypes.as_dtype(preferred).itemsize >= dtypes.as_dtype(dtype).itemsize and rank(preferred) >= rank(dtype)
    if dtype != preferred and not is_wider:
        with pytest.raises(DTypeError, match="preferred_element_type"):
            product(vf, vf.numpy)
        return
    actual = product(vf, vf.numpy)
    assert actual.dtype == dtypes.as_dtype(preferred)
    np.testing.assert_array_equal(actual, x @ (y > 0 if dtype == "bool" else y))
    np.testing.assert_array_equal(actual, product(jax, jax.numpy))


def test_integers_have_sums_of_floats_in_every_product() -> None:
    jax = pytest.importorskip("jax")
    x, y = np.arange(6, dtype=np.int8).reshape(2, 3), np.arange(12, dtype=np.int8).reshape(3, 4)
    for product in (
        lambda api, xnp: xnp.matmul(x, y, preferred_element_type="float32"),
        lambda api, xnp: xnp.einsum("ij,jk->ki", x, y, preferred_element_type="float32"),
        lambda api, xnp: xnp.tensordot(x, y, 1, preferred_element_type="float32"),
        lambda api, xnp: api.lax.ragged_dot(x, np.stack([y, -y]), np.int32([1, 1]), preferred_element_type=np.float32),
        lambda api, xnp: api.lax.conv(x[None], y.T[:, :3, None][:, :2], (1,), "SAME", preferred_element_type=np.float32),
    ):
        wanted = product(jax, jax.numpy)
        for actual in (product(vf, vf.numpy), vf.jit(lambda product=product: product(vf, vf.numpy))()):
            assert actual.dtype == wanted.dtype == np.float32
            np.testing.assert_array_equal(actual, wanted)


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    """Operands' shapes and dimension numbers, with some of every kind of axis."""
    count = {kind: draw(st.integers(0, 2)) for kind in ("contract", "batch", "left", "right")}
    size = {(kind, i): draw(st.integers(1, 3)) for kind, n in count.items() for i in range(n)}
    sides = [draw(st.permutations([axis for axis in size if axis[0] in ("contract", "batch", free)])) for free in ("left", "right")]
    numbers = tuple(tuple(tuple(side.index((kind, i)) for i in range(count[kind])) for side in sides) for kind in ("contract", "batch"))
    return [tuple(size[axis] for axis in side) for side in sides], numbers


def whole(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(np.float32)


@given(cases())
def test_gradients_are_the_transposes(case: tuple) -> None:
    """<ct, f(dx, y)> = <x_bar, dx> and <ct, f(x, dy)> = <y_bar, dy>; sums of whole numbers, hence exact."""
    shapes, numbers = case
    rng = np.random.default_rng(0)
    (x, y), (dx, dy) = ([whole(rng, shape) for shape in shapes] for _ in range(2))
    product = lambda a, b: lax.dot_general(a, b, numbers)
    out, pullback = vf.vjp(product, x, y)
    ct = whole(rng, out.shape)
    x_bar, y_bar = pullback(ct)
    assert (x_bar.shape, y_bar.shape) == (x.shape, y.shape)
    assert np.sum(ct * np.asarray(product(dx, y))) == np.sum(np.asarray(x_bar) * dx)
    assert np.sum(ct * np.asarray(product(x, dy))) == np.sum(np.asarray(y_bar) * dy)


@pytest.mark.parametrize(
    ("shapes", "numbers"),
    [
        (((2, 3), (3, 4)), MATRIX),
        (((2, 3, 4, 5), (5, 3, 6, 2)), (((3,), (0,)), ((0, 1), (3, 1)))),
        (((2, 3, 4), (4, 5, 2)), (((0, 2), (2, 0)), ((), ()))),
    ],
)
def test_values_and_gradients_are_those_of_jax(shapes: tuple, numbers: tuple) -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    x, y = (whole(rng, shape) for shape in shapes)
    ct = whole(rng, lax.dot_general(x, y, numbers).shape)

    def results(api: Any, ct: Any) -> list[Any]:
        value, pullback = api.vjp(lambda a, b: api.lax.dot_general(a, b, numbers), x, y)
        return [value, *pullback(ct)]

    for mine, other in zip(results(vf, ct), jax.jit(lambda ct: results(jax, ct))(ct), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_dimension_numbers_may_be_lists_and_numpy_arrays() -> None:
    x, y = ones(2, 3, 4), ones(2, 4, 5)
    for numbers in ([[[2], [1]], [[0], [0]]], ((np.array([2]), np.array([1])), (np.array([0]), np.array([0]))), (([-1], [-2]), ([0], [0]))):
        np.testing.assert_array_equal(lax.dot_general(x, y, numbers), np.full((2, 3, 5), 4))


@pytest.mark.wide
@pytest.mark.parametrize("floating", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_products_of_integers_and_floats_are_those_of_the_floats(floating: str) -> None:
    """Whole numbers, so that sums are exact; panels of either operand are packed in two ways."""
    rng = np.random.default_rng(1)
    product = vf.jit(lax.dot)
    for integral in (np.bool_, np.int8, np.uint8, np.int16, np.uint32, np.int64):
        x = rng.integers(0 if np.dtype(integral).kind in "bu" else -3, 2, (13, 10)).astype(integral)
        y = np.asarray(vf.numpy.asarray(whole(rng, (10, 17))).astype(floating))
        expected = x.astype(np.float64) @ y.astype(np.complex128)
        for left, right, wanted in ((x, y, expected), (y.T, x.T, expected.T)):
            actual = product(left, right)
            assert actual.dtype == floating
            np.testing.assert_array_equal(np.asarray(actual).astype(np.complex128), wanted)
            np.testing.assert_array_equal(actual, lax.dot(left, right))


@pytest.mark.parametrize(
    ("precision", "rounded"),
    [
        *((x, True) for x in ("default", "high", "tensorfloat32", lax.Precision.HIGH, ("high", "default"))),
        *((x, True) for x in ("bfloat16_3x", "BF16_BF16_F32_X3", ("high", "bfloat16_3x"))),
        *((x, False) for x in (None, "highest", "float32", ("high", "highest"), "TF32_TF32_F32_X3")),
    ],
)
def test_the_precision_of_float32_is_a_parameter_where_it_is_lower(precision: Any, rounded: bool) -> None:
    def product(x: Any, y: Any) -> Any:
        return lax.dot(x, y, precision=precision)

    x, stack = ones(2, 2), ones(3, 2, 2)
    gradient = vf.grad(lambda x, y: product(x, y).sum(), argnums=(0, 1))
    for f, operand in ((product, x), (gradient, x), (vf.vmap(product), stack)):
        eqns = [eqn for eqn in vf.make_jaxpr(f)(operand, operand).eqns if eqn.primitive.name == "dot_general"]
        assert eqns
        assert all(("precision" in eqn.params) == rounded for eqn in eqns)
    assert "precision" not in vf.make_jaxpr(product)(ones(2, 2, dtype="f2"), ones(2, 2, dtype="f2")).eqns[0].params


@pytest.mark.parametrize("precision", ["bfloat16_3x", lax.DotAlgorithmPreset.BF16_BF16_F32_X3, ("tensorfloat32", "bfloat16_3x")])
def test_a_pair_of_precisions_has_the_higher_one(precision: Any) -> None:
    (eqn,) = vf.make_jaxpr(lambda x, y: lax.dot(x, y, precision=precision))(ones(2, 2), ones(2, 2)).eqns
    assert eqn.params["precision"] == "bfloat16_3x"
