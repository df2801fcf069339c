"""Kernels of collectives, emulated, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.targets.nvidia.peers.emulated_peers import SCHEDULE, Group, small  # noqa: F401 - a fixture
from volta_fn.targets.nvidia import collectives as kernels
from volta_fn.targets.nvidia import peers as memory
from volta_fn.targets.nvidia.collectives import Rows

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [
    *map(np.dtype, "float16 float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 complex64 complex128 bool".split()), BFLOAT16,
]  # fmt: skip


def drawn(dtype: np.dtype, *shape: int, seed: int = 0) -> np.ndarray:
    """Return random numbers of a dtype."""
    draw = np.random.default_rng(seed)
    if dtype.kind == "b":
        return draw.random(shape) < 0.4
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return draw.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = draw.normal(size=shape) * 8
    return (values + 1j * draw.normal(size=shape) if dtype.kind == "c" else values).astype(dtype)


def total(parts: list[np.ndarray]) -> np.ndarray:
    """Return the sum in the order of the parts, as kernels compute it."""
    wide = np.float32 if parts[0].dtype in (BFLOAT16, np.dtype(np.float16)) else parts[0].dtype
    result = parts[0].astype(wide)
    for part in parts[1:]:
        result = result + part.astype(wide)
    return result.astype(parts[0].dtype)


def guarded(dtype: np.dtype, size: int) -> np.ndarray:
    """Return room for an array, with bytes behind it that nothing may change."""
    room = np.full(-(-size * dtype.itemsize // 16) * 16 + 32, 0xA5, np.uint8)
    return room[: -(-size * dtype.itemsize // 16) * 16 + 16]


def checked(out: np.ndarray, expected: np.ndarray) -> None:
    """Compare the bits of an array, and the bytes behind it."""
    np.testing.assert_array_equal(out[: expected.nbytes], np.ascontiguousarray(expected).reshape(-1).view(np.uint8))
    assert (out[expected.nbytes :] == 0xA5).all()


def padded(array: np.ndarray) -> np.ndarray:
    """Return an array's bytes with some behind it."""
    return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8), np.full(32, 0x5A, np.uint8)])


@pytest.mark.parametrize(
    ("dtype", "size"), [*[(dtype, 2) for dtype in DTYPES], *[(np.dtype(np.float32), size) for size in (1, 3)], (BFLOAT16, 3)], ids=str
)
def test_reductions(dtype: np.dtype, size: int) -> None:
    steps: dict[str, Callable[[list[np.ndarray]], np.ndarray]] = {
        "sum": total, "max": lambda parts: np.max(parts, 0), "min": lambda parts: np.min(parts, 0),
    }  # fmt: skip
    group = Group(size)
    for step, expected in steps.items():
        if (step == "sum" and dtype.kind == "b") or (step != "sum" and dtype.kind == "c"):
            continue
        for count in (5, 900 // dtype.itemsize):
            parts = [drawn(dtype, count, seed=rank) for rank in range(size)]
            dispatch = kernels.reduction(step, dtype, [parts[0].nbytes], (0, 1), tuple(range(size)), schedule=SCHEDULE)
            outs = [[guarded(dtype, count)] for _ in range(size)]
            group.run(dispatch, [[padded(part)] for part in parts], outs)
            for (out,) in outs:
                checked(out, expected(parts))


@pytest.mark.parametrize("size", [2, 4])
def test_many_exchanges_of_several_arrays(size: int) -> None:
    """Kernels of both kinds follow each other on the same memory, and counters wrap around."""
    group, dtype = Group(size, before=2**32 - 5), np.dtype(np.float32)
    for sizes in ([3000], [1, 7, 2500, 4, 9], [3], [5000]):
        parts = [[drawn(dtype, count, seed=rank + count) for count in sizes] for rank in range(size)]
        numbers = tuple(range(2 * len(sizes)))
        dispatch = kernels.reduction("sum", dtype, [4 * count for count in sizes], numbers, tuple(range(size)), schedule=SCHEDULE)
        outs = [[guarded(dtype, count) for count in sizes] for _ in range(size)]
        group.run(dispatch, [[padded(part) for part in mine] for mine in parts], outs)
        for rank in range(size):
            for k in range(len(sizes)):
                checked(outs[rank][k], total([mine[k] for mine in parts]))


@pytest.mark.parametrize(("size", "count"), [(2, 40), (3, 1000)])
def test_a_sum_that_travels_as_bfloat16(size: int, count: int) -> None:
    dtype = np.dtype(np.float32)
    parts = [drawn(dtype, count, seed=rank) for rank in range(size)]
    dispatch = kernels.reduction("sum", dtype, [4 * count], (0, 1), tuple(range(size)), BFLOAT16, schedule=SCHEDULE)
    outs = [[guarded(dtype, count)] for _ in range(size)]
    Group(size).run(dispatch, [[padded(part)] for part in parts], outs)
    expected = total([part.astype(BFLOAT16).astype(dtype) for part in parts]).astype(BFLOAT16).astype(dtype)
    for (out,) in outs:
        checked(out, expected)


@pytest.mark.parametrize("source", [BFLOAT16, np.dtype(np.float16)], ids=str)
@pytest.mark.parametrize(("size", "counts"), [(2, [40, 3]), (3, [1000]), (4, [5, 2001, 1])])
def test_a_sum_of_numbers_that_are_converted_behind_the_way(source: np.dtype, size: int, counts: list[int]) -> None:
    dtype, ranks, group = np.dtype(np.float32), tuple(range(size)), Group(size)
    parts = [[drawn(source, count, seed=rank + count) for count in counts] for rank in ranks]
    numbers = tuple(range(2 * len(counts)))
    for compression in (None, BFLOAT16):
        sizes = [4 * count for count in counts]
        dispatch = kernels.reduction("sum", dtype, sizes, numbers, ranks, compression, source, schedule=SCHEDULE)
        outs = [[guarded(dtype, count) for count in counts] for _ in ranks]
        group.run(dispatch, [[padded(part) for part in mine] for mine in parts], outs)
        for k in range(len(counts)):
            summands = [mine[k] if compression is None else mine[k].astype(BFLOAT16) for mine in parts]
            expected = total([part.astype(dtype) for part in summands])
            for out in outs:
                checked(out[k], expected if compression is None else expected.astype(BFLOAT16).astype(dtype))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nan_stays_in_extremes(value: float) -> None:
    parts = [np.array([1, value, 3, -0.5], np.float32), np.array([value, 2, 2, 4], np.float32)]
    for step, expected in (("max", np.maximum(*parts)), ("min", np.minimum(*parts))):
        outs = [[guarded(parts[0].dtype, 4)] for _ in range(2)]
        dispatch = kernels.reduction(step, parts[0].dtype, [16], (0, 1), (0, 1), schedule=SCHEDULE)
        Group(2).run(dispatch, [[padded(part)] for part in parts], outs)
        for (out,) in outs:
            np.testing.assert_array_equal(out[:16].view(np.float32), expected)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("dtype", "shape"), [("float32", (3, 4)), ("int8", (5, 7)), ("float64", (40, 9)), ("complex128", (3,))])
