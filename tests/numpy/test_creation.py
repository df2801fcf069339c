"""Making arrays, against NumPy's values and JAX's dtypes and weak types."""

from __future__ import annotations

import array as python_array
import math

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import ALL, BF16, assert_close, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, DTypeError, ShapeError

NESTS = [
    [1, 2, 3], [[1, 2], [3, 4.5]], (True, False), [1, 2.0, 3j], [], [[]], [[], []], 5, 2.5, True, 1j, [True, 2], [[[1]]],
    [np.float16(1), 2.0], [np.float32(1), np.int16(2)], [np.ones(2, np.float16), [1, 2]], (np.int8(1), np.uint8(2)),
    [2**40, 1], [-(2**31), 2**31 - 1], 2**31, range(4),
]  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize("nest", NESTS, ids=str)
def test_nests(nest):
    jax = pytest.importorskip("jax")
    got = vnp.array(nest)
    np.testing.assert_array_equal(np.asarray(got), np.array(nest))
    if np.asarray(got).size and got.dtype not in (np.int64, np.uint64):
        wanted = jax.numpy.array(nest)
        assert (got.dtype, got.weak_type) == (wanted.dtype, wanted.weak_type)


@pytest.mark.wide
def test_dtype_asked_for_is_given():
    for dtype in ALL:
        for value in ([0, 1, 2], 1, [[True]], np.arange(3.0)):
            got = vnp.array(value, dtype=dtype)
            assert (got.dtype, got.weak_type) == (dtype, False)
            assert_close(got, np.asarray(value).astype(dtype))
    assert vnp.array([1, 2**40]).dtype == np.int64
    assert vnp.array([2**63]).dtype == np.uint64
    assert vnp.array([1.0, 2.0], "float64").tolist() == [1.0, 2.0]


def test_arrays_and_tracers_in_nests():
    x = vnp.arange(2.0)
    assert vnp.array([x, [5, 6]]).tolist() == [[0.0, 1.0], [5.0, 6.0]]
    assert vnp.array([x[0], 2]).dtype == np.float32
    assert vf.jit(lambda a: vnp.array([[a, 1], [2, a]]))(3.0).tolist() == [[3.0, 1.0], [2.0, 3.0]]
    assert float(vf.grad(lambda a: vnp.sum(vnp.array([a, a * a])))(3.0)) == 7.0


@pytest.mark.parametrize("build", [
    lambda m, x: m.array([[x, 0], [1, 2.0]]), lambda m, x: m.array([[1, 2.0], [x, 3]]), lambda m, x: m.array([[True, False], [x > 0, 1]]),
    lambda m, x: m.array([[1, 2], [3j, x]]), lambda m, x: m.array([(0.5, 1), m.stack([x, x])]), lambda m, x: m.array([m.asarray(2.0), 1]),
    lambda m, x: m.array([range(2), (x, x)]), lambda m, x: m.array([[[1, 2.0]], [[x, 1]]]),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32"])
def test_all_levels_of_a_nest_decide_its_dtype(build, dtype):
    """A row of Python's numbers, beside a row with an array, has no dtype of its own."""
    jnp = pytest.importorskip("jax").numpy
    wanted = build(jnp, jnp.asarray(2, dtype))
    for got in (build(vnp, vnp.asarray(2, dtype)), vf.jit(lambda x: build(vnp, x))(vnp.asarray(2, dtype))):
        assert (got.dtype, got.weak_type) == (wanted.dtype, wanted.weak_type)
        np.testing.assert_array_equal(np.asarray(got, complex), np.asarray(wanted, complex))


@pytest.mark.wide
def test_asarray_and_ndmin():
    x = vnp.ones(3)
    assert vnp.asarray(x) is x
    assert vnp.array(x, ndmin=3).shape == (1, 1, 3)
    assert vnp.array(5, ndmin=2).shape == (1, 1)
    assert vnp.asarray(memoryview(b"ab")).tolist() == [97, 98]
    assert vnp.asarray(python_array.array("d", [1.5])).dtype == np.float64
    assert vnp.copy(x).tolist() == [1.0, 1.0, 1.0]
    assert vnp.astype(x, "int8").dtype == np.int8
    assert vnp.astype(x, None).dtype == np.float32


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ([[1, 2], [3]], ShapeError, "lengths"),
        ([[1, 2], 3], ShapeError, "lengths"),
        (["a"], ArgumentTypeError, "'a' of type str is not a number"),
        ([None], ArgumentTypeError, "None"),
        (None, ArgumentTypeError, "None"),
        ("text", ArgumentTypeError, "text"),
        (slice(1, 2), ArgumentTypeError, "slice"),
        ([2**70], ArgumentError, "does not fit 64 bits"),
        (np.array(["x"]), ArgumentTypeError, "not an array of numbers"),
    ],
    ids=str,
)
def test_refused_values(value, error, words):
    with pytest.raises(error, match=words):
        vnp.array(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e30, -1e30, 300.7, -3.7, 2.0**31])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8", "uint32", "int16"])
