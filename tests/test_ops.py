"""Reductions over segments: JAX's values, derivatives, promises, errors."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
from tests.numpy.oracle import ALL, BF16, assert_close, sample, widened
from volta_fn import ops
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, ShapeError

#: By function, NumPy's and the value of a segment without elements.
REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "segment_sum": (np.add, lambda dtype: 0),
    "segment_prod": (np.multiply, lambda dtype: 1),
    "segment_min": (np.minimum, lambda dtype: vf.numpy.iinfo(dtype).max if dtype.kind in "iu" else np.inf),
    "segment_max": (np.maximum, lambda dtype: vf.numpy.iinfo(dtype).min if dtype.kind in "iu" else dtype.kind != "b" and -np.inf),
}
NAMES = [*REDUCTIONS]
IDS = np.array([2, 0, -1, 2, 7, 0, 4], np.int32)
OPTIONS: list[dict[str, Any]] = [
    {}, {"num_segments": 5}, {"num_segments": 0}, {"num_segments": 3, "bucket_size": 2}, {"num_segments": 3, "bucket_size": 100},
    {"num_segments": 3, "mode": "clip"}, {"num_segments": 9, "mode": "drop", "indices_are_sorted": False},
]  # fmt: skip


def reference(name: str, data: np.ndarray, num_segments: int | None = None, mode: str = "drop", **_: Any) -> np.ndarray:
    """Combine the elements one after the other, in NumPy."""
    ufunc, start = REDUCTIONS[name]
    count = int(IDS.max()) + 1 if num_segments is None else num_segments
    out = np.full((count, *data.shape[1:]), start(data.dtype), data.dtype)
    for i, x in zip(np.clip(IDS, 0, count - 1) if mode == "clip" else IDS, data, strict=True):
        if 0 <= i < count:
            out[i] = ufunc(out[i], x)
    return out


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values(name: str, dtype: np.dtype) -> None:
    data = sample((7, 2), dtype)
    for options in OPTIONS:
        got, wanted = getattr(ops, name)(data, IDS, **options), reference(name, data, **options)
        assert (got.shape, got.dtype) == (wanted.shape, dtype), options
        assert_close(got, widened(wanted), 2e-2 if dtype == BF16 else None, options)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_jaxs(name: str) -> None:
    data = sample((7, 2), np.float32)
    assert_close(getattr(ops, name)(data, IDS, 5), getattr(jax.ops, name)(data, IDS, 5))


def test_booleans_are_joined() -> None:
    data = np.array([True, False, False, True])
    ids = np.array([0, 0, 1, 1])
    assert ops.segment_sum(data, ids).tolist() == [True, True]
    assert ops.segment_prod(data, ids).tolist() == [False, False]


@pytest.mark.wide
@pytest.mark.parametrize("name", NAMES)
def test_derivatives_batches_and_jit(name: str) -> None:
    data = sample((4, 2), np.float64)
    unique = np.array([3, 0, 1, 5], np.int32)
    repeated = np.array([3, 0, 3, 5], np.int32)
    for ids, hint in ((unique, True), (repeated, False)):
        if name == "segment_prod" and not hint:
            continue  # as in JAX, a product of repeated indices has no derivative
        function = vf.jit(lambda x, ids=ids, hint=hint: getattr(ops, name)(x, ids, 4, unique_indices=hint)[np.array([0, 3])])
        vf.test_util.check_grads(function, (data,), 1 if name.endswith(("min", "max")) else 2)
    stack = np.stack([data, -data])
    both = vf.vmap(partial(getattr(ops, name), num_segments=4))(stack, np.stack([unique, repeated]))
    wanted = [getattr(ops, name)(x, ids, 4) for x, ids in zip(stack, (unique, repeated), strict=True)]
    np.testing.assert_allclose(both, np.stack([np.asarray(w) for w in wanted]))


def test_no_elements() -> None:
    nothing = np.zeros((0, 2), np.float32)
    assert ops.segment_sum(nothing, np.zeros(0, np.int32)).shape == (0, 2)
    assert ops.segment_max(nothing, np.zeros(0, np.int32), 1).tolist() == [[-np.inf, -np.inf]]
    assert ops.segment_sum(nothing, np.zeros(0, np.int32), 1, bucket_size=3).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((np.ones(3), np.ones(3)), ArgumentTypeError), ((np.ones(3), np.ones(2, int)), ShapeError),
        ((np.ones((2, 2)), np.ones((2, 2), int)), ShapeError),
        ((np.ones(2), np.ones(2, int), -1), ArgumentError), ((np.ones(2), np.ones(2, int), 2, False, False, 0), ArgumentError),
        ((np.ones(2), np.ones(2, int), 2, False, False, None, "wrap"), ArgumentError),
    ],
)  # fmt: skip
def test_errors(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    for name in NAMES:
        with pytest.raises(error):
            getattr(ops, name)(*[a.astype(np.float32) if getattr(a, "dtype", None) == np.float64 else a for a in arguments])


def test_traced_segments_need_their_number() -> None:
    with pytest.raises(ConcretizationError, match="num_segments"):
        vf.jit(ops.segment_sum)(np.ones(2, np.float32), np.ones(2, np.int32))