def test_gathers_along_every_axis(size: int, dtype: str, shape: tuple[int, ...]) -> None:
    group, parts = Group(size), [drawn(np.dtype(dtype), *shape, seed=rank) for rank in range(size)]
    for axis in range(len(shape) + 1):
        behind = int(np.prod(shape[axis:])) * parts[0].itemsize
        dispatch = kernels.moved(parts[0].nbytes, Rows(parts[0].nbytes, 1), Rows(behind, size), (0, 1), tuple(range(size)), SCHEDULE)
        expected = np.stack(parts, axis)
        outs = [[guarded(expected.dtype, expected.size)] for _ in range(size)]
        group.run(dispatch, [[padded(part)] for part in parts], outs)
        for (out,) in outs:
            checked(out, expected)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("split", "concat"), [(0, 0), (1, 2), (2, 0), (0, 2)])
def test_exchanges_of_rows(size: int, split: int, concat: int) -> None:
    rest = (5, 6)
    shape = (*rest[:split], size, *rest[split:])
    parts = [drawn(np.dtype(np.float32), *shape, seed=rank) for rank in range(size)]
    source, target = Rows(4 * int(np.prod(shape[split + 1 :])), size), Rows(4 * int(np.prod(rest[concat:])), size)
    dispatch = kernels.moved(4 * 30, source, target, (0, 1), tuple(range(size)), SCHEDULE)
    outs = [[guarded(parts[0].dtype, 30 * size)] for _ in range(size)]
    Group(size).run(dispatch, [[padded(part)] for part in parts], outs)
    for rank in range(size):
        checked(outs[rank][0], np.stack([np.take(part, rank, split) for part in parts], concat))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("dtype", "axis", "rest"), [("float32", 0, (30,)), ("bfloat16", 1, (3, 5)), ("int8", 2, (2, 9)), ("int64", 1, (2, 70))]
)
def test_sums_of_rows(size: int, dtype: str, axis: int, rest: tuple[int, ...]) -> None:
    kind = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
    shape = (*rest[:axis], size, *rest[axis:])
    parts = [drawn(kind, *shape, seed=rank) for rank in range(size)]
    source = Rows(int(np.prod(shape[axis + 1 :])) * kind.itemsize, size)
    count = int(np.prod(rest))
    dispatch = kernels.scattered_sum(kind, count * kind.itemsize, source, (0, 1), tuple(range(size)), SCHEDULE)
    outs = [[guarded(kind, count)] for _ in range(size)]
    Group(size).run(dispatch, [[padded(part)] for part in parts], outs)
    for rank in range(size):
        checked(outs[rank][0], np.take(total(parts), rank, axis))


@pytest.mark.parametrize("pairs", [[(0, 1), (1, 2), (2, 0)], [(0, 2)], [(1, 1), (0, 2)], []])
@pytest.mark.parametrize("count", [3, 800])
def test_permutations(pairs: list[tuple[int, int]], count: int) -> None:
    parts = [drawn(np.dtype(np.int16), count, seed=rank) for rank in range(3)]
    dispatch = kernels.permuted(2 * count, pairs, (0, 1), (0, 1, 2), SCHEDULE)
    outs = [[guarded(parts[0].dtype, count)] for _ in range(3)]
    Group(3).run(dispatch, [[padded(part)] for part in parts], outs)
    sources = {target: source for source, target in pairs}
    for rank in range(3):
        checked(outs[rank][0], parts[sources[rank]] if rank in sources else np.zeros(count, np.int16))


def test_a_process_that_does_not_come_is_named() -> None:
    group, part = Group(3), padded(np.ones(2000, np.float32))
    dispatch = kernels.reduction("sum", np.dtype(np.float32), [8000], (0, 1), (0, 1, 2), schedule=SCHEDULE)
    group.run(dispatch, [[part]] * 3, [[guarded(np.dtype(np.float32), 2000)] for _ in range(3)])
    for region in group.regions:
        region[memory.LIMIT :][:8].view(np.uint64)[:] = 200_000_000
    group.run(dispatch, [[part]] * 3, [[guarded(np.dtype(np.float32), 2000)] for _ in range(3)], absent=1)
    assert [report[[0, 2]].tolist() for report in group.reports] == [[2, 2], [0, 0], [2, 2]], "it is the second kernel"