def test_floats_fill_integers_as_in_jax(value, dtype):
    jax = pytest.importorskip("jax")
    expected = jax.numpy.full((2,), value, dtype)
    filled = [vnp.full((2,), value, dtype), vnp.full_like(vnp.zeros(2, dtype), value), vnp.full_like(np.zeros(2), value, dtype)]
    for result in (*filled, vf.jit(lambda x: vnp.full_like(x, value))(np.zeros(2, dtype))):
        assert (result.dtype, result.weak_type) == (expected.dtype, False)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("value", [math.nan, [1, math.nan], math.inf, [[-math.inf]], 1e30], ids=str)
def test_arrays_of_integers_refuse_what_is_none(value):
    for dtype in ("int32", "uint8"):
        with pytest.raises(ArgumentError, match=f"does not fit {dtype}"):
            vnp.array(value, dtype)


def test_refused_options():
    with pytest.raises(ArgumentTypeError, match=r"complex number \[1j\] is none of int32"):
        vnp.array([1j], "int32")
    with pytest.raises(DTypeError):
        vnp.zeros(2, dtype=object)
    with pytest.raises(ArgumentError, match="300 does not fit uint8"):
        vnp.array(300, dtype="uint8")
    with pytest.raises(ArgumentError, match="order"):
        vnp.array([1], order="F")
    with pytest.raises(ShapeError, match=r"zeros|shape"):
        vnp.zeros((2, -1))
    with pytest.raises(ShapeError, match="must consist of integers"):
        vnp.zeros(1.0)
    with pytest.raises(ConcretizationError, match="static_argnums"):
        vf.jit(lambda n: vnp.zeros(n))(3)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["zeros", "ones", "empty"])
def test_filled(name):
    check(lambda xp: getattr(xp, name)((2, 3), dtype=np.float32) * 0, oracle=lambda: np.zeros((2, 3)))
    for dtype in [None, float, int, bool, "bfloat16", np.complex128, np.uint8]:
        got = getattr(vnp, name)((2, 0, 3), dtype)
        assert (got.shape, got.weak_type) == ((2, 0, 3), False)
    assert getattr(vnp, name)(3).dtype == np.float32
    assert getattr(vnp, name)(()).shape == ()


@pytest.mark.wide
def test_full():
    jax = pytest.importorskip("jax")
    for fill in (1, 2.5, True, 3j, np.float16(2), np.arange(3)):
        got, wanted = vnp.full((2, 3), fill), jax.numpy.full((2, 3), fill)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
        assert got.weak_type == wanted.weak_type
    assert vnp.full(2, 1, "float64").dtype == np.float64


