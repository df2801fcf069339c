"""Indices out of range raise eagerly, and in programs if the user asks for checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn
from volta_fn.errors import OutOfBoundsError

X = jnp.arange(3.0)
TABLE = nn.Embedding.init(vf.random.key(0), 3, 2)
LOGITS = jnp.ones((1, 3))

#: Functions of indices, and what a program gives for the index 7 without checks.
LOOKUPS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "x[i]": (lambda i: X[i], [2.0]),
    "x[i[0]]": (lambda i: X[i[0]], 2.0),
    "take": (lambda i: jnp.take(X, i), [np.nan]),
    "take_along_axis": (lambda i: jnp.take_along_axis(X, i, 0), [np.nan]),
    "take_along_axis, broadcast": (lambda i: jnp.take_along_axis(jnp.stack([X, X]), i[None], 1), [[np.nan], [np.nan]]),
    "at set": (lambda i: X.at[i].set(5.0), [0.0, 1.0, 2.0]),
    "at add": (lambda i: X.at[i].add(5.0), [0.0, 1.0, 2.0]),
    "at get": (lambda i: X.at[i].get(), [2.0]),
    "Embedding": (TABLE, [[np.nan, np.nan]]),
    "cross_entropy": (lambda i: nn.cross_entropy(LOGITS, i), np.nan),
    "nll_loss": (lambda i: nn.nll_loss(LOGITS, i), np.nan),
    "multi_margin_loss": (lambda i: nn.multi_margin_loss(LOGITS, i), np.nan),
    "in a loop": (lambda i: lax.scan(lambda c, j: (c, X[j]), 0.0, i)[1], [2.0]),
    "mapped": (lambda i: vf.vmap(lambda j: X[j])(i), [2.0]),
}
#: Those whose loops and maps trace even an eager call.
TRACED = {"in a loop", "mapped"}
INSIDE, OUTSIDE = jnp.array([2]), jnp.array([7])


@pytest.mark.parametrize("name", [name for name in LOOKUPS if name not in TRACED])
def test_eager_calls_raise(name: str) -> None:
    function, _ = LOOKUPS[name]
    for index in (OUTSIDE, jnp.array([-9])):
        with pytest.raises(OutOfBoundsError, match=str(index[0])):
            function(index)
        with pytest.raises(IndexError):
            vf.grad(lambda scale: (function(index) * scale).sum())(2.0)
    function(INSIDE)


@pytest.mark.parametrize("name", LOOKUPS)
def test_programs_behave_as_documented(name: str) -> None:
    function, expected = LOOKUPS[name]
    np.testing.assert_array_equal(vf.jit(function)(OUTSIDE), expected)


@pytest.mark.parametrize("name", LOOKUPS)
def test_checked_programs_raise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_CHECK_INDICES", "1")
    function, _ = LOOKUPS[name]
    checked = vf.jit(lambda i: function(i))
    np.testing.assert_array_equal(checked(INSIDE), function(INSIDE))
    for index in (7, -9):
        with pytest.raises(OutOfBoundsError, match=rf"{index}\b"):
            checked(jnp.array([index]))


def test_a_checked_error_has_the_position_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_CHECK_INDICES", "1")
    number = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]  # CPython has frames
    checked = vf.jit(lambda i: X[i])
    with pytest.raises(OutOfBoundsError) as raised:
        checked(9)
    assert raised.value.location is not None
    assert (raised.value.location.file, raised.value.location.lineno) == (__file__, number)


@pytest.mark.parametrize("checks", ["0", "1"])
def test_modes_and_ignored_labels_are_no_errors(checks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_CHECK_INDICES", checks)
    for transform in (vf.jit, lambda f: f):
        np.testing.assert_array_equal(transform(lambda i: jnp.take(X, i, mode="clip"))(OUTSIDE), [2.0])
        np.testing.assert_array_equal(transform(lambda i: X.at[i].get(mode="fill", fill_value=-1.0))(OUTSIDE), [-1.0])
        np.testing.assert_array_equal(transform(lambda i: X.at[i].set(1.0, mode="drop"))(OUTSIDE), X)
        labels = jnp.array([0, -100])
        np.testing.assert_allclose(transform(lambda i: nn.cross_entropy(jnp.ones((2, 3)), i))(labels), np.log(3), rtol=1e-6)
        np.testing.assert_allclose(transform(lambda i: nn.cross_entropy(jnp.ones((2, 3)), i + 9, ignore_index=9))(labels * 0), np.nan)
