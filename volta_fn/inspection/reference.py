"""An equation in 64-bit floats, and how far from it a narrower dtype may be.

What rounding explains is found by rounding the operands: at random by one unit in the last digit, several times. A result that differs by
many times the largest such change is wrong. Sums lose digits to cancellation, so what they add up counts with its absolute values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.jit.eager import PIPELINE
from volta_fn.runtime.internals.errstate import silenced
from volta_fn.targets.numpy.backend import make_kernel

#: Primitives whose results depend on the dtype itself, or that are exact in it; they are computed in it.
IN_OWN_DTYPE = frozenset(
    {
        "convert_element_type", "bitcast_convert_type", "nextafter", "reduce_precision", "iota", "random_bits", "random_seed",
        "random_wrap", "random_unwrap", "rng_uniform",
    }
)  # fmt: skip
#: Primitives that add up products of their operands.
SUMS = frozenset(
    {"reduce_sum", "dot_general", "conv_general_dilated", "cumsum", "reduce_window_sum", "add", "sub", "scatter_add", "fft",
     "select_and_scatter_add", "add_any"}
)  # fmt: skip
#: Rounded operands that are tried, and how many times what they change may be missing.
_TRIES, _FACTOR = 3, 32.0


class Expected(NamedTuple):
    """A result as it should be, and how far it may be off, element by element.

    `tolerance` is None for results that are exact.
    """

    values: np.ndarray
    tolerance: np.ndarray | None


def expected(eqn: Equation, operands: Sequence[np.ndarray]) -> list[Expected]:
    """Return what an equation gives in 64 bits for these operands.

    Raises whatever NumPy's function raises if there is none for such operands.
    """
    own = evaluate(eqn, operands, [v.aval.dtype for v in eqn.invars])
    inexact = [v.aval.dtype in dtypes.INEXACT for v in eqn.outvars]
    if not any(inexact) or eqn.primitive.name in IN_OWN_DTYPE:
        return [
            Expected(np.asarray(value), _one_unit(np.asarray(value)) if rounded else None)
            for value, rounded in zip(own, inexact, strict=True)
        ]
    wide = [wide_dtype(v.aval.dtype) for v in eqn.invars]
    values = evaluate(eqn, operands, wide)
    spread = _spread(eqn, operands, wide, values)
    found = []
    for own_value, value, v, change, rounded in zip(own, values, eqn.outvars, spread, inexact, strict=True):
        if not rounded:
            found.append(Expected(np.asarray(own_value), None))
            continue
        step = epsilon(v.aval.dtype, operands)
        with np.errstate(all="ignore"):
            tolerance = _FACTOR * (change + step * np.abs(value)) + 4 * smallest(v.aval.dtype)
        found.append(Expected(np.asarray(value), np.asarray(tolerance)))
    return found


def evaluate(eqn: Equation, operands: Sequence[np.ndarray], wanted: Sequence[np.dtype]) -> list[np.ndarray]:
    """Return what NumPy's function of an equation gives for operands of these dtypes."""
    given = [np.asarray(x).astype(dtype, copy=False) for x, dtype in zip(operands, wanted, strict=True)]
    avals = tuple([ShapedArray(x.shape, x.dtype) for x in given])
    params = eqn.params
    if params.get("preferred_element_type") is not None and any(d in (np.float64, np.complex128) for d in wanted):
        params = params | {"preferred_element_type": None}
    compute = silenced(make_kernel(eqn.primitive, avals, params, PIPELINE))
    results = compute(*given)
    return [np.asarray(r) for r in (results if eqn.primitive.multiple_results else (results,))]


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of 64-bit floats for inexact numbers; other dtypes stay."""
    if dtype in dtypes.COMPLEX:
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if dtype in dtypes.INEXACT else dtype


def _spread(eqn: Equation, operands: Sequence[np.ndarray], wide: Sequence[np.dtype], values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the largest changes of the results when the operands are rounded."""
    rng = np.random.default_rng(0)
    changes = [np.zeros(value.shape) for value in values]
    with np.errstate(all="ignore"):
        for _ in range(_TRIES):
            moved = [_rounded(x, dtype, rng) for x, dtype in zip(operands, wide, strict=True)]
            for change, other, value in zip(changes, evaluate(eqn, moved, wide), values, strict=True):
                if other.dtype in dtypes.INEXACT:
                    np.fmax(change, np.abs(other - value), out=change)
        if eqn.primitive.name in SUMS:
            absolute = absolute_operands(eqn.primitive.name, operands, wide)
            step = max([epsilon(x.dtype, operands) for x in operands if x.dtype in dtypes.INEXACT], default=0.0)
            for change, total in zip(changes, evaluate(eqn, absolute, wide), strict=True):
                change += step * np.abs(total)
    return [np.where(np.isfinite(change), change, 0.0) for change in changes]


def absolute_operands(name: str, operands: Sequence[np.ndarray], wide: Sequence[np.dtype]) -> list[np.ndarray]:
    """Return operands for which a sum adds up absolute values."""
    absolute = [np.abs(x.astype(d)) if d in dtypes.INEXACT and x.dtype.kind != "c" else x for x, d in zip(operands, wide, strict=True)]
    if name == "sub":
        absolute[1] = -absolute[1]
    return absolute


def _rounded(x: np.ndarray, dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    if dtype not in dtypes.INEXACT:
        return x
    return x.astype(dtype) * (1 + epsilon(x.dtype, [x]) * rng.choice([-1.0, 1.0], x.shape))


def epsilon(dtype: np.dtype, operands: Sequence[np.ndarray]) -> float:
    """Return the rounding of the coarsest dtype that is involved."""
    kinds = [d for d in (dtype, *[x.dtype for x in operands]) if d in dtypes.INEXACT]
    return max([float(dtypes.finfo(d).eps) for d in kinds], default=0.0)


def smallest(dtype: np.dtype) -> float:
    """Return the smallest normal number of a dtype."""
    return float(dtypes.finfo(dtype).tiny)


def _one_unit(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = np.abs(values.astype(wide_dtype(values.dtype)))
        return np.asarray(np.where(np.isfinite(wide), wide, 0.0) * float(dtypes.finfo(values.dtype).eps) + smallest(values.dtype))


def excess(result: np.ndarray, wanted: Expected) -> tuple[int, float] | None:
    """Return where a result is off the most, and how far; None if it is right.

    The distance is in tolerances.
    """
    if not result.size:
        return None
    if wanted.tolerance is None:
        wrong = result != wanted.values
        return (int(np.argmax(wrong)), float("inf")) if np.any(wrong) else None
    kind = np.complex128 if result.dtype in dtypes.COMPLEX else np.float64
    with np.errstate(all="ignore"):
        mine, right = result.astype(kind), wanted.values.astype(kind)
        off = np.abs(mine - right) / wanted.tolerance
        same = (mine == right) | (np.isnan(mine) & np.isnan(right))
        if result.dtype in dtypes.INEXACT:
            same |= ~np.isfinite(mine) & _overflows(right, wanted.tolerance, result.dtype)
    off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
    worst = int(np.argmax(off))
    return (worst, float(off.reshape(-1)[worst])) if off.reshape(-1)[worst] > 1 else None


def _overflows(right: np.ndarray, tolerance: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return where a number is too large for a dtype, or is when it is rounded."""
    return np.asarray(~(np.abs(right) + tolerance < float(dtypes.finfo(dtype).max)))
