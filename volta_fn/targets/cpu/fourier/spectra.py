"""Half spectra of real signals.

A signal x of 2m real numbers is transformed as z of m complex ones, z[j] = x[2j] + i x[2j+1]. With E and O the spectra of the numbers of
even and odd indices, Z = E + i O, and the spectrum of x is X[k] = E[k] + w^k O[k], w = exp(-πi / m). E and O are spectra of real
numbers, so they follow from Z[k] and Z[m-k], or X[k] and X[m-k], together. A signal of an odd number is transformed as complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.cpu.fourier.buffers import Buffers
from volta_fn.targets.cpu.fourier.butterflies import Complex

#: Numbers k and m - k of the target by number k of the source, the conjugate of its number m - k, and exp(-πi k / m).
Pair = Callable[[Complex, Complex, Complex], tuple[Complex, Complex]]


def split_pair(here: Complex, there: Complex, root: Complex) -> tuple[Complex, Complex]:
    """Return X[k] and X[m-k] by those of Z."""
    even, odd = here.plus(there).scaled(0.5), here.minus(there).scaled(0.5)
    turned = odd.turned().times(root)
    return even.plus(turned), even.minus(turned).conjugate()


def join_pair(here: Complex, there: Complex, root: Complex) -> tuple[Complex, Complex]:
    """Return Z[k] and Z[m-k] by those of X."""
    even, odd = here.plus(there).scaled(0.5), here.minus(there).scaled(0.5)
    turned = odd.times(root.conjugate()).turned()
    return even.minus(turned), even.plus(turned).conjugate()


def split_ends(first: Complex) -> tuple[Complex, Complex]:
    """Return X[0] and X[m] by Z[0]."""
    zero = first.re.like(0.0)
    return Complex(first.re + first.im, zero), Complex(first.re - first.im, zero)


def join_ends(first: Complex, last: Complex) -> Complex:
    """Return Z[0] by X[0] and X[m], which are taken as real."""
    return Complex(first.re + last.re, first.re - last.re).scaled(0.5)


def split(buffers: Buffers, z: Value, x: Value, m: int) -> None:
    """Emit X[0], …, X[m] of Z[0], …, Z[m-1]."""
    for number, end in zip((0, m), split_ends(buffers.load(z, i64(0))), strict=True):
        buffers.store(x, i64(number), end)
    _pairs(buffers, z, x, m, split_pair)


def join(buffers: Buffers, x: Value, z: Value, m: int) -> None:
    """Emit Z[0], …, Z[m-1] of X[0], …, X[m]."""
    buffers.store(z, i64(0), join_ends(buffers.load(x, i64(0)), buffers.load(x, i64(m))))
    _pairs(buffers, x, z, m, join_pair)


def complete(buffers: Buffers, x: Value, n: int) -> None:
    """Emit X[n-k] of X[k] for k ≤ n / 2, n odd, and take X[0] as real."""
    f, first = buffers.f, buffers.load(x, i64(0))
    buffers.store(x, i64(0), Complex(first.re, first.re.like(0.0)))

    def one(k: Value, _: list[Value]) -> None:
        buffers.store(x, f.minus(i64(n), k), buffers.load(x, k).conjugate())

    f.loop(i64(1), i64(n // 2 + 1), 1, [], one)


def _pairs(buffers: Buffers, source: Value, target: Value, m: int, pair: Pair) -> None:
    """Emit numbers k and m - k of the target, for every such pair."""
    f = buffers.f
    if m % 2 == 0:
        buffers.store(target, i64(m // 2), buffers.load(source, i64(m // 2)).conjugate())
    if m < 3:
        return
    table = buffers.table(f"half.{m}", np.arange((m + 1) // 2), 2 * m)

    def one(k: Value, _: list[Value]) -> None:
        mirror = f.minus(i64(m), k)
        here, there = buffers.load(source, k), buffers.load(source, mirror).conjugate()
        for number, value in zip((k, mirror), pair(here, there, buffers.twiddle(table, k)), strict=True):
            buffers.store(target, number, value)

    f.loop(i64(1), i64((m + 1) // 2), 1, [], one, once=True)
