"""The cross entropy of a linear layer, chunk by chunk, against that of all logits and PyTorch's, with gradients; and its memory."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError

MODULE = importlib.import_module("volta_fn.nn.classification_losses")
RNG = np.random.default_rng(0)
N, D, C = 12, 8, 37
X = RNG.normal(size=(3, 4, D)).astype(np.float32)
WEIGHT = RNG.normal(size=(D, C)).astype(np.float32)
BIAS = RNG.normal(size=C).astype(np.float32)
LABELS = RNG.integers(0, C, (3, 4)).astype(np.int32)
IGNORED = np.where(RNG.random((3, 4)) < 0.4, -100, LABELS).astype(np.int32)


@pytest.fixture(params=[5, 16, 37, 64], ids=lambda n: f"chunks of {n}")
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Have chunks of a size, of which the last one may repeat some classes."""
    size: int = request.param
    monkeypatch.setattr(MODULE, "_chunk_size", lambda rows, classes: min(size, classes))
    return size


def definition(
    x: Any, weight: Any, labels: Any, bias: Any = 0.0, *, where: Any = True, smoothing: float = 0.0, z_loss: float = 0.0, cap: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of all examples, in float64, and which of them count."""
    logits = np.asarray(x, np.float64) @ np.asarray(weight, np.float64) + np.asarray(bias, np.float64)
    logits = logits if cap is None else cap * np.tanh(logits / cap)
    top = logits.max(-1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
    counted = (labels != -100) & where
    score = np.take_along_axis(logits, np.where(labels == -100, 0, labels)[..., None], -1)[..., 0]
    losses = total - (1 - smoothing) * score - (smoothing * logits.mean(-1) if smoothing else 0) + z_loss * total**2
    return np.where(counted, losses, 0), np.broadcast_to(counted, labels.shape)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": BIAS},
    {"label_smoothing": 0.2, "bias": BIAS},
    {"z_loss": 0.03},
    {"logits_soft_cap": 2.5, "bias": BIAS, "label_smoothing": 0.1, "z_loss": 0.01},
    {"where": RNG.random((3, 4)) < 0.6},
]
NAMES = {"label_smoothing": "smoothing", "logits_soft_cap": "cap"}


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("labels", [LABELS, IGNORED], ids=["all", "some"])
def test_values(options: dict[str, Any], labels: np.ndarray) -> None:
    losses, counted = definition(X, WEIGHT, labels, **{NAMES.get(k, k): v for k, v in options.items()})
    for reduction, expected in (("none", losses), ("sum", losses.sum()), ("mean", losses.sum() / counted.sum())):
        ours = nn.linear_cross_entropy(X, WEIGHT, labels, **options, reduction=reduction)
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-6)
        transposed = vf.jit(lambda w, r=reduction: nn.linear_cross_entropy(X, w, labels, **options, axis=0, reduction=r))(WEIGHT.T)
        np.testing.assert_allclose(transposed, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_are_those_of_all_logits(axis: int) -> None:
    layout = WEIGHT.T if axis == 0 else WEIGHT

    def whole(x: Any, w: Any, b: Any) -> Any:
        logits = x @ (w.T if axis == 0 else w) + b
        logits = 3.0 * vnp.tanh(logits / 3.0)
        total = nn.logsumexp(logits, -1)
        losses = nn.cross_entropy(logits, IGNORED, axis=-1, label_smoothing=0.1, reduction="none")
        return (losses + 0.02 * vnp.where(IGNORED == -100, 0.0, total**2)).sum() / (IGNORED != -100).sum()

    def chunked(x: Any, w: Any, b: Any) -> Any:
        return nn.linear_cross_entropy(x, w, IGNORED, b, axis=axis, label_smoothing=0.1, z_loss=0.02, logits_soft_cap=3.0)

    for run in (lambda f: f, vf.jit):
        ours = run(vf.value_and_grad(chunked, (0, 1, 2)))(X, layout, BIAS)
        theirs = vf.value_and_grad(whole, (0, 1, 2))(X, layout, BIAS)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
        for x, y in zip(ours[1], theirs[1], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("chunk")
def test_matches_torch() -> None:
    torch = pytest.importorskip("torch")
    x, w, b = (torch.tensor(a, requires_grad=True) for a in (X.reshape(N, D), WEIGHT.T.copy(), BIAS))
    labels = torch.tensor(IGNORED.reshape(N).astype(np.int64))
    loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, w, b), labels, label_smoothing=0.1)
    gradients = torch.autograd.grad(loss, (x, w, b))
    run = vf.value_and_grad(lambda x, w, b: nn.linear_cross_entropy(x, w, IGNORED.reshape(N), b, axis=0, label_smoothing=0.1), (0, 1, 2))
    value, ours = run(X.reshape(N, D), WEIGHT.T, BIAS)
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    for mine, theirs in zip(ours, gradients, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.wide
@pytest.mark.usefixtures("chunk")
def test_second_derivatives_and_vmap() -> None:
    x, w = X.astype(np.float64), WEIGHT.astype(np.float64)
    direction = RNG.normal(size=x.shape)

    def chunked(x: Any) -> Any:
        return nn.linear_cross_entropy(x, w, LABELS)

    def whole(x: Any) -> Any:
        return nn.cross_entropy(x @ w, LABELS, axis=-1)

    ours, theirs = (vf.grad(lambda x, f=f: (vf.grad(f)(x) * direction).sum())(x) for f in (chunked, whole))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    each = vf.vmap(vf.grad(lambda x, y: nn.linear_cross_entropy(x, w, y)))(x, LABELS)
    np.testing.assert_allclose(each, vf.grad(whole)(x) * 3, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_has_logits_in_float32(dtype: str) -> None:
    x, w = vnp.asarray(X).astype(dtype), vnp.asarray(WEIGHT).astype(dtype)
    losses, _ = definition(np.asarray(x, np.float64), np.asarray(w, np.float64), LABELS)
    value, gradients = vf.value_and_grad(lambda x, w: nn.linear_cross_entropy(x, w, LABELS), (0, 1))(x, w)
    assert [a.dtype.name for a in (value, *gradients)] == [dtype] * 3
    np.testing.assert_allclose(np.float64(value), losses.mean(), rtol=float(vnp.finfo(dtype).eps))


def test_labels_that_are_no_class_give_nan_in_a_program() -> None:
    with pytest.raises(OutOfBoundsError, match="37"):
        nn.linear_cross_entropy(X, WEIGHT, np.full((3, 4), 37))
    losses = np.asarray(
        vf.jit(lambda y: nn.linear_cross_entropy(X, WEIGHT, y, reduction="none"))(np.where(LABELS[0, 0] == LABELS, C, LABELS))
    )
    np.testing.assert_array_equal(np.isnan(losses), LABELS[0, 0] == LABELS)


def test_hidden_classes_and_empty_batches() -> None:
    hidden = np.where(np.arange(C) % 3 == 0, -np.inf, 0).astype(np.float32)
    labels = np.full((3, 4), 1, np.int32)
    losses, _ = definition(X, WEIGHT, labels, hidden)
    np.testing.assert_allclose(nn.linear_cross_entropy(X, WEIGHT, labels, hidden, reduction="none"), losses, rtol=2e-5)
    assert np.isnan(nn.linear_cross_entropy(X[:0], WEIGHT, LABELS[:0]))
    assert nn.linear_cross_entropy(X[:0], WEIGHT, LABELS[:0], reduction="sum") == 0
    assert nn.linear_cross_entropy(X[0, 0], WEIGHT, LABELS[0, 0]).shape == ()


def test_memory_is_that_of_some_chunks() -> None:
    rows, classes, width = 4096, 50257, 256
    x, y = vf.ShapeDtypeStruct((rows, width), "float32"), vf.ShapeDtypeStruct((rows,), "int32")
    for axis in (0, 1):
        w = vf.ShapeDtypeStruct((classes, width) if axis == 0 else (width, classes), "float32")
        loss = lambda x, w, y, axis=axis: nn.linear_cross_entropy(x, w, y, axis=axis)
        for function in (loss, vf.grad(loss, (0, 1))):
            assert vf.jit(function).lower(x, w, y).memory().temporaries < 0.15 * rows * classes * 4


@pytest.mark.wide
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: nn.linear_cross_entropy(X, WEIGHT.T, LABELS), ShapeError, "axis=0"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT, LABELS[0]), ShapeError, r"\(3, 4\)"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT, LABELS, BIAS[:3]), ShapeError, "bias"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT, LABELS, where=np.ones(3, bool)), ShapeError, "where"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT.astype(np.float64), LABELS), DTypeError, "float64"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT, LABELS * 0.5), DTypeError, "integers"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT, LABELS, where=LABELS), DTypeError, "bool"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT, LABELS, axis=2), ArgumentError, "axis=2"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT, LABELS, label_smoothing=2), ArgumentError, "label_smoothing"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT, LABELS, logits_soft_cap=0), ArgumentError, "logits_soft_cap"),
        (lambda: nn.linear_cross_entropy(X, WEIGHT, LABELS, reduction="max"), ArgumentError, "max"),
    ],
)
def test_wrong_arguments_are_named(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.usefixtures("chunk")
def test_chunks_without_a_class_that_can_be() -> None:
    bias = np.where(np.arange(C) < 20, BIAS, -np.inf).astype(np.float32)
    labels = LABELS % 20
    loss = lambda x: nn.linear_cross_entropy(x, WEIGHT, labels, bias)
    expected = lambda x: nn.cross_entropy(x @ WEIGHT + bias, labels, axis=-1)
    np.testing.assert_allclose(loss(X), expected(X), rtol=1e-6)
    np.testing.assert_allclose(vf.grad(loss)(X), vf.grad(expected)(X), rtol=1e-4, atol=1e-7)
