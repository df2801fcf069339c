"""Functions as models, gradients and control flow too, in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import volta_fn as vf  # noqa: E402
import volta_fn.onnx  # noqa: E402
from volta_fn import lax, nn, optim, random  # noqa: E402
from volta_fn import numpy as vnp  # noqa: E402
from volta_fn.errors import ArgumentError, ArgumentTypeError, OnnxError  # noqa: E402


def agree(folder: Path, function: Any, params: Any, *args: Any, tolerance: float = 1e-5) -> None:
    """Assert that onnxruntime and the loaded model agree with the function."""
    path = folder / "model.onnx"
    volta_fn.onnx.save(function, params, args, path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options)
    arguments = {f"x{i}": np.asarray(x) for i, x in enumerate(vf.tree.leaves(args))}
    wanted = vf.tree.leaves(function(params, *args))
    by_onnx = session.run(None, {i.name: arguments[i.name] for i in session.get_inputs()})
    loaded, weights = volta_fn.onnx.load(path)
    back = loaded(weights, **arguments)
    for actual in (by_onnx, back if isinstance(back, tuple) else (back,)):
        for got, want in zip(actual, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tolerance, atol=tolerance)


def training_step(loss: Any) -> tuple[Any, Any]:
    """Return a step of gradient descent with momentum.

    Adam's first step is the gradient's sign, which rounding decides where it is zero.
    """
    optimizer = optim.sgd(0.01, momentum=0.9)

    def step(model: Any, state: Any, *args: Any) -> Any:
        value, grads = vf.value_and_grad(loss)(model, *args)
        updates, state = optimizer.update(grads, state, model)
        return optim.apply_updates(model, updates), state, value

    return step, optimizer.init


def cnn() -> tuple[Any, tuple[Any, ...]]:
    k1, k2 = random.split(random.key(0))
    network = nn.Sequential.init(nn.Conv2d.init(k1, 1, 4, 3, padding=1), nn.relu, nn.MaxPool2d(2), nn.Flatten(), nn.Linear.init(k2, 64, 3))
    return network, (random.normal(random.key(1), (2, 1, 8, 8)),)


NETWORKS = {
    "cnn": cnn,
    "lstm": lambda: (nn.LSTM.init(random.key(0), 3, 4), (random.normal(random.key(1), (2, 5, 3)),)),
    "transformer": lambda: (nn.TransformerEncoderLayer.init(random.key(2), 8, 2, 16), (random.normal(random.key(3), (2, 5, 8)),)),
}


def test_parameters_that_nothing_reads_are_left_out(tmp_path: Path) -> None:
    """Such as the number of batches of a batch normalisation; those that only the body of a loop reads are not."""
    import onnx

    norm, state = nn.BatchNorm1d.init(3)
    volta_fn.onnx.save(lambda pair, x: pair[0](x, pair[1])[0], (norm, state), (vnp.ones((2, 3)),), tmp_path / "model.onnx")
    names = [i.name for i in onnx.load(tmp_path / "model.onnx").graph.initializer]
    assert "params.1.mean" in names and "params.1.batches" not in names
    step = lambda w: lambda c, x: (c * w["inner"] + x, None)
    agree(tmp_path, lambda w, xs: lax.scan(step(w), vnp.zeros(3), xs)[0], {"inner": vnp.ones(3), "other": vnp.ones(9)}, vnp.ones((4, 3)))
    names = [i.name for i in onnx.load(tmp_path / "model.onnx").graph.initializer]
    assert "params.inner" in names and "params.other" not in names


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_infer_and_train_in_onnxruntime(name: str, tmp_path: Path) -> None:
    network, args = NETWORKS[name]()
    agree(tmp_path, lambda model, x: model(x), network, *args)
    step, init = training_step(lambda model, x: vnp.mean(vf.tree.leaves(model(x))[0] ** 2))
    agree(tmp_path, step, network, init(network), *args)


X = vnp.asarray(np.array([[3.0, -1.0, 2.0, 5.0], [0.5, 0.0, -2.0, 1.0]], np.float32))
OUTSIDE, SWAPPED = vnp.array([1, 7]), vnp.array([1, 0])
UNARY = (vnp.expm1, vnp.log1p, vnp.cbrt, vnp.exp2, vnp.round, vnp.sign, nn.gelu, vnp.isfinite, vnp.abs)


def pooled(x: Any) -> Any:
    image = x[None, None]
    return vnp.sum(nn.MaxPool2d(2, padding=1)(image) ** 2 + nn.AvgPool2d(2, padding=1)(image))


def convolved(x: Any, p: Any) -> Any:
    weights = vnp.ones((2, 1, 2, 2)) * p
    return vnp.sum(lax.conv_general_dilated(x[None, None], weights, (2, 1), ((1, 1), (0, 1)), rhs_dilation=(1, 2)) ** 2)


FUNCTIONS: dict[str, Any] = {
    "while": lambda p, x: lax.while_loop(lambda c: c[0].sum() < 50, lambda c: (c[0] + p, c[1] * 2), (x, x)),
    "switch": lambda p, x: [lax.switch(vnp.argmax(row), [vnp.sin, vnp.cos, vnp.tanh, vnp.exp], x) for row in x],
    "scan without rows": lambda p, x: lax.fori_loop(0, 4, lambda i, y: y * p + i, x),
    "scan backwards": lambda p, x: lax.scan(lambda c, row: (c * p + row, c), x[0], x, reverse=True),
    "sorting": lambda p, x: (vnp.sort(x), vnp.argsort(x, 0), lax.top_k(x, 2), vnp.argmax(x, 1), vnp.cumsum(x, 1)),
    "indexing": lambda p, x: (x[:, vnp.array([0, 3, -1])], x[SWAPPED, vnp.array([2, 1])], vnp.take(x, OUTSIDE, 1, mode="fill")),
    "updates": lambda p, x: (x.at[0, 1:3].set(p), x.at[:, vnp.array([1, 1, 2])].add(p), x.at[SWAPPED, SWAPPED].max(9.0)),
    "slices": lambda p, x: (lax.dynamic_slice(x, (1, 2), (1, 2)), lax.dynamic_update_slice(x, x[:1, :2], (1, 3)), x[::-1, ::2]),
    "padding": lambda p, x: (lax.pad(x, p, ((1, 0, 2), (-1, 2, 1))), vnp.pad(x, 1, mode="edge"), vnp.roll(x, 1, 1)),
    "elementwise": lambda p, x: [f(x) for f in UNARY],
    "pairs": lambda p, x: (vnp.arctan2(x, p), vnp.logaddexp(x, p), lax.rem(x, p * vnp.ones_like(x)), x**3, vnp.where(x > p, x, 0)),
    "reductions": lambda p, x: (x.sum(0), x.max(), x.min(1), x.prod(0), (x > 0).all(0), (x > 0).any(), vnp.var(x), x @ x.T),
    "integers": lambda p, x: (x.astype("int32") // 2, x.astype("int32") & 3, (x > 0) | (x < -1), ~(x > 0), x.astype("int64")),
    "pooling": lambda p, x: vf.grad(pooled)(x),
    "convolutions": lambda p, x: vf.grad(convolved)(x, p),
    "custom rules": lambda p, x: vf.grad(lambda x: vnp.sum(nn.softmax(x) * nn.relu(x) + nn.log_softmax(x, axis=0)))(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_run_in_onnxruntime(name: str, tmp_path: Path) -> None:
    agree(tmp_path, FUNCTIONS[name], vnp.float32(1.5), X)


EXTREMES = [0.49999997, -0.49999997, 0.5, 1.5, -2.5, 8388609, -16777215, 3e38, 1e-20, -0.0, 9, 17, 25, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize(
    "function", [lax.round, vnp.floor, lambda x: vnp.logaddexp(0.0, -vnp.abs(x) * 3), lambda x: vnp.log1p(vnp.abs(x)), vnp.log1p]
)
def test_functions_at_extremes(function: Any, tmp_path: Path) -> None:
    x = np.array(EXTREMES, np.float32)
    volta_fn.onnx.save(lambda p, x: function(x), (), (x,), tmp_path / "model.onnx")
    (result,) = onnxruntime.InferenceSession(str(tmp_path / "model.onnx")).run(None, {"x0": x})
    np.testing.assert_allclose(result, np.asarray(function(vnp.asarray(x))), rtol=1e-6)


def test_missing_operators_are_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match=r"(?s)erf_inv, from .*\n.*lgamma, from "):
        volta_fn.onnx.save(lambda p, x: lax.erf_inv(x) + lax.lgamma(x), (), (1.0,), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_raise_typed_errors(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="opset"):
        volta_fn.onnx.save(lambda p, x: x, (), (1.0,), tmp_path / "m.onnx", opset=3)
    with pytest.raises(ArgumentTypeError, match="tuple"):
        volta_fn.onnx.save(lambda p, x: x, (), 1.0, tmp_path / "m.onnx")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="with values"):
        vf.jit(lambda p: volta_fn.onnx.save(lambda p, x: x, p, (1.0,), tmp_path / "m.onnx"))(1.0)


def test_parameters_have_the_names_of_their_paths(tmp_path: Path) -> None:
    volta_fn.onnx.save(lambda p, x: x @ p["layer"][0], {"layer": [vnp.ones((2, 3))]}, (vnp.ones((1, 2)),), tmp_path / "m.onnx")
    assert list(volta_fn.onnx.load(tmp_path / "m.onnx")[1]) == ["params.layer.0"]
