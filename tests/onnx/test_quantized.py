"""Quantised models beside onnxruntime: QDQ, integer products, weights of 4 and 8 bits, and dynamic LSTMs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import volta_fn as vf  # noqa: E402
import volta_fn.onnx  # noqa: E402
from volta_fn.errors import OnnxError  # noqa: E402


def build(nodes: list[Any], inputs: dict[str, np.ndarray], outputs: dict[str, int], weights: dict[str, np.ndarray]) -> bytes:
    typed = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for name, v in inputs.items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    graph = helper.make_graph(nodes, "test", typed, results, [numpy_helper.from_array(v, name) for name, v in weights.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def both(model: bytes, inputs: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the results here, jitted, and onnxruntime's."""
    f, params = vf.onnx.load(model)
    out = vf.jit(f)(params, *inputs.values())
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [np.asarray(o) for o in (out if isinstance(out, tuple) else (out,))], session.run(None, inputs)


RNG = np.random.default_rng(0)


def codes(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
@pytest.mark.parametrize("zeros", ["none", "scalars", "columns"])
def test_matmul_integer(left: str, right: str, zeros: str) -> None:
    inputs = {"x": codes(left, 2, 5, 40)}
    weights = {"y": codes(right, 40, 6)}
    if zeros != "none":
        weights |= {"xz": codes(left, 1)[0], "yz": codes(right, 1)[0] if zeros == "scalars" else codes(right, 6)}
    node = helper.make_node("MatMulInteger", ["x", "y", *(["xz", "yz"] if zeros != "none" else [])], ["z"])
    model = build([node], inputs, {"z": TensorProto.INT32}, weights)
    f, params = vf.onnx.load(model)
    x, y = (v.astype(np.int64) for v in (inputs["x"], weights["y"]))
    expected = (x - weights.get("xz", np.uint8(0)).astype(np.int64)) @ (y - weights.get("yz", np.uint8(0)).astype(np.int64))
    np.testing.assert_array_equal(vf.jit(f)(params, inputs["x"]), expected)
    if left == "uint8":  # onnxruntime has no product of two int8
        np.testing.assert_array_equal(both(model, inputs)[1][0], expected)


@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinear_products(per_channel: bool) -> None:
    inputs = {"x": codes("uint8", 5, 40)}
    scale = RNG.uniform(0.001, 0.01, 6).astype(np.float32) if per_channel else np.float32(0.004)
    zero = np.zeros(6, np.int8) if per_channel else np.int8(3)
    weights = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "y": codes("int8", 40, 6), "ys": scale, "yz": zero, "zs": np.float32(0.05),
        "zz": np.uint8(130),
    }  # fmt: skip
    model = build([helper.make_node("QLinearMatMul", ["x", *weights], ["z"])], inputs, {"z": TensorProto.UINT8}, weights)
    ours, theirs = both(model, inputs)
    assert np.abs(ours[0].astype(int) - theirs[0].astype(int)).max() <= 1


def test_qdq_around_products_and_convolutions() -> None:
    x = RNG.normal(size=(2, 3, 9, 9)).astype(np.float32)
    weights = {
        "s": np.float32(0.02), "z": np.uint8(128), "w": codes("int8", 4, 3, 3, 3), "ws": RNG.uniform(0.001, 0.01, 4).astype(np.float32),
        "wz": np.zeros(4, np.int8), "t": np.float32(0.05), "m": codes("int8", 9, 5), "ms": np.float32(0.01), "mz": np.int8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("Conv", ["d", "wd"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "t", "z"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "t", "z"], ["cd"]),
        helper.make_node("DequantizeLinear", ["m", "ms", "mz"], ["md"]),
        helper.make_node("MatMul", ["cd", "md"], ["y"]),
    ]
    ours, theirs = both(build(nodes, {"x": x}, {"y": TensorProto.FLOAT}, weights), {"x": x})
    # A number between two codes may be rounded to either, which is one step of 0.05 in the sum.
    assert np.abs(ours[0] - theirs[0]).max() <= 0.05 * 1.28 + 1e-4


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("both_sides", [False, True])
def test_dequantised_matrices_are_multiplied_as_codes(per_column: bool, dtype: str, both_sides: bool) -> None:
    x = RNG.normal(size=(3, 40)).astype(np.float32)
    count = 6 if per_column else 1
    weights = {
        "w": codes(dtype, 40, 6), "ws": RNG.uniform(0.001, 0.01, count).astype(np.float32), "wz": codes(dtype, count),
        "t": codes(dtype, 6, 40), "b": RNG.normal(size=6).astype(np.float32), "s": np.float32(0.03), "z": np.uint8(120),
    }  # fmt: skip
    if not per_column:
        weights |= {"ws": weights["ws"][0], "wz": weights["wz"][0]}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1),
        helper.make_node("DequantizeLinear", ["t", "ws", "wz"], ["td"], axis=0),
        helper.make_node("MatMul", ["d" if both_sides else "x", "wd"], ["y"]),
        helper.make_node("Gemm", ["d" if both_sides else "x", "td", "b"], ["g"], transB=1, alpha=0.5),
    ]
    model = build(nodes, {"x": x}, dict.fromkeys(["y", "g"], TensorProto.FLOAT), weights)
    f, params = vf.onnx.load(model)
    ours, theirs = both(model, {"x": x})
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    text = str(vf.make_jaxpr(f)(params, x))
    assert "quantized_dot" not in text if both_sides else text.count("quantized_dot") == 2
    assert ("i32[3,6] = dot_general" in text) == both_sides


