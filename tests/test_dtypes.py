"""Dtypes: specifications, scalars, promotion against JAX's own lattice, limits and kinds."""

from __future__ import annotations

import datetime
import itertools

import ml_dtypes
import numpy as np
import pytest

from volta_fn import dtypes
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError

ALL = sorted(dtypes.ALL, key=str)
WEAK = [np.dtype("int32"), np.dtype("float32"), np.dtype("complex64")]
OPERANDS = [(d, False) for d in ALL] + [(d, True) for d in WEAK]
BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (bool, "bool"), (int, "int32"), (float, "float32"), (complex, "complex64"),
        ("bool", "bool"), ("int", "int32"), ("float", "float32"), ("complex", "complex64"),
        ("bfloat16", "bfloat16"), (dtypes.bfloat16, "bfloat16"), (np.float64, "float64"), (np.dtype("int8"), "int8"),
        ("f8", "float64"), ("<u2", "uint16"), (np.longlong, "int64"), (np.bool_, "bool"), (np.intc, "int32"),
    ],
)  # fmt: skip
def test_as_dtype(spec, name):
    got = dtypes.as_dtype(spec)
    assert isinstance(got, np.dtype)
    assert got.name == name


@pytest.mark.parametrize("spec", [object, str, "U3", None, "datetime64[s]", np.longdouble, "nonsense", [1], 3.5, datetime.date, "V8"])
def test_as_dtype_refuses(spec):
    with pytest.raises(DTypeError):
        dtypes.as_dtype(spec)


def test_foreign_byte_order_names_the_remedy():
    with pytest.raises(DTypeError, match=r"byte order.*newbyteorder"):
        dtypes.as_dtype(np.dtype("float32").newbyteorder("S"))


def test_groups_partition_all():
    groups = [dtypes.BOOL, dtypes.SIGNED, dtypes.UNSIGNED, dtypes.FLOATS, dtypes.COMPLEX]
    assert sum(map(len, groups)) == len(dtypes.ALL) == 15
    assert frozenset.union(*groups) == dtypes.ALL
    assert dtypes.INEXACT == dtypes.FLOATS | dtypes.COMPLEX
    assert dtypes.NUMBERS == dtypes.ALL - dtypes.BOOL
    assert dtypes.REALS == dtypes.NUMBERS - dtypes.COMPLEX


def test_short_names():
    names = ["bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64", "c64", "c128", "float0"]
    specs = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128".split()
    assert [dtypes.short_name(d) for d in (*map(dtypes.as_dtype, specs), dtypes.float0)] == names


@pytest.mark.parametrize(
    ("value", "name", "weak"),
    [
        (True, "bool", False), (0, "int32", True), (2**31 - 1, "int32", True), (2**31, "int64", True), (-(2**31), "int32", True),
        (-(2**31) - 1, "int64", True), (2**63, "uint64", True), (-(2**63), "int64", True), (1.0, "float32", True),
        (1j, "complex64", True), (np.float64(1), "float64", False), (np.int8(1), "int8", False), (np.bool_(True), "bool", False),
        (dtypes.bfloat16(1), "bfloat16", False), (np.complex128(1), "complex128", False),
    ],
)  # fmt: skip
def test_scalar_dtype(value, name, weak):
    assert dtypes.scalar_dtype(value) == (np.dtype(name), weak)


def test_scalar_dtype_refuses():
    for value in (2**64, -(2**63) - 1):
        with pytest.raises(ArgumentError, match="64 bits"):
            dtypes.scalar_dtype(value)
    for value in ("1", None, [1], object()):
        with pytest.raises(ArgumentTypeError):
            dtypes.scalar_dtype(value)


