"""The choice of algorithm for a convolution, or a gradient of one."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.contractions import IndexedContraction
from volta_fn.compiler.correlations import Correlation, correlations, of_correlation
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.convolution.narrow import is_narrow, narrow
from volta_fn.targets.wgsl.convolution.winograd import product_of, tiling_of, winograd
from volta_fn.targets.wgsl.library.movement import INVOCATIONS, for_each
from volta_fn.targets.wgsl.matmul.contract import contract, oriented
from volta_fn.targets.wgsl.matmul.results import BufferNumbers
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars import constant, is_supported
from volta_fn.targets.wgsl.scalars.shader import Shader

_UINT32 = np.dtype(np.uint32)

#: Multiplications that keep a GPU busy alone.
_MUCH = 1 << 26


def conv_general_dilated(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of a convolution.

    None for dtypes that the device lacks, and for results without elements.
    """
    problems, dtypes, elements = _canonical(avals, params)
    if not all(is_supported(dtype, capabilities) for dtype in dtypes):
        return None
    algorithm = params.get("algorithm", "auto")
    summed = [c for c in problems if c.taps * c.channels]
    dispatches: list[Dispatch] = [] if summed == problems else [_zeros(dtypes[2], elements[2], capabilities)]
    workspaces: list[int] = []
    for c in summed:
        first = len(avals) + 1 + len(workspaces)
        tiling = tiling_of(c, dtypes, capabilities, wanted=algorithm == "winograd") if algorithm in ("auto", "winograd") else None
        if tiling is not None:
            routine = winograd(tiling, dtypes, capabilities, first)
        elif algorithm == "auto" and is_narrow(c, dtypes[2]):
            routine = Routine((narrow(c, dtypes, capabilities),))
        else:
            contraction, buffers = oriented(of_correlation(c, dtypes, elements))
            routine = contract(contraction, capabilities, buffers._replace(workspace=first), alone=c.products >= _MUCH)
        dispatches += routine.dispatches
        workspaces += routine.workspaces
    return Routine(tuple(dispatches), tuple(workspaces)) if dispatches else None


def _zeros(dtype: np.dtype, size: int, capabilities: TargetCapabilities) -> Dispatch:
    """Write zeros to all results."""
    shader, words = Shader(capabilities, INVOCATIONS), -(-size * dtype.itemsize // 4)
    target = shader.buffer(2, _UINT32, written=True, size=words)
    return for_each(shader, -(-words // 4), lambda four: target.store4(four, [constant(_UINT32, 0)] * 4))


def contractions(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> list[tuple[IndexedContraction, BufferNumbers]]:
    """Return the contractions that make a convolution; none if it has no elements."""
    problems, dtypes, elements = _canonical(avals, params)
    return [oriented(of_correlation(c, dtypes, elements)) for c in problems]


def products_at_points(
    avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities
) -> list[tuple[IndexedContraction, BufferNumbers]]:
    """Return the products at points of correlations that use Winograd's algorithm."""
    problems, dtypes, _ = _canonical(avals, params)
    tilings = [tiling_of(c, dtypes, capabilities, wanted=False) for c in problems]
    return [product_of(tiling, BufferNumbers()) for tiling in tilings if tiling is not None]


class _Canonical(NamedTuple):
    """A convolution as correlations, with the dtypes and sizes of operands and result."""

    problems: list[Correlation]
    dtypes: tuple[np.dtype, np.dtype, np.dtype]
    elements: tuple[int, int, int]


def _canonical(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> _Canonical:
    lhs, rhs = avals
    preferred = params["preferred_element_type"]
    dtype = np.promote_types(lhs.dtype, rhs.dtype) if preferred is None else np.dtype(preferred)
    problems = correlations(lhs.shape, rhs.shape, params)
    size = sum(c.groups * c.images * c.outputs * c.positions for c in problems)
    return _Canonical(problems if size else [], (lhs.dtype, rhs.dtype, dtype), (prod(lhs.shape), prod(rhs.shape), size))
