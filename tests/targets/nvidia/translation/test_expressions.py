"""Operators, conversions and built-in functions of every type, at the ends of their ranges, against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.targets.nvidia.translation.running import run

#: NumPy's dtypes of WGSL's types.
DTYPES = {
    "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
SUFFIXES = {"i32": "i", "u32": "u", "i64": "li", "u64": "lu", "f16": "h", "f32": "f", "f64": "lf"}
INTEGERS, FLOATS = ("i32", "u32", "i64", "u64"), ("f16", "f32", "f64")
THREADS = 32

_SHADER = """
@group(0) @binding(0) var<storage, read> left: array<{type}>;
@group(0) @binding(1) var<storage, read> right: array<{type}>;
@group(0) @binding(2) var<storage, read> third: array<{type}>;
@group(0) @binding(3) var<storage, read_write> results: array<{result}>;
@compute @workgroup_size({threads}) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  if (id.x >= arrayLength(&left)) {{ return; }}
  let x = left[id.x];
  let y = right[id.x];
  let z = third[id.x];
  {statements}
  results[id.x] = {expression};
}}
"""


def evaluate(expression: str, type_: str, result: str, *operands: np.ndarray, statements: str = "") -> np.ndarray:
    """Return the values of an expression of x, y and z."""
    count = operands[0].size
    padded = [*operands, *[np.zeros(count, DTYPES[type_])] * (3 - len(operands))]
    results = np.zeros(count, DTYPES[result])
    source = _SHADER.format(type=type_, result=result, threads=THREADS, statements=statements, expression=expression)
    run(source, (-(-count // THREADS), 1, 1), [*map(np.ascontiguousarray, padded), results])
    return results


def numbers(type_: str) -> np.ndarray:
    """Special and ordinary numbers of a type."""
    dtype = DTYPES[type_]
    rng = np.random.default_rng(7)
    if type_ in INTEGERS:
        info = np.iinfo(dtype)
        ends = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2 + 1]
        values = {*ends, 0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 65, 255, 65535, *([-1, -2, -3, -7, -100] if info.min else [])}
        drawn = rng.integers(info.min, info.max, 12, dtype, endpoint=True)
        return np.array([*sorted(values), *drawn.tolist()], dtype)
    info = np.finfo(dtype)
    values = [
        0.0, 0.5, 1.0, 1.5, 2.5, 3.5, 0.49999997, 0.75, 3.0, 1e-3, 100.25, 2047.5, float(info.max), float(info.tiny),
        float(info.smallest_subnormal), float(info.tiny) * 0.75, np.inf, 2.0**31, 2.0**32, 2.0**63, 2.0**64, 4294967040.0,
    ]  # fmt: skip
    with np.errstate(over="ignore"):
        drawn = np.concatenate([values, rng.normal(size=6), np.exp2(rng.uniform(-14, 15, 6))]).astype(dtype)
    return np.unique(np.concatenate([drawn, -drawn, [np.nan]]).astype(dtype).view(f"u{dtype().itemsize}")).view(dtype)


def pairs(type_: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of numbers."""
    values = numbers(type_)
    x, y = zip(*itertools.product(values, values), strict=True)
    return np.array(x, values.dtype), np.array(y, values.dtype)


def assert_equal(actual: np.ndarray, expected: np.ndarray, *operands: np.ndarray) -> None:
    """Equal bits, any NaN for any other."""
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype
    same = actual.view(f"u{actual.itemsize}") == expected.view(f"u{actual.itemsize}")
    if actual.dtype.kind == "f":
        same |= np.isnan(actual) & np.isnan(expected)
    wrong = np.flatnonzero(~same)[:5]
    assert not wrong.size, [(*[x[k] for x in operands], "gave", actual[k], "instead of", expected[k]) for k in wrong]


# Operators.


def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x / y toward zero: x where y is 0, or where the quotient is too large."""
    return np.array([_divided(int(a), int(b), x.dtype) for a, b in zip(x, y, strict=True)], x.dtype)


def _divided(a: int, b: int, dtype: np.dtype) -> int:
    result = a if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a if result > np.iinfo(dtype).max else result


def remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x - y (x / y), of the sign of x; 0 where y is 0."""
    pairs_ = zip(x.tolist(), y.tolist(), strict=True)
    return np.array([0 if b == 0 else (abs(a) % abs(b)) * (-1 if a < 0 else 1) for a, b in pairs_], x.dtype)


