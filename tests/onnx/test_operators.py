"""Single operators where definitions are easily misread: beside onnxruntime, NumPy in float64, or themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import helper  # noqa: E402

import volta_fn as vf  # noqa: E402
import volta_fn.onnx  # noqa: E402
from volta_fn import numpy as vnp  # noqa: E402

RNG = np.random.default_rng(0)


def node_model(op: str, inputs: list[Any], outputs: int = 1, opset: int = 17, **attributes: Any) -> tuple[bytes, dict[str, Any]]:
    """Return the model of one node, and its inputs by name; None for one that is left out."""
    values = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    typed = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for name, v in values.items()]
    node = helper.make_node(op, names, results, **attributes)
    graph = helper.make_graph([node], "test", typed, [helper.make_empty_tensor_value_info(name) for name in results])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return bytes(model.SerializeToString()), values


def here(op: str, inputs: list[Any], outputs: int = 1, opset: int = 17, traced: bool = False, **attributes: Any) -> list[np.ndarray]:
    """Return the results here; if `traced`, all inputs are arrays, else integers are on the host."""
    model, values = node_model(op, inputs, outputs, opset, **attributes)
    function, params = volta_fn.onnx.load(model)
    arguments = {name: vnp.asarray(v) for name, v in values.items()} if traced else values
    results = function(params, **arguments)
    return [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))]


def in_onnxruntime(op: str, inputs: list[Any], outputs: int = 1, opset: int = 17, **attributes: Any) -> list[np.ndarray]:
    model, values = node_model(op, inputs, outputs, opset, **attributes)
    results: list[np.ndarray] = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, values)
    return results


@pytest.mark.parametrize("traced", [False, True])
def test_means_of_integers_are_rounded_towards_zero(traced: bool) -> None:
    x = np.array([[-3, -4], [1, 2], [-1, 0]], np.int32)
    (mean,) = here("ReduceMean", [x], traced=traced, axes=[1])
    np.testing.assert_array_equal(mean, in_onnxruntime("ReduceMean", [x], axes=[1])[0])
    np.testing.assert_array_equal(mean, [[-3], [1], [0]])


def test_log_sum_exp_of_integers() -> None:
    x = np.array([[3, 4], [20, 20]], np.int32)
    np.testing.assert_array_equal(here("ReduceLogSumExp", [x], traced=True, axes=[1])[0], [[4], [20]])


@pytest.mark.wide
@pytest.mark.parametrize("traced", [False, True])
def test_quotients_of_the_least_integer(traced: bool) -> None:
    x, y = np.array([-(2**63), -7, 7, -6], np.int64), np.array([2, 2, -2, 3], np.int64)
    np.testing.assert_array_equal(here("Div", [x, y], traced=traced)[0], [-(2**62), -3, -3, -2])


def test_both_operands_of_and_are_broadcast_as_old_models_say() -> None:
    x, y = RNG.random((2, 3, 4)) < 0.5, RNG.random(3) < 0.5
    np.testing.assert_array_equal(here("And", [x, y], opset=6, axis=1, broadcast=1)[0], x & y[:, None])


@pytest.mark.parametrize(("start", "end", "step"), [(-10, -20, -1), (10, 1, -2), (-10, 3, 1), (-6, -20, -2), (4, -20, -3)])
def test_slices_that_begin_outside(start: int, end: int, step: int) -> None:
    inputs = [np.arange(5, dtype=np.float32), *[np.array([n], np.int64) for n in (start, end, 0, step)]]
    np.testing.assert_array_equal(here("Slice", inputs)[0], in_onnxruntime("Slice", inputs)[0])


@pytest.mark.parametrize("x", [np.full((1, 1, 3, 3), -np.inf, np.float32), np.zeros((1, 2, 3, 3), np.uint8)], ids=["-inf", "bytes"])
def test_maxima_of_the_value_of_padding_have_the_position_of_an_element(x: Any) -> None:
    maxima, positions = here("MaxPool", [x], 2, kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    np.testing.assert_array_equal(maxima, x)
    first = np.array([[0, 0, 1], [0, 0, 1], [3, 3, 4]])
    np.testing.assert_array_equal(positions, first + 9 * np.arange(x.shape[1])[None, :, None, None])


@pytest.mark.parametrize("activation", ["Affine", "ScaledTanh", "HardSigmoid"])
def test_activations_with_parameters(activation: str) -> None:
    inputs = [RNG.normal(size=size).astype(np.float32) for size in ((3, 2, 4), (1, 3, 4), (1, 3, 3))]
    options = {"hidden_size": 3, "activations": [activation], "activation_alpha": [0.5], "activation_beta": [0.25]}
    for ours, theirs in zip(here("RNN", inputs, 2, **options), in_onnxruntime("RNN", inputs, 2, **options), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2])
def test_normalised_zeros_have_finite_derivatives(p: int) -> None:
    function, params = volta_fn.onnx.load(node_model("LpNormalization", [np.ones((2, 2), np.float32)], axis=1, p=p)[0])
    gradient = vf.grad(lambda x: (function(params, x) * vnp.array([1.0, 2.0])).sum())(vnp.array([[0.0, 0.0], [3.0, 4.0]]))
    assert np.isfinite(np.asarray(gradient)).all()
    along = (1 * 3 + 2 * 4) * (np.array([3, 4]) / 25 if p == 2 else 1 / 7)
    expected = (np.array([1, 2]) - along) / (5 if p == 2 else 7)
    np.testing.assert_allclose(gradient[1], expected, rtol=1e-5)


def test_scales_of_rows_of_quantised_products() -> None:
    x, y = (RNG.integers(0, 256, size).astype(np.uint8) for size in ((2, 3), (3, 4)))
    x_scale, y_scale, scale = np.array([0.01, 0.02], np.float32), np.array([0.02, 0.01, 0.03, 0.04], np.float32), np.float32([0.1, 0.3])
    x_zero, y_zero, zero = np.array([3, 5], np.uint8), np.array([7, 1, 2, 3], np.uint8), np.array([1, 2], np.uint8)
    (product,) = here("QLinearMatMul", [x, x_scale, x_zero, y, y_scale, y_zero, scale, zero])
    left = (x.astype(np.float64) - x_zero[:, None]) * x_scale[:, None]
    right = (y.astype(np.float64) - y_zero) * y_scale
    expected = np.clip(np.round(left @ right / scale[:, None]) + zero[:, None], 0, 255)
    np.testing.assert_array_equal(product, expected)


@pytest.mark.parametrize("op", ["GroupNormalization", "InstanceNormalization", "MeanVarianceNormalization"])
def test_statistics_of_half_precision_are_computed_in_single(op: str) -> None:
    x = (100 + RNG.normal(size=(2, 4, 8, 8))).astype(np.float16)
    axes = {"GroupNormalization": (2, 3, 4), "InstanceNormalization": (2, 3), "MeanVarianceNormalization": (0, 2, 3)}[op]
    rows = x.astype(np.float64).reshape(2, 2, 2, 8, 8) if op == "GroupNormalization" else x.astype(np.float64)
    deviation = np.sqrt(rows.var(axes, keepdims=True) + (0 if op == "MeanVarianceNormalization" else 1e-5))
    expected = ((rows - rows.mean(axes, keepdims=True)) / deviation).reshape(x.shape)
    others = [] if op == "MeanVarianceNormalization" else [np.ones(4, np.float16), np.zeros(4, np.float16)]
    (result,) = here(op, [x, *others], opset=21, **({"num_groups": 2} if op == "GroupNormalization" else {}))
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, expected, atol=2e-3)


@pytest.mark.wide
def test_doubles_are_resized_in_double_precision() -> None:
    x = RNG.normal(size=(1, 1, 1, 3))
    (result,) = here("Resize", [x, None, np.array([1, 1, 1, 2], np.float32)], mode="linear", coordinate_transformation_mode="align_corners")
    np.testing.assert_allclose(result[0, 0, 0], np.interp(np.linspace(0, 2, 6), np.arange(3), x[0, 0, 0]), rtol=1e-14)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_each_region_has_as_many_samples_as_its_size_says(mode: str) -> None:
    image = RNG.normal(size=(1, 2, 12, 12)).astype(np.float32)
    regions = np.array([[0, 0, 11, 11], [1, 2, 4, 4], [3, 3, 3, 3]], np.float32)
    options = {"output_height": 2, "output_width": 3, "sampling_ratio": 0, "mode": mode}
    (together,) = here("RoiAlign", [image, regions, np.zeros(3, np.int64)], **options)
    for i, region in enumerate(regions):
        np.testing.assert_allclose(together[i], here("RoiAlign", [image, region[None], np.zeros(1, np.int64)], **options)[0][0], rtol=1e-5)


@pytest.mark.parametrize(("shape", "strides", "kernel"), [([8, 8], [2, 2], (3, 3)), ([10, 8], [3, 2], (3, 3)), ([6, 5], [2, 2], (3, 3))])
def test_output_shapes_of_transposed_convolutions(shape: list[int], strides: list[int], kernel: tuple[int, int]) -> None:
    inputs = [RNG.normal(size=size).astype(np.float32) for size in ((1, 1, 3, 3), (1, 2, *kernel), (2,))]
    (result,) = here("ConvTranspose", inputs, output_shape=shape, strides=strides)
    np.testing.assert_allclose(result, in_onnxruntime("ConvTranspose", inputs, output_shape=shape, strides=strides)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("GatherND", [np.float32([1, 2]), np.zeros((3, 0), np.int64)]),
        ("Range", [np.float32(0), np.float32(0.6), np.float32(0.2)]),
        ("Range", [np.int16(-30000), np.int16(30000), np.int16(20000)]),
        ("Range", [np.int64(10), np.int64(3), np.int64(-3)]),
        ("Pow", [np.int32([2, 3, 1, -1, -1, 0]), np.int32([-1, 2, -5, -3, -2, 0])]),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_borders_of_definitions(op: str, inputs: list[Any], traced: bool) -> None:
    np.testing.assert_array_equal(here(op, inputs, traced=traced)[0], in_onnxruntime(op, inputs)[0])


def test_zeros_are_quantised_by_a_scale_to_divide_by() -> None:
    x = np.zeros(3, np.float32)
    for ours, theirs in zip(here("DynamicQuantizeLinear", [x], 3), in_onnxruntime("DynamicQuantizeLinear", [x], 3), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("x", [[1e-45, 0.0], [1e-44, 3e-45], [-1e-44, 3e-45], [1e-42, -1e-42], [1e-40, -1e-40]])
def test_ranges_that_vanish_when_they_are_divided_are_quantised_to_zero(x: list[float]) -> None:
    """onnxruntime divides by a scale of 0; the numbers that codes stand for are the same, 0."""
    values = np.array(x, np.float32)
    codes, scale, zero = here("DynamicQuantizeLinear", [values], 3)
    assert scale > 0
    if values.max() - values.min() < 127 * 1.4e-45:
        np.testing.assert_array_equal([*codes, zero], 0)
    else:
        for ours, theirs in zip((codes, scale, zero), in_onnxruntime("DynamicQuantizeLinear", [values], 3), strict=True):
            np.testing.assert_array_equal(ours, theirs)
