"""Programs as text: equal for equal programs, different for everything that makes a difference, none where something has no text."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import wrap
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Var
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.primitives.declare import elementwise
from volta_fn.runtime.entries import Fingerprint, fingerprint_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.full((2, 3), 0.5, np.float32)


def text(function: Callable[..., Any], *args: Any, donated: tuple[bool, ...] = (False,)) -> str:
    result = fingerprint_of(vf.make_jaxpr(function)(*args), donated)
    assert result is not None
    return result.text


def both(x: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda x: x, lambda x: -x, x), lax.scan(lambda c, r: (c + r, r), x[0], x)


#: Programs no two of which are equal, in pairs and more that differ in one thing.
DIFFERENT: dict[str, Callable[[], str]] = {
    "sin": lambda: text(jnp.sin, X),
    "donated": lambda: text(jnp.sin, X, donated=(True,)),
    "primitive": lambda: text(jnp.cos, X),
    "shape": lambda: text(jnp.sin, X[0]),
    "dtype": lambda: text(jnp.sin, X.astype(np.float64)),
    "weak type": lambda: text(jnp.sin, 1.0),
    "strong type": lambda: text(jnp.sin, np.float32(1)),
    "literal": lambda: text(lambda x: x * 2.0, X),
    "other literal": lambda: text(lambda x: x * 3.0, X),
    "zero": lambda: text(lambda x: x + 0.0, X),
    "negative zero": lambda: text(lambda x: x + -0.0, X),
    "order of operands": lambda: text(lambda x, y: x - y, X, X),
    "other order": lambda: text(lambda x, y: y - x, X, X),
    "results": lambda: text(lambda x: (x, x + 1), X),
    "other results": lambda: text(lambda x: (x + 1, x), X),
    "parameter": lambda: text(lambda x: x.sum(axis=0), X.reshape(6, 1)),
    "other parameter": lambda: text(lambda x: x.sum(axis=1), X.reshape(6, 1)),
    "constant": lambda: text(lambda x: x + W, X),
    "constant's value": lambda: text(lambda x: x + 2 * W, X),
    "constant's dtype": lambda: text(lambda x: x + W.view(np.int32), X),
    "constant's shape": lambda: text(lambda x: x + W[:1], X),
    "inner programs": lambda: text(both, X),
    "enumeration": lambda: text(lambda x: x.at[jnp.array([9])].get(mode="clip"), X),
    "other member": lambda: text(lambda x: x.at[jnp.array([9])].get(mode="fill"), X),
}


def test_what_makes_a_difference_is_in_the_text() -> None:
    texts = {name: make() for name, make in DIFFERENT.items()}
    for (one, first), (other, second) in itertools.combinations(texts.items(), 2):
        assert first != second, f"{one}, {other}"


@pytest.mark.parametrize("name", DIFFERENT)
def test_equal_programs_have_equal_texts(name: str) -> None:
    assert DIFFERENT[name]() == DIFFERENT[name]()


def test_inner_programs_that_differ() -> None:
    def loop(factor: float) -> str:
        return text(lambda x: lax.scan(lambda c, r: (c * factor, r), x[0], x), X)

    assert loop(2.0) != loop(3.0)
    assert loop(2.0) == loop(2.0)


def with_parameter(value: Any) -> Fingerprint | None:
    """Return the text of a program whose one equation has a parameter."""
    aval = vf.make_jaxpr(jnp.sin)(X).in_avals[0]
    x, y = Var(aval), Var(aval)
    return fingerprint_of(ClosedJaxpr(Jaxpr([], [x], [y], [Equation(PRIMITIVES["sin"], [x], [y], {"p": value})])), [False])


VALUES = [
    None, True, 1, 1.0, 0.0, -0.0, 1j, "1", b"1", "a,b", ("a", "b"), ("a,b",), (), ((),), (1, 2), [1, 2], ((1,), 2),
    np.dtype("float32"), np.dtype(">f4"), np.dtype("bool"), np.dtype(dtypes.bfloat16), np.dtype("V2"),
    np.float32(1), np.float64(1), np.int32(1), float("nan"), float("inf"), lax.GatherScatterMode.CLIP,
]  # fmt: skip


def test_parameters_that_differ_have_different_texts() -> None:
    texts = [with_parameter(value) for value in VALUES]
    assert None not in texts
    assert len({t.text for t in texts if t}) == len(VALUES)


@pytest.mark.parametrize("value", [len, lambda x: x, object(), {1}, {"a": 1}, (1, object()), functools.partial(len)])
def test_what_has_no_text(value: Any) -> None:
    assert with_parameter(value) is None


def test_functions_of_the_user_have_no_text() -> None:
    assert fingerprint_of(vf.make_jaxpr(lambda x: vf.pure_callback(np.sin, x, x))(X), [False]) is None


def test_derivatives_of_the_user_are_no_part_of_a_program() -> None:
    @vf.custom_jvp
    def f(x: Any) -> Any:
        return x * 2

    f.defjvp(lambda primals, tangents: (primals[0] * 2, tangents[0] * 2))
    assert "mul" in text(f, X)


@pytest.mark.parametrize(("evaluate", "has_text"), [(lambda x: x * 2, False), (np.vectorize(abs), False), (np.negative, True)])
def test_what_primitives_of_the_user_do_has_no_text(evaluate: Any, has_text: bool) -> None:
    mine = elementwise("mine", evaluate, operands=dtypes.FLOATS, derivatives=[None])
    try:
        assert (fingerprint_of(vf.make_jaxpr(mine)(X), [False]) is not None) == has_text
    finally:
        del PRIMITIVES["mine"]


def test_formulas_of_the_user_have_no_text() -> None:
    """They become machine code, in place of NumPy's function."""
    mine = elementwise("mine", np.negative, formula=lambda x: -x, operands=dtypes.FLOATS, derivatives=[None])
    try:
        assert fingerprint_of(vf.make_jaxpr(mine)(X), [False]) is None
    finally:
        del PRIMITIVES["mine"]


