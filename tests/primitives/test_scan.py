"""`scan` against Python loops: trees, dtypes, lengths, directions, and what it says about bad arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, LeakedTracerError, ShapeError, TracerBoolError, TreeError


class Pair(NamedTuple):
    left: Any
    right: Any


def loop(f: Any, carry: Any, rows: list[Any], reverse: bool = False) -> tuple[Any, list[Any]]:
    """Compute what a scan means."""
    ys: list[Any] = [None] * len(rows)
    for i in reversed(range(len(rows))) if reverse else range(len(rows)):
        carry, ys[i] = f(carry, rows[i])
    return carry, ys


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 7])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
)
def test_every_dtype_and_length(dtype: str, length: int, reverse: bool) -> None:
    dt = vf.dtypes.as_dtype(dtype)
    rows = (np.arange(3 * length).reshape(length, 3) % 5).astype(dt)
    start = np.array([1, 0, 1]).astype(dt)
    combine: Any = (lambda a, b: a ^ b) if dt == np.bool_ else (lambda a, b: a + b)

    def step(carry: Any, row: Any) -> Any:
        total = combine(carry, row)
        return total, (total, row)

    last, (totals, same) = lax.scan(step, start, rows, reverse=reverse)
    carry, ys = loop(step, start, list(rows), reverse)
    assert last.dtype == totals.dtype == same.dtype == dt
    assert totals.shape == same.shape == rows.shape
    assert (np.asarray(last) == carry).all()
    assert (np.asarray(totals) == np.array([y[0] for y in ys]).reshape(rows.shape)).all()
    assert (np.asarray(same) == rows).all()


@pytest.mark.wide
def test_trees_in_and_out() -> None:
    def step(carry: Any, row: Any) -> Any:
        new = {"n": carry["n"] + 1, "p": Pair(carry["p"].right, carry["p"].left + row[0]), "none": None}
        return new, [row[1]["deep"] * carry["n"], None, (carry["p"].left,)]

    rows = (np.arange(4.0), {"deep": np.arange(8).reshape(4, 2)})
    carry, ys = lax.scan(step, {"n": np.int32(0), "p": Pair(1.0, np.float64(2)), "none": None}, rows)
    assert type(carry["p"]) is Pair and carry["none"] is None and ys[1] is None
    assert int(carry["n"]) == 4
    left, right, lefts = 1.0, 2.0, []
    for x in rows[0]:
        lefts.append(left)
        left, right = right, left + x
    assert (float(carry["p"].left), float(carry["p"].right)) == (left, right)
    assert np.asarray(ys[2][0]).tolist() == lefts
    assert np.asarray(ys[0]).tolist() == [[0, 0], [2, 3], [8, 10], [18, 21]]


def test_length_without_rows() -> None:
    total, ys = lax.scan(lambda c, x: (c + 1, c) if x is None else None, 0, None, length=3)
    assert int(total) == 3 and np.asarray(ys).tolist() == [0, 1, 2]
    assert int(lax.scan(lambda c, _: (c + 1, None), 0, {"nothing": None}, 2)[0]) == 2


def test_parts_of_the_carry_that_other_parts_read_are_not_overwritten_too_early() -> None:
    def step(carry: Any, x: Any) -> Any:
        rows, blocks = carry
        return (rows + x, blocks * 2.0 + rows[:, :, None]), rows * x

    rng = np.random.default_rng(5)
    rows, blocks, xs = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 3), (2, 3, 5), (4, 3)))
    (last_rows, last_blocks), ys = vf.jit(lambda carry, xs: lax.scan(step, carry, xs))((rows, blocks), xs)
    expected = []
    for x in xs:
        (rows, blocks), y = step((rows, blocks), x)
        expected.append(y)
    np.testing.assert_allclose(last_rows, rows, rtol=1e-5)
    np.testing.assert_allclose(last_blocks, blocks, rtol=1e-5)
    np.testing.assert_allclose(ys, np.stack(expected), rtol=1e-5)


@pytest.mark.parametrize("unroll", [1, 3, 100, 0, True, False])
def test_unroll_changes_nothing(unroll: int | bool) -> None:
    xs = np.arange(7, dtype=np.float32)
    last, ys = vf.jit(lambda rows: lax.scan(lambda c, x: (c * 0.5 + x, c), 0.0, rows, unroll=unroll))(xs)
    carry, expected = loop(lambda c, x: (np.float32(c * 0.5 + x), c), np.float32(0), list(xs))
    assert float(last) == carry and np.asarray(ys).tolist() == expected


def test_weak_start_takes_the_dtype_of_a_step() -> None:
    total, ys = lax.scan(lambda c, x: (c + x, c), 0, np.ones(3, np.float16))
    assert total.dtype == ys.dtype == np.float16 and not total.weak_type
    # One part of the carry after the other: the second is known to change only when the first has.
    (a, b), _ = lax.scan(lambda c, x: ((x, c[0] + c[1]), None), (0, 0), np.ones(3, np.float32))
    assert a.dtype == b.dtype == np.float32 and float(b) == 2


@pytest.mark.wide
def test_long_loops_are_linear_programs() -> None:
    """Ten thousand steps, forwards and back; the derivative is one loop forth and one back, whatever the length."""
    xs = np.full(10_000, 1e-4, np.float64)

    def final(rate: Any) -> Any:
        return lax.scan(lambda c, x: (c + c * x * rate, None), np.float64(1), xs)[0]

    value, slope = vf.value_and_grad(final)(np.float64(1.0))
    expected = (1 + 1e-4) ** 10_000
    np.testing.assert_allclose(float(value), expected, rtol=1e-10)
    np.testing.assert_allclose(float(slope), expected / (1 + 1e-4), rtol=1e-10)
    program = vf.jit(vf.grad(final)).lower(np.float64(1.0)).jaxpr
    assert [e.primitive.name for e in program.eqns].count("scan") == 2


@pytest.mark.wide
def test_a_step_may_return_its_inputs() -> None:
    """Outputs never share memory that later steps change."""
    xs = np.arange(6.0).reshape(3, 2)
    (a, b), (seen, rows) = vf.jit(lambda x: lax.scan(lambda c, row: ((c[1], row), (c[0], row)), (x[0] * 0, x[0] - 1), x))(xs)
    assert np.asarray(a).tolist() == [2, 3] and np.asarray(b).tolist() == [4, 5]
    assert np.asarray(seen).tolist() == [[0, 0], [-1, 0], [0, 1]]
    assert np.asarray(rows).tolist() == xs.tolist()


@pytest.mark.wide
def test_closed_over_tracers() -> None:
    """Values of several transforms at once, closed over on several levels."""

    def value(w: Any, v: Any) -> Any:
        def outer(c: Any, x: Any) -> Any:
            return lax.scan(lambda d, y: (d * w + y * v, None), c, x)[0], None

        return lax.scan(outer, v, np.arange(6.0).reshape(3, 2))[0]

    def by_hand(w: float, v: float) -> float:
        c = v
        for y in range(6):
            c = c * w + y * v
        return c

    rows = np.array([0.5, -0.2])
    got = vf.vmap(vf.grad(value), (0, None))(rows, np.float64(1.5))
    h = 1e-6
    np.testing.assert_allclose(got, [(by_hand(w + h, 1.5) - by_hand(w - h, 1.5)) / (2 * h) for w in rows], rtol=1e-7)


MESSAGES = [
    (
        lambda: lax.scan(lambda c, x: (c + x, None), np.int32(0), np.ones(3, np.float32)),
        DTypeError,
        r"i32\[\] at the carry itself .* f32\[\]",
    ),
    (
        lambda: lax.scan(lambda c, x: ({"a": c["a"], "b": [c["a"]]}, None), {"a": np.ones(3), "b": [np.ones(4)]}, np.ones(2)),
        ShapeError,
        r"f64\[4\] at carry\['b'\]\[0\] and returns f64\[3\].*same shape",
    ),
    (lambda: lax.scan(lambda c, x: ((c, c), None), 1.0, np.ones(2)), TreeError, "it takes a leaf of type array and returns a tuple of 2"),
    (
        lambda: lax.scan(lambda c, x: ({"k": {"b": 1.0}}, None), {"k": {"a": 1.0}}, np.ones(2)),
        TreeError,
        r"at carry\['k'\]: it takes a dict with keys \['a'\] and returns a dict with keys \['b'\]",
    ),
    (lambda: lax.scan(lambda c, x: c, 1.0, np.ones(2)), TreeError, "must return a pair"),
    (lambda: lax.scan(lambda c, x: (c, c, c), 1.0, np.ones(2)), TreeError, "must return a pair"),
    (
        lambda: lax.scan(lambda c, x: (c, c), 1.0, (np.ones(3), {"k": np.ones((4, 2))})),
        ShapeError,
        r"xs\[0\]: \(3,\), xs\[1\]\['k'\]: \(4, 2\)",
    ),
    (lambda: lax.scan(lambda c, x: (c, c), 1.0, {"k": 3.0}), ShapeError, r"xs\['k'\] is a scalar"),
    (lambda: lax.scan(lambda c, x: (c, c), 1.0), ArgumentError, "length="),
    (lambda: lax.scan(lambda c, x: (c, c), 1.0, np.ones(3), length=4), ShapeError, "length=4, but the arrays in xs have 3 rows"),
    (lambda: lax.scan(lambda c, x: (c, c), 1.0, None, length=-1), ArgumentError, "negative"),
    (lambda: lax.scan(lambda c, x: (c, c), 1.0, None, length=2.5), ArgumentTypeError, "length must be an integer"),
    (lambda: lax.scan(lambda c, x: (c, c), 1.0, np.ones(3), unroll=-1), ArgumentError, "unroll"),
    (lambda: lax.scan(lambda c, x: (c, "no"), 1.0, np.ones(3)), ArgumentTypeError, "'no'"),
    (lambda: lax.scan(7, 1.0, np.ones(3)), ArgumentTypeError, "scan transforms a function"),
    (lambda: lax.scan(lambda c, x: (c if c > 0 else -c, None), 1.0, np.ones(3)), TracerBoolError, "lax.cond"),
]


@pytest.mark.wide
@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.wide
def test_a_leaked_carry_is_named() -> None:
    retained = []

    def step(carry: Any, row: Any) -> Any:
        retained.append(carry)
        return carry, None

    lax.scan(step, 1.0, np.ones(2))
    with pytest.raises(LeakedTracerError, match=r"'step'.*argument carry"):
        retained[0] + 1
