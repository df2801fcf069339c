"""Which axes of a grid run at once, as the loops in the program tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.core.jaxpr import ClosedJaxpr, sub_jaxprs
from volta_fn.experimental import pallas as pl

X = vf.ShapeDtypeStruct((8, 6), "float32")
TILE = pl.BlockSpec((2, 3), lambda i, j: (i, j))


def loops(closed: ClosedJaxpr) -> list[int | None]:
    """Return the lengths of all loops of a program; None of those that are unknown."""
    here = [eqn.params.get("length") for eqn in closed.eqns if eqn.primitive.name in ("scan", "while")]
    return here + [n for eqn in closed.eqns for program in sub_jaxprs(eqn.params) for n in loops(program)]


def double(x, o):
    o[...] = 2 * x[...]


def double_where_positive(x, o):
    o[...] = x[...]

    @pl.when(x[0, 0] > 0)
    def _():
        o[...] = 2 * x[...]


def first_rows(x, o):
    o[...] = vf.lax.while_loop(lambda carry: carry[0] <= pl.program_id(0), lambda carry: (carry[0] + 1, carry[1] * 2), (0, x[...]))[1]


def changes_input(x, o):
    x[...] = 2 * x[...]
    o[...] = x[...]


def reads_input_under_condition(x, o):
    o[...] = vf.lax.cond(pl.program_id(1) < 5, lambda: 2 * x[...], lambda: 2 * x[...])


def running(x, o, total):
    total[...] += x[...]
    o[...] = total[...]


def resets_for_rows(x, o, total):
    @pl.when(pl.program_id(1) == 0)
    def _():
        total[...] = vnp.zeros_like(total)

    total[...] += x[...]
    o[...] = total[...]


def prints(x, o):
    pl.debug_print("{}", x[0, 0])
    o[...] = x[...]


SCRATCH = {"scratch_shapes": [pl.ANY((2, 3), "float32")]}
#: The kernel, other options, and the lengths of its loops.
CASES: dict[str, tuple[Callable[..., None], dict[str, Any], list[int | None]]] = {
    "pure": (double, {}, []),
    "block of the data": (double_where_positive, {}, [8]),
    "loop over an index": (first_rows, {}, [4, None]),
    "writes to an input": (changes_input, {}, [8]),
    "condition on an index": (reads_input_under_condition, {}, [2]),
    "scratch that lasts": (running, SCRATCH, [8]),
    "scratch for each row": (resets_for_rows, SCRATCH, [2]),
    "effect": (prints, {}, [8]),
    "one block": (double, {"out_specs": pl.BlockSpec((2, 3), lambda i, j: (0, 0))}, [8]),
    "one column": (double, {"out_specs": pl.BlockSpec((2, 3), lambda i, j: (i, 0))}, [2]),
    "other order": (double, {"in_specs": [pl.BlockSpec((2, 3), lambda i, j: (3 - i, j))]}, []),
}


@pytest.mark.parametrize("name", CASES)
def test_axes_that_run_at_once(name: str) -> None:
    kernel, options, expected = CASES[name]
    f = pl.pallas_call(kernel, X, **{"grid": (4, 2), "in_specs": [TILE], "out_specs": TILE, **options})
    assert loops(vf.make_jaxpr(f)(X)) == expected


def test_products_that_would_take_much_memory_run_one_after_the_other() -> None:
    def kernel(q, k, o):
        o[...] = (q[...] @ k[...].T).sum(1, keepdims=True)

    q = vf.ShapeDtypeStruct((8192, 4), "float32")
    specs = [pl.BlockSpec((128, 4), lambda i: (i, 0)), pl.BlockSpec((8192, 4), lambda i: (0, 0))]
    f = pl.pallas_call(
        kernel, vf.ShapeDtypeStruct((8192, 1), "float32"), grid=64, in_specs=specs, out_specs=pl.BlockSpec((128, 1), lambda i: (i, 0))
    )
    assert loops(vf.make_jaxpr(f)(q, q)) == [64]


def test_an_axis_without_all_blocks_keeps_the_others() -> None:
    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    f = pl.pallas_call(double, X, grid=(2, 2), in_specs=[TILE], out_specs=TILE, input_output_aliases={0: 0})
    np.testing.assert_array_equal(f(x), np.concatenate([2 * x[:4], x[4:]]))
    assert loops(vf.make_jaxpr(f)(X)) == [2]


def test_blocks_on_the_diagonal() -> None:
    x = np.arange(36, dtype=np.float32).reshape(6, 6)
    spec = pl.BlockSpec((2, 2), lambda i: (i, i))
    f = pl.pallas_call(double, vf.ShapeDtypeStruct((6, 6), "float32"), grid=3, in_specs=[spec], out_specs=spec, input_output_aliases={0: 0})
    expected = x.copy()
    for i in range(0, 6, 2):
        expected[i : i + 2, i : i + 2] *= 2
    np.testing.assert_array_equal(f(x), expected)
