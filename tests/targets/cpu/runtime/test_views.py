"""Slices of whole rows that are read where they lie: as copies would be, whatever overwrites memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.compiler import pipeline
from volta_fn.targets.cpu.runtime.compile import CONTROL_FLOW, CommandWriter, assemble, loaded_routines
from volta_fn.targets.cpu.runtime.executor import Op
from volta_fn.targets.cpu.target import TARGET

W = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
X = np.ones((2, 4), np.float32)


def views(f: Callable[..., Any], *arguments: Any, donated: bool = False) -> int:
    """Return how many slices a program reads where they lie."""
    program = pipeline.lower(vf.make_jaxpr(f)(*arguments), TARGET)
    writer = CommandWriter(loaded_routines(program), CONTROL_FLOW)
    assemble(program, [donated] * len(program.closed.invars), writer)
    return sum(1 for word in writer.words if word is Op.VIEW)


def product(w: Any, i: Any) -> Any:
    return X @ lax.dynamic_index_in_dim(w, i, 0, keepdims=False).T


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("start", [-1, 0, 3, 4, 9])
def test_starts_are_clamped(start: int, dtype: Any) -> None:
    def rows(w: Any, i: Any) -> Any:
        return lax.dynamic_slice(w, (i, 0, 0), (2, 3, 4)).sum(0)

    first = min(start + 5 if start < 0 else start, 3)
    np.testing.assert_allclose(vf.jit(rows)(W, dtype(start)), W[first : first + 2].sum(0), rtol=1e-6)
    assert views(rows, W, dtype(start)) == 1


def test_rows_that_loops_choose_are_not_copied() -> None:
    def stacked(w: Any, order: Any) -> Any:
        return lax.scan(lambda c, i: (lax.tanh(c + product(w, i)),) * 2, np.zeros((2, 3), np.float32), order)[0]

    order = np.arange(40, dtype=np.int32) % 5
    expected = np.zeros((2, 3))
    for i in order:
        expected = np.tanh(expected + X @ W[i].T)
    np.testing.assert_allclose(vf.jit(stacked)(W, order), expected, rtol=1e-5, atol=1e-5)
    assert views(stacked, W, order, donated=True) == 1  # loops do not overwrite what each iteration reads

    def total(w: Any, n: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + product(w, c[0])), (np.int32(0), vnp.zeros((2, 3))))[1]

    np.testing.assert_allclose(vf.jit(total)(W, np.int32(4)), X @ W[:4].sum(0).T, rtol=1e-5)


def test_memory_that_may_be_overwritten_is_copied() -> None:
    def update(w: Any, i: Any) -> tuple[Any, Any]:
        row = lax.dynamic_index_in_dim(w, i, 0, keepdims=False)
        changed = w.at[i].set(0)
        return changed, row * 2 + changed[0]

    assert views(update, W, np.int32(0), donated=True) == 0
    changed, row = vf.jit(update, donate_argnums=0)(vnp.array(W), np.int32(0))
    np.testing.assert_array_equal(row, W[0] * 2)
    assert not np.asarray(changed)[0].any()

    def carried(w: Any) -> Any:
        def step(w: Any, i: Any) -> tuple[Any, Any]:
            row = lax.dynamic_index_in_dim(w, i, 0, keepdims=False)
            return w.at[i].set(row + w[0]), row

        return lax.scan(step, w, np.arange(5))

    last, rows = vf.jit(carried)(W)
    expected = W.copy()
    for i in range(5):
        np.testing.assert_array_equal(rows[i], expected[i])
        expected[i] = expected[i] + expected[0]
    np.testing.assert_allclose(last, expected, rtol=1e-6)


def test_a_slice_that_is_a_result_is_copied() -> None:
    assert views(lambda w, i: lax.dynamic_index_in_dim(w, i, 0, keepdims=False), W, np.int32(1)) == 0
    row = vf.jit(lambda w, i: lax.dynamic_index_in_dim(w, i, 0, keepdims=False))(W, np.int32(1))
    np.testing.assert_array_equal(row, W[1])