def jax_promotion(a: tuple[np.dtype, bool], b: tuple[np.dtype, bool]) -> tuple[np.dtype, bool]:
    """Return what JAX in 64-bit mode makes of two operands."""
    jax = pytest.importorskip("jax")
    kinds = {"i": 0, "f": 0.0, "c": 0j}
    with jax.enable_x64(True):
        operands = [jax.numpy.asarray(kinds[d.kind]) if weak else jax.numpy.zeros((), d) for d, weak in (a, b)]
        out = jax.eval_shape(jax.numpy.add, *operands)
        return np.dtype(out.dtype), bool(out.weak_type)


@pytest.mark.parametrize("a", OPERANDS, ids=str)
def test_promotion_is_jaxs(a):
    for b in OPERANDS:
        dtype, weak = dtypes.promote(a, b)
        wanted, wanted_weak = jax_promotion(a, b)
        assert weak == wanted_weak, (a, b)
        if weak and not {np.dtype("int64"), np.dtype("uint64")} & {a[0], b[0]}:
            # JAX's 64-bit mode makes Python scalars 64 bits wide; here they are 32.
            wanted = {"i": np.dtype("int32"), "f": np.dtype("float32"), "c": np.dtype("complex64")}[wanted.kind]
        assert dtype == wanted, (a, b)


def test_promotion_is_commutative_and_associative():
    for a, b in itertools.product(OPERANDS, repeat=2):
        assert dtypes.promote(a, b) == dtypes.promote(b, a)
    for a, b, c in itertools.product(OPERANDS, repeat=3):
        joined = dtypes.promote(a, b, c)
        assert joined[1] == dtypes.promote(dtypes.promote(a, b), c)[1] or {a[1], b[1], c[1]} == {True, False}
        assert dtypes.promote(c, b, a) == joined == dtypes.promote(b, a, c)


def test_promotion_of_one_operand_is_itself():
    for operand in OPERANDS:
        assert dtypes.promote(operand) == operand
        assert dtypes.promote(operand, operand) == operand


def test_wide_weak_integers_stay_wide():
    wide, boolean = (np.dtype("int64"), True), (np.dtype("bool"), False)
    assert dtypes.promote(wide, (np.dtype("int32"), True)) == wide
    assert dtypes.promote(wide, boolean) == wide
    assert dtypes.promote(wide, (np.dtype("uint64"), True), boolean) == (np.dtype("float64"), True)
    assert dtypes.promote(wide, (np.dtype("float32"), True)) == (np.dtype("float64"), True)
    assert dtypes.promote(wide, (np.dtype("int8"), False)) == (np.dtype("int8"), False)


def test_promotion_refuses():
    with pytest.raises(ArgumentError):
        dtypes.promote()
    with pytest.raises(DTypeError):
        dtypes.promote((dtypes.float0, False), (np.dtype("float32"), False))


def test_result_type():
    assert dtypes.result_type(np.zeros(2, np.float16), 2.0, 3) == np.float16
    assert dtypes.result_type(1, 2) == np.int32
    assert dtypes.result_type(np.int64(1), 2.0) == np.float64
    assert dtypes.result_type(dtypes.bfloat16, float) == BF16
    assert dtypes.result_type("int8", np.uint8) == np.int16
    assert dtypes.result_type(True, 1) == np.int32


def test_promote_types():
    assert dtypes.promote_types("int64", "float16") == np.float16
    assert dtypes.promote_types(np.float16, dtypes.bfloat16) == np.float32
    assert dtypes.promote_types(np.uint64, np.int8) == np.float64


ABSTRACT = [np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact, np.floating, np.complexfloating, np.bool_]


def test_issubdtype_is_numpys_with_bfloat16_a_float():
    for dtype, kind in itertools.product(ALL, [*ABSTRACT, np.float32, np.int64]):
        stand_in = np.dtype("float16") if dtype == BF16 else dtype
        assert dtypes.issubdtype(dtype, kind) == np.issubdtype(stand_in, kind), (dtype, kind)
    assert dtypes.issubdtype(None, np.floating) and np.issubdtype(None, np.floating)
    assert dtypes.issubdtype(BF16, dtypes.bfloat16)
    assert not dtypes.issubdtype(BF16, np.float16)
    assert not dtypes.issubdtype(np.float16, dtypes.bfloat16)


