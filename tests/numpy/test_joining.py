"""Joining, splitting, inserting, deleting and padding against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import KINDS, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, OutOfBoundsError, ShapeError

JOINS = {
    "concatenate": lambda xp, x, y: xp.concatenate([x, y]),
    "concatenate last": lambda xp, x, y: xp.concatenate((x, y), axis=-1),
    "concatenate flat": lambda xp, x, y: xp.concatenate([x, y], axis=None),
    "concat": lambda xp, x, y: xp.concat([x, y], axis=1),
    "stack": lambda xp, x, y: xp.stack([x, y]),
    "stack last": lambda xp, x, y: xp.stack([x, y], axis=-1),
    "vstack": lambda xp, x, y: xp.vstack([x, y]),
    "vstack rows": lambda xp, x, y: xp.vstack([x[0], y[0]]),
    "hstack": lambda xp, x, y: xp.hstack([x, y]),
    "hstack vectors": lambda xp, x, y: xp.hstack([x[0], y[0]]),
    "dstack": lambda xp, x, y: xp.dstack([x, y[0][None].repeat(2, 0)]),
    "column_stack": lambda xp, x, y: xp.column_stack([x, y[:, 0]]),
    "append": lambda xp, x, y: xp.append(x, y),
    "append rows": lambda xp, x, y: xp.append(x, y, axis=0),
    "block": lambda xp, x, y: xp.block([[x, y], [y, x]]),
    "block of one row": lambda xp, x, y: xp.block([x, y]),
    "block of scalars": lambda xp, x, y: xp.block([[x[0, 0], y[0]]]),
}


@pytest.mark.parametrize("name", JOINS)
def test_joins(name):
    for dtype in KINDS:
        check(JOINS[name], sample((2, 3), dtype, 1), sample((2, 3), dtype, 2))
    check(JOINS[name], sample((2, 3), np.int8, 1), sample((2, 3), np.float16, 2))


@pytest.mark.wide
def test_join_dtype_and_empty():
    assert vnp.concatenate([np.ones(2, np.int32)], dtype="float16").dtype == np.float16
    check(lambda xp, x, y: xp.concatenate([x, y]), np.ones((0, 3), np.float32), np.ones((2, 3), np.float32))
    assert vnp.stack(np.ones((2, 3))).shape == (2, 3)
    assert vnp.concatenate(vnp.ones((2, 3))).shape == (6,)


SPLITS = {
    "split": lambda xp, x: xp.split(x, 3),
    "split at": lambda xp, x: xp.split(x, [1, 4]),
    "split out of order": lambda xp, x: xp.split(x, [4, 1, 9]),
    "split columns": lambda xp, x: xp.split(x, np.array([2]), axis=1),
    "array_split": lambda xp, x: xp.array_split(x, 4),
    "array_split into many": lambda xp, x: xp.array_split(x, 8),
    "vsplit": lambda xp, x: xp.vsplit(x, 2),
    "hsplit": lambda xp, x: xp.hsplit(x, 2),
    "hsplit a vector": lambda xp, x: xp.hsplit(x[0], 2),
    "dsplit": lambda xp, x: xp.dsplit(x[None], 2),
}


@pytest.mark.parametrize("name", SPLITS)
def test_splits(name):
    check(SPLITS[name], sample((6, 4), np.float32, 1), jax="out of order" not in name)


def test_delete():
    x = sample((4, 5), np.float32, 1)
    for obj in (1, -1, slice(1, 3), [0, 2], np.array([1, 1]), [], np.array([True, False, False, True])):
        check(lambda xp, x, obj=obj: xp.delete(x, obj, axis=0), x, jax=not isinstance(obj, list))
    check(lambda xp, x: xp.delete(x, np.array([0, 7])), x)
    with pytest.raises(OutOfBoundsError, match="delete: obj"):
        vnp.delete(x, 4, axis=0)


def test_insert():
    x = sample((3, 4), np.float32, 1)
    for obj, values in (
        (1, 9.0),
        (-1, 9.0),
        (np.array([0, 2]), 9.0),
        (np.array([2, 0]), np.array([[1.0], [2.0]], np.float32)),
        (slice(0, 2), 5.0),
        (3, 1.0),
    ):
        check(lambda xp, x, v, obj=obj: xp.insert(x, obj, v, axis=0), x, values)
    check(lambda xp, x: xp.insert(x, 2, np.float32(7)), x)
    check(lambda xp, x: xp.insert(x[0], 1, np.array([5.0, 6.0], np.float32)), x)
    check(lambda xp, x: xp.insert(x, 1, x[0], axis=0), x)
    check(lambda xp, x: xp.insert(x, np.array([1, 1]), 0.0, axis=1), x)
    with pytest.raises(OutOfBoundsError, match="insert"):
        vnp.insert(x, 5, 0.0, axis=0)


SHAPES = [(), (1,), (3,), (4,), (1, 3), (3, 1), (1, 4), (2, 4), (3, 2), (3, 4)]


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("obj", [1, np.array(-1), [1], [1, 1, 1], slice(0, 2), slice(1, 2), np.array([True, False, True])], ids=str)
def test_inserted_values_broadcast_as_in_numpy(obj, axis):
    # At an integer, the first dimension of the values is that of the slices; at a list of one, that of the axis is.
    x = sample((3, 4), np.float32, 1)
    for shape in SHAPES:
        values = sample(shape, np.float32, 2)
        try:
            wanted = np.insert(x, obj, values, axis)
        except ValueError:
            with pytest.raises(ShapeError):
                vnp.insert(x, obj, values, axis)
            continue
        if axis is None and len(shape) == 2:
            continue  # NumPy drops leading dimensions of size 1
        assert np.array_equal(vnp.insert(x, obj, values, axis), wanted)


@pytest.mark.parametrize("function", ["insert", "delete"])
def test_a_bool_is_no_position(function):
    with pytest.raises(ShapeError, match=f"{function}: a mask"):
        getattr(vnp, function)(np.arange(3), True, *([7] if function == "insert" else []))


def test_trim_zeros():
    for values in ([0, 0, 1, 0, 2, 0], [0, 0], [1, 2], [], 0, 1):
        x = np.array(values, np.float32)
        for trim in ("fb", "f", "b"):
            check(lambda xp, x, trim=trim: xp.trim_zeros(x, trim), x, jax=False, traced=False)
    framed = np.pad(np.ones((2, 3), np.float32), ((1, 2), (0, 1)))
    assert vnp.trim_zeros(framed).shape == (2, 3)
    assert vnp.trim_zeros(framed, axis=1).shape == (5, 3)


PADS = {
    "constant": {},
    "constant with a value": {"constant_values": 7},
    "constant with values": {"constant_values": ((1, 2), (3, 4))},
    "edge": {},
    "reflect": {},
    "reflect odd": {"reflect_type": "odd"},
    "symmetric": {},
    "symmetric odd": {"reflect_type": "odd"},
    "wrap": {},
    "linear_ramp": {"end_values": ((5, -4), (2, 3))},
    "maximum": {},
    "minimum": {"stat_length": 2},
    "mean": {"stat_length": ((1, 2), (3, 1))},
    "median": {},
}


@pytest.mark.parametrize("name", PADS)
@pytest.mark.parametrize("widths", [2, (1, 2), ((1, 2), (0, 3)), ((5, 4), (7, 9)), 0], ids=str)
def test_pad(name, widths):
    mode = name.split()[0]
    for dtype in (np.float32, np.int32):
        x = sample((3, 4), dtype, 1, -9, 9)
        check(lambda xp, x: xp.pad(x, widths, mode=mode, **PADS[name]), x, tolerance=1e-5, jax=dtype == np.float32)


@pytest.mark.parametrize("mode", ["symmetric", "reflect", "edge"])
def test_pad_of_one_column(mode):
    kwargs = {"reflect_type": "odd"} if mode != "edge" else {}
    check(lambda xp, x: xp.pad(x, ((0, 1), (1, 2)), mode=mode, **kwargs), sample((3, 1), np.int32, 1, -9, 9))


@pytest.mark.parametrize("name", [name for name in PADS if not isinstance(next(iter(PADS[name].values()), 0), tuple)])
def test_pad_of_a_scalar(name):
    x = np.float32(3)
    for widths in (0, (0, 0)):
        assert float(vnp.pad(x, widths, mode=name.split()[0], **PADS[name])) == 3


@pytest.mark.parametrize("reflect_type", ["even", "odd"])
@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_mirrors_beyond_the_array(mode, reflect_type):
    for size, before, after in itertools.product((1, 2, 3), (0, 1, 4, 5), (0, 2, 9)):
        x = np.arange(size, dtype=np.int32) ** 2 + 1
        wanted = np.pad(x, (before, after), mode, reflect_type=reflect_type)
        np.testing.assert_array_equal(np.asarray(vnp.pad(x, (before, after), mode, reflect_type=reflect_type)), wanted)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64], ids=lambda d: d.__name__)
def test_ramps_of_integers_are_exact_over_their_range(dtype):
    info, count = np.iinfo(dtype), 7
    edges = np.array([info.min, info.min + 10, info.max - 3, info.max, info.max // 3], dtype)
    for end in (int(info.min), 5, int(info.max) - 1):
        got = np.asarray(vnp.pad(edges[:, None], ((0, 0), (count, 0)), mode="linear_ramp", end_values=end))
        assert got[:, :count].tolist() == [[end + (int(edge) - end) * k // count for k in range(count)] for edge in edges]
    with pytest.raises(ArgumentError, match="does not fit " + dtype.__name__):
        vnp.pad(edges, 1, mode="linear_ramp", end_values=int(info.max) + 1)


@pytest.mark.wide
def test_pad_forms():
    x = sample((2, 3), np.float32)
    assert vnp.pad(x, {1: (1, 2)}).shape == (2, 6)
    assert vnp.pad(x, ((1,), (2,))).shape == (4, 7)
    assert vnp.pad(x, 1, mode="empty").shape == (4, 5)
    assert vnp.pad(np.ones((1, 3), np.float32), ((2, 2), (0, 0)), "reflect").shape == (5, 3)

    def fill(vector, width, axis, options):
        return vector.at[: width[0]].set(options["value"])

    padded = vnp.pad(x, ((1, 0), (2, 0)), fill, value=9.0)
    assert padded[0].tolist() == [9.0] * 5
    assert padded[1].tolist() == [9.0, 9.0, *x[0].tolist()]
    got = vf.grad(lambda v: vnp.sum(vnp.pad(v, 2, "reflect") ** 2))(np.arange(1.0, 4.0))
    np.testing.assert_allclose(np.asarray(got), 2 * np.arange(1.0, 4.0) * [2, 3, 2])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vnp.concatenate([]), ArgumentError, "concatenate: needs at least one"),
        (lambda: vnp.concatenate(5), ArgumentTypeError, "concatenate: expected a sequence"),
        (lambda: vnp.concatenate([1, 2]), ShapeError, "use stack"),
        (lambda: vnp.concatenate([np.ones((2, 3)), np.ones((2, 4))]), ShapeError, r"\(2, 3\), \(2, 4\)"),
        (lambda: vnp.stack([np.ones(2), np.ones(3)]), ShapeError, r"stack: .*\(2,\), \(3,\)"),
        (lambda: vnp.split(np.ones(5), 2), ShapeError, "split: .*array_split"),
        (lambda: vnp.array_split(np.ones(5), 0), ArgumentError, "array_split"),
        (lambda: vnp.split(np.ones(4), 2.0), ArgumentTypeError, "split: indices_or_sections .* integers, got 2.0"),
        (lambda: vnp.array_split(np.ones(4), [1.5]), ArgumentTypeError, "array_split: indices_or_sections .* integers"),
        (lambda: vnp.hsplit(np.ones((2, 4)), "abc"), ArgumentTypeError, "indices_or_sections .* got 'abc'"),
        (lambda: vnp.split(np.ones(4), [[1, 2]]), ArgumentTypeError, "indices_or_sections"),
        (lambda: vf.jit(lambda x, n: vnp.split(x, n))(np.ones(4), 2), ConcretizationError, "indices_or_sections"),
        (lambda: vnp.block([[], [1]]), ArgumentError, "block"),
        (lambda: vnp.pad(np.ones(2), -1), ArgumentError, "pad: pad_width"),
        (lambda: vnp.pad(np.ones(2), 1, mode="nonsense"), ArgumentError, "pad: mode"),
        (lambda: vnp.pad(np.ones(2), 1, mode="edge", constant_values=1), ArgumentError, "constant_values"),
        (lambda: vnp.pad(np.ones((0, 2)), 1, mode="edge"), ShapeError, "empty axis 0"),
        (lambda: vnp.pad(np.ones((2, 2)), ((1, 2), (3, 4), (5, 6))), ArgumentError, "pad_width"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("at", [-9, -3, 0, 1, 3, 9])
def test_insert_at_a_traced_position(at):
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    position = int(np.clip(at, -3, 3))
    for values in (7.0, np.float32([1, 2]), np.float32([[1, 2], [3, 4], [5, 6]])):
        for index, columns in ((position, values), ([position], np.transpose(values))):
            result = vf.jit(lambda x, i, v: vnp.insert(x, i, v, axis=1))(x, np.full(np.shape(index), at), columns)
            assert np.array_equal(result, np.insert(x, index, columns, axis=1))
    assert np.array_equal(vf.jit(lambda x, i: vnp.insert(x, i, 7))(x[0], at), np.insert(x[0], position, 7))


@pytest.mark.parametrize("function", ["delete", "insert"])
def test_known_positions_in_few_ranges_and_in_many(function):
    x = sample((3, 40), np.float32, 2)
    positions = [5, [0], [39], [0, 39], list(range(10, 20)), [3, 3, 4], list(range(0, 40, 2)), []]
    for at in positions:
        at = np.array(at, int)
        numbers = np.arange(3 * at.size, dtype=np.float32).reshape(3, at.size) if at.ndim else np.float32(7)
        more = () if function == "delete" else (numbers,)
        wanted = getattr(np, function)(x, at, *more, axis=1)
        assert np.array_equal(getattr(vnp, function)(x, at, *more, axis=1), wanted)
        assert np.array_equal(vf.jit(lambda x, at=at, more=more: getattr(vnp, function)(x, at, *more, axis=1))(x), wanted)


@pytest.mark.parametrize(("index", "axis"), [(np.array([2, 0]), 0), (np.array([[1], [-1]]), 1), (np.int32(3), None)])
def test_delete_at_traced_unique_indices(index: np.ndarray, axis: int | None) -> None:
    x = np.arange(12).reshape(3, 4)
    result = vf.jit(lambda x, i: vnp.delete(x, i, axis, assume_unique_indices=True))(x, index)
    np.testing.assert_array_equal(result, np.delete(x, index, axis))


def test_delete_by_masks():
    x, mask = np.arange(5), np.array([True, False, True, False, False])
    check(lambda xp, x: xp.delete(x, mask), x)
    for wrong in (mask[:3], np.ones(6, bool)):
        with pytest.raises(ShapeError, match="delete"):
            vnp.delete(x, wrong)
        with pytest.raises(ValueError):
            np.delete(x, wrong)


class Blocks:
    """A library's own sequence of arrays."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.arrays[index]


@pytest.mark.parametrize("function", ["concatenate", "concat", "stack", "hstack", "vstack", "dstack", "column_stack"])
def test_sequences_of_libraries_are_joined(function):
    x, y = sample((3,), np.float32, 1), sample((3,), np.float32, 2)
    np.testing.assert_array_equal(getattr(vnp, function)(Blocks(x, y)), getattr(np, function)([x, y]))
    for wrong in ("xy", {"x": x}, iter([x, y]), 5, None):
        with pytest.raises(ArgumentTypeError, match="expected a sequence of arrays"):
            getattr(vnp, function)(wrong)
