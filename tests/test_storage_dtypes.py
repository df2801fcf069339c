"""Dtypes of 8 bits and less: they store numbers; arrays of them are moved and converted, and not computed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import dtypes, lax
from volta_fn.errors import DTypeError, ShapeError

NAMES = sorted(dtype.name for dtype in dtypes.STORAGE)
NUMBERS = np.float32([1.5, 2.7, -3, 0.1, 300, -300, 7.6, 8.4, -8.4, np.nan, np.inf, -np.inf, 0.0])

MOVES: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(1, -1),
    "transpose": lambda x: x.reshape(2, 3).T,
    "slice": lambda x: x[1:4:2],
    "reverse": lambda x: x[::-1],
    "gather": lambda x: x[np.array([3, 1, 1])],
    "concatenate": lambda x: vnp.concatenate([x, x]),
    "stack": lambda x: vnp.stack([x, x], -1),
    "broadcast": lambda x: vnp.broadcast_to(x, (2, 6)),
    "select": lambda x: vnp.where(vnp.arange(6) > 2, x, x[::-1]),
    "pad": lambda x: vnp.pad(x, 1),
    "repeat": lambda x: vnp.repeat(x, 2),
    "dynamic slice": lambda x: lax.dynamic_slice(x, (2,), (3,)),
    "update": lambda x: x.at[1].set(x[0]),
    "scan": lambda x: lax.scan(lambda carry, row: (carry, row), 0.0, x)[1],
}


def converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert floats: those to integers saturate and truncate, NaN becomes 0."""
    if dtype not in dtypes.STORAGE_INTEGERS:
        return x.astype(dtype).astype(np.float32)
    info = ml_dtypes.iinfo(dtype)
    return np.trunc(np.clip(np.nan_to_num(x), info.min, info.max))


@pytest.mark.parametrize("name", NAMES)
def test_conversions(name: str) -> None:
    dtype = dtypes.as_dtype(name)
    there_and_back = lambda x: x.astype(name).astype("float32")
    for convert in (there_and_back, vf.jit(there_and_back), vf.vmap(there_and_back)):
        np.testing.assert_array_equal(convert(vnp.asarray(NUMBERS)), converted(NUMBERS, dtype))
    integers = np.arange(-4, 5, dtype=np.int32)
    np.testing.assert_array_equal(vnp.asarray(integers).astype(name).astype("int32"), integers.astype(dtype).astype(np.int32))
    assert vnp.asarray(np.ones(2, dtype)).dtype == getattr(vnp, name).dtype == dtype


@pytest.mark.parametrize("other", ["bool", "int8", "uint64", "float16", "bfloat16", "float64", "complex64"])
@pytest.mark.wide
def test_conversions_with_every_kind(other: str) -> None:
    x = np.array([0, 1, 2, 3]).astype(other)
    for name in ("float8_e5m2", "uint4"):
        back = vf.jit(lambda x, n=name: x.astype(n).astype(other))(x)
        np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("move", MOVES)
def test_elements_move(move: str) -> None:
    bits = np.array([3, 1, 4, 1, 5, 9], np.uint8)
    for name in ("float8_e4m3fn", "float8_e5m2"):
        x = vnp.asarray(bits.view(dtypes.as_dtype(name)))
        wanted = np.asarray(MOVES[move](vnp.asarray(bits)))
        for function in (MOVES[move], vf.jit(MOVES[move])):
            result = function(x)
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(np.asarray(result).view(np.uint8), wanted)


def test_bits_can_be_read() -> None:
    x = vnp.asarray([1.0, -2.0]).astype("float8_e5m2")
    assert lax.bitcast_convert_type(x, "uint8").tolist() == [0x3C, 0xC0]


def _codes(x: Any, dtype: np.dtype) -> np.ndarray:
    """Return the bits of each element, the lowest first."""
    stored = np.ascontiguousarray(x)[..., None].view(np.uint8)
    return np.unpackbits(stored, axis=-1, count=dtypes.bits(dtype), bitorder="little")


PACKED, OTHERS = ["int2", "uint2", "int4", "uint4"], ["int8", "uint16", "bfloat16", "float32", "float8_e5m2"]


