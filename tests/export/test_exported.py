"""Exported functions: bits, sizes, derivatives, structures and damage."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import volta_fn as vf
from tests.export.every_example import ROOT, compared
from tests.laws.common import arrays, draw
from tests.samples import samples_of_code
from volta_fn import export, lax, nn, optim, random
from volta_fn import numpy as vnp
from volta_fn.core.jaxpr import sub_jaxprs
from volta_fn.dtypes import as_dtype
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcretizationError,
    CorruptFileError,
    ExportError,
    GradientError,
    SerializationError,
    ShapeError,
    TreeError,
    UnsupportedError,
    VoltaError,
)
from volta_fn.export import values
from volta_fn.export.programs import pack, unpack
from volta_fn.export.values import KINDS, check_parameters
from volta_fn.settings import current as settings


def model(params: Any, x: Any) -> Any:
    """Uses custom derivative rules, control flow, constants and a mean."""
    hidden = nn.gelu(x @ params["w"]) * vnp.asarray(np.linspace(0, 1, 4, dtype=np.float32))
    last, rows = lax.scan(lambda c, row: (c + row, vnp.tanh(c)), vnp.zeros(4), hidden)
    return {"mean": vnp.mean(rows), "last": lax.cond(last.sum() > 0, vnp.sin, vnp.cos, last)}


PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4) / 7}


def inputs(n: int) -> Any:
    return random.normal(random.key(n), (n, 3))


def saved(function: Any, *args: Any, order: int = 0) -> Any:
    return export.deserialize(export.export(vf.jit(function))(*args).serialize(vjp_order=order))


def equal(a: Any, b: Any) -> bool:
    left, right = vf.tree.flatten(a), vf.tree.flatten(b)
    return left[1] == right[1] and all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(left[0], right[0], strict=True))


def test_a_loaded_function_gives_the_same_bits() -> None:
    assert equal(saved(model, PARAMS, inputs(5)).call(PARAMS, inputs(5)), vf.jit(model)(PARAMS, inputs(5)))


def test_a_symbolic_size_stands_for_every_size() -> None:
    specs = export.symbolic_args_specs((PARAMS, inputs(5)), (None, "b, ..."))
    loaded = saved(model, *specs)
    for n in (1, 2, 7, 30):
        assert equal(loaded.call(PARAMS, inputs(n)), vf.jit(model)(PARAMS, inputs(n)))
    assert [str(s) for s in loaded.in_avals[1].shape] == ["b", "3"]


def test_sizes_of_several_scopes_are_refused_in_the_mode_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    structs = [vf.ShapeDtypeStruct(export.symbolic_shape("b, 2", constraints=texts), "float32") for texts in ((), ["b >= 2"])]
    function = export.export(vf.jit(lambda x, y: vnp.concatenate([x, y], 1)))
    assert str(function(*structs).out_avals[0].shape[0]) == "b"
    monkeypatch.setattr(settings, "permissive", True)
    with pytest.raises(ArgumentError, match=r"mixing of symbolic scopes.*\['b >= 2'\]"):
        function(*structs)


class Moments(NamedTuple):
    mean: Any
    scale: Any


def test_files_hold_only_registered_classes_in_the_mode_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(x: Any) -> Any:
        return [Moments(x, x / 2)]

    by_argument = export.export(vf.jit(lambda moments: moments.scale))(Moments(1.0, 2.0))
    by_result = export.export(vf.jit(halved))(1.0)
    assert export.deserialize(by_result.serialize()).call(1.0) == [{"mean": 1.0, "scale": 0.5}]
    monkeypatch.setattr(settings, "permissive", True)
    for exported in (by_argument, by_result):
        with pytest.raises(ArgumentError, match=r"Cannot serialize .*unregistered type Moments.*register_namedtuple_serialization"):
            exported.serialize()
    assert by_result.call(1.0) == halved(1.0)
    monkeypatch.setattr(values, "_BY_CLASS", {**values._BY_CLASS})
    monkeypatch.setattr(values, "_BY_NAME", {**values._BY_NAME})
    export.register_namedtuple_serialization(Moments, serialized_name="test_exported.Moments")
    loaded = saved(halved, 1.0, order=1)
    assert type(loaded.call(1.0)[0]) is Moments
    assert vf.grad(lambda x: loaded.call(x)[0].scale)(3.0) == 0.5
    for value in (random.key(0), OrderedDict(b=1.0, a=2.0), {"a": (1.0, [2.0, None])}):
        assert saved(lambda x: x, value).in_tree == vf.tree.structure(((value,), {}))


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")  # JAX warns of platforms without donation
@pytest.mark.parametrize("platforms", [["cpu"], ["cpu", "tpu"], ["cuda", "rocm"], ["cpu", "tpu", "other"], ["other", "cuda"], ["other"]])
def test_all_or_no_platforms_support_donation_in_the_mode_of_jax(monkeypatch: pytest.MonkeyPatch, platforms: list[str]) -> None:
    jax = pytest.importorskip("jax")
    x = np.arange(3, dtype=np.float32)
    monkeypatch.setattr(settings, "permissive", True)

    def refused(library: Any, **options: Any) -> bool:
        try:
            exported = library.export.export(library.jit(lambda x: x + 1, **options), platforms=platforms)(x)
        except NotImplementedError:
            return True
        assert exported.platforms == tuple(platforms)
        return False

    for options in ({}, {"donate_argnums": 0}, {"donate_argnames": "x"}):
        assert refused(vf, **options) == refused(jax, **options)


def test_the_error_of_donation_names_platforms_that_support_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "permissive", True)
    with pytest.raises(UnsupportedError, match=r"either all or no .*only \['cpu'\] do.* without donate_argnums"):
        export.export(vf.jit(vnp.sin, donate_argnums=0), platforms=["cpu", "other"])(vnp.ones(3))


def test_the_text_of_a_program_stands_for_that_of_mlir() -> None:
    function = vf.jit(lambda x: (x[::2] + 1, -x))
    fixed = export.export(function)(np.ones(5, "float32"))
    assert fixed.mlir_module() == str(fixed.mlir_module(serialized=False)) == str(fixed.jaxpr)
    symbolic = saved(function, vf.ShapeDtypeStruct(export.symbolic_shape("n"), "float32"))
    program = symbolic.mlir_module(False)
    assert [str(a) for a in program.out_avals] == ["f32[floordiv(n + 1, 2)]", "f32[n]"]
    assert "floordiv(n + 1, 2)" in symbolic.mlir_module()
    mean = export.export(vf.jit(lambda x: x.mean()))(vf.ShapeDtypeStruct(export.symbolic_shape("n"), "float32"))
    with pytest.raises(ShapeError, match="depends on the symbolic size n"):
        mean.mlir_module()


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.reshape(-1), "a, b"),
        (lambda x: vnp.concatenate([x, x[:1]]), "2*b, 3"),
        (lambda x: x.reshape(x.shape[0] // 2, 2), "b"),
        (lambda x: vnp.var(x, 0) / x.shape[0], "b, 2"),
        (lambda x: vnp.arange(x.shape[0]) * x.shape[1], "a, b"),
        (lambda x: x[:, None] - x, "n"),
        (lambda x: vnp.fft.fft(x) if False else vnp.pad(x, 1), "n"),
    ],
)
def test_sizes_of_results_are_polynomials(function: Any, shape: str) -> None:
    spec = vf.ShapeDtypeStruct(export.symbolic_shape(shape, constraints=["mod(b, 2) == 0"]), "float32")
    loaded = saved(function, spec)
    for n in (2, 4, 10):
        sizes = [int(d.evaluate({"a": 3, "b": n, "n": 5})) if export.is_symbolic_dim(d) else d for d in spec.shape]
        x = random.normal(random.key(n), sizes)
        assert equal(loaded.call(x), vf.jit(function)(x))


def test_programs_that_differ_by_more_than_sizes_are_refused() -> None:
    spec = vf.ShapeDtypeStruct(export.symbolic_shape("b"), "float32")
    for function in (lambda x: x.sum() if x.shape[0] > 10 else x.prod(), lambda x: x * np.arange(x.shape[0])):
        with pytest.raises(ExportError):
            export.export(vf.jit(function))(spec)


def test_sizes_and_constraints_are_checked() -> None:
    spec = vf.ShapeDtypeStruct(export.symbolic_shape("b, b + 1", constraints=["b >= 3", "b <= 8"]), "float32")
    loaded = saved(lambda x: x * 2, spec)
    assert loaded.call(vnp.ones((3, 4))).shape == (3, 4)
    for shape in ((2, 3), (9, 10), (4, 4), (4,)):
        with pytest.raises(ShapeError):
            loaded.call(vnp.ones(shape))
    for text in ("b +", "b;", "2 2", ""):
        if text:
            with pytest.raises(ArgumentError):
                export.symbolic_shape(text)
    with pytest.raises(ArgumentError, match="must compare"):
        export.symbolic_shape("b", constraints=["b is even"])
    with pytest.raises(ConcretizationError, match="symbolic"):
        vf.jit(lambda x: x).lower(spec)


def test_derivatives_are_in_the_file_if_asked_for() -> None:
    def loss(function: Any) -> Any:
        return lambda x: function(PARAMS, x)["mean"]

    x = inputs(4)
    wanted = vf.grad(loss(model))(x)
    assert np.allclose(vf.grad(loss(saved(model, PARAMS, x, order=1).call))(x), wanted, atol=1e-6)
    with pytest.raises(GradientError, match="vjp_order"):
        vf.grad(loss(saved(model, PARAMS, x).call))(x)
    cube = saved(lambda x: x**3, 1.0, order=2)
    assert float(vf.grad(vf.grad(cube.call))(2.0)) == 12.0
    with pytest.raises(GradientError):
        vf.grad(vf.grad(vf.grad(cube.call)))(2.0)
    assert float(vf.grad(export.export(vf.jit(lambda x: x**3))(1.0).call)(2.0)) == 12.0
    counted = saved(lambda x, n: x * n, 1.0, 2, order=1)
    assert float(vf.grad(counted.call)(3.0, 5)) == 5.0


def test_it_works_under_transforms_and_threads() -> None:
    loaded = saved(lambda x: vnp.sin(x), vf.ShapeDtypeStruct((3,), "float32"))
    x = random.normal(random.key(0), (5, 3))
    assert np.allclose(vf.vmap(loaded.call)(x), np.sin(x), atol=1e-6)
    assert np.allclose(vf.jit(lambda x: loaded.call(x) + 1)(x[0]), np.sin(x[0]) + 1, atol=1e-6)


def test_a_training_step_feeds_on_its_own_results() -> None:
    network = nn.Sequential.init(nn.Linear.init(random.key(0), 3, 4), nn.relu, nn.Linear.init(random.key(1), 4, 1))
    optimizer = optim.adam(1e-2)

    @vf.jit
    def step(network: Any, state: Any, x: Any) -> Any:
        grads = vf.grad(lambda n: vnp.mean(n(x) ** 2))(network)
        updates, state = optimizer.update(grads, state, network)
        return optim.apply_updates(network, updates), state

    first = network, optimizer.init(network)
    loaded = saved(step, *first, inputs(6))
    actual, expected = loaded.call(*first, inputs(6)), step(*first, inputs(6))
    assert isinstance(actual[0], dict)  # no class of the package stands in a file
    actual, expected = loaded.call(*actual, inputs(6)), step(*expected, inputs(6))
    by_name = sorted([np.asarray(x).tobytes() for x in vf.tree.leaves(actual)])
    assert by_name == sorted([np.asarray(x).tobytes() for x in vf.tree.leaves(expected)])


def test_arguments_are_checked() -> None:
    loaded = saved(lambda p, x: p["a"] * x, {"a": 1.0}, vnp.ones(3))
    for args, error in [
        (({"b": 1.0}, vnp.ones(3)), TreeError),
        (((1.0,), vnp.ones(3)), TreeError),
        (({"a": 1.0}, vnp.ones(4)), ShapeError),
        (({"a": 1.0}, vnp.ones(3, "float16")), ArgumentTypeError),
        (({"a": 1.0},), TreeError),
    ]:
        with pytest.raises(error):
            loaded.call(*args)
    with pytest.raises(ArgumentTypeError, match="jitted"):
        export.export(lambda x: x)(1.0)
    with pytest.raises(ArgumentError, match="platforms"):
        export.export(vf.jit(lambda x: x), platforms=["abacus"])
    with pytest.raises(ExportError, match="Python function"):
        export.export(vf.jit(lambda x: vf.pure_callback(np.sin, x, x)))(1.0)
    with pytest.raises(ArgumentError, match="vjp_order"):
        export.export(vf.jit(lambda x: x))(1.0).serialize(vjp_order=-1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "uint64", "bool", "complex64", "complex128"])
def test_constants_of_every_dtype_and_rank_are_kept(dtype: str) -> None:
    constants = [vnp.ones((), dtype), vnp.zeros((0, 3), dtype), vnp.asarray(np.arange(6).reshape(2, 3)).astype(dtype)]
    loaded = saved(lambda x: (x, *constants), 1.0)
    assert equal(loaded.call(1.0)[1:], tuple(constants))


FUNCTION = export.export(vf.jit(model))(PARAMS, inputs(3)).serialize(vjp_order=1)


def mutated(count: int) -> Iterator[bytes]:
    """Yield damaged files, and files with right hashes of changed manifests."""
    rng = np.random.default_rng(0)
    for number in range(count):
        blob = bytearray(FUNCTION)
        kind, at = number % 5, int(rng.integers(len(blob)))
        if kind == 0:
            blob[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del blob[at:]
        elif kind == 2:
            blob[at:at] = rng.bytes(int(rng.integers(1, 9)))
        else:
            yield resigned(rng)
            continue
        yield bytes(blob)


def resigned(rng: np.random.Generator) -> bytes:
    """Return a file whose manifest has one value of another kind or size."""
    manifest, chunks = unpack(FUNCTION)
    node: Any = manifest
    while True:
        keys = [*node] if isinstance(node, dict) else [*range(len(node))]
        if not keys:
            break
        key = keys[int(rng.integers(len(keys)))]
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.9:
            node = node[key]
            continue
        wrong = [None, -1, 2**70, 1, 0.5, "add", [], {}, [[]], {"dim": []}, {"program": 99}, {"float": "x"}, {"enum": ["Precision"]}]
        node[key] = wrong[int(rng.integers(len(wrong)))]
        break
    return bytes(pack(manifest, [np.frombuffer(chunk, np.uint8) for chunk in chunks]))


def test_files_with_the_earlier_name_of_an_axis_are_read() -> None:
    exported = export.export(vf.jit(lambda x: lax.top_k(x, 2, axis=0)))(vf.ShapeDtypeStruct((5, 3), "float32"))
    manifest, chunks = unpack(exported.serialize())
    (equation,) = [e for program in manifest["programs"] for e in program["equations"] if e[0] == "top_k"]
    equation[3]["dimension"] = equation[3].pop("axis")
    earlier = export.deserialize(pack(manifest, [np.frombuffer(chunk, np.uint8) for chunk in chunks]))
    x = np.random.default_rng(0).standard_normal((5, 3), dtype=np.float32)
    values, indices = earlier.call(x)
    np.testing.assert_array_equal(values, np.sort(x, 0)[::-1][:2])
    np.testing.assert_array_equal(indices, np.argsort(-x, 0)[:2])


#: Changes of a manifest whose file is otherwise right: where, and to what. All were once untyped errors, or accepted.
FORGED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "another primitive's parameters": (("programs", 0, "equations", 0, 0), "sin"),
    "a parameter that there is not": (("programs", 0, "equations", 2, 3), {"program": 0}),
    "a parameter that is missing": (("programs", 0, "equations", 0, 3), {"dimension": 0}),
    "a parameter of another kind": (("programs", 0, "equations", 1, 3, "fill_value"), "x"),
    "a record of another kind": (("programs", 0, "equations", 1, 3, "dimension_numbers"), {"record": ["Axes", 1]}),
    "an enumeration of another kind": (("programs", 0, "equations", 1, 3, "mode"), {"enum": ["Precision", "HIGH"]}),
    "a constraint that is no text": (("constraints",), [[]]),
    "a constraint that is none": (("constraints",), ["b > 4"]),
    "a platform that is no text": (("platforms",), [[1]]),
    "shardings of nothing": (("shardings",), []),
    "an axis of no size": (("shardings",), {"axes": [["x", -1]], "inputs": [None]}),
    "an axis that there is not": (("shardings",), {"axes": [["x", 2]], "inputs": [[["y"]]]}),
    "too few shardings": (("shardings",), {"axes": [["x", 2]], "inputs": []}),
}


def parameters_of(jaxpr: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the primitives of a program that files may have, with their parameters."""
    for eqn in jaxpr.eqns:
        if not eqn.primitive.effectful and eqn.primitive.expand is None and eqn.primitive.name not in ("pure_callback", "checkpoint"):
            yield eqn.primitive, eqn.params
        for inner in sub_jaxprs(eqn.params):
            yield from parameters_of(getattr(inner, "jaxpr", inner))


