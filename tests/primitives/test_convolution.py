"""Convolution: what is refused and how, gradients and batches against JAX, the usual forms, and the memory of a large layer."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

NHWC = ("NHWC", "HWIO", "NHWC")


def whole(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Small whole numbers in float32: sums of their products are exact in any order."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


class TestErrors:
    def test_features_that_do_not_fit_name_shapes_and_numbers(self) -> None:
        with pytest.raises(ShapeError, match=r"lhs must have 4 \* 1 features.*\(1, 3, 8, 8\).*\(2, 4, 3, 3\).*dimension_numbers"):
            lax.conv(whole((1, 3, 8, 8)), whole((2, 4, 3, 3)), (1, 1), "SAME")

    def test_groups_that_do_not_divide(self) -> None:
        x, w = whole((1, 4, 8)), whole((3, 2, 3))
        with pytest.raises(ShapeError, match="multiple of feature_group_count=2"):
            lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=2)
        with pytest.raises(ShapeError, match="must be positive, and one of them 1"):
            lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=2, batch_group_count=2)
        with pytest.raises(ShapeError, match="must be positive"):
            lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=0)

    def test_sequences_of_the_wrong_length(self) -> None:
        x, w = whole((1, 1, 8, 8)), whole((1, 1, 3, 3))
        with pytest.raises(ShapeError, match="window_strides must be 2 integers of at least 1"):
            lax.conv_general_dilated(x, w, (1,), "SAME")
        with pytest.raises(ShapeError, match="padding must be 2 pairs"):
            lax.conv_general_dilated(x, w, (1, 1), [(0, 0)])
        with pytest.raises(ShapeError, match="rhs_dilation must be 2 integers"):
            lax.conv_general_dilated(x, w, (1, 1), "SAME", rhs_dilation=(0, 1))
        with pytest.raises(ShapeError, match="cuts more than the size 8"):
            lax.conv_general_dilated(x, w, (1, 1), [(-5, -4), (0, 0)])
        assert not np.any(lax.conv_general_dilated(x, w, (1, 1), [(-9, 5), (0, 0)]))  # padding alone, as in JAX

    def test_words_for_padding(self) -> None:
        x, w = whole((1, 1, 8)), whole((1, 1, 3))
        with pytest.raises(ArgumentError, match="padding='FULL' is none of"):
            lax.conv(x, w, (1,), "FULL")
        with pytest.raises(ArgumentError, match="needs lhs_dilation 1"):
            lax.conv_general_dilated(x, w, (1,), "SAME", lhs_dilation=(2,))
        with pytest.raises(ArgumentError, match="conv_transpose: padding='FULL'"):
            lax.conv_transpose(whole((1, 8, 1)), whole((3, 1, 1)), (2,), "FULL")

    @pytest.mark.parametrize(
        "numbers", [("NCHW", "OIHW"), ("NCH", "OIHW", "NCHW"), ("NCHW", "OIHD", "NCHW"), ("NCHH", "OIHW", "NCHW"), ((0, 1, 2, 2),) * 3, 7]
    )
    def test_dimension_numbers(self, numbers: Any) -> None:
        with pytest.raises(ArgumentError, match="dimension_numbers"):
            lax.conv_general_dilated(whole((1, 1, 8, 8)), whole((1, 1, 3, 3)), (1, 1), "SAME", dimension_numbers=numbers)

    def test_ranks_and_dtypes(self) -> None:
        with pytest.raises(ShapeError, match=r"\(1, 1, 8\) and \(1, 1, 3, 3\)"):
            lax.conv(whole((1, 1, 8)), whole((1, 1, 3, 3)), (1,), "SAME")
        with pytest.raises(DTypeError, match="preferred_element_type=int32"):
            lax.conv(whole((1, 1, 8)), whole((1, 1, 3)), (1,), "SAME", preferred_element_type="int32")


CASES = {
    "plain": ((2, 3, 7, 6), (4, 3, 3, 2), {}),
    "same-strided": ((2, 3, 7, 6), (4, 3, 3, 2), {"window_strides": (2, 3), "padding": "SAME"}),
    "same-lower": ((1, 1, 5, 6), (1, 1, 2, 4), {"padding": "SAME_LOWER"}),
    "dilated": ((1, 2, 5, 6), (3, 2, 3, 2), {"lhs_dilation": (2, 1), "rhs_dilation": (1, 3), "padding": ((2, 1), (0, 3))}),
    "cropped": ((1, 2, 6, 6), (2, 2, 2, 2), {"padding": ((-1, 2), (1, -2)), "window_strides": (1, 2)}),
    "channels-last": ((2, 5, 6, 3), (2, 3, 3, 4), {"dimension_numbers": NHWC, "padding": "SAME"}),
    "mixed-order": ((3, 5, 2, 6), (2, 4, 3, 3), {"dimension_numbers": ("CHNW", "WOHI", "HNWC"), "padding": ((1, 1), (0, 1))}),
    "feature-groups": ((2, 6, 5, 5), (4, 3, 3, 3), {"feature_group_count": 2, "window_strides": (2, 2), "padding": "SAME"}),
    "depthwise": ((2, 3, 5, 5), (6, 1, 3, 3), {"feature_group_count": 3, "rhs_dilation": (2, 2), "padding": "SAME"}),
    "batch-groups": ((4, 3, 5, 5), (6, 3, 2, 2), {"batch_group_count": 2, "window_strides": (2, 1)}),
    "widened": ((1, 2, 5, 5), (3, 2, 3, 3), {"preferred_element_type": np.float32}),
    "one-axis": ((2, 3, 9), (4, 3, 4), {"window_strides": (2,), "padding": "SAME"}),
    "three-axes": ((1, 2, 4, 3, 5), (2, 2, 2, 2, 3), {"window_strides": (1, 2, 2), "padding": "SAME"}),
}


def case(name: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    lhs, rhs, options = CASES[name]
    rank = len(lhs) - 2
    return whole(lhs, 1), whole(rhs, 2), {"window_strides": (1,) * rank, "padding": "VALID"} | options


class TestAgainstJax:
    @pytest.mark.parametrize("name", CASES)
    def test_values_and_gradients(self, name: str) -> None:
        jax = pytest.importorskip("jax")
        x, w, params = case(name)
        shape = lax.conv_general_dilated(x, w, **params).shape

        def results(api: Any, ct: Any) -> list[Any]:
            value, pullback = api.vjp(lambda x, w: api.lax.conv_general_dilated(x, w, **params), x, w)
            return [value, *pullback(ct)]

        ct = whole(shape, 3)
        for mine, other in zip(results(vf, ct), jax.jit(lambda ct: results(jax, ct))(ct), strict=True):
            np.testing.assert_array_equal(mine, other)

    @pytest.mark.parametrize("name", ["same-strided", "feature-groups", "batch-groups", "mixed-order"])
    @pytest.mark.parametrize("in_axes", [(0, None), (None, 1), (2, 0)])
    def test_batches(self, name: str, in_axes: tuple[int | None, int | None]) -> None:
        jax = pytest.importorskip("jax")
        x, w, params = case(name)
        x, w = (a if axis is None else np.stack([a, a + 1, -a], axis) for a, axis in zip((x, w), in_axes, strict=True))
        theirs = jax.jit(jax.vmap(lambda x, w: jax.lax.conv_general_dilated(x, w, **params), in_axes))(x, w)
        np.testing.assert_array_equal(vf.vmap(lambda x, w: lax.conv_general_dilated(x, w, **params), in_axes)(x, w), theirs)

    @pytest.mark.parametrize("padding", ["SAME", "VALID", [(1, 2), (0, 1)]])
    @pytest.mark.parametrize(
        "options", [{}, {"transpose_kernel": True}, {"use_consistent_padding": True}, {"rhs_dilation": (2, 1)}], ids=str
    )
    @pytest.mark.parametrize("taps", [(3, 2), (1, 4)])
    def test_conv_transpose(self, padding: Any, options: dict[str, Any], taps: tuple[int, int]) -> None:
        jax = pytest.importorskip("jax")
        padding = padding if isinstance(padding, str) else [tuple(p) for p in padding]
        x, w = whole((2, 4, 5, 3)), whole((*taps, 3, 3))
        theirs = jax.jit(lambda x, w: jax.lax.conv_transpose(x, w, (2, 3), padding, **options))(x, w)
        np.testing.assert_array_equal(lax.conv_transpose(x, w, (2, 3), padding, **options), theirs)

    @pytest.mark.parametrize("numbers", [None, NHWC, ("NWCH", "HWIO", "CNHW")])
    def test_patches(self, numbers: Any) -> None:
        jax = pytest.importorskip("jax")
        args = (whole((2, 5, 6, 3)), (2, 3), (2, 1), [(1, 0), (0, 2)])
        options = {"lhs_dilation": (1, 2), "rhs_dilation": (2, 1), "dimension_numbers": numbers}
        theirs = jax.jit(lambda x: jax.lax.conv_general_dilated_patches(x, *args[1:], **options))(args[0])
        np.testing.assert_array_equal(lax.conv_general_dilated_patches(*args, **options), theirs)

    @pytest.mark.parametrize("numbers", [NHWC, ("CNHW", "OIHW", "WHNC"), ("NHWC", "OIHW", "NCHW"), None])
    def test_dimension_numbers(self, numbers: Any) -> None:
        jax = pytest.importorskip("jax")
        shapes = (2, 3, 4, 5), (3, 3, 3, 3)
        assert tuple(lax.conv_dimension_numbers(*shapes, numbers)) == tuple(jax.lax.conv_dimension_numbers(*shapes, numbers))


def test_patches_keep_infinities_apart() -> None:
    x = np.array([[[np.inf, 1.0, np.nan]]], np.float32)
    np.testing.assert_array_equal(lax.conv_general_dilated_patches(x, (2,), (1,), "VALID"), [[[np.inf, 1], [1, np.nan]]])


@pytest.mark.wide
def test_patches_of_windows_that_do_not_fit_are_empty() -> None:
    assert lax.conv_general_dilated_patches(whole((2, 3, 2)), (4,), (1,), "VALID", preferred_element_type="float64").shape == (2, 12, 0)


def test_vmap_over_no_examples() -> None:
    x, w = np.ones((0, 1, 2, 5), np.float32), np.ones((0, 4, 2, 3), np.float32)
    conv = lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID")
    for axes, operands in (
        ((0, 0), (x, w)),
        ((0, None), (x, np.ones((4, 2, 3), np.float32))),
        ((None, 0), (np.ones((1, 2, 5), np.float32), w)),
    ):
        result = vf.vmap(conv, axes)(*operands)
        assert (result.shape, result.dtype) == ((0, 1, 4, 3), np.float32)


def test_conv_with_general_padding_is_conv_general_dilated() -> None:
    x, w = whole((1, 2, 6)), whole((3, 2, 3))
    ours = lax.conv_with_general_padding(x, w, (1,), [(1, 1)], (2,), (1,))
    np.testing.assert_array_equal(ours, lax.conv_general_dilated(x, w, (1,), [(1, 1)], lhs_dilation=(2,)))


@pytest.mark.parametrize("padding", ["SAME", "SAME_LOWER", "VALID", "same"])
def test_padtype_to_pads(padding: str) -> None:
    jax = pytest.importorskip("jax")
    args = (7, 8, 9, 1), (3, 2, 5, 4), (1, 2, 3, 2)
    assert lax.padtype_to_pads(*args, padding) == [tuple(map(int, p)) for p in jax.lax.padtype_to_pads(*args, padding)]


def test_padding_that_is_no_pairs_is_explained() -> None:
    for padding in (3, (1, 2), [(1,), (2,)], None):
        with pytest.raises(ArgumentTypeError, match=r"padding must be a word or a sequence of \(low, high\) pairs"):
            lax.conv_general_dilated_patches(np.ones((1, 1, 4, 4)), (2, 2), (1, 1), padding)


@pytest.mark.parametrize("numbers", [None, NHWC], ids=["NCHW", "NHWC"])
def test_a_large_layer_trains_in_little_memory(numbers: Any) -> None:
    """Images of 128 x 128 with 64 channels (two of them, to be quick; scratch memory does not depend on the batch)."""
    images = np.ones((2, 64, 128, 128) if numbers is None else (2, 128, 128, 64), np.float32)
    weights = np.ones((64, 64, 3, 3) if numbers is None else (3, 3, 64, 64), np.float32)
    output, pullback = vf.vjp(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers), images, weights)
    del pullback
    cotangent = np.ones(output.shape, np.float32)

    def train(x: np.ndarray, w: np.ndarray) -> Any:
        out, back = vf.vjp(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers), x, w)
        return out, back(cotangent)

    tracemalloc.start()
    results = train(images, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    retained = sum(leaf.nbytes for leaf in vf.tree.leaves(results))
    assert peak - retained <= 32 << 20


@pytest.mark.wide
@pytest.mark.parametrize("algorithm", ["auto", "direct", "im2col", "igemm", "winograd", "fft"])
def test_an_algorithm_changes_rounding_alone(algorithm: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 7, 8)), rng.standard_normal((4, 3, 3, 3))

    def loss(x: Any, w: Any, algorithm: str) -> Any:
        return (lax.conv_general_dilated(x, w, (1, 1), "SAME", algorithm=algorithm) ** 2).sum()

    expected, actual = (vf.value_and_grad(loss, (0, 1))(x, w, name) for name in ("auto", algorithm))
    vf.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), actual, expected)


@pytest.mark.wide
def test_an_algorithm_that_does_not_fit_is_an_error() -> None:
    x, w = np.ones((1, 1, 8, 8)), np.ones((1, 1, 3, 3))
    with pytest.raises(ArgumentError, match="none of 'auto'"):
        lax.conv_general_dilated(x, w, (1, 1), "SAME", algorithm="quick")
    with pytest.raises(ArgumentError, match="winograd"):
        lax.conv_general_dilated(x, w, (2, 2), "SAME", algorithm="winograd")
    with pytest.raises(ArgumentError, match="winograd"):
        lax.conv_general_dilated(x, w[..., :2], (1, 1), "SAME", algorithm="winograd")
    with pytest.raises(ArgumentError, match="exact"):
        lax.conv_general_dilated(x.astype(int), w.astype(int), (1, 1), "SAME", algorithm="fft")


@pytest.mark.parametrize("numbers", [None, NHWC, ("NCHW", "OIHW", "NHWC")])
def test_a_kernel_of_its_own_at_every_position_is_jaxs(numbers: Any) -> None:
    jax = pytest.importorskip("jax")
    x = whole((2, 7, 6, 3) if numbers == NHWC else (2, 3, 7, 6))
    options: dict[str, Any] = {"window_strides": (1, 2), "padding": "SAME", "filter_shape": (2, 3), "dimension_numbers": numbers}
    w = whole((7, 3, 18, 4) if numbers == NHWC else (4, 18, 7, 3), 1)
    wanted = jax.lax.conv_general_dilated_local(x, w, **options)
    np.testing.assert_array_equal(lax.conv_general_dilated_local(x, w, **options), wanted)
    loss = lambda xp: lambda x, w: (xp.conv_general_dilated_local(x, w, **options) ** 2).sum()
    for ours, theirs in zip(vf.grad(loss(lax), (0, 1))(x, w), jax.grad(loss(jax.lax), (0, 1))(x, w), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_integers_can_be_convolved_as_floats() -> None:
    x, w = np.arange(-8, 8, dtype=np.int8).reshape(1, 1, 4, 4), np.full((1, 1, 2, 2), 100, np.int8)
    actual = vf.lax.conv_general_dilated(x, w, (1, 1), "VALID", preferred_element_type=np.float32)
    wanted = vf.lax.conv_general_dilated(x.astype(np.float32), w.astype(np.float32), (1, 1), "VALID")
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize(
    ("precision", "rounded"), [(None, None), ("highest", None), ("high", "tensorfloat32"), ("bfloat16_3x", "bfloat16_3x")]
)
def test_the_precision_of_float32_is_a_parameter_where_it_is_lower(precision: Any, rounded: str | None) -> None:
    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (2,), "SAME", precision=precision)

    x, w = vf.numpy.ones((2, 3, 8)), vf.numpy.ones((4, 3, 3))
    gradient = vf.grad(lambda x, w: convolve(x, w).sum(), argnums=(0, 1))
    for f, operand in ((convolve, x), (gradient, x), (vf.vmap(convolve, (0, None)), x[None])):
        eqns = [eqn for eqn in vf.make_jaxpr(f)(operand, w).eqns if eqn.primitive.name == "conv_general_dilated"]
        assert eqns
        assert all(eqn.params.get("precision") == rounded for eqn in eqns)
    assert "precision" not in vf.make_jaxpr(convolve)(x.astype("bfloat16"), w.astype("bfloat16")).eqns[0].params
