"""Python's operators on arrays of booleans, compared with JAX."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp

OPERATORS: list[Callable[..., Any]] = [
    operator.add, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.lshift, operator.rshift,
    operator.and_, operator.or_, operator.xor, operator.eq, operator.lt, divmod,
]  # fmt: skip
FUNCTIONS = [
    "left_shift",
    "right_shift",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "floor_divide",
    "mod",
    "remainder",
    "power",
    "divmod",
]
LEFT, RIGHT = np.array([True, True, False, False]), np.array([True, False, True, False])


def agree(ours: Any, theirs: Any) -> None:
    for x, y in zip(vf.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("operation", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
def test_operators_of_booleans(operation: Callable[..., Any], jitted: bool) -> None:
    operands = [(vnp.asarray(LEFT), vnp.asarray(RIGHT), jnp.asarray(LEFT), jnp.asarray(RIGHT))]
    operands += [(vnp.asarray(LEFT), True, jnp.asarray(LEFT), True), (True, vnp.asarray(RIGHT), True, jnp.asarray(RIGHT))]
    operands += [(vnp.asarray(LEFT), RIGHT, jnp.asarray(LEFT), RIGHT)]
    for x, y, theirs_x, theirs_y in operands:
        ours, theirs = (vf.jit(operation), jax.jit(operation)) if jitted else (operation, operation)
        agree(ours(x, y), theirs(theirs_x, theirs_y))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_booleans(name: str) -> None:
    for function in (lambda f: f, vf.jit):
        agree(function(getattr(vnp, name))(vnp.asarray(LEFT), vnp.ones(4, bool)), getattr(jnp, name)(LEFT, np.ones(4, bool)))


def test_absolute_values_and_bits_of_booleans() -> None:
    for function in (lambda f: f, vf.jit):
        agree(function(abs)(vnp.asarray(LEFT)), abs(jnp.asarray(LEFT)))
        agree(function(vnp.bitwise_count)(vnp.asarray(LEFT)), jnp.bitwise_count(LEFT))
    with pytest.raises(vf.errors.DTypeError, match="neg is not defined for bool"):
        _ = -vnp.asarray(LEFT)
    with pytest.raises(vf.errors.DTypeError, match="sub"):
        _ = vnp.asarray(LEFT) - vnp.asarray(RIGHT)