def test_the_parameters_of_every_sample_are_right() -> None:
    names = set()
    for sample in samples_of_code():
        program = vf.make_jaxpr(sample.function)(*arrays(draw(sample, np.dtype(as_dtype(sample.dtypes[0])))))
        for primitive, params in parameters_of(program.jaxpr):
            check_parameters(primitive, params)
            names.update(params)
    custom = {"rule", "forward", "backward", "count"}  # of users' functions
    assert names - KINDS.keys() <= custom | {"axis_names", "num_captured", "policy", "jaxpr", "to", "result_avals"}


@pytest.mark.parametrize(("where", "value"), FORGED.values(), ids=FORGED)
def test_forged_manifests_are_refused(where: tuple[Any, ...], value: Any) -> None:
    struct = vf.ShapeDtypeStruct((2,), "float32")
    manifest, chunks = unpack(export.export(vf.jit(lambda x: vnp.sort(x)[vnp.array([1, 0])] + 1))(struct).serialize())
    node: Any = manifest
    for key in where[:-1]:
        node = node[key]
    node[where[-1]] = value
    blob = bytes(pack(manifest, [np.frombuffer(chunk, np.uint8) for chunk in chunks]))
    with pytest.raises(CorruptFileError, match="damaged|the primitive"):
        export.deserialize(blob).call(np.ones(2, np.float32))


