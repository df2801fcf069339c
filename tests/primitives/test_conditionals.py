"""`cond` and `switch` against Python's own choices, their messages, and what each transform makes of them."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, TreeError

X = np.array([0.5, -1.5])
BRANCHES = [lambda a, b: a * b, lambda a, b: lax.sin(a) + b, lambda a, b: b * b]


def by_hand(i: int, a: Any, b: Any) -> Any:
    return [a * b, np.sin(a) + b, b * b][i]


@pytest.mark.wide
@pytest.mark.parametrize("transform", [lambda f: f, vf.jit])
def test_only_the_chosen_branch_counts(transform: Any) -> None:
    choose = transform(lambda p, x: lax.cond(p, lambda a: a + 1, lambda a: a * 2, x))
    assert np.asarray(choose(True, X)).tolist() == (X + 1).tolist()
    assert np.asarray(choose(False, X)).tolist() == (X * 2).tolist()


@pytest.mark.parametrize("pred", [2.5, 0, -1, np.float16(0), np.True_, np.uint8(3), 0.0])
def test_numbers_as_predicates(pred: Any) -> None:
    assert int(lax.cond(pred, lambda: 1, lambda: 0)) == bool(pred)


def test_spellings() -> None:
    assert float(lax.cond(False, lambda x: x, lambda x: -x, operand=3.0)) == -3
    assert float(lax.cond(True, 3.0, lambda x: x * 2, 4, lambda x: x * 1.0)) == 6
    assert float(lax.cond(False, 3.0, lambda x: x * 2, (4, 1), lambda xs: xs[0] * 1.0 + xs[1])) == 5
    assert lax.cond(True, lambda x: {"k": (x, None)}, lambda x: {"k": (x, None)}, 1.0)["k"][1] is None
    assert lax.cond(True, lambda x: None, lambda x: None, operand=None) is None
    assert int(lax.switch(1, [lambda x: x, lambda x: -x], operand=4)) == -4
    assert lax.switch(0, [lambda x: x + 1], 4) == 5


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_index_is_clamped(dtype: str) -> None:
    functions = [lambda k=k: k for k in range(300)]
    info = np.iinfo(dtype)
    for index in {0, 1, 127, int(info.min), int(info.max), min(299, int(info.max)), min(300, int(info.max))}:
        assert int(lax.switch(np.array(index, dtype), functions)) == min(max(index, 0), 299)


def test_weak_results() -> None:
    both = lax.cond(True, lambda: 1.0, lambda: 2.0)
    one = lax.cond(True, lambda: 1.0, lambda: np.float32(2.0))
    assert both.weak_type and not one.weak_type and one.dtype == np.float32


@pytest.mark.wide
@pytest.mark.parametrize("index", [0, 1, 2])
def test_derivatives(index: int) -> None:
    def f(a: Any, b: Any) -> Any:
        return lax.reduce_sum(lax.switch(np.int32(index), BRANCHES, a, b), (0,))

    a, b = X, np.array([2.0, 0.3])
    expected = [(b, a), (np.cos(a), np.ones(2)), (np.zeros(2), 2 * b)][index]
    for transform in (lambda g: g, vf.jit):
        got = transform(vf.grad(f, (0, 1)))(a, b)
        np.testing.assert_allclose(got[0], expected[0])
        np.testing.assert_allclose(got[1], expected[1])
    _, rate = vf.jvp(f, (a, b), (X * 3, X))
    np.testing.assert_allclose(rate, (expected[0] * X * 3 + expected[1] * X).sum())


@pytest.mark.wide
def test_residuals_of_branches_share_memory() -> None:
    """Branches need different values on the way back; those of one type use one slot."""

    def f(i: Any, x: Any) -> Any:
        return lax.reduce_sum(lax.switch(i, [lambda v: lax.exp(lax.sin(v)), lambda v: lax.exp(lax.cos(v)), lambda v: v * 2], x), (0,))

    for index, slope in enumerate([np.cos(X) * np.exp(np.sin(X)), -np.sin(X) * np.exp(np.cos(X)), np.full(2, 2.0)]):
        np.testing.assert_allclose(vf.jit(vf.grad(f, 1))(index, X), slope)
    program = vf.jit(vf.grad(f, 1)).lower(0, X).jaxpr
    forward = next(e for e in program.eqns if e.primitive.name == "cond")
    assert len(forward.outvars) == 1 + 2


@pytest.mark.wide
def test_every_way_of_mapping() -> None:
    index, a, b = np.array([0, 2, 1, 7]), np.random.default_rng(0).normal(size=(4, 2)), np.arange(8.0).reshape(4, 2)
    for axes in itertools.product((None, 0), repeat=3):
        if axes == (None, None, None):
            continue
        operands = [x if axis == 0 else x[1] for x, axis in zip((index, a, b), axes, strict=True)]
        got = vf.vmap(lambda i, x, y: lax.switch(i, BRANCHES, x, y), axes)(*operands)
        rows = [[x[k] if axis == 0 else x[1] for x, axis in zip((index, a, b), axes, strict=True)] for k in range(4)]
        np.testing.assert_allclose(got, [by_hand(min(int(i), 2), x, y) for i, x, y in rows])
    mixed = vf.vmap(lambda p, x: lax.cond(p, lambda v: (v, 1.0), lambda v: (v * 0, 2.0), x))(np.array([True, False, True]), np.arange(3.0))
    assert np.asarray(mixed[0]).tolist() == [0, 0, 2] and np.asarray(mixed[1]).tolist() == [1, 2, 1]


MESSAGES = [
    (lambda: lax.cond(np.ones(2), lambda: 1, lambda: 2), ShapeError, r"pred must be a scalar, got f64\[2\]"),
    (lambda: lax.cond(True, lambda: 1, 2), ArgumentTypeError, "cond"),
    (lambda: lax.cond(True, lambda x: x, lambda x: x, 1, operand=2), ArgumentError, "not both"),
    (lambda: lax.cond(True, lambda: 1.0, lambda: 1), DTypeError, r"false_fun .* and true_fun .* same dtypes.*i32\[\] and f32\[\].*astype"),
    (
        lambda: lax.cond(True, lambda x: {"a": [x]}, lambda x: {"a": [x[None]]}, np.ones(2)),
        ShapeError,
        r"at \['a'\]\[0\]: f64\[1,2\] and f64\[2\]",
    ),
    (lambda: lax.cond(True, lambda x: {"a": x}, lambda x: {"b": x}, 1), TreeError, r"keys \['b'\] and a dict with keys \['a'\]"),
    (lambda: lax.cond(True, lambda x: (x, 1), lambda x: x, 1), TreeError, "a leaf of type array and a tuple of 2"),
    (lambda: lax.switch(1.0, [lambda: 1, lambda: 2]), DTypeError, "index must be an integer"),
    (lambda: lax.switch(True, [lambda: 1, lambda: 2]), DTypeError, "index must be an integer"),
    (lambda: lax.switch(np.ones(2, int), [lambda: 1, lambda: 2]), ShapeError, "index must be a scalar"),
    (lambda: lax.switch(0, []), ArgumentError, "no branches"),
    (lambda: lax.switch(0, [lambda: 1, lambda: 1, lambda: np.ones(3, np.int32)]), ShapeError, r"branches\[0\] .* and branches\[2\]"),
]


@pytest.mark.wide
@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_branches_that_an_example_does_not_take_leave_no_nan() -> None:
    safe = lambda x: lax.cond(x < 1e-3, lambda: 1e-3, lambda: vf.numpy.sqrt(x))
    x = np.array([0.0, 4.0], np.float32)
    total = lambda x: vf.vmap(safe)(x).sum()
    for gradient in (vf.grad(total), vf.jit(vf.grad(total)), vf.vmap(vf.grad(safe))):
        np.testing.assert_array_equal(gradient(x), [0.0, 0.25])
    program = vf.jit(vf.vmap(safe)).lower(x).simplified
    assert [eqn.primitive.name for eqn in program.eqns].count("select_n") == 1  # nothing is paid for it


@pytest.mark.parametrize("branch", [0, 1])
def test_weak_types_are_the_first_branchs_as_in_jax(branch: int) -> None:
    def output(ja: Any) -> list[bool]:
        firm, weak = ja.numpy.ones(()), ja.numpy.asarray(1.0)
        calls = [[lambda: firm, lambda: weak], [lambda: weak, lambda: firm], [lambda: weak, lambda: weak * 1]]
        return [
            result.weak_type
            for c in calls
            for result in (ja.lax.switch(branch, c), ja.lax.cond(bool(branch), *c), ja.jit(lambda c=c: ja.lax.switch(branch, c))())
        ]

    assert output(vf) == output(jax)