def test_isdtype():
    for dtype in ALL:
        stand_in = np.dtype("float16") if dtype == BF16 else dtype
        for kind in dtypes.KINDS:
            assert dtypes.isdtype(dtype, kind) == np.isdtype(stand_in, kind)
    assert dtypes.isdtype(BF16, ("bool", BF16))
    assert not dtypes.isdtype("int8", ("bool", "real floating"))
    with pytest.raises(DTypeError):
        dtypes.isdtype("int8", "rational")


def test_limits():
    assert dtypes.finfo("bfloat16").eps == 0.0078125
    assert dtypes.finfo(BF16).bits == 16
    assert dtypes.finfo(complex).eps == np.finfo(np.float32).eps
    assert dtypes.iinfo(int).max == 2**31 - 1
    with pytest.raises(DTypeError, match="iinfo"):
        dtypes.finfo("int8")
    with pytest.raises(DTypeError, match="finfo"):
        dtypes.iinfo(BF16)


def test_can_cast():
    for a, b in itertools.product(dtypes.ALL - {BF16}, repeat=2):
        for casting in ("no", "equiv", "safe", "same_kind", "unsafe"):
            assert dtypes.can_cast(a, b, casting) == np.can_cast(a, b, casting)
    assert [d.name for d in ALL if dtypes.can_cast(BF16, d)] == ["bfloat16", "complex128", "complex64", "float32", "float64"]
    assert [d.name for d in ALL if dtypes.can_cast(d, BF16)] == ["bfloat16", "bool", "int8", "uint8"]
    for d in ALL:  # "safe" means that every value survives
        if dtypes.can_cast(d, BF16) and d.kind in "iu":
            values = np.arange(np.iinfo(d).min, np.iinfo(d).max + 1)
            assert (values.astype(BF16).astype(np.int64) == values).all()
    assert dtypes.can_cast("float64", BF16, "same_kind")
    assert not dtypes.can_cast(BF16, "int64", "same_kind")
    assert not dtypes.can_cast("float32", BF16, "equiv")
    assert dtypes.can_cast("complex64", BF16, "unsafe")


def test_derived_dtypes():
    for d in ALL:
        inexact = dtypes.to_inexact(d)
        assert inexact in dtypes.INEXACT
        assert (inexact == d) == (d in dtypes.INEXACT)
        assert dtypes.real_dtype(d) == (np.empty(0, d).real.dtype if d in dtypes.COMPLEX else d)
        assert dtypes.complex_dtype(d) in dtypes.COMPLEX
    assert dtypes.to_inexact(np.dtype("int64")) == dtypes.to_inexact(np.dtype("uint64")) == np.float64
    assert dtypes.to_inexact(np.dtype("bool")) == dtypes.to_inexact(np.dtype("int32")) == np.float32
    assert dtypes.complex_dtype(np.dtype("float64")) == np.complex128
    assert dtypes.complex_dtype(BF16) == np.complex64
    assert dtypes.accumulator(BF16) == dtypes.accumulator(np.dtype("float16")) == np.float32
    assert dtypes.accumulator(np.dtype("int8")) == np.int8


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e5m2", "complex64"])
def test_no_dtype_is_an_object(dtype):
    assert not dtypes.issubdtype(dtype, object)
    assert not dtypes.issubdtype(dtype, np.object_)
    assert not dtypes.issubdtype(np.generic, dtype)
    assert dtypes.issubdtype(np.floating, np.inexact)


def test_none_counts_as_the_default_floating_dtype() -> None:
    assert dtypes.result_type(None) == np.float32
    assert dtypes.result_type("int8", None) == np.float32
    assert dtypes.promote_types(None, "bfloat16") == np.float32