WINDOW = ((1, 3, 2), (1, 2, 1), ((0, 0), (1, 1), (0, 0)))
#: Programs of one primitive whose rule takes any keywords, and wrong values of its parameters, which were accepted or failed when called.
FORGED_WINDOWS: dict[str, tuple[Any, list[tuple[int, ...]], list[tuple[tuple[Any, ...], Any]]]] = {
    "conv_general_dilated": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 2), ((1, 1), (0, 1)), (1, 1), (2, 1), feature_group_count=2, precision="high"),
        [(1, 4, 8, 8), (4, 2, 3, 3)],
        [
            (("dimension_numbers", "record", 1, 3), -1),
            (("dimension_numbers", "record", 2, 1), True),
            (("padding", 0), [1, 1, 1]),
            (("lhs_dilation",), [1, 1, 1]),
            (("window_strides", 0), 0),
            (("batch_group_count",), [1]),
            (("precision",), 1),
            (("more",), 1),
        ],
    ),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        [(3, 3), (3, 2)],
        [(("lower",), []), (("unit_diagonal",), [[]]), (("more",), False)],
    ),
    "reduce_window_max": (
        lambda x: lax.reduce_window(x, -np.inf, lax.max, *WINDOW),
        [(2, 8, 8)],
        [
            (("window_strides", 0), -1),
            (("window_dilation", 0), 2**70),
            (("base_dilation",), [0, 1, 1]),
            (("padding", 2), [0, 0, 0]),
            (("more",), 1),
        ],
    ),
    "select_and_scatter_add": (
        vf.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, *WINDOW).sum()),
        [(2, 8, 8)],
        [(("select",), "add"), (("select",), []), (("padding",), [[0, 0]] * 4), (("window_dilation", 0), 0)],
    ),
}