@pytest.mark.parametrize(("old", "new"), [(a, b) for a in PACKED + OTHERS for b in PACKED + OTHERS if {a, b} & {*PACKED}])
def test_bits_of_integers_of_less_than_a_byte_are_packed(old: str, new: str) -> None:
    old_dtype, new_dtype = dtypes.as_dtype(old), dtypes.as_dtype(new)
    width = dtypes.bits(old_dtype)
    shape = (3, *((n,) if (n := dtypes.bits(new_dtype) // width) > 1 else ()))
    bits = np.random.default_rng(0).integers(0, 2, (*shape, width), np.uint8)
    x = np.packbits(bits, axis=-1, bitorder="little").view(old_dtype)[..., 0]
    cast = lambda x: lax.bitcast_convert_type(x, new)
    expected = np.asarray(jax.lax.bitcast_convert_type(x, new))
    for function in (cast, vf.jit(cast), vf.vmap(cast), vf.jit(lambda x: cast(x[::-1])[::-1])):
        result = np.asarray(function(vnp.asarray(x)))
        assert (result.shape, result.dtype) == (expected.shape, new_dtype)
        np.testing.assert_array_equal(_codes(result, new_dtype), _codes(expected, new_dtype))


def test_a_last_dimension_must_fill_the_wider_dtype() -> None:
    with pytest.raises(ShapeError, match="from int4 to the wider int32 needs a last dimension of 8"):
        lax.bitcast_convert_type(vnp.ones(4, "int4"), "int32")


@pytest.mark.parametrize(
    "compute",
    [lambda x: x + x, lambda x: x * 2.0, lambda x: x.sum(), lambda x: x == x, lambda x: x @ x, lambda x: -x, lambda x: vnp.exp(x)],
)
def test_computing_asks_for_a_conversion(compute: Callable[[Any], Any]) -> None:
    for function in (compute, vf.jit(compute)):
        with pytest.raises(DTypeError, match="float8_e4m3fn"):
            function(vnp.ones(3, "float8_e4m3fn"))


#: What the order of numbers is asked for by, as NumPy gives it for an array of float32 and its stable order.
ORDERED: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray, np.ndarray], Any]]] = {
    "sort": (vnp.sort, lambda x, order: x[order]),
    "argsort": (vnp.argsort, lambda x, order: order),
    "sort of pairs": (lambda x: lax.sort_key_val(x, vnp.arange(x.size))[1], lambda x, order: order),
    "sort by two keys": (lambda x: vnp.lexsort((vnp.arange(x.size)[::-1], x)), lambda x, _: np.lexsort((np.arange(x.size)[::-1], x))),
    "sort by stored keys": (lambda x: vnp.lexsort((x[::-1], x)), lambda x, _: np.lexsort((x[::-1], x))),
    "greatest": (lambda x: lax.top_k(x, 1)[0], lambda x, order: x[order][-1:]),
    "sort of columns": (lambda x: vnp.sort(x[:24].reshape(4, 6), axis=0), lambda x, _: np.sort(x[:24].reshape(4, 6), axis=0)),
    "first greatest": (vnp.argmax, lambda x, _: np.argmax(x)),
    "first least": (vnp.argmin, lambda x, _: np.argmin(x)),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ORDERED)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_numbers_are_ordered(kind: str, name: str, device: str) -> None:
    """NaN is the greatest, of equals the first comes first."""
    function, oracle = ORDERED[kind]
    with vf.default_device(device):
        check_order(function, oracle, name)


def check_order(function: Callable[[Any], Any], oracle: Callable[[np.ndarray, np.ndarray], Any], name: str) -> None:
    """Compare with the oracle, on the default device, with and without `jit`."""
    x = vnp.asarray(np.random.default_rng(3).permutation(np.concatenate([NUMBERS, NUMBERS[::2], NUMBERS / 3]))).astype(name)
    wide = np.asarray(x.astype("float32"))
    wanted = oracle(wide, np.argsort(wide, kind="stable"))
    for actual in (function(x), vf.jit(function)(x)):
        np.testing.assert_array_equal(np.asarray(actual).astype(np.float32), np.float32(wanted))


