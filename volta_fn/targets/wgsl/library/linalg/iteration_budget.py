"""Upper bounds on an invocation's loop iterations in each factorisation.

See `TargetCapabilities.iterations`. Loops that invocations divide have as many iterations as one of them gets (`_share`), and each loop
that is begun has one more, in which it ends; sums over a triangle are half a square.
"""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.targets.wgsl.library.linalg.rotations import SEVERAL, SWEEPS, lanes
from volta_fn.targets.wgsl.library.linalg.shader_templates import invocations

#: Multiplications that a GPU would do otherwise in an iteration of a workgroup, which mostly waits for memory.
_MULTIPLICATIONS = 1 << 14

#: Iterations of a reduction over a workgroup.
_TOGETHER = 11


def work(matrices: int, count: int) -> int:
    """Return iterations for each matrix as multiplications: see `Dispatch.work`."""
    return matrices * count * _MULTIPLICATIONS


def _share(count: int, work: int) -> int:
    return -(-count // invocations(work))


def of_cholesky(n: int) -> int:
    """Return the bound for n columns, each computed from those before it."""
    return n * (4 + _share(n, n) * (3 + n // 2)) + _share(n * n, n) + 2


def of_triangular_solve(n: int, columns: int) -> int:
    """Return the bound for n unknowns, each eliminated from later ones."""
    work = n * columns
    return 3 * n + _share(work, work) * (1 + n // 2) + 2


def of_lu(m: int, n: int) -> int:
    """Return the bound for columns with pivots, each eliminated from later ones."""
    work, rank = max(m, n), min(m, n)
    column = 6 + _TOGETHER + 2 * _share(m, work) + _share(n, work)
    return _share(m * n, work) * (1 + rank // 2) + _share(m, work) + rank * column + 3


def of_qr(m: int, n: int, wide: int) -> int:
    """Return the bound for reflections of later columns and of Q's `wide` ones."""
    work, rank = max(m, n), min(m, n)
    column = 6 + 2 * _TOGETHER + 3 * _share(m, work)
    reflected = rank * (2 * m - rank + 4) * (_share(n, work) + _share(wide, work))
    return _share(m * (n + wide), work) + _share(wide * n, work) + rank * column + reflected + 6


#: Iterations from which on each sweep is a dispatch of its own.
_MANY = 1 << 15


class Iterations(NamedTuple):
    """The iterations before sweeps, of one sweep, and after them."""

    before: int
    sweep: int
    after: int

    @property
    def are_many(self) -> bool:
        """True if several dispatches should share them."""
        return self.before + SWEEPS * self.sweep + self.after > _MANY

    @property
    def of_a_dispatch(self) -> int:
        """The most iterations of one dispatch."""
        return max(self) + _TOGETHER if self.are_many else self.before + SWEEPS * self.sweep + self.after


def _of_sweep(n: int, step: int) -> int:
    return 2 + _TOGETHER + (n + n % 2) * (1 + step)


def _of_rotations(rows: int, shared: int) -> int:
    """Return the bound for a loop over the rows of two columns that lanes share."""
    several = max(min(SEVERAL, -(-rows // shared)), 1)
    return 1 + -(-rows // (shared * several))


def of_eigh(n: int) -> Iterations:
    """Return the bounds for rotations of rows and columns, and for sorting."""
    pairs = (n + 1) // 2
    sweep = _of_sweep(n, 1 + 2 * _of_rotations(n, lanes(n, invocations(n))) + _share(pairs * n, n))
    return Iterations(3 * _share(n * n, n) + 2 * _TOGETHER + 3, sweep, 2 * (n + 2) * _share(n, n) + 2)


def of_svd(m: int, n: int, wide: int) -> Iterations:
    """Return the bounds for rotations of n columns of at most m rows, and the rest.

    That is sorting the columns, and completing them to `wide` ones (0: no vectors).
    """
    shared = lanes(n, invocations(m))
    products = 2 + -(-m // shared) + shared
    sweep = _of_sweep(n, products + _of_rotations(m, shared) + _of_rotations(n, shared))
    column = 6 + 2 * _TOGETHER + (8 + 2 * wide) * _share(m, m) + (2 + m) * _share(wide, m)
    over = 3 * _share(m * max(n, wide), m)
    return Iterations(over + 2 * _TOGETHER + 4, sweep, over + (4 + m + n) * _share(n, m) + n + wide * column + 6)