@pytest.mark.parametrize("name", FORGED_WINDOWS)
def test_forged_windows_are_refused(name: str) -> None:
    function, shapes, forged = FORGED_WINDOWS[name]
    arguments = [np.eye(*shape, dtype=np.float32) if len(shape) == 2 else np.ones(shape, np.float32) for shape in shapes]
    exported = export.export(vf.jit(function))(*[vf.ShapeDtypeStruct(shape, "float32") for shape in shapes])
    manifest, chunks = unpack(exported.serialize())

    def blob() -> bytes:
        return bytes(pack(manifest, [np.frombuffer(chunk, np.uint8) for chunk in chunks]))

    np.testing.assert_array_equal(export.deserialize(blob()).call(*arguments), exported.call(*arguments))
    (params,) = [equation[3] for program in manifest["programs"] for equation in program["equations"] if equation[0] == name]
    for where, value in forged:
        node: Any = params
        for key in where[:-1]:
            node = node[key]
        is_new = isinstance(node, dict) and where[-1] not in node
        original, node[where[-1]] = None if is_new else node[where[-1]], value
        with pytest.raises(CorruptFileError, match="damaged"):
            export.deserialize(blob())
        if is_new:
            del node[where[-1]]
        else:
            node[where[-1]] = original


def test_damaged_files_give_typed_errors_only() -> None:
    refused = 0
    for blob in mutated(1000):
        try:
            loaded = export.deserialize(blob)
        except CorruptFileError:
            refused += 1
        else:
            with contextlib.suppress(VoltaError):
                loaded.call(PARAMS, inputs(3))
    assert refused > 900  # some manifests are still right: a name, a flag that has no meaning alone


