"""Butterflies of longer primes, as loops over memory.

The cosines meet sums of pairs and the sines their differences, as in `butterflies`; a few results at a time are sums in registers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.cpu.fourier.buffers import Buffers
from volta_fn.targets.cpu.fourier.butterflies import Complex
from volta_fn.targets.cpu.scalars.values import Lanes

#: Vector registers that a result takes: its four sums, and those with which they are computed.
_REGISTERS = 6


def long_butterfly(buffers: Buffers, r: int, read: Callable[[Value], Complex], write: Callable[[Value, Complex], None]) -> None:
    """Emit Σ_j x[j] exp(-2πi j k / r) for every k < r, an odd number."""
    f, half, width = buffers.f, r // 2, host().vector_registers // _REGISTERS
    sums, differences = (f.alloca(buffers.vector, 2 * half) for _ in range(2))
    first = read(i64(0))

    def pair(j: Value, carried: list[Value]) -> list[Value]:
        a, b = read(f.plus(j, i64(1))), read(f.minus(i64(r - 1), j))
        both = a.plus(b)
        buffers.store(sums, j, both)
        buffers.store(differences, j, a.minus(b))
        return _values(_complex(buffers, carried).plus(both))

    write(i64(0), _complex(buffers, f.loop(i64(0), i64(half), 1, _values(first), pair, once=True)))
    starts = range(0, half, width)
    steps = [np.outer(np.arange(1, half + 1), np.arange(start, min(start + width, half)) + 1).ravel() for start in starts]
    table = buffers.table(f"prime.{r}", np.concatenate(steps), r)

    def results(start: Value, count: int) -> None:
        """Emit so many results, and their mirror images."""

        def term(j: Value, carried: list[Value]) -> list[Value]:
            both, between, found = buffers.load(sums, j), buffers.load(differences, j), []
            for k in range(count):
                number = f.plus(f.times(start, half), f.plus(f.times(j, count), i64(k)))
                root = buffers.twiddle(table, number)
                cosines, sines = (_complex(buffers, carried[4 * k + at : 4 * k + at + 2]) for at in (0, 2))
                found += _values(Complex(both.re.fma(root.re, cosines.re), both.im.fma(root.re, cosines.im)))
                found += _values(Complex(between.re.fma(root.im, sines.re), between.im.fma(root.im, sines.im)))
            return found

        zero = first.re.like(0.0)
        begun = [*_values(first), *_values(Complex(zero, zero))] * count
        made = f.loop(i64(0), i64(half), 1, begun, term, once=True)
        for k in range(count):
            cosines, sines = (_complex(buffers, made[4 * k + at : 4 * k + at + 2]) for at in (0, 2))
            number = f.plus(start, i64(k + 1))
            write(number, cosines.minus(sines.turned()))
            write(f.minus(i64(r), number), cosines.plus(sines.turned()))

    blocks = half // width
    f.loop(i64(0), i64(blocks), 1, [], lambda block, _: results(f.times(block, width), width))
    if half % width:
        results(i64(blocks * width), half % width)


def _complex(buffers: Buffers, components: list[Value]) -> Complex:
    return Complex(*[Lanes(buffers.f, component) for component in components])


def _values(z: Complex) -> list[Value]:
    return [z.re.value, z.im.value]
