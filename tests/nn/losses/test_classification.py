"""Cross entropy and negative log-likelihood against PyTorch, with every option, and at the edges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.special

import volta_fn as vf
from tests.nn.losses.oracle import as_torch, check
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError

torch = pytest.importorskip("torch")
F = torch.nn.functional
rng = np.random.default_rng(0)
SHAPES = {"vector": (5,), "rows": (8, 5), "images": (3, 5, 2, 4)}
LOGITS = {name: rng.normal(size=shape) * 3 for name, shape in SHAPES.items()}
LABELS = {name: rng.integers(0, 5, [n for i, n in enumerate(shape) if i != min(1, len(shape) - 1)]) for name, shape in SHAPES.items()}
LABELS = {name: labels.astype(np.int32) for name, labels in LABELS.items()}
WEIGHT = rng.uniform(0.2, 2, size=5)
OPTIONS = list(itertools.product(SHAPES, ["mean", "sum", "none"], [0.0, 0.2], [False, True]))


def torch_weight(dtype: str, weighted: bool) -> object:
    """Return the class weights as a tensor, or none."""
    return as_torch(WEIGHT.astype(dtype)) if weighted else None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape, reduction, smoothing, weighted", OPTIONS)
def test_class_numbers_match_pytorch(shape, reduction, smoothing, weighted, dtype):
    labels = LABELS[shape].copy()
    options = {"reduction": reduction, "label_smoothing": smoothing}
    if labels.ndim:
        labels.flat[1] = 3
        options["ignore_index"] = 3
    weight = WEIGHT.astype(dtype) if weighted else None
    check(
        lambda x: nn.cross_entropy(x, labels, weight, **options),
        lambda x: F.cross_entropy(x, as_torch(labels).long(), torch_weight(dtype, weighted), **options),
        [LOGITS[shape]],
        dtype,
        second=reduction == "mean",
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape, reduction, smoothing, weighted", OPTIONS)
def test_probabilities_match_pytorch(shape, reduction, smoothing, weighted, dtype):
    axis = min(1, len(SHAPES[shape]) - 1)
    shares = scipy.special.softmax(rng.normal(size=SHAPES[shape]), axis)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    weight = WEIGHT.astype(dtype) if weighted else None
    check(
        lambda x, y: nn.cross_entropy(x, y, weight, **options),
        lambda x, y: F.cross_entropy(x, y, torch_weight(dtype, weighted), **options),
        [LOGITS[shape], shares],
        dtype,
        wrt=(0, 1),
        second=reduction == "mean",
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", SHAPES)
def test_nll_loss_matches_pytorch(shape, reduction, dtype):
    labels, options = LABELS[shape], {"reduction": reduction, "ignore_index": 2}
    check(
        lambda x: nn.nll_loss(x, labels, WEIGHT.astype(dtype), **options),
        lambda x: F.nll_loss(x, as_torch(labels).long(), torch_weight(dtype, True), **options),
        [LOGITS[shape]],
        dtype,
    )


@pytest.mark.wide
def test_one_hot_labels_are_probabilities():
    rows = LOGITS["rows"]
    one_hot = np.eye(5, dtype=np.int32)[LABELS["rows"]]
    np.testing.assert_allclose(nn.cross_entropy(rows, one_hot), nn.cross_entropy(rows, LABELS["rows"]), rtol=1e-12)
    np.testing.assert_allclose(nn.nll_loss(rows, one_hot), nn.nll_loss(rows, LABELS["rows"]), rtol=1e-12)


@pytest.mark.wide
def test_another_axis_of_classes():
    images = np.moveaxis(LOGITS["images"], 1, -1)
    expected = nn.cross_entropy(LOGITS["images"], LABELS["images"], WEIGHT, label_smoothing=0.1)
    np.testing.assert_allclose(nn.cross_entropy(images, LABELS["images"], WEIGHT, label_smoothing=0.1, axis=-1), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_labels_of_every_integer_dtype(dtype):
    logits = LOGITS["rows"].astype(np.float32)
    assert nn.cross_entropy(logits, LABELS["rows"].astype(dtype)) == nn.cross_entropy(logits, LABELS["rows"])


def test_extreme_logits_are_exact():
    logits = vf.numpy.array([[1e4, -1e4, 0.0], [-1e4, -1e4, 1e4], [3e38, 0.0, -3e38]])
    values = nn.cross_entropy(logits, vf.numpy.array([1, 2, 0]), reduction="none")
    np.testing.assert_array_equal(values, np.float32([2e4, 0, 0]))
    slopes = vf.grad(nn.cross_entropy)(logits, vf.numpy.array([1, 2, 0]))
    np.testing.assert_allclose(slopes, np.float32([[1, -1, 0], [0, 0, 0], [0, 0, 0]]) / 3, rtol=1e-6)


def test_classes_ruled_out_by_minus_infinity_cost_nothing_unless_wanted():
    logits = vf.numpy.array([0.0, 0.0, -np.inf])
    one_hot = vf.numpy.array([0.5, 0.5, 0.0])
    np.testing.assert_allclose(nn.cross_entropy(logits, one_hot), np.log(2), rtol=1e-6)
    np.testing.assert_allclose(vf.grad(nn.cross_entropy)(logits, one_hot), 0, atol=1e-7)
    assert nn.cross_entropy(logits, 2) == np.inf


@pytest.mark.parametrize("label", [-1, 5, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_label_that_is_no_class_gives_nan_or_raises(label, smoothing):
    labels = LABELS["rows"].copy().astype(np.int32)
    labels[2] = label
    logits = vf.numpy.asarray(LOGITS["rows"], "float32")
    each = vf.jit(lambda x, y: nn.cross_entropy(x, y, reduction="none", label_smoothing=smoothing))(logits, labels)
    assert np.isnan(each).tolist() == [i == 2 for i in range(8)]
    slopes = vf.jit(lambda x, y: vf.grad(nn.cross_entropy)(x, y, label_smoothing=smoothing))(logits, labels)
    assert np.isnan(np.asarray(slopes)[2]).all()
    with pytest.raises(OutOfBoundsError, match=f"the label {label} is none of the 5 classes"):
        nn.cross_entropy(logits, labels, label_smoothing=smoothing)


@pytest.mark.wide
def test_ignored_labels():
    logits = LOGITS["rows"]
    nothing = np.full(8, -100)
    assert np.isnan(nn.cross_entropy(logits, nothing)) and nn.cross_entropy(logits, nothing, reduction="sum") == 0
    assert np.isnan(vf.jit(lambda y: nn.cross_entropy(logits, y, ignore_index=None, reduction="sum"))(nothing))
    half = np.where(np.arange(8) < 4, LABELS["rows"], -100)
    np.testing.assert_allclose(nn.cross_entropy(logits, half), nn.cross_entropy(logits[:4], half[:4]), rtol=1e-12)
    for run in (vf.grad(nn.cross_entropy), vf.jit(vf.grad(nn.cross_entropy))):
        np.testing.assert_allclose(run(logits, half)[:4], vf.grad(nn.cross_entropy)(logits[:4], half[:4]), rtol=1e-12)
        np.testing.assert_array_equal(run(logits, half)[4:], 0)


@pytest.mark.wide
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x, y: nn.cross_entropy(x, y[:3]), ShapeError, r"labels of shape \(8,\), got \(3,\)"),
        (lambda x, y: nn.cross_entropy(x, y.astype(float)), DTypeError, "class numbers are integers"),
        (lambda x, y: nn.cross_entropy(x, x[:, :3]), ShapeError, "shape of the scores"),
        (lambda x, y: nn.cross_entropy(x, y, WEIGHT[:3]), ShapeError, r"weight of shape \(5,\), got \(3,\)"),
        (lambda x, y: nn.cross_entropy(x, y, label_smoothing=1.5), ArgumentError, "between 0 and 1"),
        (lambda x, y: nn.cross_entropy(x, x, ignore_index=1), ArgumentError, "needs class numbers"),
        (lambda x, y: nn.cross_entropy(x[:, :0], y), ShapeError, "no classes"),
        (lambda x, y: nn.cross_entropy(1.0, 0), ShapeError, "axis of classes"),
        (lambda x, y: nn.cross_entropy(x, y, axis=2), ShapeError, "axis"),
        (lambda x, y: nn.cross_entropy(x.argmax(1), y), DTypeError, r"both integers of shape \(8,\) \(int64\): .* not their argmax"),
        (lambda x, y: nn.nll_loss(vf.numpy.argmax(x, 1), y), DTypeError, r"nll_loss: .* \(int32\): .* not their argmax"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(LOGITS["rows"], LABELS["rows"])


def test_a_wrong_shape_of_labels_tells_the_axis_of_classes() -> None:
    logits = vf.numpy.ones((4, 3, 10))
    with pytest.raises(ShapeError, match=r"classes along axis 1 need class numbers of shape \(4, 10\), or probabilities of .*axis=-1"):
        nn.cross_entropy(logits, vf.numpy.zeros((4, 10, 2), "int32"))
