"""Loads and stores with masks and strides; constants, positions, reductions."""

import ml_dtypes
import numpy as np
import pytest

import volta_fn  # noqa: F401  # declares the primitives
from tests.targets.cpu.scalars.running import address_list, compiled
from volta_fn import dtypes
from volta_fn.core.primitive import PRIMITIVES, reduction_of
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu import scalars
from volta_fn.targets.cpu.scalars.number import convert

pytest.importorskip("llvmlite")

DTYPES = sorted(dtypes.ALL, key=str)


def compile_body(body):
    """Return a function of pointers and a number, whose body is written by ``body(f, pointers, number)``."""
    f = Function(Module(), "run", [Value("ptr", "%buffers"), Value("i64", "%n")])
    body(f, [f.load("ptr", f.at(f.parameters[0], "ptr", i64(k)), 8) for k in range(2)], f.parameters[1])
    f.finish()
    return compiled(str(f.module))


def numbers(dtype, size):
    """Different numbers, or as different as the dtype allows."""
    values = np.random.default_rng(3).integers(0, 100, size)
    if dtype.kind == "c":
        return (values + 1j * values[::-1]).astype(dtype)
    return (values % 2 if dtype.kind == "b" else values).astype(dtype)


@pytest.mark.parametrize("stride", [1, 0, -1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_and_strided(dtype, stride):
    for lanes in (1, 8):
        span = (lanes - 1) * abs(stride) + 1
        source = numbers(dtype, span)
        first = span - 1 if stride < 0 else 0

        def body(f, pointers, n, lanes=lanes, first=first):
            start = f.at(pointers[0], f"[{dtype.itemsize} x i8]", i64(first))
            x = scalars.load(f, dtype, start, lanes, count=n, stride=stride)
            scalars.store(f, x, pointers[1])

        function = compile_body(body)
        for count in range(lanes + 1):
            out = np.ones(lanes, dtype)
            function(address_list([source, out]), count)
            expected = np.zeros(lanes, dtype)
            expected[:count] = [source[first + k * stride] for k in range(count)]
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("stride", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_neighbours_are_read_from_the_same_vectors(dtype, stride):
    lanes = 8
    for last in range(1, stride):
        source, out = numbers(dtype, (lanes - 1) * stride + last + 1), np.zeros((last + 1, lanes), dtype)

        def body(f, pointers, n, last=last):
            for first in range(last + 1):
                x = scalars.load(f, dtype, pointers[0], lanes, stride=stride, first=first, last=last)
                scalars.store(f, x, f.at(pointers[1], f"[{dtype.itemsize} x i8]", i64(first * lanes)))

        compile_body(body)(address_list([source, out]), 0)
        np.testing.assert_array_equal(out, [source[first::stride] for first in range(last + 1)])


@pytest.mark.parametrize("stride", [1, -1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_and_strided_store(dtype, stride):
    for lanes in (1, 8):
        span = (lanes - 1) * abs(stride) + 1
        source, first = numbers(dtype, lanes), span - 1 if stride < 0 else 0

        def body(f, pointers, n, lanes=lanes, first=first):
            start = f.at(pointers[1], f"[{dtype.itemsize} x i8]", i64(first))
            scalars.store(f, scalars.load(f, dtype, pointers[0], lanes), start, count=n, stride=stride)

        function = compile_body(body)
        for count in range(lanes + 1):
            out, expected = np.ones(span, dtype), np.ones(span, dtype)
            function(address_list([source, out]), count)
            for k in range(count):
                expected[first + k * stride] = source[k]
            np.testing.assert_array_equal(out, expected)


NARROW = [dtype for dtype in DTYPES if dtype.itemsize < 8]


@pytest.mark.parametrize("source", [np.dtype(name) for name in ("int64", "int32", "uint16", "float64", "float32", "bool")], ids=str)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_masked_store_of_converted_numbers_writes_nothing_beyond_them(dtype, source):
    """LLVM knows literal counts, finds out others, and has converted lanes in wider registers."""
    counts = [(lanes, count) for lanes in (2, 8, 16, 64, 256) for count in sorted({0, 1, 2, lanes // 4 + 1, lanes // 2 + 1, lanes})]
    cases = [(*case, literal) for case in counts for literal in (False, True)]
    out = np.full((len(cases), 257 * dtype.itemsize), 0xA5, np.uint8)
    numbers_ = numbers(source, 256)

    def body(f, pointers, n):
        for row, (lanes, count, literal) in enumerate(cases):
            x = convert(f, scalars.load(f, source, pointers[0], lanes), dtype)
            some = i64(count) if literal else f.intrinsic("llvm.smin.i64", "i64", i64(count), i64(1 << 20))
            scalars.store(f, x, f.at(pointers[1], "i8", i64(row * out.shape[1])), count=some)

    compile_body(body)(address_list([numbers_, out]), 0)
    for row, (_, count, _) in zip(out, cases, strict=True):
        np.testing.assert_array_equal(row[: count * dtype.itemsize].view(dtype), numbers_[:count].astype(dtype))
        assert (row[count * dtype.itemsize :] == 0xA5).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constants(dtype):
    with np.errstate(all="ignore"):
        values = [np.asarray(v).astype(dtype) for v in (0, 1, -1, 0.1, np.nan, -np.inf, 2**63)]
    for value in values:

        def body(f, pointers, n, value=value):
            scalars.store(f, scalars.constant(f, value, 4), pointers[1])

        out = np.zeros(4, dtype)
        compile_body(body)(address_list([out, out]), 0)
        with np.errstate(invalid="ignore"):
            wide = np.float32 if dtype == ml_dtypes.bfloat16 else dtype  # in which NaN equals NaN
            np.testing.assert_array_equal(out.astype(wide), np.full(4, value, dtype).astype(wide))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_positions(dtype):
    def body(f, pointers, n):
        scalars.store(f, scalars.position(f, n, -3, dtype, 8), pointers[1])

    out = np.zeros(8, dtype)
    compile_body(body)(address_list([out, out]), 40)
    np.testing.assert_array_equal(out, (40 - 3 * np.arange(8)).astype(dtype))


def test_splat():
    def body(f, pointers, n):
        one = scalars.load(f, np.dtype("c8"), pointers[0], 1)
        scalars.store(f, scalars.splat(f, one, 4), pointers[1])

    source, out = np.array([1 + 2j], "c8"), np.zeros(4, "c8")
    compile_body(body)(address_list([source, out]), 0)
    np.testing.assert_array_equal(out, np.full(4, 1 + 2j, "c8"))


ORDERED = ["reduce_max", "reduce_min"]
REDUCTIONS = [
    *[(op, d) for op in ORDERED for d in DTYPES if d.kind != "c"],
    *[(op, d) for op in ["reduce_and", "reduce_or", "reduce_xor"] for d in DTYPES if d in dtypes.INTEGERS | dtypes.BOOL],
    *[(op, d) for op in ["reduce_sum", "reduce_prod"] for d in DTYPES if d.kind != "b"],
]


@pytest.mark.parametrize("op, dtype", REDUCTIONS, ids=str)
def test_reductions(op, dtype):
    def body(f, pointers, n):
        x = scalars.load(f, dtype, pointers[0], 8)
        first = scalars.constant(f, reduction_of(op).start(dtype), 8)
        total = scalars.horizontal(f, reduction_of(op), scalars.combine(f, reduction_of(op), first, x))
        assert total.lanes == 1
        scalars.store(f, total, pointers[1])

    values, out = numbers(dtype, 8), np.zeros(1, dtype)
    if op == "reduce_prod":
        values = (np.arange(8) % 3 + 1).astype(dtype)
    if dtype == ml_dtypes.bfloat16 and op == "reduce_sum":
        values = (np.arange(8) % 5).astype(dtype)  # the sum is exact
    compile_body(body)(address_list([values, out]), 0)
    expected = PRIMITIVES[op].evaluate(values, axes=(0,))
    np.testing.assert_array_equal(out[0], expected)


def test_extrema_keep_nan():
    def body(f, pointers, n):
        x = scalars.load(f, np.dtype("f4"), pointers[0], 16)
        scalars.store(f, scalars.horizontal(f, reduction_of("reduce_max"), x), pointers[1])

    function = compile_body(body)
    for place in range(16):
        values, out = np.arange(16, dtype="f4"), np.zeros(1, "f4")
        values[place] = np.nan
        function(address_list([values, out]), 0)
        assert np.isnan(out[0])
