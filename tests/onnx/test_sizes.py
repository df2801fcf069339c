"""Models for all sizes of symbolic axes, and models of bfloat16, in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import volta_fn as vf  # noqa: E402
import volta_fn.onnx  # noqa: E402
from volta_fn import ShapeDtypeStruct, export, lax, nn, random  # noqa: E402
from volta_fn import numpy as vnp  # noqa: E402
from volta_fn.errors import OnnxError  # noqa: E402


def session_of(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def agree(folder: Path, function: Any, params: Any, specs: Any, examples: Any, tolerance: float = 1e-5) -> Any:
    """Assert that one model gives the function's results for arguments of several sizes, here and in onnxruntime; return its session."""
    path = folder / "model.onnx"
    volta_fn.onnx.save(function, params, specs, path)
    session = session_of(path)
    loaded, weights = volta_fn.onnx.load(path)
    for args in examples:
        wanted = vf.tree.leaves(function(params, *args))
        arguments = {f"x{i}": np.asarray(x) for i, x in enumerate(vf.tree.leaves(args))}
        by_onnx = session.run(None, {i.name: arguments[i.name] for i in session.get_inputs()})
        back = loaded(weights, **arguments)
        for actual in (by_onnx, back if isinstance(back, tuple) else (back,)):
            for got, want in zip(actual, wanted, strict=True):
                assert got.shape == want.shape
                scale = max(1.0, float(np.abs(np.asarray(want, np.float64)).max(initial=0)))
                np.testing.assert_allclose(
                    np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tolerance, atol=tolerance * scale
                )
    return session


def normal(seed: int, *shape: int) -> vf.Array:
    return random.normal(random.key(seed), shape)


def tokens(rows: int, length: int) -> tuple[vf.Array]:
    return (random.randint(random.key(rows), (rows, length), 0, 50),)


# A language model with rotary positions, as published for Llama.


def rotated(x: Any) -> Any:
    length, width = x.shape[-2:]
    frequencies = 1 / (10000 ** (vnp.arange(0, width, 2) / width))
    angles = vnp.arange(length)[:, None] * frequencies
    cos, sin, first, second = vnp.cos(angles), vnp.sin(angles), x[..., : width // 2], x[..., width // 2 :]
    return vnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1).astype(x.dtype)