def test_codes_that_something_else_reads_are_floats() -> None:
    x = RNG.normal(size=(3, 8)).astype(np.float32)
    weights = {"w": codes("int8", 8, 5), "ws": RNG.uniform(0.01, 0.1, 8).astype(np.float32), "s": np.float32(0.5)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws"], ["rows"], axis=0),  # a scale for each term of the sums
        helper.make_node("MatMul", ["x", "rows"], ["y"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
        helper.make_node("MatMul", ["x", "d"], ["h"]),
        helper.make_node("Relu", ["d"], ["r"]),
        helper.make_node("MatMul", ["x", "r"], ["z"]),
    ]
    ours, theirs = both(build(nodes, {"x": x}, dict.fromkeys(["y", "h", "z", "d"], TensorProto.FLOAT), weights), {"x": x})
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_qlinear_and_integer_convolutions() -> None:
    x, w = codes("uint8", 2, 3, 8, 8), codes("int8", 4, 3, 3, 3)
    zeros = {"xz": np.uint8(7), "wz": np.int8(0)}
    node = helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2])
    ours, theirs = both(build([node], {"x": x}, {"y": TensorProto.INT32}, {"w": w, **zeros}), {"x": x})
    np.testing.assert_array_equal(ours[0], theirs[0])
    weights = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "w": w, "ws": RNG.uniform(0.001, 0.01, 4).astype(np.float32),
        "wz": np.zeros(4, np.int8), "ys": np.float32(0.1), "yz": np.uint8(128), "b": RNG.integers(-500, 500, 4).astype(np.int32),
    }  # fmt: skip
    model = build([helper.make_node("QLinearConv", ["x", *weights], ["y"])], {"x": x}, {"y": TensorProto.UINT8}, weights)
    ours, theirs = both(model, {"x": x})
    assert np.abs(ours[0].astype(int) - theirs[0].astype(int)).max() <= 1


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("zeros", ["none", "scalars", "outputs"])
def test_conv_integer(left: str, right: str, zeros: str, groups: int) -> None:
    x, w = codes(left, 2, 8, 9, 8), codes(right, 16, 8 // groups, 3, 2)
    points = {"xz": codes(left, 1)[0], "wz": codes(right, 1)[0] if zeros == "scalars" else codes(right, 16)} if zeros != "none" else {}
    attributes = {"pads": [1, 0, 2, 1], "strides": [1, 2], "dilations": [2, 1], "group": groups}
    node = helper.make_node("ConvInteger", ["x", "w", *points], ["y"], **attributes)
    f, params = vf.onnx.load(build([node], {"x": x}, {"y": TensorProto.INT32}, {"w": w, **points}))
    actual = vf.jit(f)(params, x)
    assert actual.dtype == np.int32
    shifted = x - np.int64(points.get("xz", 0))
    weights = w - np.asarray(points.get("wz", 0), np.int64).reshape(-1, 1, 1, 1)
    padded = np.pad(shifted, [(0, 0), (0, 0), (1, 2), (0, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 2), (2, 3))[:, :, :, ::2, ::2]
    by_group = windows.reshape(2, groups, 8 // groups, *windows.shape[2:])
    expected = np.einsum("ngchwij,gocij->ngohw", by_group, weights.reshape(groups, 16 // groups, 8 // groups, 3, 2))
    np.testing.assert_array_equal(actual, expected.reshape(2, 16, *windows.shape[2:4]))


def test_dequantised_convolutions_are_computed_in_integers() -> None:
    x = RNG.normal(size=(2, 6, 9, 9)).astype(np.float32)
    weights = {
        "s": np.float32(0.03), "z": np.uint8(120), "w": codes("int8", 8, 3, 3, 3), "ws": RNG.uniform(0.001, 0.01, 8).astype(np.float32),
        "wz": codes("int8", 8), "b": RNG.integers(-500, 500, 8).astype(np.int32), "bs": RNG.uniform(1e-4, 1e-3, 8).astype(np.float32),
        "v": codes("int8", 5, 8, 2, 2), "vs": np.float32(0.004),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], axis=0),
        helper.make_node("Conv", ["d", "wd", "bd"], ["c"], pads=[1, 1, 1, 1], group=2),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("DequantizeLinear", ["v", "vs"], ["vd"]),
        helper.make_node("Conv", ["r", "vd"], ["y"]),  # images are floats here
    ]
    model = build(nodes, {"x": x}, dict.fromkeys(["c", "y"], TensorProto.FLOAT), weights)
    f, params = vf.onnx.load(model)
    ours, theirs = both(model, {"x": x})
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    text = str(vf.make_jaxpr(f)(params, x))
    assert "i32[2,8,9,9] = conv_general_dilated" in text
    assert "f32[2,5,8,8] = conv_general_dilated" in text


def test_dynamic_quantize_linear() -> None:
    for x in (RNG.normal(size=(4, 5)).astype(np.float32), np.full((2, 2), 3, np.float32)):
        outputs = {"q": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
        ours, theirs = both(build([helper.make_node("DynamicQuantizeLinear", ["x"], list(outputs))], {"x": x}, outputs, {}), {"x": x})
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 64), (8, 32)])
@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_nbits(bits: int, block: int, zeros: bool) -> None:
    size, rows = 96, 6
    blocks = -(-size // block)
    weights = {
        "b": codes("uint8", rows, blocks, block * bits // 8),
        "s": RNG.uniform(0.01, 0.1, (rows, blocks)).astype(np.float32),
        **({"z": codes("uint8", rows, -(-blocks * bits // 8))} if zeros else {}),
    }
    x = RNG.normal(size=(2, 3, size)).astype(np.float32)
    node = helper.make_node("MatMulNBits", ["x", *weights], ["y"], domain="com.microsoft", K=size, N=rows, bits=bits, block_size=block)
    ours, theirs = both(build([node], {"x": x}, {"y": TensorProto.FLOAT}, weights), {"x": x})
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-3)


def test_what_is_refused() -> None:
    x = np.ones((2, 32), np.float32)
    weights = {"b": codes("uint8", 6, 1, 8), "s": np.ones((6, 1), np.float32)}
    node = helper.make_node("MatMulNBits", ["x", *weights], ["y"], domain="com.microsoft", K=32, N=6, bits=2, block_size=32)
    f, params = vf.onnx.load(build([node], {"x": x}, {"y": TensorProto.FLOAT}, weights))
    with pytest.raises(OnnxError, match="2 bits"):
        f(params, x)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_dynamic_quantize_lstm(direction: str, dtype: str) -> None:
    n, steps, batch, size, hidden = 1 + (direction == "bidirectional"), 5, 2, 6, 8
    x = RNG.normal(size=(steps, batch, size)).astype(np.float32)
    weights = {
        "w": codes(dtype, n, size, 4 * hidden), "r": codes(dtype, n, hidden, 4 * hidden),
        "b": RNG.normal(size=(n, 8 * hidden)).astype(np.float32) / 4, "ws": np.full(n, 0.002, np.float32),
        "wz": np.full(n, 3, dtype), "rs": np.full(n, 0.002, np.float32), "rz": np.full(n, 2, dtype),
    }  # fmt: skip
    node = helper.make_node(
        "DynamicQuantizeLSTM", ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"], ["y", "h", "c"],
        domain="com.microsoft", hidden_size=hidden, direction=direction,
    )  # fmt: skip
    outputs = dict.fromkeys(["y", "h", "c"], TensorProto.FLOAT)
    model = build([node], {"x": x}, outputs, weights)
    ours, theirs = both(model, {"x": x})
    f, params = vf.onnx.load(model)
    text = str(vf.make_jaxpr(f)(params, x))
    assert text.count("preferred_element_type=int32") == 2 * n  # no product of floats: inputs and states of each direction
    assert text.count("dot_general") == 2 * n
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=0.01)  # a state between two codes, 1 / 255 apart, may be rounded to either


@pytest.mark.parametrize(("scheme", "symmetric"), [("int8", True), ("int8", False), ("int4", True), ("nf4", True), ("fp8", True)])
def test_quantised_models_are_saved(tmp_path: Any, scheme: Any, symmetric: bool) -> None:
    model = vf.nn.quantize(vf.nn.MLP.init(vf.random.key(0), 64, 8, 32, 1), scheme, symmetric=symmetric)
    x = RNG.normal(size=(3, 64)).astype(np.float32)
    vf.onnx.save(lambda m, x: m(x), model, (x,), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(out, model(x), rtol=1e-4, atol=1e-5)