@pytest.mark.parametrize("name", NAMES)
def test_extremes_of_segments(name: str) -> None:
    x = vnp.asarray(np.float32([-1.0, -2.0, 0.5, -1.0])).astype(name)
    wide = np.asarray(x.astype("float32"))
    for segments, extreme in ((vf.ops.segment_max, np.max), (vf.ops.segment_min, np.min)):
        actual = segments(x, vnp.array([0, 0, 1, 1]), 2)
        np.testing.assert_array_equal(actual.astype("float32"), [extreme(wide[:2]), extreme(wide[2:])])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_updates_combine_as_in_a_wider_dtype(name: str, device: str) -> None:
    """The sum of integers wraps around, and floats are rounded once."""
    numbers = np.float32([1.0, 0.5, 2.0, 1.0])
    wide_name = "float32" if "float" in name else "int8" if name[0] == "i" else "uint8"
    where = np.array([0, 0, 3])
    with vf.default_device(device):
        x = vnp.asarray(numbers).astype(name)
        for method in ("add", "mul", "max", "min"):
            update = lambda x, method=method: getattr(x.at[where], method)(x[:3])
            wanted = np.asarray(x.astype(wide_name)).copy()
            combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[method]
            combine.at(wanted, where, wanted[:3].copy())
            wanted = wanted.astype(dtypes.as_dtype(name))
            for function in (update, vf.jit(update)):
                assert function(x).dtype == x.dtype
                np.testing.assert_array_equal(function(x).astype(wide_name), wanted.astype(wide_name))


@pytest.mark.parametrize("name", ["int4", "float8_e4m3fn", "float4_e2m1fn"])
@pytest.mark.parametrize("compare", ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "maximum"])
def test_comparisons_ask_for_a_conversion(compare: str, name: str) -> None:
    primitive = {"maximum": "max", "equal": "eq", "not_equal": "ne"}.get(compare, compare[0] + ("e" if "_" in compare else "t"))
    with pytest.raises(DTypeError, match=f"^{primitive} is not defined for {name}.*x.astype"):
        getattr(vnp, compare)(vnp.ones(3, name), vnp.ones(3, name))


@pytest.mark.parametrize("test", ["isnan", "isfinite", "isinf", "isposinf", "nan_to_num", "round", "floor", "ceil", "trunc", "nanargmax"])
def test_integers_are_finite_and_floats_ask_for_a_conversion(test: str) -> None:
    numbers = np.float32([1.0, -2.0, 0.0])
    np.testing.assert_array_equal(
        np.asarray(getattr(vnp, test)(vnp.asarray(numbers).astype("int4"))).astype(np.float32), getattr(np, test)(numbers)
    )
    with pytest.raises(DTypeError, match="float8_e5m2.*x.astype"):
        getattr(vnp, test)(vnp.asarray(np.float32([np.nan, 0.5])).astype("float8_e5m2"))


def test_no_promotion() -> None:
    with pytest.raises(DTypeError, match=r"float32 and float8_e5m2 do not promote.*x\.astype"):
        vnp.ones(2, "float8_e5m2") + vnp.ones(2)
    with pytest.raises(DTypeError, match="do not promote"):
        vnp.result_type("int4", "int8")
    assert vnp.result_type("int4", 1) == dtypes.as_dtype("int4")


def _stored(xnp: Any, x: Any) -> Any:
    return x.astype(xnp.float8_e4m3fn)


def _last_stored(xnp: Any, xlax: Any, x: Any) -> Any:
    """Carry float8 numbers through a loop, one of which each step replaces."""

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        carry = xlax.dynamic_update_slice(carry, _stored(xnp, 2 * row)[None], (1,))
        return carry, carry.astype(xnp.float32).sum()

    last, sums = xlax.scan(step, _stored(xnp, x[:3]), x)
    return (last.astype(xnp.float32) * xnp.float32([1, 2, 4])).sum() + sums.sum()