def llama(p: Any, ids: Any) -> Any:
    x = p["embedding"][ids]
    rows, length, width = x.shape
    for layer in p["layers"]:
        y = _scaled(x, layer["norm1"])
        q, k, v = ((y @ layer[name]).reshape(rows, length, 2, width // 2).transpose(0, 2, 1, 3) for name in "qkv")
        scores = rotated(q) @ rotated(k).transpose(0, 1, 3, 2) / 2.0
        scores = vnp.where(vnp.tril(vnp.ones((length, length), bool)), scores, -1e9)
        attended = (nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(rows, length, width)
        x = x + attended @ layer["o"]
        y = _scaled(x, layer["norm2"])
        x = x + (nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
    return _scaled(x, p["norm"]) @ p["embedding"].T


def _scaled(x: Any, weight: Any) -> Any:
    return x * lax.rsqrt(vnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight


def llama_weights(width: int = 8) -> Any:
    square, ones = (width, width), vnp.ones(width)
    shapes = {"q": square, "k": square, "v": square, "o": square, "gate": (width, 12), "up": (width, 12), "down": (12, width)}
    layers = [
        {"norm1": ones, "norm2": ones, **{name: 0.4 * normal(10 * i + j, *shape) for j, (name, shape) in enumerate(shapes.items())}}
        for i in range(2)
    ]
    return {"embedding": normal(99, 50, width), "norm": ones, "layers": layers}


def convolutional() -> tuple[Any, Any]:
    norm, state = nn.BatchNorm2d.init(4)
    first, second = random.split(random.key(0))
    params = (nn.Conv2d.init(first, 1, 4, 3, padding=1), norm, state, nn.Linear.init(second, 36, 3))

    def function(p: Any, x: Any) -> Any:
        conv, norm, state, head = p
        y, _ = norm(conv(x), state)
        return head(nn.MaxPool2d(2)(nn.relu(y)).reshape(x.shape[0], 36))

    return function, params


def sequence(*trailing: int, dtype: str = "float32") -> ShapeDtypeStruct:
    return ShapeDtypeStruct((*export.symbolic_shape("b, t", constraints=["t >= 2"]), *trailing), dtype)


def gpt() -> Any:
    return nn.GPT.init(random.key(0), 50, 6000, num_layers=1, d_model=8, nhead=2, dropout=0.0)


MODELS = {
    "gpt of a few tokens": lambda: (
        lambda m, x: m(x),
        nn.GPT.init(random.key(0), 50, 16, num_layers=1, d_model=8, nhead=2, dropout=0.0),
        (ShapeDtypeStruct(export.symbolic_shape("b, t", constraints=["t<=16"]), "int32"),),
        [tokens(2, 5), tokens(4, 16), tokens(1, 1)],
    ),
    "gpt": lambda: (lambda m, x: m(x), gpt(), (sequence(dtype="int32"),), [tokens(2, 5), tokens(4, 9)]),
    "llama": lambda: (llama, llama_weights(), (sequence(dtype="int32"),), [tokens(2, 5), tokens(4, 9)]),
    "cnn": lambda: (
        *convolutional(),
        (ShapeDtypeStruct((*export.symbolic_shape("b"), 1, 6, 6), "float32"),),
        [(normal(1, n, 1, 6, 6),) for n in (2, 4)],
    ),
    "lstm": lambda: (
        lambda m, x: m(x)[0],
        nn.LSTM.init(random.key(0), 3, 4),
        (sequence(3),),
        [(normal(1, 2, 5, 3),), (normal(2, 4, 7, 3),)],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_networks_run_for_all_sizes(name, tmp_path):
    session = agree(tmp_path, *MODELS[name](), tolerance=1e-4)
    sizes = session.get_inputs()[0].shape
    assert sizes[0] == "b"
    assert name == "cnn" or sizes[1] == "t"


@pytest.mark.parametrize("name", MODELS)
def test_networks_of_bfloat16_run(name, tmp_path):
    function, params, specs, examples = MODELS[name]()

    def narrow(x: Any) -> Any:
        return x.astype("bfloat16") if x.dtype == np.float32 else x

    def of_float32(p: Any, x: Any) -> Any:
        return function(p, narrow(x)).astype("float32")

    agree(tmp_path, of_float32, vf.tree.map(narrow, params), specs, examples, tolerance=5e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_converted_transposes_run(dtype, tmp_path):
    """onnxruntime crashes where a conversion lies between the exchange of leading axes and a product."""
    weight = normal(2, 3, 4)
    product = lambda w, x: x.astype(dtype).swapaxes(0, 1).astype("float32") @ w
    agree(tmp_path, product, weight, (ShapeDtypeStruct((2, 5, 3), "float32"),), [(normal(1, 2, 5, 3),)], tolerance=1e-2)


def test_shapes_and_numbers_follow_the_sizes(tmp_path):
    def function(_: Any, x: Any) -> Any:
        n = x.shape[0]
        return (
            x.mean(0), x / n, x.var(), vnp.cumsum(x, 0), x[::-1], x[:, :2].T, vnp.sort(x, 0), vnp.argmax(x, 0), x.reshape(-1),
            vnp.concatenate([x, x]), vnp.pad(x, ((1, 2), (0, 0))), vnp.arange(n, dtype="float32") + x[:, 0], vnp.eye(n) * 2, x[-1],
            vnp.outer(x[:, 0], x[:, 1]), lax.scan(lambda c, row: (c + row.sum(), c * row), vnp.float32(0), x), x.at[n - 1].set(0.0),
            vnp.where(vnp.arange(n)[:, None] > 2, x, 0.0), vnp.triu(vnp.ones((n, n), bool)),
        )  # fmt: skip

    specs = (ShapeDtypeStruct((*export.symbolic_shape("n", constraints=["n >= 2"]), 3), "float32"),)
    session = agree(tmp_path, function, None, specs, [(normal(1, n, 3),) for n in (2, 5)], 1e-4)
    named = [output.shape for output in session.get_outputs()]
    assert named[:4] == [[3], ["n", 3], [], ["n", 3]]
    assert ["3*n"] in named
    assert ["2*n", 3] in named


def test_sizes_that_are_solved_for(tmp_path):
    (size,) = export.symbolic_shape("2*n + 1")
    specs = (ShapeDtypeStruct((size,), "float32"), ShapeDtypeStruct(export.symbolic_shape("n"), "float32"))
    agree(tmp_path, lambda _, x, y: x[: y.shape[0]] + y, None, specs[:2], [(normal(1, 2 * n + 1), normal(2, n)) for n in (1, 4)])
    agree(tmp_path, lambda _, x: x[: x.shape[0] // 2] * 2, None, specs[:1], [(normal(1, 2 * n + 1),) for n in (1, 4)])


def test_training_steps_run_for_all_batches(tmp_path):
    network = nn.Sequential.init(nn.Linear.init(random.key(0), 4, 8), nn.tanh, nn.Linear.init(random.key(1), 8, 3))

    def step(model: Any, x: Any, y: Any) -> Any:
        gradient = vf.grad(lambda m: vnp.mean((m(x) - y) ** 2))(model)
        return vf.tree.map(lambda p, g: p - 0.1 * g, model, gradient)

    (b,) = export.symbolic_shape("b")
    specs = (ShapeDtypeStruct((b, 4), "float32"), ShapeDtypeStruct((b, 3), "float32"))
    agree(tmp_path, step, network, specs, [(normal(1, n, 4), normal(2, n, 3)) for n in (1, 6)])


def test_what_differs_between_sizes_is_told(tmp_path):
    (b,) = export.symbolic_shape("b")
    spec = (ShapeDtypeStruct((b, 3), "float32"),)
    for function, message in (
        (lambda _, x: x * 2 if x.shape[0] < 50 else vnp.sin(x), "operators Mul and Sin|and .* nodes"),
        (lambda _, x: x * (x.shape[0] / (x.shape[0] + 1)), "neither a size"),
        (lambda _, x: x + np.random.default_rng(0).normal(size=(x.shape[0], 1)).astype("float32"), "arange, ones or zeros"),
    ):
        with pytest.raises(OnnxError, match=message):
            volta_fn.onnx.save(function, None, spec, tmp_path / "model.onnx")
    (t,) = export.symbolic_shape("t", constraints=["t <= 2"])
    with pytest.raises(OnnxError, match=r"for \{'t': \d\} and \{'t': 1\} it has .* such as 't >= 2'"):
        function = lambda _, x: vnp.sin(vnp.cos(x)) if x.shape[0] == 1 else x
        volta_fn.onnx.save(function, None, (ShapeDtypeStruct((t, 3), "float32"),), tmp_path / "model.onnx")
    (product,) = export.symbolic_shape("b*b")
    with pytest.raises(OnnxError, match="not that of an axis"):
        volta_fn.onnx.save(lambda _, x: x.reshape(1, -1), None, (ShapeDtypeStruct((product,), "float32"),), tmp_path / "model.onnx")


BFLOAT16 = {
    "products": lambda x: (x @ x.T, vnp.einsum("ij,kj->ik", x, x), vnp.tensordot(x, x, 2), x[0] @ x[1]),
    "elementwise": lambda x: (vnp.exp(x), x + 1, -x, nn.gelu(x), vnp.where(x > 0, x, 0), x**2, nn.relu(x), vnp.tanh(x), abs(x)),
    "reductions": lambda x: (x.sum(), x.mean(0), x.max(1), vnp.argmax(x, 1), vnp.sort(x, 1), vnp.cumsum(x, 1), nn.softmax(x)),
    "movements": lambda x: (
        x.T, x.reshape(-1), x[:, 1:3], x[::-1], x[vnp.array([1, 0])], vnp.pad(x, 1), x.at[0].add(1.0), vnp.broadcast_to(x, (2, 3, 4)),
        lax.dynamic_slice(x, (vnp.int32(1), 0), (1, 2)), vnp.concatenate([x, x]),
    ),
    "control": lambda x: (lax.scan(lambda c, r: (c + r, c), x[0], x), lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: y, x)),
}  # fmt: skip


@pytest.mark.parametrize("name", BFLOAT16)
def test_operators_of_bfloat16_run(name, tmp_path):
    def function(_: Any, x: Any) -> Any:
        results = BFLOAT16[name](x.astype("bfloat16"))
        return vf.tree.map(lambda y: y.astype("float32") if y.dtype == vnp.bfloat16 else y, results)

    agree(tmp_path, function, None, (ShapeDtypeStruct((3, 4), "float32"),), [(normal(5, 3, 4),)], tolerance=2e-2)


def test_choices_between_booleans(tmp_path):
    agree(tmp_path, lambda _, x: vnp.where(x > 0, x > 1, x < -1), None, (ShapeDtypeStruct((3, 4), "float32"),), [(normal(5, 3, 4),)])


def test_quantised_weights_stay_quantised(tmp_path):
    numbers = np.random.default_rng(0).integers(-127, 128, (64, 64)).astype(np.int8)
    params = {"weight": vnp.asarray(numbers), "scale": vnp.full(64, 0.01)}
    agree(
        tmp_path,
        lambda p, x: x @ (p["weight"].astype("float32") * p["scale"]),
        params,
        (ShapeDtypeStruct((*export.symbolic_shape("b"), 64), "float32"),),
        [(normal(1, n, 64),) for n in (2, 4)],
    )
    assert numbers.tobytes() in (tmp_path / "model.onnx").read_bytes()