def test_rules_with_other_values_have_other_texts() -> None:
    texts = []
    for decimals in (1, 2):
        mine = elementwise("mine", functools.partial(np.round, decimals=decimals), operands=dtypes.FLOATS, derivatives=[None])
        try:
            texts.append(text(mine, X))
        finally:
            del PRIMITIVES["mine"]
    assert texts[0] != texts[1]


def test_constants_that_no_compiler_reads_are_numbers() -> None:
    """Those in one buffer have the number of the first, as they are one array for a program."""

    def of(*constants: Any) -> Any:
        return fingerprint_of(vf.make_jaxpr(lambda x: x + constants[0] * constants[1])(X), [False], lambda array: None)

    one, other = vf.device_put(X), vf.device_put(W)
    same = wrap(one.buffer(), one._spec)
    assert of(one, other).text == of(other, one).text != of(one, same).text
    assert of(one, other).unread == {0, 1}
    assert of(one, one).unread == {0}
    assert not fingerprint_of(vf.make_jaxpr(lambda x: x + one)(X), [False]).unread  # type: ignore[union-attr]  # there is one


def test_a_part_of_a_program_has_no_text() -> None:
    closed = vf.make_jaxpr(lambda x: jnp.sin(x) + 1)(X)
    assert fingerprint_of(closed.replace(eqns=closed.eqns[1:]), [False]) is None


def test_constants_are_given_in_order() -> None:
    result = fingerprint_of(vf.make_jaxpr(lambda x: (x + W) * jnp.asarray(X) - W)(X), [False])
    assert result is not None
    assert [np.asarray(c).tolist() for c in result.constants] in ([W.tolist(), X.tolist()], [W.tolist(), X.tolist(), W.tolist()])