#: Functions whose derivatives float8 does not round, by what they do with the numbers: JAX rounds cotangents to float8.
DIFFERENTIABLE: dict[str, Callable[..., Any]] = {
    "straight-through": lambda xnp, xlax, x: (x + xlax.stop_gradient(_stored(xnp, x).astype(x.dtype) - x)) ** 2,
    "round": lambda xnp, xlax, x: _stored(xnp, x).astype(x.dtype) * 2,
    "use twice": lambda xnp, xlax, x: (lambda y: y.astype(x.dtype) + 2 * y[::-1].astype(x.dtype))(_stored(xnp, x)),
    "select": lambda xnp, xlax, x: xnp.where(x > 1, _stored(xnp, x), _stored(xnp, xnp.zeros_like(x))).astype(x.dtype),
    "gather": lambda xnp, xlax, x: _stored(xnp, x)[np.array([0, 0, 2])].astype(x.dtype),
    "update": lambda xnp, xlax, x: _stored(xnp, xnp.ones(9)).at[np.array([1, 4, 2, 0])].set(_stored(xnp, x)).astype(xnp.float32),
    "join": lambda xnp, xlax, x: xnp.concatenate([_stored(xnp, x), _stored(xnp, x)]).reshape(2, 4)[:, :2].T.astype(x.dtype),
    "pad": lambda xnp, xlax, x: xnp.pad(_stored(xnp, x), 1).astype(x.dtype),
    "choose": lambda xnp, xlax, x: xlax.cond(x[0] > 1, lambda x: _stored(xnp, x), lambda x: _stored(xnp, 2 * x), x).astype(x.dtype),
    "carry": _last_stored,
    "narrow twice": lambda xnp, xlax, x: _stored(xnp, x).astype(xnp.float8_e5m2).astype(x.dtype),
    "count": lambda xnp, xlax, x: _stored(xnp, x).astype(xnp.int4).astype(x.dtype),
}


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_derivatives_pass_through(kind: str, dtype: str) -> None:
    function, x = DIFFERENTIABLE[kind], np.float32([1.03, 2.2, -3.7, 0.3])
    loss = lambda xnp, xlax: lambda x: function(xnp, xlax, x.astype(dtype)).astype("float32").sum()
    wanted = jax.grad(loss(jnp, jax.lax))(jnp.asarray(x))
    for gradient in (vf.grad(loss(vnp, lax)), vf.jit(vf.grad(loss(vnp, lax))), vf.grad(vf.checkpoint(loss(vnp, lax)))):
        np.testing.assert_array_equal(gradient(vnp.asarray(x)), wanted)
    _, tangent = vf.jvp(loss(vnp, lax), (vnp.asarray(x),), (vnp.ones_like(x),))
    np.testing.assert_allclose(tangent, np.asarray(wanted, np.float32).sum(), rtol=1e-2 if dtype == "bfloat16" else 1e-6)
    batched = vf.vmap(vf.grad(loss(vnp, lax)))(vnp.stack([x, x]))
    np.testing.assert_array_equal(batched[1], wanted)


def test_tangents_are_float32() -> None:
    x = vnp.array([1.03, 2.2])
    rounded = lambda x: x.astype("float8_e5m2")
    cotangent = vnp.array([1.1, 0.3])  # which float8 would round
    assert vf.vjp(rounded, x)[1](cotangent)[0].tolist() == cotangent.tolist()
    assert vf.vjp(rounded, x)[1](rounded(cotangent))[0].tolist() == rounded(cotangent).tolist()
    for tangent in (vf.jvp(rounded, (x,), (cotangent,))[1], vf.linearize(rounded, x)[1](cotangent)):
        assert tangent.dtype == np.float32 and tangent.tolist() == cotangent.tolist()
    widened = lambda x: (x.astype("float32") * cotangent).sum()
    gradient = vf.grad(widened)(rounded(x))
    assert gradient.dtype == np.float32 and gradient.tolist() == cotangent.tolist()
    with pytest.raises(DTypeError, match="int32"):
        vf.vjp(rounded, x)[1](vnp.arange(2))