def test_like():
    for like in (np.ones((2, 3), np.float16), vnp.ones(2, "bfloat16"), vnp.asarray(1.0), 3, 2.5, vf.ShapeDtypeStruct((4,), np.int8)):
        for name, value in (("zeros_like", 0), ("ones_like", 1), ("empty_like", 0)):
            got = getattr(vnp, name)(like)
            assert got.shape == getattr(like, "shape", ())
            assert (np.asarray(got) == value).all()
    assert vnp.zeros_like(vnp.ones(2, "bfloat16")).dtype == BF16
    assert vnp.zeros_like(3).weak_type
    assert vnp.full_like(np.ones(2, np.float32), 7, dtype=int, shape=(3,)).tolist() == [7, 7, 7]
    assert vf.jit(lambda x: vnp.ones_like(x))(np.float16(2)).dtype == np.float16


RANGES = [
    (5,),
    (1, 7),
    (1, 7, 2),
    (7, 1, -2),
    (0, 1, 0.25),
    (2.5,),
    (0,),
    (3, 3),
    (-3,),
    (np.int8(1), np.int8(5)),
    (0, 10, 3),
    (1.0, -1.0, -0.5),
]


@pytest.mark.parametrize("bounds", RANGES, ids=str)
def test_arange(bounds):
    jax = pytest.importorskip("jax")
    got, wanted = vnp.arange(*bounds), jax.numpy.arange(*bounds)
    np.testing.assert_allclose(np.asarray(got), np.arange(*bounds), rtol=1e-6)
    assert (got.dtype, got.weak_type) == (wanted.dtype, wanted.weak_type)