def test_newer_versions_and_other_files_are_refused() -> None:
    blob = bytes(FUNCTION).replace(b'"volta_fn.export":"1"', b'"volta_fn.export":"9"')
    with pytest.raises(SerializationError, match="install a newer"):
        export.deserialize(blob)
    with pytest.raises(CorruptFileError):
        export.deserialize(b"")
    with pytest.raises(ArgumentTypeError, match="bytes"):
        export.deserialize("model.export")  # type: ignore[arg-type]
    header = int.from_bytes(FUNCTION[:8], "little")
    assert json.loads(FUNCTION[8 : 8 + header])["__metadata__"]["volta_fn.export"] == "1"  # a safetensors file


def test_a_fresh_process_needs_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare two examples; ``python -m tests.export.every_example`` runs all."""
    monkeypatch.setenv("VOLTA_NATIVE", "0")  # as these tests run
    told, refused = compared(["xor", "regression"], tmp_path)
    assert len(told) >= 3
    assert [text for text in told if not text.endswith(" equal")] == []
    assert not refused


def test_quantised_weights_stay_quantised() -> None:
    """Constants of int8 are in the file as they are, and widened by the program."""
    numbers = np.random.default_rng(0).integers(-127, 128, (64, 64)).astype(np.int8)
    weight, scale = vnp.asarray(numbers), vnp.full(64, 0.01)

    def narrow(x: Any) -> Any:
        return x @ (weight.astype("float32") * scale)

    x = random.normal(random.key(0), (3, 64))
    data = export.export(vf.jit(narrow))(x).serialize()
    assert 64 * 64 < len(data) < 2 * 64 * 64
    np.testing.assert_allclose(export.deserialize(data).call(x), x @ (numbers * np.float32(0.01)), rtol=1e-4, atol=1e-5)


def test_importing_the_package_does_not_import_export() -> None:
    code = "import sys, volta_fn; sys.exit(any(m.startswith(('volta_fn.export', 'volta_fn.onnx')) for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_jax_has_the_names() -> None:
    result = vf.export
    for name in ("export", "deserialize", "symbolic_shape", "symbolic_args_specs", "default_export_platform", "is_symbolic_dim"):
        assert callable(getattr(result, name))
