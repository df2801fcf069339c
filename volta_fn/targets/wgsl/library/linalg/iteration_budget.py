"""Upper bounds on the loop iterations of an invocation in each factorisation: see `TargetCapabilities.iterations`.

Loops that invocations share out have so many turns as one of them gets (`_share`), and each loop that is begun has one more, in which it
ends; sums over a triangle are half a square.
"""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.targets.wgsl.library.linalg.rotations import SEVERAL, SWEEPS, lanes
from volta_fn.targets.wgsl.library.linalg.shader_templates import invocations

#: Multiplications that a GPU would do otherwise in a turn of a workgroup, in which it mostly waits for memory.
_MULTIPLICATIONS = 1 << 14

#: Turns in which what all invocations have is put together.
_TOGETHER = 11


def work(matrices: int, count: int) -> int:
    """What so many turns for each matrix count for in a dispatch of many, in multiplications: see `Dispatch.work`."""
    return matrices * count * _MULTIPLICATIONS


def _share(count: int, work: int) -> int:
    return -(-count // invocations(work))


def of_cholesky(n: int) -> int:
    """n columns, each from those before it."""
    return n * (4 + _share(n, n) * (3 + n // 2)) + _share(n * n, n) + 2


def of_triangular_solve(n: int, columns: int) -> int:
    """n unknowns of some columns of right-hand sides, each taken away from those behind it."""
    work = n * columns
    return 3 * n + _share(work, work) * (1 + n // 2) + 2


def of_lu(m: int, n: int) -> int:
    """Columns with their pivots, each taken away from the matrix behind it."""
    work, rank = max(m, n), min(m, n)
    column = 6 + _TOGETHER + 2 * _share(m, work) + _share(n, work)
    return _share(m * n, work) * (1 + rank // 2) + _share(m, work) + rank * column + 3


def of_qr(m: int, n: int, wide: int) -> int:
    """Reflections, each done to the columns behind it, and all of them to the `wide` columns of Q."""
    work, rank = max(m, n), min(m, n)
    column = 6 + 2 * _TOGETHER + 3 * _share(m, work)
    reflected = rank * (2 * m - rank + 4) * (_share(n, work) + _share(wide, work))
    return _share(m * (n + wide), work) + _share(wide * n, work) + rank * column + reflected + 6


#: Turns from which on each sweep is a dispatch of its own.
_MANY = 1 << 15


class Iterations(NamedTuple):
    """Those of what is before sweeps, of one, and of what is after them."""

    before: int
    sweep: int
    after: int

    @property
    def are_many(self) -> bool:
        """Whether they had better be shared out to several dispatches."""
        return self.before + SWEEPS * self.sweep + self.after > _MANY

    @property
    def of_a_dispatch(self) -> int:
        """Those that a dispatch takes at most."""
        return max(self) + _TOGETHER if self.are_many else self.before + SWEEPS * self.sweep + self.after


def _of_sweep(n: int, step: int) -> int:
    return 2 + _TOGETHER + (n + n % 2) * (1 + step)


def _of_rotations(rows: int, shared: int) -> int:
    """A loop over the rows of two columns that lanes share."""
    several = max(min(SEVERAL, -(-rows // shared)), 1)
    return 1 + -(-rows // (shared * several))


def of_eigh(n: int) -> Iterations:
    """Rotations of rows and columns, and what sorts the eigenvalues."""
    pairs = (n + 1) // 2
    sweep = _of_sweep(n, 1 + 2 * _of_rotations(n, lanes(n, invocations(n))) + _share(pairs * n, n))
    return Iterations(3 * _share(n * n, n) + 2 * _TOGETHER + 3, sweep, 2 * (n + 2) * _share(n, n) + 2)


def of_svd(m: int, n: int, wide: int) -> Iterations:
    """Rotations of n columns, no longer than the m rows, what sorts them, and what completes them to `wide` ones (0: no vectors)."""
    shared = lanes(n, invocations(m))
    products = 2 + -(-m // shared) + shared
    sweep = _of_sweep(n, products + _of_rotations(m, shared) + _of_rotations(n, shared))
    column = 6 + 2 * _TOGETHER + (8 + 2 * wide) * _share(m, m) + (2 + m) * _share(wide, m)
    over = 3 * _share(m * max(n, wide), m)
    return Iterations(over + 2 * _TOGETHER + 4, sweep, over + (4 + m + n) * _share(n, m) + n + wide * column + 6)