INTEGER_OPERATORS: dict[str, Callable[..., np.ndarray]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": quotient, "%": remainder,
    "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
}  # fmt: skip
COMPARISONS = {"==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
FLOAT_OPERATORS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


@pytest.mark.parametrize("type_", INTEGERS)
@pytest.mark.parametrize("operator", INTEGER_OPERATORS)
def test_operators_of_integers(operator: str, type_: str) -> None:
    x, y = pairs(type_)
    with np.errstate(all="ignore"):
        assert_equal(evaluate(f"x {operator} y", type_, type_, x, y), INTEGER_OPERATORS[operator](x, y), x, y)


@pytest.mark.parametrize("type_", FLOATS)
@pytest.mark.parametrize("operator", FLOAT_OPERATORS)
def test_operators_of_floats_round_once(operator: str, type_: str) -> None:
    x, y = pairs(type_)
    with np.errstate(all="ignore"):
        assert_equal(evaluate(f"x {operator} y", type_, type_, x, y), FLOAT_OPERATORS[operator](x, y), x, y)


@pytest.mark.parametrize("type_", FLOATS)
def test_remainders_of_floats(type_: str) -> None:
    x, y = pairs(type_)
    with np.errstate(all="ignore"):
        assert_equal(evaluate("x % y", type_, type_, x, y), x - y * np.trunc(x / y), x, y)


@pytest.mark.parametrize("type_", DTYPES)
def test_comparisons(type_: str) -> None:
    x, y = pairs(type_)
    for operator, reference in COMPARISONS.items():
        actual = evaluate("r", type_, "u32", x, y, statements=f"var r = 0u; if (x {operator} y) {{ r = 1u; }}")
        assert_equal(actual, reference(x, y).astype(np.uint32), x, y)


@pytest.mark.parametrize("type_", INTEGERS)
@pytest.mark.parametrize("operator", ["<<", ">>"])
def test_shifts_count_modulo_the_width(operator: str, type_: str) -> None:
    x, y = pairs(type_)
    dtype = DTYPES[type_]
    count = (y.astype(np.uint64) % np.uint64(8 * dtype().itemsize)).astype(dtype)
    expected = np.left_shift(x, count) if operator == "<<" else np.right_shift(x, count)
    assert_equal(evaluate(f"x {operator} u32(y)", type_, type_, x, y), expected, x, y)
    for literal in (0, 1, 31, 32, 33, 64):
        shift = dtype(literal % (8 * dtype().itemsize))
        expected = np.left_shift(x, shift) if operator == "<<" else np.right_shift(x, shift)
        assert_equal(evaluate(f"x {operator} {literal}u", type_, type_, x), expected, x)


@pytest.mark.parametrize("type_", DTYPES)
def test_operators_of_one_operand(type_: str) -> None:
    x = numbers(type_)
    with np.errstate(all="ignore"):
        if type_[0] != "u":
            assert_equal(evaluate("-x", type_, type_, x), -x, x)
        if type_ in INTEGERS:
            assert_equal(evaluate("~x", type_, type_, x), ~x, x)


@pytest.mark.parametrize("type_", ["i32", "u32"])
def test_constants_divide_and_shift_as_variables_do(type_: str) -> None:
    dtype, suffix = DTYPES[type_], SUFFIXES[type_]
    x = numbers(type_)
    for literal in (0, 1, 3, 7, -1) if type_ == "i32" else (0, 1, 3, 7):
        y = np.full_like(x, literal)
        with np.errstate(all="ignore"):
            assert_equal(evaluate(f"x / ({literal}{suffix})", type_, type_, x), quotient(x, y), x)
            assert_equal(evaluate(f"x % ({literal}{suffix})", type_, type_, x), remainder(x, y), x)
    folded = evaluate(f"(7{suffix} * 3{suffix} - 1{suffix}) / 6{suffix} + (1{suffix} << 35u) + 17{suffix} % 5{suffix}", type_, type_, x)
    assert (folded == dtype(13)).all()


# Conversions.


def converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats as integers toward zero, within the range; NaN gives 0."""
    if x.dtype.kind != "f" or dtype.kind == "f":
        return x.astype(dtype)
    info = np.iinfo(dtype)
    exact = [0 if np.isnan(v) else (info.max if v > 0 else info.min) if np.isinf(v) else int(v) for v in x.astype(np.float64)]
    return np.array([min(max(v, info.min), info.max) for v in exact], dtype)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_conversions(source: str, target: str) -> None:
    x = numbers(source)
    with np.errstate(all="ignore"):
        assert_equal(evaluate(f"{target}(x)", source, target, x), converted(x, np.dtype(DTYPES[target])), x)


@pytest.mark.parametrize("type_", FLOATS)
def test_conversions_of_literals_keep_the_sign_of_zero(type_: str) -> None:
    for expression in (f"{type_}(-0.0)", f"vec2<{type_}>(-0.0).y", f"{type_}(-0.0f)", f"vec2<{type_}>(1.0, -0.0).y"):
        assert_equal(evaluate(expression, type_, type_, np.zeros(1, DTYPES[type_])), np.full(1, -0.0, DTYPES[type_]))


@pytest.mark.parametrize(
    ("expression", "type_", "value"),
    [
        ("u32(16777217.0)", "u32", 16777217),
        ("i32(-16777217.75)", "i32", -16777217),
        ("i64(9007199254740991.0)", "i64", (1 << 53) - 1),
        ("u32(-1.0)", "u32", 0),
        ("u32(5e9)", "u32", (1 << 32) - 1),
        ("i32(-3e9)", "i32", -(1 << 31)),
        ("u64(1e30)", "u64", (1 << 64) - 1),
    ],
)
def test_literals_become_integers_without_rounding_to_float32(expression: str, type_: str, value: int) -> None:
    assert evaluate(expression, type_, type_, np.zeros(1, DTYPES[type_])).tolist() == [value]


@pytest.mark.parametrize("type_", DTYPES)
def test_conversions_of_truth_values(type_: str) -> None:
    x, dtype = numbers(type_), DTYPES[type_]
    assert_equal(evaluate(f"{type_}(bool(x))", type_, type_, x), (x != 0).astype(dtype), x)


@pytest.mark.parametrize(
    ("source", "target"), [("f32", "u32"), ("f32", "i32"), ("f64", "u64"), ("i64", "f64"), ("u32", "f32"), ("i32", "u32")]
)
def test_bitcasts(source: str, target: str) -> None:
    x = numbers(source)
    assert_equal(evaluate(f"bitcast<{target}>(x)", source, target, x), x.view(DTYPES[target]), x)


def test_bitcasts_of_vectors() -> None:
    x = numbers("u64")
    low = evaluate("bitcast<vec2<u32>>(x).x", "u64", "u32", x)
    assert_equal(low, x.astype(np.uint32), x)
    assert_equal(
        evaluate("bitcast<u64>(vec2<u32>(u32(x >> 32u), u32(x)))", "u64", "u64", x), (x << np.uint64(32)) | (x >> np.uint64(32)), x
    )


# Built-in functions.


def _least(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where((x == 0) & (y == 0) & np.signbit(x), x, np.fmin(x, y)) if x.dtype.kind == "f" else np.minimum(x, y)


def _greatest(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where((x == 0) & (y == 0) & ~np.signbit(x), x, np.fmax(x, y)) if x.dtype.kind == "f" else np.maximum(x, y)


@pytest.mark.parametrize("type_", DTYPES)
def test_min_max_and_clamp(type_: str) -> None:
    x, y = pairs(type_)
    zeros = (x == 0) & (y == 0)
    for name, reference in (("min", _least), ("max", _greatest)):
        actual, expected = evaluate(f"{name}(x, y)", type_, type_, x, y), reference(x, y)
        assert_equal(actual[~zeros], expected[~zeros], x[~zeros], y[~zeros])
        assert (actual[zeros] == 0).all()
    z = np.roll(y, 5)
    ordinary = ~((x == 0) | (y == 0) | (z == 0))  # zeros of either sign are equal
    actual = evaluate("clamp(x, y, z)", type_, type_, x, y, z)
    assert_equal(actual[ordinary], _least(_greatest(x, y), z)[ordinary], x[ordinary], y[ordinary], z[ordinary])


@pytest.mark.parametrize("type_", FLOATS)
@pytest.mark.parametrize("name", ["abs", "floor", "ceil", "trunc", "round", "sqrt"])
def test_functions_of_floats(name: str, type_: str) -> None:
    x = numbers(type_)
    with np.errstate(all="ignore"):
        expected = getattr(np, "rint" if name == "round" else name)(x)
        assert_equal(evaluate(f"{name}(x)", type_, type_, x), expected, x)


@pytest.mark.parametrize("type_", ["f32", "f64"])
def test_fma_rounds_once(type_: str) -> None:
    x, y = pairs(type_)
    z = np.roll(x, 11)
    ordinary = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
    x, y, z = x[ordinary], y[ordinary], z[ordinary]
    actual = evaluate("fma(x, y, z)", type_, type_, x, y, z)
    for a, b, c, result in zip(x.tolist(), y.tolist(), z.tolist(), actual.tolist(), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if exact and abs(exact) < Fraction(float(np.finfo(DTYPES[type_]).max)):
            assert result == _rounded(exact, type_), (a, b, c)


def _rounded(exact: Fraction, type_: str) -> float:
    """Return the nearest number of a type."""
    value = float(exact)
    if type_ == "f64":
        return value
    near = np.float32(value)
    with np.errstate(over="ignore"):
        candidates = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    finite = [c for c in candidates if np.isfinite(c)]
    return float(min(finite, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint32)) & 1)))


@pytest.mark.parametrize("type_", ["i32", "u32", "i64", "u64"])
def test_functions_of_bits(type_: str) -> None:
    x, dtype = numbers(type_), DTYPES[type_]
    width = 8 * dtype().itemsize
    texts = [format(int(v) & ((1 << width) - 1), f"0{width}b") for v in x]
    references: dict[str, Callable[[str], int]] = {
        "countOneBits": lambda t: t.count("1"),
        "countLeadingZeros": lambda t: len(t) - len(t.lstrip("0")),
        "firstTrailingBit": lambda t: len(t) - len(t.rstrip("0")) if "1" in t else -1,
        "abs": lambda t: abs(int(t, 2) - (1 << width)) if t[0] == "1" and type_[0] == "i" else int(t, 2),
    }
    for name, reference in references.items():
        expected = np.array([reference(t) & ((1 << width) - 1) for t in texts], f"u{width // 8}").view(dtype)
        assert_equal(evaluate(f"{name}(x)", type_, type_, x), expected, x)


@pytest.mark.parametrize("type_", DTYPES)
def test_select_takes_what_the_condition_says(type_: str) -> None:
    x, y = pairs(type_)
    assert_equal(evaluate("select(x, y, x < y)", type_, type_, x, y), np.where(x < y, y, x), x, y)


@pytest.mark.parametrize(
    ("expression", "reference"),
    [
        ("exp(x)", np.exp), ("log2(x)", np.log2),
        ("dot(vec3<f32>(x, 1.0, 2.0), vec3<f32>(x, x, x))", lambda x: x * x + 3 * x),
    ],
)  # fmt: skip
def test_approximate_functions(expression: str, reference: Callable[[np.ndarray], np.ndarray]) -> None:
    x = np.linspace(0.1, 3, 60, dtype=np.float32)
    expected = reference(x.astype(np.float64))
    error = np.abs(evaluate(expression, "f32", "f32", x) - expected)
    assert (error <= 1e-5 * np.abs(expected) + 1e-6).all()


def test_float16_is_rounded_after_each_operation() -> None:
    x = np.linspace(-3, 3, 61).astype(np.float16)
    expected = (x * x).astype(np.float16) + x
    assert_equal(evaluate("x * x + x", "f16", "f16", x), expected, x)


def test_brain_floats_by_their_bits() -> None:
    x = numbers("f32")
    x = x[np.isfinite(x)]
    text = "(bitcast<u32>(x) + 0x7fffu + ((bitcast<u32>(x) >> 16u) & 1u)) >> 16u"
    assert_equal(evaluate(text, "f32", "u32", x), x.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32), x)
