"""Half spectra of real signals.

A signal x of 2m real numbers is transformed as z of m complex ones, z[j] = x[2j] + i x[2j+1]. With E and O the spectra of the numbers of
even and odd indices, Z = E + i O, and the spectrum of x is X[k] = E[k] + w^k O[k], w = exp(-πi / m). E and O are spectra of real
numbers, so they follow from Z[k] and Z[m-k], or X[k] and X[m-k], together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.cpu.fourier.butterflies import Complex
from volta_fn.targets.cpu.fourier.passes import Passes

#: Two numbers of the target by the two of the source and exp(-πi k / m).
Pair = Callable[[Complex, Complex, Complex], tuple[Complex, Complex]]


def split(passes: Passes, z: Value, x: Value, m: int) -> None:
    """Emit X[0], …, X[m] of Z[0], …, Z[m-1]."""
    first = passes.load(z, i64(0))
    zero = first.re.like(0.0)
    passes.store(x, i64(0), Complex(first.re + first.im, zero))
    passes.store(x, i64(m), Complex(first.re - first.im, zero))

    def pair(even: Complex, odd: Complex, twiddle: Complex) -> tuple[Complex, Complex]:
        turned = odd.turned().times(twiddle)
        return even.plus(turned), even.minus(turned).conjugate()

    _pairs(passes, z, x, m, pair)


def join(passes: Passes, x: Value, z: Value, m: int) -> None:
    """Emit Z[0], …, Z[m-1] of X[0], …, X[m], whose first and last are taken as real."""
    first, last = passes.load(x, i64(0)), passes.load(x, i64(m))
    passes.store(z, i64(0), Complex(first.re + last.re, first.re - last.re).scaled(0.5))

    def pair(even: Complex, odd: Complex, twiddle: Complex) -> tuple[Complex, Complex]:
        turned = odd.times(twiddle.conjugate()).turned()
        return even.minus(turned), even.plus(turned).conjugate()

    _pairs(passes, x, z, m, pair)


def _pairs(passes: Passes, source: Value, target: Value, m: int, pair: Pair) -> None:
    """Emit numbers k and m - k of the target, for every such pair.

    They follow from half the sum and half the difference of those of the source, one a conjugate.
    """
    f = passes.f
    if m % 2 == 0:
        passes.store(target, i64(m // 2), passes.load(source, i64(m // 2)).conjugate())
    if m < 3:
        return
    table = passes.table(f"half.{m}", np.arange((m + 1) // 2), 2 * m)

    def one(k: Value, _: list[Value]) -> None:
        mirror = f.minus(i64(m), k)
        here, there = passes.load(source, k), passes.load(source, mirror).conjugate()
        found = pair(here.plus(there).scaled(0.5), here.minus(there).scaled(0.5), passes.twiddle(table, k))
        for number, value in zip((k, mirror), found, strict=True):
            passes.store(target, number, value)

    f.loop(i64(1), i64((m + 1) // 2), 1, [], one, once=True)
