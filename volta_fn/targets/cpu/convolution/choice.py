"""The maker of routines for `conv_general_dilated`: which algorithm for which shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.compiler.contractions.correlation import Correlation, correlations, fft_is_faster
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.text import Module
from volta_fn.targets.cpu.convolution.direct import DirectWriter, direct
from volta_fn.targets.cpu.convolution.igemm import Igemm
from volta_fn.targets.cpu.convolution.igemm_plan import plan
from volta_fn.targets.cpu.convolution.im2col import LARGEST, Im2col
from volta_fn.targets.cpu.convolution.product import is_product, product
from volta_fn.targets.cpu.convolution.stages import NANOSECONDS, ROOM, Piece, assembled
from volta_fn.targets.cpu.convolution.winograd import Winograd
from volta_fn.targets.cpu.convolution.winograd_schedule import scheme_for, shape_of, time_of
from volta_fn.targets.cpu.convolution.winograd_weight_gradient import WinogradSums, tiling_of
from volta_fn.targets.cpu.convolution.zero_fill import write_zeros
from volta_fn.targets.cpu.matmul.compute_dtype import readable, working
from volta_fn.targets.cpu.routine import Routine

#: Nanoseconds of a cycle, about.
_CYCLE = 1 / 2.7

#: By how much the implicit product takes longer than its multiplications.
_BESIDES = 1.3


def conv_general_dilated(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """The routine of a convolution; None for what is not written here.

    That is: dtypes other than floats, operands or results without elements, and what is computed by Fourier transforms.
    """
    lhs, rhs = avals
    algorithm, preferred = params.get("algorithm", "auto"), params["preferred_element_type"]
    y_dtype = np.promote_types(lhs.dtype, rhs.dtype) if preferred is None else np.dtype(preferred)
    work = working(y_dtype)
    dtypes = (lhs.dtype, rhs.dtype, y_dtype)
    if work is None or work.type not in ("float", "double") or not all(map(readable, dtypes)) or any(d.kind in "iub" for d in dtypes):
        return None
    parts = correlations(lhs.shape, rhs.shape, params)
    if 0 in lhs.shape or 0 in rhs.shape or not parts or any(0 in (c.images, c.places) for c in parts):
        return None
    if algorithm == "fft" or (algorithm == "auto" and any(map(_by_spectra, parts))):
        return None
    if algorithm in ("auto", "igemm") and len(parts) == 1 and is_product(parts[0], work):
        return product(parts[0], work, dtypes)
    module, pieces, workspace = Module(), [], 0
    for number, c in enumerate(parts):
        piece = Piece(f"part{number}", module, c, work, lhs.dtype, rhs.dtype, y_dtype, ROOM // len(parts), workspace)
        if c.taps == 0:
            write_zeros(piece)
        else:
            _write(piece, algorithm)
        workspace = piece.workspace
        pieces.append(piece)
    return assembled(module, pieces, workspace)


def _by_spectra(c: Correlation) -> bool:
    """Whether NumPy's transforms are likely to be faster."""
    x = (c.groups, c.images, c.channels, *(axis.size for axis in c.axes))
    w = (c.groups, c.outputs, c.channels, *(axis.taps for axis in c.axes))
    return fft_is_faster(x, w, (c.groups, c.images, c.outputs, *(axis.places for axis in c.axes)))


def _write(piece: Piece, algorithm: str) -> None:
    """Write one correlation's code, by the algorithm asked for if it serves, or the one that is likely the fastest."""
    c, work = piece.c, piece.work
    scheme, tiling = scheme_for(c, work), tiling_of(c, work)
    way, blocks = direct(c, work, piece.w_dtype), plan(c, work, piece.room)
    times = {"igemm": max(blocks.cycles * _CYCLE, c.products * NANOSECONDS * _BESIDES)}
    if scheme:
        times["winograd"] = time_of(c, scheme)
    if tiling:
        times["winograd sums"] = tiling.nanoseconds
    if way and 1.3 * c.outputs <= -(-c.outputs // work.lanes) * work.lanes:  # else vectors along the outputs are full
        times["direct"] = way.cycles * _CYCLE * 1.2
    candidates = [name for name in times if algorithm == "auto" or name.startswith(algorithm)]
    wanted = min(candidates, key=lambda name: times[name], default=algorithm)
    if wanted == "winograd" and scheme:
        Winograd(piece, shape_of(c, work, scheme)).write()
    elif wanted == "winograd sums" and tiling:
        WinogradSums(piece, tiling).write()
    elif wanted == "direct" and way:
        DirectWriter(piece, way).write()
    elif wanted == "im2col":
        Im2col(piece, plan(c, work, piece.room, LARGEST)).write()
    else:
        Igemm(piece, blocks).write()
