"""Equal equations become one; what only looks equal does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.compiler.passes.common import names, passed, rewriting, special, untouched
from volta_fn import lax
from volta_fn.compiler.passes.simplify import MERGING

merge_equal = rewriting(*MERGING)

X, Y = special(np.float32), special(np.float32)[::-1].copy()


def test_equal_equations_merge_through_chains() -> None:
    assert names(passed(merge_equal, lambda x: lax.sin(x * 2.0) + lax.sin(x * 2.0), X)) == ["mul", "sin", "add"]
    assert names(passed(merge_equal, lambda x: (lax.reduce_sum(x, (0,)), lax.reduce_sum(x, (0,))), X)) == ["reduce_sum"]
    assert names(passed(merge_equal, lambda x: lax.top_k(x, 2) + lax.top_k(x, 2), np.arange(4.0))) == ["top_k"]


def test_operands_of_sums_and_products_change_places() -> None:
    assert names(passed(merge_equal, lambda x, y: (x + y, y + x, x * y, y * x), X, Y)) == ["add", "mul"]
    untouched(merge_equal, lambda x, y: (x - y, y - x, lax.max(x, y), lax.max(y, x)), X, Y)
    z = special(np.complex64)
    untouched(merge_equal, lambda x, y: (x * y, y * x), z, z[::-1].copy())


def test_zeros_of_both_signs_and_values_of_other_dtypes_differ() -> None:
    untouched(merge_equal, lambda x: (lax.max(x, np.float32(0.0)), lax.max(x, np.float32(-0.0))), X)
    untouched(merge_equal, lambda x: (lax.convert_element_type(x, "int32"), lax.convert_element_type(x, "float64")), X)
    assert names(passed(merge_equal, lambda x: (x + np.float32(np.nan), x + np.float32(np.nan)), X)) == ["add"]
    untouched(merge_equal, lambda x: (lax.reduce_sum(x, (0,)), lax.reduce_sum(x, (1,))), np.ones((2, 2), np.float32))


def test_effects_barriers_and_callbacks_are_not_merged() -> None:
    def noisy(x: Any) -> Any:
        vf.debug.callback(lambda v: None, x)
        vf.debug.callback(lambda v: None, x)
        return x

    untouched(merge_equal, noisy, X)
    untouched(merge_equal, lambda x: lax.optimization_barrier(x) + lax.optimization_barrier(x), X)


def test_random_bits_are_pure() -> None:
    sample = lambda key: vf.random.normal(key, (3,)) - vf.random.normal(key, (3,))
    assert names(passed(merge_equal, sample, vf.random.PRNGKey(0))).count("random_bits") == 1


def test_checkpoint_computes_again() -> None:
    """A merge across its barrier would keep what it is there to forget."""
    function = vf.grad(lambda x: vf.checkpoint(lambda x: lax.sin(lax.sin(lax.sin(x))))(x))
    plan = vf.jit(function).lower(np.float32(1.0)).numpy_plan
    assert [s.eqn.primitive.name for s in plan.steps].count("sin") >= 2


@pytest.mark.parametrize("merged", [True, False])
def test_control_flow_merges_with_the_same_body(merged: bool) -> None:
    def step(carry: Any, _: Any) -> Any:
        return carry * 2.0, None

    other = step if merged else (lambda carry, _: (carry * 2.0, None))
    twice = lambda x: (lax.scan(step, x, None, 3)[0], lax.scan(other, x, None, 3)[0])
    assert names(passed(merge_equal, twice, X)) == ["scan"] * (1 if merged else 2)
