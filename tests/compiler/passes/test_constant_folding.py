"""Constants are computed while compiling, if they are small."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.passes.common import names, passed, rewriting, same_bits, untouched
from volta_fn import lax
from volta_fn.compiler.passes.simplify import FOLDING

fold_constants = rewriting(*FOLDING)

X = np.arange(4, dtype=np.float32)
TABLE = np.float32([1.0, -0.0, np.inf, np.nan])


def test_scalars_become_literals_and_arrays_constants() -> None:
    after = passed(fold_constants, lambda x: x * lax.sin(np.float32(2)) + lax.exp(TABLE), X)
    assert names(after) == ["mul", "add"]
    same_bits(after.eqns[0].invars[1].val, lax.sin(np.float32(2)))  # type: ignore[union-attr]  # it is a literal
    same_bits(after.consts[-1], lax.exp(TABLE))


def test_chains_fold_whole() -> None:
    def chain(x: Any) -> Any:
        c: Any = TABLE
        for _ in range(20):
            c = lax.sin(c) * 2.0
        return x + c

    assert names(passed(fold_constants, chain, X)) == ["add"]


def test_outputs_may_be_constants() -> None:
    after = passed(fold_constants, lambda x: (lax.neg(np.int8(-128)), lax.neg(TABLE), x), X)
    assert names(after) == []


def test_results_of_several_values_fold() -> None:
    key = vf.random.key(3)
    after = passed(fold_constants, lambda x: x + vf.random.normal(key, (4,)), X)
    assert "random_bits" not in names(after)
    assert names(passed(fold_constants, lambda x: x + jnp.linalg.qr(jnp.ones((4, 4)) + 0)[0], X))[-1] == "add"


def test_what_is_large_effectful_or_the_users_stays() -> None:
    large = jnp.ones((70000,))
    untouched(fold_constants, lambda x: x + lax.reduce_sum(large, (0,)), X)
    untouched(fold_constants, lambda x: x + lax.broadcast_in_dim(TABLE, (1000, 4), (1,)), X)
    untouched(fold_constants, lambda x: (vf.pure_callback(np.sin, TABLE, TABLE), x), X)
    untouched(fold_constants, lambda x: (vf.debug.callback(lambda v: None, TABLE), x)[1], X)
    untouched(fold_constants, lambda x: lax.optimization_barrier(TABLE) + x, X)
    untouched(fold_constants, lambda x: lax.sin(x), X)


def test_a_program_keeps_its_own_constants_after_folding() -> None:
    table = jnp.array(TABLE)
    f = vf.jit(lambda: (table * 2.0, table * 2.0))
    first, second = f()
    g = vf.jit(lambda a, b: (a + 1.0, b + 1.0), donate_argnums=(0, 1))
    g(first, second)
    same_bits(f()[0], table * 2.0)