@pytest.mark.wide
def test_arange_dtypes_and_errors():
    assert vnp.arange(3, dtype="int64").dtype == np.int64
    assert vnp.arange(2**33, 2**33 + 3).tolist() == [2**33, 2**33 + 1, 2**33 + 2]
    assert vnp.arange(2, dtype="float16").dtype == np.float16
    assert vnp.arange(stop=3, start=0).tolist() == [0, 1, 2]
    with pytest.raises(ArgumentError, match="step"):
        vnp.arange(1, 2, 0)
    with pytest.raises(ArgumentError, match="300 does not fit int8"):
        vnp.arange(0, 301, 300, dtype="int8")
    with pytest.raises(ConcretizationError, match="arange"):
        vf.jit(vnp.arange)(3)
    assert vf.jit(lambda x: vnp.arange(x.shape[0]))(np.ones(4)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("num", [0, 1, 2, 5, 50])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(num, endpoint):
    for start, stop in ((0.0, 1.0), (2.0, -3.0), (1.0, 1.0), (-5.0, 5.0)):
        check(lambda xp, a, b: xp.linspace(a, b, num, endpoint=endpoint), np.float32(start), np.float32(stop))
        check(lambda xp, a, b: xp.linspace(a, b, num, endpoint=endpoint), np.float64(start), np.float64(stop))
    check(lambda xp, a, b: xp.linspace(a, b, num, endpoint=endpoint, axis=-1), sample((2, 3), np.float32, 1), sample((3,), np.float32, 2))
    numbers, step = vnp.linspace(0, 3, num, endpoint=endpoint, retstep=True)
    wanted = np.linspace(0, 3, num, endpoint=endpoint, retstep=True)
    np.testing.assert_allclose(np.asarray(numbers), wanted[0], rtol=1e-6)
    np.testing.assert_allclose(float(step), wanted[1], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_linspace_of_whole_steps_is_exact(dtype):
    for start, step in ((0, 1), (-7, 3), (10, -2), (0.5, 0.25)):
        for num in range(2, 120):
            start_and_stop = np.array([start, start + step * (num - 1)], dtype)
            numbers = vnp.linspace(*start_and_stop, num)
            np.testing.assert_array_equal(numbers, np.linspace(*start_and_stop, num, dtype=dtype), strict=True)
    largest = vnp.finfo(dtype).max
    assert vnp.isfinite(vnp.linspace(-largest, largest, 5, dtype=dtype)).all()
    values = np.arange(22, dtype=dtype)
    np.testing.assert_array_equal(vnp.histogram(values, 22, (0, 22))[0], np.ones(22))
    np.testing.assert_array_equal(vnp.histogram(values, 21, (0, 21))[0], np.histogram(values, 21, (0, 21))[0])


def test_linspace_ends_exactly_and_in_integers():
    for stop in (0.1, 1 / 3, 1e30, 7.7):
        assert vnp.linspace(0.0, stop, 7)[-1] == np.float32(stop)
    check(lambda xp: xp.linspace(0, 10, 5, dtype=int), traced=False, oracle=lambda: np.linspace(0, 10, 5, dtype=int))
    check(lambda xp: xp.linspace(-3, 4, 6, dtype=np.int32), oracle=lambda: np.linspace(-3, 4, 6, dtype=int))
    slope = vf.grad(lambda stop: vnp.sum(vnp.linspace(0.0, stop, 5)))(1.0)
    np.testing.assert_allclose(float(slope), 2.5)


def test_integers_of_ranges_are_not_cut_to_the_one_before():
    """A rounding error makes 2 of 3 where numbers are cut to integers."""
    for count in range(2, 80):
        for compute in (vnp.linspace, vf.jit(vnp.linspace, static_argnums=2, static_argnames="dtype")):
            np.testing.assert_array_equal(compute(0, count - 1, count, dtype="int32"), np.arange(count))
    np.testing.assert_array_equal(vnp.linspace(-7, 9, 33, dtype="int32"), np.linspace(-7, 9, 33, dtype=int))
    for count in range(2, 10):
        np.testing.assert_array_equal(vnp.logspace(0, count - 1, count, dtype="int32"), 10 ** np.arange(count))
        for base in (2, 3, 10):
            powers = base ** np.arange(count)
            np.testing.assert_array_equal(vnp.geomspace(1, powers[-1], len(powers), dtype="int32"), powers)
            np.testing.assert_array_equal(vnp.geomspace(-1, -powers[-1], len(powers), dtype="int32"), -powers)
    np.testing.assert_array_equal(vnp.geomspace(1, 10, 4, dtype="int32"), [1, 2, 4, 10])


@pytest.mark.parametrize(("start", "stop"), [(1, 1000), (1e-3, 3e5), (-1, -1000), (7, 1), (np.complex64(1 + 2j), np.complex64(-3 + 1j))])
def test_ends_of_geomspace_are_exact(start, stop):
    for function in (vnp.geomspace, vf.jit(vnp.geomspace, static_argnums=2)):
        numbers = np.asarray(function(start, stop, 17))
        assert numbers[0] == numbers.dtype.type(start) and numbers[-1] == numbers.dtype.type(stop)
        np.testing.assert_allclose(numbers, np.geomspace(start, stop, 17), rtol=2e-6)
    assert vnp.geomspace(start, stop, 1).tolist() == [numbers[0].item()]
    open_end = vnp.geomspace(start, stop, 5, endpoint=False)
    np.testing.assert_allclose(open_end, np.geomspace(start, stop, 5, endpoint=False), rtol=2e-6)


def test_logspace_and_geomspace():
    check(lambda xp, a, b: xp.logspace(a, b, 5), np.float32(0), np.float32(2), tolerance=1e-5)
    check(lambda xp, a, b: xp.logspace(a, b, 5, base=2.0, endpoint=False), np.float32(-1), np.float32(3), tolerance=1e-5)
    for a, b in ((1, 1000), (-8, -1), (256, 1)):
        check(lambda xp, a, b: xp.geomspace(a, b, 4), np.float32(a), np.float32(b), tolerance=1e-5)
    check(
        lambda xp, a, b: xp.geomspace(a, b, 4, axis=1),
        np.array([1.0, -2.0], np.float32),
        np.array([8.0, -16.0], np.float32),
        tolerance=1e-5,
    )


def test_eye():
    for args in ((3,), (2, 4), (4, 2), (0,), (3, 3, 1), (3, 4, -2), (2, 2, 5)):
        check(lambda xp, args=args: xp.eye(*args, dtype=np.float32))
    assert vnp.eye(2, dtype=bool).tolist() == [[True, False], [False, True]]
    assert vnp.identity(3).shape == (3, 3)


def test_from_other_things():
    np.testing.assert_array_equal(np.asarray(vnp.fromfunction(lambda i, j: i * 10 + j, (2, 3), dtype=int)), [[0, 1, 2], [10, 11, 12]])
    np.testing.assert_array_equal(np.asarray(vnp.fromfunction(lambda i: vnp.ones(2) * i, (3,))), [[0, 0], [1, 1], [2, 2]])
    assert vnp.fromiter((i * i for i in range(4)), int).tolist() == [0, 1, 4, 9]
    assert vnp.frombuffer(np.arange(3, dtype=np.float32).tobytes()).tolist() == [0.0, 1.0, 2.0]
    assert vnp.frombuffer(b"\x01\x02\x03", dtype="uint8", count=1, offset=1).tolist() == [2]


def test_foreign_byte_order_is_read_by_value():
    x = np.arange(3, dtype=np.int32)
    assert vnp.asarray(x.astype(x.dtype.newbyteorder("S"))).tolist() == [0, 1, 2]


def test_operators_are_left_to_objects_that_answer_for_every_name() -> None:
    class Operator:
        def __getattr__(self, name):
            return lambda *arguments: NotImplemented  # also as __jax_array__

        def __rmul__(self, other):
            return "times", other

        __radd__ = __rsub__ = __rtruediv__ = __rmatmul__ = __rpow__ = __rmul__

    x, operator = vnp.ones(2), Operator()
    for result in (x * operator, x + operator, x - operator, x / operator, x @ operator, x**operator):
        assert result[0] == "times" and result[1] is x
    assert isinstance(vf.jit(lambda x: (x * operator)[1])(x), vf.Array)
    with pytest.raises(TypeError):
        x % operator


def test_objects_that_know_themselves_as_arrays():
    class Wrapped:
        def __jax_array__(self):
            return vnp.arange(2)

    assert vnp.asarray(Wrapped()).tolist() == [0, 1]
    assert vnp.array([Wrapped(), [5, 6]]).tolist() == [[0, 1], [5, 6]]
    assert (vnp.ones(2) + Wrapped()).tolist() == (Wrapped() + vnp.ones(2)).tolist() == [1.0, 2.0]
    assert (vnp.ones(2) < Wrapped()).tolist() == [False, False]


def test_copies_outlive_the_donated_original():
    double = vf.jit(lambda x: x * 2, donate_argnums=0)
    for copy in (vnp.copy, vnp.array, lambda x: x.copy(), lambda x: vnp.asarray(x, copy=True)):
        x = vnp.arange(3.0) + 1
        retained = copy(x)
        assert double(x).tolist() == [2.0, 4.0, 6.0]
        assert x.is_deleted()
        assert retained.tolist() == [1.0, 2.0, 3.0]
    x = vnp.arange(3.0)
    assert vnp.asarray(x) is x


def test_a_traced_diagonal():
    for k in (-9, -1, 0, 2, 9):
        assert np.array_equal(vf.jit(lambda k: vnp.eye(3, 4, k))(k), np.eye(3, 4, k))


def test_zeros_that_are_tangents_of_integers():
    zeros = vnp.zeros((2, 1), vf.dtypes.float0)
    assert (zeros.shape, zeros.dtype) == ((2, 1), vf.dtypes.float0)
    assert vf.jvp(lambda n: 2 * n, (np.array([[1], [2]]),), (zeros,))[1].dtype == vf.dtypes.float0


def test_complex_ramps_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no order"):
        vnp.arange(0, 5, 1 + 1j)


def test_the_step_of_fewer_than_two_numbers_is_nan() -> None:
    numbers, step = vnp.linspace(np.float32(0), np.ones((2, 2), np.float32), 0, retstep=True)
    assert (numbers.shape, step.shape, bool(np.isnan(step))) == ((0, 2, 2), (), True)
