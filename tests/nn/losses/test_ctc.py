"""The CTC loss against PyTorch and against the sum over all paths, at every edge of lengths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import FLOAT
from tests.nn.losses.oracle import as_torch, check
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

torch = pytest.importorskip("torch")
F = torch.nn.functional
rng = np.random.default_rng(0)
STEPS, COUNT, CLASSES, SIZE = 12, 5, 6, 4
LOGITS = (rng.normal(size=(STEPS, COUNT, CLASSES)) * 2).astype(FLOAT)
#: Relative errors of losses in the widest floats: some roundings of terms of about 20.
TIGHT = 1e-12 if FLOAT == "float64" else 5e-6
TARGETS = np.array([[1, 2, 3, 4], [2, 2, 5, 1], [3, 3, 3, 0], [4, 0, 0, 0], [0, 0, 0, 0]], np.int32)
FRAMES = np.array([12, 9, 12, 5, 7], np.int32)
LENGTHS = np.array([4, 4, 3, 1, 0], np.int32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("blank", [0, 5])
def test_matches_pytorch(blank, reduction, dtype):
    targets = TARGETS if blank == 0 else np.maximum(TARGETS - 1, 0)
    lengths = [as_torch(v) for v in (FRAMES, LENGTHS)]
    check(
        lambda x: nn.ctc_loss(nn.log_softmax(x), targets, FRAMES, LENGTHS, blank, reduction=reduction),
        lambda x: F.ctc_loss(F.log_softmax(x, -1), as_torch(targets), *lengths, blank, reduction=reduction),
        [LOGITS],
        dtype,
        second=False,  # PyTorch has none
    )


def spelt(path: tuple[int, ...]) -> tuple[int, ...]:
    """Return the labels of a path: repeats merged, blanks (0) dropped."""
    return tuple(label for label, _ in itertools.groupby(path) if label != 0)


@pytest.mark.parametrize("target", [(), (1,), (1, 2), (1, 1), (2, 1, 2), (1, 1, 1)])
@pytest.mark.parametrize("steps", [0, 1, 4, 5])
def test_is_the_sum_over_all_paths(steps, target):
    scores = np.asarray(nn.log_softmax(rng.normal(size=(steps, 3)).astype(FLOAT)))
    paths = [p for p in itertools.product(range(3), repeat=steps) if spelt(p) == target]

    def definition(x: vf.Array) -> vf.Array:
        totals = [sum((x[t, c] for t, c in enumerate(p)), vf.numpy.zeros((), FLOAT)) for p in paths]
        return -nn.logsumexp(vf.numpy.stack(totals))

    def loss(x: vf.Array) -> vf.Array:
        return nn.ctc_loss(x, np.array(target, np.int32), steps, len(target), reduction="sum")

    if not paths:
        assert loss(scores) == np.inf and not np.asarray(vf.grad(loss)(vf.numpy.asarray(scores))).any()
        assert nn.ctc_loss(scores, np.array(target, np.int32), steps, len(target), zero_infinity=True) == 0
        return
    np.testing.assert_allclose(loss(scores), definition(scores), rtol=TIGHT, atol=TIGHT / 100)
    x = vf.numpy.asarray(scores)
    np.testing.assert_allclose(vf.grad(loss)(x), vf.grad(definition)(x), rtol=100 * TIGHT, atol=TIGHT)


@pytest.mark.wide
def test_second_derivatives_match_differences():
    x, along = rng.normal(size=(2, 6, 3))
    slope = vf.grad(lambda x: nn.ctc_loss(nn.log_softmax(x), np.array([1, 1, 2]), 6, 3, reduction="sum"))
    _, curved = vf.jvp(slope, (vf.numpy.asarray(x),), (vf.numpy.asarray(along),))
    step = 1e-5
    differences = (np.asarray(slope(x + step * along)) - np.asarray(slope(x - step * along))) / (2 * step)
    np.testing.assert_allclose(curved, differences, rtol=1e-5, atol=1e-8)


def test_impossible_targets_are_infinite_or_nothing():
    frames = np.array([12, 3, 12, 0, 0], np.int32)
    scores = nn.log_softmax(vf.numpy.asarray(LOGITS))
    each = nn.ctc_loss(scores, TARGETS, frames, LENGTHS, reduction="none")
    assert np.isinf(each).tolist() == [False, True, False, True, False] and each[4] == 0
    options = {"zero_infinity": True, "reduction": "mean"}
    theirs = F.ctc_loss(as_torch(scores), as_torch(TARGETS), as_torch(frames), as_torch(LENGTHS), **options)
    np.testing.assert_allclose(nn.ctc_loss(scores, TARGETS, frames, LENGTHS, **options), theirs, rtol=100 * TIGHT)
    slopes = np.asarray(vf.grad(nn.ctc_loss)(scores, TARGETS, frames, LENGTHS, **options))
    assert np.isfinite(slopes).all() and not slopes[:, 1].any() and slopes[:, 0].any()


@pytest.mark.wide
def test_extreme_scores():
    logits = vf.numpy.asarray(np.where(LOGITS > 0, 1e4, -1e4).astype(np.float32))
    value, slopes = vf.value_and_grad(lambda x: nn.ctc_loss(nn.log_softmax(x), TARGETS, FRAMES, LENGTHS))(logits)
    expected = nn.ctc_loss(nn.log_softmax(logits.astype("float64")), TARGETS, FRAMES, LENGTHS)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert np.isfinite(slopes).all()


def test_padding_is_never_read_and_gets_no_gradient():
    scores = np.asarray(nn.log_softmax(LOGITS))
    expected = nn.ctc_loss(scores, TARGETS, FRAMES, LENGTHS)
    padded = np.where(np.arange(SIZE) < LENGTHS[:, None], TARGETS, -7)
    spoilt = np.where((np.arange(STEPS)[:, None] < FRAMES)[..., None], scores, np.nan)
    assert nn.ctc_loss(scores, padded, FRAMES, LENGTHS) == expected
    assert nn.ctc_loss(spoilt, TARGETS, FRAMES, LENGTHS) == expected
    slopes = np.asarray(vf.grad(nn.ctc_loss)(vf.numpy.asarray(scores), TARGETS, FRAMES, LENGTHS))
    assert not slopes[9:, 1].any() and slopes[:9, 1].any()


@pytest.mark.parametrize("where, value", [("targets", 6), ("targets", -1), ("frames", 13), ("frames", -1), ("lengths", 5), ("lengths", -1)])
def test_numbers_out_of_range_give_nan_and_spoil_no_other(where, value):
    arrays = {"targets": TARGETS.copy(), "frames": FRAMES.copy(), "lengths": LENGTHS.copy()}
    arrays[where].reshape(COUNT, -1)[1, 0] = value
    each = vf.jit(lambda x, *rest: nn.ctc_loss(x, *rest, reduction="none"))(nn.log_softmax(LOGITS), *arrays.values())
    assert np.isnan(each).tolist() == [False, True, False, False, False]


def test_single_sequences_batches_and_vmap_agree():
    scores = nn.log_softmax(vf.numpy.asarray(LOGITS))
    each = nn.ctc_loss(scores, TARGETS, FRAMES, LENGTHS, reduction="none")
    mapped = vf.vmap(lambda *a: nn.ctc_loss(*a, reduction="none"), in_axes=(1, 0, 0, 0))(scores, TARGETS, FRAMES, LENGTHS)
    np.testing.assert_allclose(mapped, each, rtol=TIGHT)
    np.testing.assert_allclose(nn.ctc_loss(scores[:, 1], TARGETS[1], 9, 4, reduction="none"), each[1], rtol=TIGHT)


def test_empty_batches_and_half_precision():
    empty = nn.ctc_loss(LOGITS[:, :0], TARGETS[:0], FRAMES[:0], LENGTHS[:0], reduction="none")
    assert empty.shape == (0,)
    assert np.isnan(nn.ctc_loss(LOGITS[:, :0], TARGETS[:0], FRAMES[:0], LENGTHS[:0]))
    scores = np.asarray(nn.log_softmax(LOGITS)).astype(np.float16)
    narrow, wide = (nn.ctc_loss(s, TARGETS, FRAMES, LENGTHS) for s in (scores, scores.astype(np.float32)))
    assert narrow.dtype == np.float16 and narrow == np.asarray(wide).astype(np.float16)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x, y, f, n: nn.ctc_loss(x[0, 0], y, f, n), ShapeError, r"\(T, N, C\) or \(T, C\)"),
        (lambda x, y, f, n: nn.ctc_loss(x, y[:3], f, n), ShapeError, r"targets of shape \(5, S\)"),
        (lambda x, y, f, n: nn.ctc_loss(x, y, f[:2], n), ShapeError, r"lengths of shape \(5,\)"),
        (lambda x, y, f, n: nn.ctc_loss(x[:, 0], y[0], f, 4), ShapeError, r"lengths of shape \(\)"),
        (lambda x, y, f, n: nn.ctc_loss(x[:, 0], y, 12, 4), ShapeError, r"targets of shape \(S,\)"),
        (lambda x, y, f, n: nn.ctc_loss(x, y, f.astype(np.float32), n), DTypeError, "input_lengths are integers"),
        (lambda x, y, f, n: nn.ctc_loss(x, y, f, n, 6), ArgumentError, "blank=6"),
        (lambda x, y, f, n: nn.ctc_loss(x, y, f, n, reduction="max"), ArgumentError, "reduction"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(LOGITS, TARGETS, FRAMES, LENGTHS)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_numbers_beyond_int32_are_no_classes_and_no_lengths(dtype):
    scores = np.log(np.full((3, 1, 2), 0.5))
    numbers = [np.array([[1]], dtype), np.array([3], dtype), np.array([1], dtype)]
    assert np.isfinite(nn.ctc_loss(scores, *numbers))
    for i, arguments in enumerate(numbers):
        assert np.isnan(nn.ctc_loss(scores, *numbers[:i], arguments + dtype(2**32), *numbers[i + 1 :]))
