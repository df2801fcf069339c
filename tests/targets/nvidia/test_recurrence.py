"""Scans of recurrent layers as one kernel, by the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.nvidia.emulation import Emulator
from tests.targets.nvidia.planning import AMPERE, HOPPER, NONE
from volta_fn import lax
from volta_fn.compiler.pipeline import optimize
from volta_fn.config import default_matmul_precision
from volta_fn.core.jaxpr import Equation
from volta_fn.core.staging import eval_jaxpr
from volta_fn.targets.nvidia.recurrence import loop_key, routine
from volta_fn.targets.nvidia.recurrence.problem import Recurrence, recurrence_of
from volta_fn.targets.nvidia.recurrence.schedule import Tiling, choose

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TOLERANCES = {"bfloat16": 3e-2, "float16": 4e-3, "float32": 3e-3}


def scans_of(f: Callable[..., Any], *arrays: Any) -> list[tuple[Equation, list[np.ndarray], list[np.ndarray]]]:
    """Return the scans of a function's program, each with its operands and its results by NumPy on the CPU."""
    closed = optimize(vf.jit(f).lower(*arrays).jaxpr)
    scans = [eqn for eqn in closed.eqns if eqn.primitive.name == "scan"]
    variables = [v for eqn in scans for v in (*eqn.invars, *eqn.outvars)]
    values = iter(eval_jaxpr(closed.replace(outvars=variables), *[vnp.asarray(x) for x in vf.tree.leaves(arrays)]))
    return [(eqn, [np.asarray(next(values)) for _ in eqn.invars], [np.asarray(next(values)) for _ in eqn.outvars]) for eqn in scans]


def run(eqn: Equation, operands: list[np.ndarray], tiling: Tiling | None = None) -> list[np.ndarray]:
    """Run the kernel of a scan; its results hold something else before."""
    r = recurrence_of(eqn)
    assert r is not None
    tiling = tiling or choose(r, HOPPER)
    assert tiling is not None
    made = routine(r, tiling, len(eqn.invars), HOPPER)
    results = [np.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
    for result in results:
        result.reshape(-1).view(np.uint8)[:] = 0xAB
    workspaces = [np.full(size, 0 if not number else 0xAB, np.uint8) for number, size in enumerate(made.workspaces)]
    buffers = [*[np.ascontiguousarray(x) for x in operands], *results, *workspaces]
    dispatch = made.dispatches[-1]
    Emulator(dispatch.source).run([buffers[number] for number in dispatch.buffers], dispatch.groups[0])
    return results


def check(f: Callable[..., Any], *arrays: Any, tiling: Tiling | None = None, count: int = 1) -> None:
    """Compare all scans of a function's program with the CPU."""
    scans = scans_of(f, *arrays)
    assert len(scans) == count
    for eqn, operands, expected in scans:
        for result, right in zip(run(eqn, operands, tiling), expected, strict=True):
            scale = max(1.0, float(np.abs(right.astype(np.float64)).max(initial=0)))
            tolerance = TOLERANCES[result.dtype.name] * scale if result.dtype.name in TOLERANCES else 0
            np.testing.assert_allclose(result.astype(np.float64), right.astype(np.float64), rtol=0, atol=tolerance)


def normal(seed: int, *shape: int, dtype: Any = "bfloat16", scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def lstm(w: Any, b: Any, h: Any, c: Any, xs: Any, *, reverse: bool = False) -> Any:
    """An LSTM whose inputs are multiplied already."""

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, g, o = vnp.split(x + h @ w + b, 4, -1)
        c = vf.nn.sigmoid(f) * c + vf.nn.sigmoid(i) * vnp.tanh(g)
        h = vf.nn.sigmoid(o) * vnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (h, c), xs, reverse=reverse)


def lstm_arrays(batch: int, units: int, steps: int, dtype: Any = "bfloat16") -> tuple[np.ndarray, ...]:
    shapes = (units, 4 * units), (4 * units,), (batch, units), (batch, units), (steps, batch, 4 * units)
    return tuple([normal(n, *shape, dtype=dtype, scale=0.5) for n, shape in enumerate(shapes)])


def by_numpy(w: Any, b: Any, h: Any, c: Any, xs: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The LSTM in float64."""
    w, b, h, c, xs = [x.astype(np.float64) for x in (w, b, h, c, xs)]
    sigmoid, hidden = (lambda x: 1 / (1 + np.exp(-x))), []
    for x in xs:
        i, f, g, o = np.split(x + h @ w + b, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        hidden.append(h)
    return h, c, np.array(hidden)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("batch", "units", "steps"), [(3, 32, 3), (20, 16, 2), (1, 48, 4)])
def test_lstm_beside_float64(batch: int, units: int, steps: int, dtype: str) -> None:
    arrays = lstm_arrays(batch, units, steps, dtype)
    with default_matmul_precision("tensorfloat32"):
        ((eqn, operands, _),) = scans_of(lstm, *arrays)
    for result, right in zip(run(eqn, operands), by_numpy(*arrays), strict=True):
        np.testing.assert_allclose(result.astype(np.float64), right, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("tiling", [Tiling(16, 8, 2), Tiling(16, 16, 1), Tiling(32, 8, 2)], ids=str)
def test_tilings(tiling: Tiling) -> None:
    check(lstm, *lstm_arrays(37, 32, 3), tiling=tiling)


def test_backwards_in_time() -> None:
    check(lambda *arrays: lstm(*arrays, reverse=True), *lstm_arrays(4, 16, 5))


def test_a_scan_of_one_iteration() -> None:
    check(lstm, *lstm_arrays(2, 16, 1))
