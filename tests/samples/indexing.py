"""Samples of gather, scatters and dynamic slices, by indexing and by XLA's form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import ALL, Arg, Sample, constant, distinct, integers, uniform
from volta_fn import lax

NUMERIC = ("int32", "uint8", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")

#: Rows of a matrix, at index vectors of one entry.
ROWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
#: Blocks of a matrix, batch dimension last, index vectors in reverse.
BLOCKS = lax.GatherDimensionNumbers(offset_dims=(0, 1), collapsed_slice_dims=(), start_index_map=(1, 0))
#: Example i of the indices reads row i of the operand.
STEPS = lax.GatherDimensionNumbers((), (1,), (1,), (0,), (0,))
#: No index vectors at all: windows of a vector, twice.
STILL = lax.GatherDimensionNumbers((1,), (), ())


def _gather(numbers: Any, sizes: tuple[int, ...], mode: str = "clip", fill_value: Any = None) -> Callable[..., Any]:
    return lambda x, i: lax.gather(x, i, numbers, sizes, mode=mode, fill_value=fill_value)


def _blocks(x: np.ndarray, i: np.ndarray) -> np.ndarray:
    starts = np.clip(i, 0, [x.shape[1] - 3, x.shape[0] - 2])
    return np.stack([x[r : r + 2, c : c + 3] for c, r in starts], axis=-1)


def _rows_or(fill: Any) -> Callable[..., np.ndarray]:
    def read(x: np.ndarray, i: np.ndarray) -> np.ndarray:
        return np.stack([x[r] if 0 <= r < len(x) else np.full(x.shape[1], fill, x.dtype) for (r,) in i])

    return read


GATHERS = [
    Sample(
        "gather", lambda x, i: x[i], (Arg((4, 3)), Arg((2, 2), integers(0, 4), "int32")), lambda x, i: x[i],
        dtypes=ALL, exact=True, linear=(0,),
    ),
    Sample(
        "gather", lambda x, i: x[:, i, None, 1], (Arg((2, 3, 2)), Arg((4,), integers(0, 3), "uint8")), lambda x, i: x[:, i, None, 1],
        label="advanced",
    ),
    Sample("gather", _gather(BLOCKS, (2, 3)), (Arg((4, 5)), Arg((3, 2), integers(-2, 6), "int32")), _blocks, linear=(0,), label="blocks"),
    Sample(
        "gather", _gather(STEPS, (1, 1)), (Arg((3, 4)), Arg((3, 2, 1), integers(0, 4), "int32")),
        lambda x, i: np.take_along_axis(x, i[..., 0], 1), linear=(0,), label="along",
    ),
    Sample(
        "gather", _gather(ROWS, (1, 3), "fill", 7), (Arg((4, 3)), Arg((5, 1), integers(-2, 6), "int32")), _rows_or(7),
        dtypes=("int32", "float32", "float64", "complex64"), label="filled",
    ),
    Sample("gather", _gather(STILL, (2,)), (Arg((3,)), Arg((2, 0), dtype="int32")), lambda x, i: np.stack([x[:2]] * 2), label="still"),
    Sample(
        "gather", _gather(ROWS, (1, 0)), (Arg((3, 0)), Arg((2, 1), integers(0, 3), "int32")), lambda x, i: x[i[:, 0]], label="empty",
    ),
    Sample(
        "gather", _gather(ROWS, (1, 4)), (Arg((0, 3)), Arg((0, 1), integers(0, 1), "int32")), lambda x, i: np.zeros((0, 4), x.dtype),
        linear=(0,), label="none",
    ),
]  # fmt: skip


def _updated(method: str) -> Callable[..., Any]:
    return lambda x, i, v: getattr(x.at[i], method)(v, mode="drop")


def _reference(ufunc: Any) -> Callable[..., np.ndarray]:
    def update(x: np.ndarray, i: np.ndarray, v: np.ndarray) -> np.ndarray:
        out = x.copy()
        retained = (i >= -len(x)) & (i < len(x))
        if ufunc is None:
            out[i[retained]] = v[retained]
        else:
            ufunc.at(out, i[retained], v[retained])
        return out

    return update


def _scatter_sample(name: str, method: str, ufunc: Any, indices: Any, **options: Any) -> Sample:
    args = (Arg((4, 2), distinct()), Arg((5,), constant(indices), "int32"), Arg((5, 2), uniform(0.7, 1.9)))
    return Sample(name, _updated(method), args, _reference(ufunc), **options)


SCATTERS = [
    _scatter_sample("scatter", "set", None, [1, 3, 1, -7, 3], dtypes=ALL),
    _scatter_sample("scatter_add", "add", np.add, [1, 3, 1, 9, -1], dtypes=NUMERIC),
    _scatter_sample("scatter_mul", "multiply", np.multiply, [1, 3, 1, 9, -1], dtypes=NUMERIC, differentiable=(0,), linear=(0,)),
    _scatter_sample("scatter_min", "min", np.minimum, [1, 3, 1, 9, -1], dtypes=("int32", "uint8", "float16", "float32", "float64")),
    _scatter_sample("scatter_max", "max", np.maximum, [1, 3, 1, 9, -1], dtypes=("int32", "uint8", "float16", "float32", "float64")),
    Sample(
        "scatter", lambda x, i, v: lax.scatter(x, i, v, lax.ScatterDimensionNumbers(*BLOCKS), mode="clip"),
        (Arg((4, 5)), Arg((2, 2), constant([[0, 0], [9, 9]]), "int32"), Arg((2, 3, 2))), lambda x, i, v: _two_blocks(x, v), label="blocks",
    ),
    Sample(
        "scatter_mul", lambda x, v: x.at[np.array([2, 0])].multiply(v), (Arg((3,)), Arg((2,))),
        lambda x, v: x * np.stack([v[1], np.ones_like(v[0]), v[0]]), dtypes=("float32", "float64", "complex128"), label="unique",
    ),
    Sample(
        "scatter_add", lambda x, i, v: lax.scatter_add(x, i, v, lax.ScatterDimensionNumbers(*STEPS)),
        (Arg((3, 4)), Arg((3, 2, 1), integers(0, 4), "int32"), Arg((3, 2))), lambda x, i, v: _added_along(x, i, v), label="along",
        linear=(0, 2),
    ),
]  # fmt: skip


def _two_blocks(x: np.ndarray, v: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[:2, :3] = v[..., 0]
    out[2:, 2:] = v[..., 1]
    return out


def _added_along(x: np.ndarray, i: np.ndarray, v: np.ndarray) -> np.ndarray:
    out = x.copy()
    np.add.at(out, (np.arange(3)[:, None], i[..., 0]), v)
    return out


def _clamped(start: Any, size: int, full: int) -> slice:
    first = min(max(int(start) + (full if start < 0 else 0), 0), full - size)
    return slice(first, first + size)


def _replaced(x: np.ndarray, v: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[_clamped(i, 2, 4), _clamped(j, 1, 3)] = v
    return out


_START = Arg((), integers(-5, 6), "int32")

DYNAMIC = [
    Sample(
        "dynamic_slice", lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 1)), (Arg((4, 3)), _START, _START),
        lambda x, i, j: x[_clamped(i, 2, 4), _clamped(j, 1, 3)], dtypes=ALL, exact=True, linear=(0,),
    ),
    Sample(
        "dynamic_update_slice", lambda x, v, i, j: lax.dynamic_update_slice(x, v, (i, j)), (Arg((4, 3)), Arg((2, 1)), _START, _START),
        _replaced, dtypes=ALL, exact=True,
    ),
    Sample("dynamic_slice", lambda x: lax.dynamic_slice(x, (), ()), (Arg(()),), lambda x: x, label="scalar"),
    Sample(
        "dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 0), (0, 2)), (Arg((3, 2)), _START), lambda x, i: x[:0], label="nothing",
    ),
]  # fmt: skip

SAMPLES = [*GATHERS, *SCATTERS, *DYNAMIC]
