"""Programs of 32-bit values ask for no 64-bit dtype, which not every device has: neither do their constants, whatever NumPy's are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import lax, nn, random
from volta_fn.core.jaxpr import ClosedJaxpr, sub_jaxprs

X = np.arange(12, dtype=np.float32).reshape(4, 3)
PLACES = np.uint32([1, 3])
BEYOND = np.uint32([1, 2**32 - 1])
KEY = random.PRNGKey(0)

#: Functions of 32-bit arrays, and what they give by NumPy.
CALLS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], Any]] = {
    "uint32 places": (lambda x, i: x[i], (X, PLACES), X[[1, 3]]),
    "uint32 places, written": (lambda x, i: x.at[i].add(1), (X, PLACES), X + np.float32([[0], [1], [0], [1]])),
    "uint32 places, outside": (lambda x, i: x.at[i].get(mode="fill", fill_value=-1), (X, BEYOND), np.stack([X[1], np.float32([-1] * 3)])),
    "one uint32 place": (lambda x, i: x[i[1]], (X, PLACES), X[3]),
    "uint32 starts": (lambda x, i: vf.vmap(lambda j: lax.dynamic_slice(x, (j, j), (1, 1)))(i)[:, 0, 0], (X, PLACES), np.float32([4, 11])),
    "uint32 starts, outside": (lambda x, i: lax.dynamic_slice(x, (i[1], 0), (1, 3)), (X, BEYOND), X[3:]),
    "uint32 labels": (lambda x, i: nn.nll_loss(x, i, reduction="none"), (X[:2], np.uint32([2, 0])), np.float32([-2, -3])),
    "uint32 labels, no class": (vf.jit(lambda x, i: nn.nll_loss(x, i, reduction="none")), (X[:2], BEYOND), np.float32([-1, np.nan])),
    "uint32 ramp": (lambda i: vnp.pad(i, (2, 0), mode="linear_ramp"), (np.uint32([2**32 - 2]),), np.uint32([0, 2**31 - 1, 2**32 - 2])),
    "uint32 counted": (lambda i: vnp.bincount(i, length=3), (np.uint32([1, 1, 2**32 - 1]),), np.int32([0, 2, 0])),
    "NumPy's places": (lambda x: vnp.take(x, np.array([3, 0]), 0), (X,), X[[3, 0]]),
    "NumPy's places of each": (
        lambda x: vnp.take_along_axis(x, np.array([[2], [0], [1], [0]]), 1),
        (X,),
        X[range(4), [2, 0, 1, 0]][:, None],
    ),
    "NumPy's repeats": (lambda x: vnp.repeat(x, np.array([0, 2, 0, 1]), 0), (X,), X[[1, 1, 3]]),
    "NumPy's places to delete": (lambda x: vnp.delete(x, np.array([0, 2]), 0), (X,), X[[1, 3]]),
    "NumPy's numbers of known dtype": (lambda x: x + vnp.asarray(np.arange(3.0), x.dtype), (X,), X + np.float32([0, 1, 2])),
    "adaptive windows": (lambda x: nn.AdaptiveAvgPool1d.init(2)(x[None]), (X,), np.stack([X[:, :2].mean(1), X[:, 1:].mean(1)], 1)[None]),
    "wide seed": (lambda: random.key_data(random.key(2**40 + 5)), (), np.uint32([256, 5])),
    "NumPy's seed": (lambda: random.PRNGKey(np.int64(-1)), (), np.uint32([2**32 - 1, 2**32 - 1])),
    "wide number folded in": (lambda: random.fold_in(KEY, 2**32 - 1), (), np.asarray(random.fold_in(KEY, np.uint32(2**32 - 1)))),
    "bound beyond int32": (lambda: random.randint(KEY, (9,), 2**31 - 1, 2**31), (), np.full(9, 2**31 - 1)),
    "positions": (lambda: nn.sinusoidal_positions(np.arange(2), 1)[:, 0], (), np.float32([0, np.sin(1)])),
}


def _programs(closed: ClosedJaxpr) -> Iterator[ClosedJaxpr]:
    yield closed
    for eqn in closed.eqns:
        for inner in sub_jaxprs(eqn.params):
            yield from _programs(inner)


def _dtypes(closed: ClosedJaxpr) -> set[str]:
    """Return the dtypes of every value and constant of a program and of those nested in it."""
    results: set[str] = set()
    for program in _programs(closed):
        values = [v for eqn in program.eqns for v in (*eqn.invars, *eqn.outvars)]
        results |= {v.aval.dtype.name for v in values if hasattr(v.aval, "dtype")} | {c.dtype.name for c in program.consts}
    return results


@pytest.mark.parametrize("name", CALLS)
def test_no_wide_dtype_is_asked_for(name: str) -> None:
    function, args, expected = CALLS[name]
    assert not _dtypes(vf.make_jaxpr(function)(*args)) & {"int64", "uint64", "float64", "complex128"}
    operands = [vnp.asarray(a) for a in args]
    for result in (function(*operands), vf.jit(function)(*operands)):
        np.testing.assert_allclose(result, expected, rtol=1e-6)  # some float32 roundings; seen: none
