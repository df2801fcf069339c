"""Quantised arrays: codes and values beside NumPy, products, selection, transforms, files, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.primitives.quantized import NF4_VALUES

SCHEMES = ("int8", "int4", "nf4", "fp8")
OPTIONS = [*[(scheme, True) for scheme in SCHEMES], ("int8", False), ("int4", False)]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def values(w: nn.QuantizedArray) -> np.ndarray:
    """Return the numbers of a matrix of rows, by the definition of each scheme."""
    data, size = np.asarray(w.data), w.inner[0]
    if w.scheme in ("int4", "nf4"):
        codes = np.zeros((data.shape[0], 2 * data.shape[1]), np.int64)
        for i in range(codes.shape[1]):
            byte = data[:, i // 32 * 16 + i % 16]
            codes[:, i] = byte % 16 if i % 32 < 16 else byte // 16
        code_values = (codes - 8.0 if w.scheme == "int4" else NF4_VALUES[codes])[:, :size]
    else:
        code_values = data.view(ml_dtypes.float8_e4m3fn).astype(np.float64) if w.scheme == "fp8" else data.astype(np.float64)
    group = np.arange(size) // w.group_size
    result = code_values * np.asarray(w.scales, np.float64)[:, group]
    return result if w.offsets is None else result + np.asarray(w.offsets, np.float64)[:, group]


@pytest.mark.parametrize(("scheme", "symmetric"), OPTIONS)
@pytest.mark.parametrize(("size", "group"), [(64, 32), (70, 32), (33, None), (5, 64), (96, 20)])
def test_numbers_are_those_of_the_codes_and_near_the_weights(scheme: Any, symmetric: bool, size: int, group: int | None) -> None:
    x = numbers(6, size)
    w = nn.quantize_array(x, scheme, group_size=group, symmetric=symmetric)
    np.testing.assert_allclose(w.dequantize(), values(w), rtol=1e-6, atol=1e-6)
    # Half of the widest step between neighbouring codes, in units of the largest number of a group.
    widest = {"int8": 1 / 127, "int4": 2 / 15 if not symmetric else 1 / 8, "nf4": 0.304, "fp8": 1 / 14}[scheme]
    spread = np.abs(x).max() * (1 if symmetric else 1.1)
    # int4's largest positive code is 7 of 8 steps, so that the number opposite to the extreme one may be off by a step.
    assert np.abs(values(w) - x).max() <= spread * widest * (1.01 if scheme == "int4" and symmetric else 0.52)


def test_the_schemes_use_all_of_their_range() -> None:
    x = np.array([[-4.0, -1.0, 0.0, 2.0, 3.0]], np.float32)
    assert nn.quantize_array(x, "int4").scales[0, 0] == 0.5
    assert nn.quantize_array(-x, "int4").scales[0, 0] == -0.5
    np.testing.assert_array_equal(nn.quantize_array(x, "int8").data[0, :3], [-127, -32, 0])
    wide = nn.quantize_array(x, "int8", symmetric=False)
    np.testing.assert_array_equal(wide.data[0], np.round((x[0] + 4) * 255 / 7 - 128))
    np.testing.assert_allclose(wide.zero_points, [[-128 + 4 * 255 / 7]], rtol=1e-5)
    grid = NF4_VALUES[None] * 3
    np.testing.assert_array_equal(nn.quantize_array(grid, "nf4").dequantize(), grid)
    assert nn.quantize_array(x, "fp8").dequantize()[0, 0] == -4.0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_equal_and_zero_numbers(scheme: Any) -> None:
    np.testing.assert_array_equal(nn.quantize_array(np.zeros((2, 40), np.float32), scheme).dequantize(), np.zeros((2, 40)))
    np.testing.assert_allclose(nn.quantize_array(np.full((2, 40), 0.5, np.float32), scheme).dequantize(), np.full((2, 40), 0.5), rtol=1e-6)


@pytest.mark.parametrize(("scheme", "symmetric"), OPTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_products_are_those_of_the_numbers(scheme: Any, symmetric: bool, dtype: str) -> None:
    w = nn.quantize_array(numbers(70, 5), scheme, axis=0, group_size=32, symmetric=symmetric)
    x = vf.numpy.asarray(numbers(3, 70, seed=1)).astype(dtype)
    expected = np.asarray(x).astype(np.float64) @ values(w).T
    tolerance = {"float32": 1e-5, "float64": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    out = x @ w
    assert out.dtype == x.dtype
    for result in (out, vf.jit(lambda a, b: a @ b)(x, w), (w.T @ x.T).T):
        np.testing.assert_allclose(np.asarray(result, np.float64), expected, rtol=tolerance, atol=tolerance * 8)
    back = vf.numpy.asarray(numbers(3, 5, seed=2)).astype(dtype)
    expected = np.asarray(back).astype(np.float64) @ values(w)
    np.testing.assert_allclose(np.asarray(back @ w.T, np.float64), expected, rtol=tolerance, atol=tolerance * 8)


def test_shapes_of_products() -> None:
    w = nn.quantize_array(numbers(64, 5), "int4", axis=0)
    assert w.shape == (64, 5) and w.T.shape == (5, 64) and w.ndim == 2 and w.size == 320
    assert (numbers(64) @ w).shape == (5,)
    assert (numbers(2, 3, 64) @ w).shape == (2, 3, 5)
    assert (numbers(0, 64) @ w).shape == (0, 5)
    assert (w @ numbers(5)).shape == (64,)
    assert (w @ numbers(2, 5, 3)).shape == (2, 64, 3)
    stack = nn.quantize_array(numbers(4, 64, 5), "int8", axis=-2)
    x = numbers(4, 2, 64)
    np.testing.assert_allclose(x @ stack, x @ np.asarray(stack.dequantize()), rtol=1e-5, atol=1e-5)
    empty = nn.quantize_array(np.zeros((0, 5), np.float32), "int8", axis=0)
    np.testing.assert_array_equal(numbers(3, 0) @ empty, np.zeros((3, 5)))
    assert (numbers(3, 64) @ nn.quantize_array(np.zeros((64, 0), np.float32), "nf4", axis=0)).shape == (3, 0)


def test_axes_of_convolutions() -> None:
    x = numbers(4, 3, 3, 2)
    w = nn.quantize_array(x, "int8", axis=(1, 2, 3))
    assert w.shape == x.shape and w.data.shape == (4, 18) and w.scales.shape == (4, 1)
    np.testing.assert_allclose(w.dequantize(), x, atol=np.abs(x).max() / 250)


def test_rows_are_selected() -> None:
    w = nn.quantize_array(numbers(10, 64), "nf4")
    indices = np.array([[3, 9], [0, -1]])
    np.testing.assert_array_equal(w.take(indices), np.asarray(w.dequantize())[indices])
    with pytest.raises(ShapeError, match="dequantize"):
        w.T.take(indices)


def test_transforms() -> None:
    x, matrices = numbers(4, 3, 64), numbers(4, 5, 64, seed=3)
    stack = vf.vmap(lambda m: nn.quantize_array(m, "int4"))(vf.numpy.asarray(matrices))
    assert stack.shape == (4, 5, 64)
    dense = np.asarray(stack.dequantize())
    expected = np.einsum("bmk,bnk->bmn", x, dense)
    np.testing.assert_allclose(vf.vmap(lambda a, w: a @ w.T)(x, stack), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(vf.lax.scan(lambda c, aw: (c, aw[0] @ aw[1].T), 0, (x, stack))[1], expected, rtol=1e-5, atol=1e-4)
    one = vf.tree.map(lambda leaf: leaf[1], stack)
    np.testing.assert_allclose(vf.vmap(lambda a: a @ one.T)(x), x @ dense[1].T, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(vf.vmap(lambda w: x[0] @ w.T)(stack), np.einsum("mk,bnk->bmn", x[0], dense), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_derivatives(transposed: bool) -> None:
    w = nn.quantize_array(numbers(6, 70), "int4", group_size=32, symmetric=False)
    x, ct = (numbers(3, *size) for size in ((6,), (70,))[:: 1 if transposed else -1])

    def product(x: Any, scales: Any, offsets: Any) -> Any:
        v = nn.QuantizedArray(w.data, scales, offsets, "int4", w.inner, 32)
        return x @ (v if transposed else v.T)

    def dense(x: Any, scales: Any, offsets: Any) -> Any:
        v = nn.QuantizedArray(w.data, scales, offsets, "int4", w.inner, 32).dequantize()
        return x @ (v if transposed else v.T)

    arguments = (vf.numpy.asarray(x), w.scales, w.offsets)
    for actual, expected in zip(vf.vjp(product, *arguments)[1](ct), vf.vjp(dense, *arguments)[1](ct), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    tangents = tuple(vf.numpy.asarray(numbers(*a.shape, seed=7)) for a in arguments)
    np.testing.assert_allclose(vf.jvp(product, arguments, tangents)[1], vf.jvp(dense, arguments, tangents)[1], rtol=1e-4, atol=1e-4)


def test_donation_and_files(tmp_path: Path) -> None:
    model = nn.quantize(nn.MLP.init(vf.random.key(0), 64, 8, 32, 1, dtype="bfloat16"), "int4", symmetric=False)
    vf.io.save_safetensors(tmp_path / "model.safetensors", model)
    dense = nn.MLP.init(vf.random.key(0), 64, 8, 32, 1, dtype="bfloat16")
    template = vf.eval_shape(lambda: nn.quantize(dense, "int4", symmetric=False))
    loaded = vf.io.load_state_dict(template, vf.io.load_safetensors(tmp_path / "model.safetensors"))
    x = vf.numpy.ones((2, 64), "bfloat16")
    np.testing.assert_array_equal(loaded(x), model(x))
    assert loaded.layers[0].weight.data.dtype == np.uint8
    moved = vf.jit(lambda m: vf.tree.map(lambda leaf: leaf, m), donate_argnums=0)(loaded)
    np.testing.assert_array_equal(moved(x), model(x))


def test_it_prints_its_type() -> None:
    w = nn.quantize_array(numbers(64, 3), "int4", axis=0)
    assert repr(w) == "QuantizedArray(int4[64,3], group_size=64, dtype=float32)"
    assert "object" not in repr(vf.tree.map(lambda leaf: "leaf", w))
    layer = nn.Linear(w)
    assert repr(layer) == "Linear(weight: QuantizedArray(int4[64,3], group_size=64, dtype=float32))"
    assert nn.parameter_count(layer) == 192
    assert w.nbytes == 3 * 32 + 3 * 4


@pytest.mark.parametrize(("scheme", "symmetric"), OPTIONS)
def test_exported_functions(scheme: Any, symmetric: bool) -> None:
    w = nn.quantize_array(numbers(64, 5), scheme, axis=0, symmetric=symmetric)
    x = vf.numpy.asarray(numbers(3, 64))
    exported = vf.export.deserialize(vf.export.export(vf.jit(lambda x: (x @ w) @ w.T))(x).serialize())
    np.testing.assert_allclose(exported.call(x), (x @ w) @ w.T, rtol=1e-5, atol=1e-4)


def test_activations_in_8_bits() -> None:
    w = nn.quantize_array(numbers(70, 5), "int8", axis=0, activations="int8")
    x = numbers(3, 70, seed=1)
    steps = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    codes = np.round(x / steps)
    expected = (codes @ np.asarray(w.data, np.float32).T) * steps * np.asarray(w.scales)[:, 0]
    np.testing.assert_allclose(x @ w, expected, rtol=1e-5)
    np.testing.assert_array_equal(np.zeros((2, 70), np.float32) @ w, np.zeros((2, 5)))
    gradient = vf.grad(lambda x: (x @ w).sum())(vf.numpy.asarray(x))
    np.testing.assert_allclose(gradient, np.broadcast_to(np.asarray(w.dequantize()).sum(1), (3, 70)), rtol=1e-5, atol=1e-5)


def test_errors() -> None:
    x = numbers(4, 64)
    with pytest.raises(ArgumentError, match="int2"):
        nn.quantize_array(x, "int2")  # type: ignore[arg-type]  # to be refused
    with pytest.raises(ArgumentError, match="symmetric"):
        nn.quantize_array(x, "nf4", symmetric=False)
    for group in (0, -1, 2.5, True):
        with pytest.raises(ArgumentError, match="group_size"):
            nn.quantize_array(x, "int8", group_size=group)  # type: ignore[arg-type]  # to be refused
    with pytest.raises(ArgumentError, match="finite"):
        nn.quantize_array(np.array([[np.inf]], np.float32), "int8")
    with pytest.raises(DTypeError, match="float"):
        nn.quantize_array(np.ones((2, 2), np.int32), "int8")
    for axis in (2, (0, 2), 0):
        with pytest.raises(ArgumentError, match="axis"):
            nn.quantize_array(numbers(2, 3, 4, 5) if axis == 0 else numbers(2, 3), "int8", axis=axis)
    with pytest.raises(ArgumentTypeError, match="list"):
        nn.QuantizedArray([[1]], [[1.0]])
    w = nn.quantize_array(x, "int8")
    with pytest.raises(ShapeError, match="64"):
        numbers(2, 63) @ w.T
    with pytest.raises(DTypeError, match="astype"):
        vf.numpy.ones((2, 64), "int32") @ w.T
    with pytest.raises(ShapeError, match="bytes"):
        nn.QuantizedArray(w.data[:, :3], w.scales, None, "int8", (64,), 64)
    with pytest.raises(ShapeError, match="scales"):
        nn.QuantizedArray(w.data, w.scales[:3], None, "int8", (64,), 64)
    with pytest.raises(DTypeError, match="uint8"):
        nn.QuantizedArray(w.data, w.scales, None, "fp8", (64,), 64)
    with pytest.raises(ArgumentError, match="group_size"):
        nn.quantize_array(x, "int8", group_size=32, activations="int8")


def test_sums_of_many_codes_do_not_wrap_around() -> None:
    """A sum of 150,528 products of codes 127, of an image of 224 by 224, exceeds 32 bits."""
    size = 224 * 224 * 3
    layer = nn.quantize(nn.Linear(vf.numpy.ones((size, 2)), None), "int8", activations="int8")
    for call in (layer, vf.jit(lambda x: layer(x))):
        np.testing.assert_allclose(call(vf.numpy.ones((3, size))), size, rtol=1e-6)