def test_rules_of_users_have_tangents_of_either_dtype() -> None:
    """Programs for JAX give those of float8."""
    narrow = lambda x: x.astype("float8_e5m2")
    double = vf.custom_vjp(lambda x: x.astype("float32") * 2)
    for convert in (lambda g, x: g, lambda g, x: g.astype(x.dtype)):
        double.defvjp(lambda x: (x.astype("float32") * 2, x), lambda x, g, convert=convert: (convert(g * 2, x),))
        assert vf.grad(lambda x: double(narrow(x)))(3.0) == 2.0
        rounded = vf.custom_jvp(narrow)
        rounded.defjvp(lambda primals, tangents, convert=convert: (narrow(*primals), convert(tangents[0], narrow(*primals))))
        assert vf.grad(lambda x: rounded(x).astype("float32"))(3.0) == 1.0


def test_kinds_and_limits() -> None:
    assert vnp.issubdtype("float8_e5m2", np.floating) and not vnp.issubdtype("int4", np.floating)
    assert vnp.issubdtype("int4", np.signedinteger) and vnp.issubdtype("uint2", np.unsignedinteger)
    assert (vnp.iinfo("int4").min, vnp.iinfo("uint2").max, float(vnp.finfo("float8_e4m3fn").max)) == (-8, 3, 448.0)


def test_programs_name_them_as_jax_does() -> None:
    text = str(vf.make_jaxpr(lambda x: (x.astype("float8_e4m3fn"), x.astype("int4")))(1.0))
    assert ":f8_e4m3fn[]" in text and ":i4[]" in text


def _ties(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 numbers next to all ties between neighbours of a dtype, and those neighbours."""
    count = 1 << (8 * dtype.itemsize if "float8" in dtype.name or dtype.itemsize > 1 else int(dtype.name[5]))
    with np.errstate(invalid="ignore"):
        values = np.arange(count, dtype=f"u{dtype.itemsize}").view(dtype).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    if dtype.name == "float8_e8m0fnu":
        values = values[values >= 2.0**-125]  # below, ml_dtypes rounds float32's subnormal numbers up
    ties = (values[1:] + values[:-1]) / 2
    return np.concatenate([np.nextafter(ties, -np.inf), np.nextafter(ties, np.inf)]), np.concatenate([values[:-1], values[1:]])


@pytest.mark.wide
@pytest.mark.parametrize("name", [*sorted(dtype.name for dtype in dtypes.STORAGE_FLOATS), "float16", "bfloat16"])
def test_float64_is_rounded_once(name: str) -> None:
    numbers, wanted = _ties(dtypes.as_dtype(name))
    convert = lambda x: x.astype(name)
    for actual in (
        convert(vnp.asarray(numbers)),
        vf.jit(convert)(numbers),
        vnp.asarray(numbers, name),
        vnp.asarray(numbers.tolist(), name),
    ):
        np.testing.assert_array_equal(np.asarray(actual).astype(np.float64), wanted)
    for number, rounded in list(zip(numbers.tolist(), wanted.tolist(), strict=True))[:: max(len(numbers) // 50, 1)]:
        assert float(np.asarray(vnp.asarray(number, name))) == rounded


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint64"])
def test_integers_become_bfloat16_by_one_rounding(kind: str) -> None:
    rng, largest = np.random.default_rng(0), int(np.iinfo(kind).max)
    steps = [1 << e for e in range(1, largest.bit_length() - 8)]
    numbers = [int(m) * step + step // 2 + d for step in steps for m in rng.integers(128, 256, 20) for d in (-1, 0, 1)]
    numbers = [n for n in numbers if n <= largest] + [-n for n in numbers if n <= largest and kind[0] == "i"]

    def rounded(n: int) -> float:
        unit = 1 << max(abs(n).bit_length() - 8, 0)
        low, rest = divmod(abs(n), unit)
        return float((low + (2 * rest > unit or (2 * rest == unit and low % 2 == 1))) * unit * (1 if n > 0 else -1))

    x = np.array(numbers, kind)
    for result in (vnp.asarray(x).astype("bfloat16"), vf.jit(lambda x: x.astype("bfloat16"))(x)):
        np.testing.assert_array_equal(np.asarray(result).astype(np.float64), [rounded(n) for n in numbers])


@pytest.mark.wide
def test_float64_becomes_few_bits_by_truncation() -> None:
    np.testing.assert_array_equal(vnp.asarray(np.array([2.9999999999999996, -1.0000000000000002])).astype("int4").astype("int32"), [2, -1])
