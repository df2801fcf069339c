"""Models as functions: ONNX's own tests, derivatives, shapes, errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import volta_fn as vf  # noqa: E402
import volta_fn.onnx  # noqa: E402
from tests.onnx.node_tests import sweep  # noqa: E402
from tests.onnx.stored_tests import run_small, small_tests  # noqa: E402
from volta_fn import numpy as vnp  # noqa: E402
from volta_fn.errors import ArgumentError, CorruptFileError, OnnxError, OutOfMemoryError  # noqa: E402

#: Of ONNX's tests, the share that runs here; ``python -m tests.onnx.node_tests`` runs all.
EVERY = 24


def model(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], weights: dict[str, Any] | None = None, opset: int = 21) -> bytes:
    """Return the bytes of a model of float inputs."""
    typed = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "test", typed, results, tensors)
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString())


def test_a_sample_of_the_operators_tests_pass() -> None:
    passed, failed = sweep(EVERY, 5)
    unsupported = {name for name, message in failed.items() if "not supported" in message}
    assert failed.keys() <= unsupported
    assert passed > 60


#: Stored models, one in ten and those that differentiate or have strings.
STORED = [path for number, path in enumerate(small_tests()) if number % 10 == 0 or "gradient" in path.name or "strnorm" in path.name]


@pytest.mark.parametrize("folder", STORED, ids=lambda p: p.name)
def test_stored_models_give_the_stored_results(folder: Path) -> None:
    run_small(folder)


MLP = model(
    [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])],
    {"x": (TensorProto.FLOAT, ["n", 3])},
    ["y"],
    {"w": np.arange(18, dtype=np.float32).reshape(3, 6) / 20, "b": np.linspace(-1, 1, 20, dtype=np.float32)[:6].reshape(1, 6)},
)


def test_it_is_differentiated_mapped_and_compiled() -> None:
    function, params = volta_fn.onnx.load(MLP)  # type: ignore[arg-type]  # bytes, too
    x = vnp.asarray(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
    loss = lambda params: vnp.sum(function(params, x) ** 2)
    hidden = np.tanh(np.asarray(x) @ np.asarray(params["w"]) + np.asarray(params["b"]))
    wanted = np.asarray(x).T @ (2 * hidden * (1 - hidden**2))
    assert np.allclose(vf.jit(vf.grad(loss))(params)["w"], wanted, rtol=1e-4, atol=1e-5)
    assert np.allclose(vf.vmap(lambda row: function(params, row[None])[0])(x), hidden, atol=1e-6)
    assert set(params) == {"w", "b"}


def test_models_that_differentiate_themselves() -> None:
    domain = "ai.onnx.preview.training"
    nodes = [
        helper.make_node("Mul", ["w", "x"], ["h"]),
        helper.make_node("Sin", ["h"], ["y"]),
        helper.make_node("Gradient", ["w", "x"], ["slope"], domain=domain, xs=["w"], zs=["x"], y="y"),
        helper.make_node("Gradient", ["w", "x"], ["second", ""], domain=domain, xs=["w", "x"], y="slope"),
        helper.make_node("Gradient", ["x"], ["inner"], domain=domain, xs=["h"], y="y"),
    ]
    inputs = {"w": (TensorProto.FLOAT, [3]), "x": (TensorProto.FLOAT, [3])}
    function, params = volta_fn.onnx.load(model(nodes, inputs, ["y", "slope", "second", "inner"]))  # type: ignore[arg-type]
    w, x = np.array([0.5, -1, 2], np.float32), np.array([1.5, 0.25, -1], np.float32)
    wanted = [np.sin(w * x), np.cos(w * x) * x, -np.sin(w * x) * x * x, np.cos(x)]
    for run in (function, vf.jit(function)):
        np.testing.assert_allclose(run(params, vnp.asarray(w), vnp.asarray(x)), wanted, rtol=1e-5, atol=1e-6)


def test_shapes_stay_on_the_host_under_jit() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {"zero": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
    function, params = volta_fn.onnx.load(model(nodes, {"x": (TensorProto.FLOAT, None)}, ["y"], weights))  # type: ignore[arg-type]
    assert vf.jit(function)(params, vnp.ones((2, 3, 4))).shape == (2, 12)


def test_constants_are_moved_before_the_program_runs() -> None:
    weight = np.arange(24, dtype=np.float32).reshape(4, 6)
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight))
    steps = [
        helper.make_node("Split", ["w"], ["first", "second"], num_outputs=2),
        helper.make_node("Concat", ["second", "first"], ["rows"], axis=0),
        helper.make_node("Transpose", ["rows"], ["columns"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "columns"], ["y"]),
    ]
    f, params = volta_fn.onnx.load(model([constant, *steps], {"x": (TensorProto.FLOAT, (2, 6))}, ["y"]))
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_allclose(f(params, x), x @ np.roll(weight, 2, axis=0).T, rtol=1e-6)
    assert [eqn.primitive.name for eqn in vf.make_jaxpr(f)(params, x).eqns] == ["dot_general"]


def test_a_traced_shape_has_a_remedy_in_its_message() -> None:
    inputs = {"x": (TensorProto.FLOAT, None), "shape": (TensorProto.INT64, [1])}
    function, params = volta_fn.onnx.load(model([helper.make_node("Reshape", ["x", "shape"], ["y"])], inputs, ["y"]))  # type: ignore[arg-type]
    assert function(params, vnp.ones((2, 3)), np.array([6])).shape == (6,)
    with pytest.raises(OnnxError, match="traced"):
        vf.jit(function)(params, vnp.ones((2, 3)), np.array([6]))


def test_unsupported_operators_are_listed_at_once() -> None:
    nodes = [
        helper.make_node("Fancy", ["x"], ["h"], name="first", domain="own"),
        helper.make_node("Odd", ["h"], ["y"], name="second", domain="own"),
    ]
    with pytest.raises(OnnxError, match=r"(?s)own\.Fancy, node 'first'.*own\.Odd, node 'second'"):
        volta_fn.onnx.load(model(nodes, {"x": (TensorProto.FLOAT, [1])}, ["y"]))  # type: ignore[arg-type]


def test_external_data_are_read_from_the_models_folder(tmp_path: Path) -> None:
    proto = onnx.load_from_string(MLP)
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    function, params = volta_fn.onnx.load(tmp_path / "m.onnx")
    assert np.array_equal(params["w"], numpy_helper.to_array(onnx.load_from_string(MLP).graph.initializer[0]))
    (tmp_path / "weights").unlink()
    with pytest.raises(CorruptFileError):
        volta_fn.onnx.load(tmp_path / "m.onnx")
    assert function.input_names == ("x",)


def test_wrong_arguments_and_files_raise_typed_errors() -> None:
    function, params = volta_fn.onnx.load(MLP)  # type: ignore[arg-type]
    for arguments in ((), (vnp.ones((1, 3)), 1)):
        with pytest.raises(ArgumentError):
            function(params, *arguments)
    with pytest.raises(ArgumentError, match="differ"):
        function({}, vnp.ones((1, 3)))
    for content in (b"", b"no model", MLP[:40]):
        with pytest.raises((CorruptFileError, OnnxError)):
            volta_fn.onnx.load(content)  # type: ignore[arg-type]


@pytest.mark.parametrize("traced", [False, True])
def test_loops_and_conditions_run_eagerly_and_traced(traced: bool) -> None:
    def branch(op: str) -> Any:
        return helper.make_graph(
            [helper.make_node(op, ["x", "x"], ["r"])], op, [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
        )

    body = helper.make_graph(
        [helper.make_node("Mul", ["v", "x"], ["w"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [helper.make_tensor_value_info(n, t, []) for n, t in (("i", TensorProto.INT64), ("c", TensorProto.BOOL), ("v", TensorProto.FLOAT))],
        [helper.make_tensor_value_info(n, t, []) for n, t in (("d", TensorProto.BOOL), ("w", TensorProto.FLOAT))],
    )
    nodes = [
        helper.make_node("If", ["flag"], ["start"], then_branch=branch("Add"), else_branch=branch("Mul")),
        helper.make_node("Loop", ["count", "", "start"], ["y"], body=body),
    ]
    inputs = {"x": (TensorProto.FLOAT, []), "flag": (TensorProto.BOOL, []), "count": (TensorProto.INT64, [])}
    function, params = volta_fn.onnx.load(model(nodes, inputs, ["y"]))  # type: ignore[arg-type]
    run = vf.jit(function) if traced else function
    for flag, count in ((True, 3), (False, 20)):
        start = 2.2 if flag else 1.21
        assert float(run(params, vnp.float32(1.1), np.asarray(flag), np.asarray(count, np.int64))) == pytest.approx(
            start * 1.1**count, rel=1e-5
        )


DAMAGED = {
    "a cycle": [("Add", ["x", "z"], ["y"]), ("Add", ["y", "x"], ["z"])],
    "a node that uses its own result": [("Add", ["x", "y"], ["y"])],
    "an order against the edges": [("Neg", ["z"], ["y"]), ("Relu", ["x"], ["z"])],
    "an unknown value": [("Relu", ["nothing"], ["y"])],
    "a value that is computed twice": [("Relu", ["x"], ["y"]), ("Neg", ["x"], ["y"])],
    "an input that is computed": [("Relu", ["x"], ["x"]), ("Neg", ["x"], ["y"])],
    "a node that computes a value twice": [("Split", ["x"], ["y", "y"])],
    "no output": [("Relu", ["x"], ["z"])],
}


def model_of(nodes: list[tuple[str, list[str], list[str]]], initializers: Sequence[Any] = ()) -> bytes:
    """Return a model from x of 4 floats to y."""
    inputs, outputs = ([helper.make_tensor_value_info(name, 1, shape)] for name, shape in (("x", [4]), ("y", None)))
    attributes = {"Cast": {"to": 1}, "ConstantOfShape": {"value": helper.make_tensor("v", TensorProto.INT64, [1], [7])}}
    onnx_nodes = [helper.make_node(*node, **attributes.get(node[0], {})) for node in nodes]
    return helper.make_model(helper.make_graph(onnx_nodes, "g", inputs, outputs, list(initializers))).SerializeToString()


@pytest.mark.parametrize("nodes", DAMAGED.values(), ids=DAMAGED)
def test_a_value_is_computed_once_and_before_its_use(nodes: list[tuple[str, list[str], list[str]]]) -> None:
    with pytest.raises(CorruptFileError, match="the model is damaged"):
        vf.onnx.load(model_of(nodes))


def test_inner_graphs_are_checked_too() -> None:
    inner = helper.make_graph([helper.make_node("Relu", ["later"], ["z"])], "inner", [], [helper.make_tensor_value_info("z", 1, [4])])
    nodes = [helper.make_node("If", ["c"], ["later"], then_branch=inner, else_branch=inner), helper.make_node("Relu", ["later"], ["y"])]
    inputs, outputs = ([helper.make_tensor_value_info(name, kind, [])] for name, kind in (("c", TensorProto.BOOL), ("y", 1)))
    with pytest.raises(CorruptFileError, match=r"the node Relu \(z\) uses 'later', which nothing before it computes"):
        vf.onnx.load(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)).SerializeToString())


@pytest.mark.parametrize("limit", [2**50, 2**33, 2**63 - 1])
def test_ranges_without_room_are_refused(limit: int) -> None:
    numbers = [helper.make_tensor(name, TensorProto.INT64, [], [value]) for name, value in (("a", 0), ("b", limit), ("d", 1))]
    f, params = vf.onnx.load(model_of([("Range", ["a", "b", "d"], ["c"]), ("Cast", ["c"], ["y"])], numbers))
    with pytest.raises(OutOfMemoryError, match=r"Range \(c\) makes \d+ numbers on the host, more than the 268435456"):
        f(params, np.ones(4, np.float32))


def test_values_without_room_are_refused() -> None:
    sizes = helper.make_tensor("s", TensorProto.INT64, [2], [2**20, 2**25])
    f, params = vf.onnx.load(model_of([("ConstantOfShape", ["s"], ["c"]), ("Relu", ["x"], ["y"])], [sizes]))
    with pytest.raises(OutOfMemoryError, match=r"the node ConstantOfShape \(c\) has no room for its result"):
        f(params, np.ones(4, np.float32))


def test_a_range_of_steps_of_zero_is_an_error_of_the_model() -> None:
    numbers = [helper.make_tensor(name, TensorProto.INT64, [], [value]) for name, value in (("a", 0), ("b", 3), ("d", 0))]
    f, params = vf.onnx.load(model_of([("Range", ["a", "b", "d"], ["c"]), ("Cast", ["c"], ["y"])], numbers))
    with pytest.raises(OnnxError, match="the node Range"):
        f(params, np.ones(4, np.float32))


def test_negative_dimensions_are_refused() -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0] * 4)
    tensor.dims[0] = -4
    with pytest.raises(CorruptFileError, match=r"the tensor 'w' has a negative dimension: \[-4\]"):
        vf.onnx.load(model_of([("Add", ["x", "w"], ["y"])], [tensor]))
