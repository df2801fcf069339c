"""Correlations of one tap, which are products of matrices: outputs by channels with channels by places, or the other way round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from volta_fn.compiler.contractions.correlation import Correlation
from volta_fn.compiler.contractions.matmul_problem import Operand, Problem, merged
from volta_fn.targets.cpu.matmul.compute_dtype import Working
from volta_fn.targets.cpu.matmul.epilogues import Placed
from volta_fn.targets.cpu.matmul.gemm import Gemm
from volta_fn.targets.cpu.matmul.schedule import schedule
from volta_fn.targets.cpu.matmul.sources import Strided
from volta_fn.targets.cpu.routine import Routine

#: The numbers of the routine's buffers.
_X, _W, _Y, _WORKSPACE = range(4)

#: Vectors of places, of which there should be some if columns are to be places.
_VECTORS = 8


def is_product(c: Correlation, work: Working) -> bool:
    """Whether a correlation is best computed so: one tap, places that are one axis, and lines of places, or else of channels, in memory."""
    (axis, *others) = c.axes
    if others or axis.taps != 1 or not axis.inside or axis.low or axis.stride != 1 or c.y.offset:
        return False
    if _along_places(c):
        return c.x.strides[3] == 1 and axis.places >= _VECTORS * work.lanes
    return c.x.strides[2] == c.y.strides[2] == 1 and 1 in c.w.strides[1:3]


def _along_places(c: Correlation) -> bool:
    return c.y.strides[3] == 1


def product(c: Correlation, work: Working, dtypes: Sequence[np.dtype]) -> Routine:
    """The routine of such a correlation, whose x, w and y are of these dtypes."""
    places, (xs, ws, ys) = c.axes[0].places, (c.x.strides, c.w.strides, c.y.strides)
    if _along_places(c):
        stacks = merged([c.groups, c.images], [xs[:2], (ws[0], 0), ys[:2]])
        (columns,) = merged([places], [xs[3:]])
        rows, rows_y = merged([c.outputs], [[ws[1]], [ys[2]]])
    else:
        stacks = merged([c.groups], [xs[:1], ws[:1], ys[:1]])
        (columns,) = merged([c.outputs], [ws[1:2]])
        rows, rows_y = merged([c.images, places], [(xs[1], xs[3]), (ys[1], ys[3])])
    inner = merged([c.channels], [xs[2:3], ws[2:3]])
    x = Operand(dtypes[0], stacks[0], columns if _along_places(c) else rows, inner[0], c.x.offset)
    w = Operand(dtypes[1], stacks[1], rows if _along_places(c) else columns, inner[1], c.w.offset)
    left, right = (w, _W), (x, _X)
    if not _along_places(c):
        left, right = right, left
    problem = Problem(left[0], right[0], dtypes[2])
    lhs, rhs = Strided(work, *left), Strided(work, *right)
    plan = schedule(work, (problem.batch, problem.m, problem.n, problem.k), lhs.in_place(), rhs.in_place(), lines=lhs.chunk is not None)
    return Gemm(work, plan, lhs, rhs, Placed(work, dtypes[2], stacks[2], rows_y, problem.n, _Y), _WORKSPACE, "convolution").routine()
