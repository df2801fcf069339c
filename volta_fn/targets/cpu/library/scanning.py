"""Scans of vectors: every lane combined with all that comes before it."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.codegen.geometry.cumulative import CumulativeOp
from volta_fn.core.primitive import reduction_of
from volta_fn.runtime.llvm.text import Function, Value, element_of, i64
from volta_fn.targets.cpu.library.numbers import converted
from volta_fn.targets.cpu.scalars import Number, apply, combine, constant, horizontal, load, splat, store


class Scan(CumulativeOp):
    """A cumulative operation, and the code of its steps."""

    def combine(self, f: Function, x: Number, y: Number) -> Number:
        """Emit `x`, which came before, combined with `y`."""
        return combine(f, self.reduction, x, y)

    def extend(self, f: Function, i: Value, before: Number, x: Number) -> Number:
        """Emit element number `i` combined with those before it.

        The first complex factor stays as it is: 1 times an infinite number has a component that is NaN.
        """
        found = self.combine(f, before, x)
        if self.reduction.step != "mul" or self.dtype.kind != "c":
            return found
        first = f.splat(f.compare("icmp eq", i, i64(0)), x.lanes)
        return Number(x.dtype, tuple([f.select(first, a, b) for a, b in zip(x.components, found.components, strict=True)]))

    def neutral(self, f: Function, lanes: int) -> Number:
        """Emit the identity."""
        return constant(f, self.reduction.start(self.dtype), lanes)

    def read(self, f: Function, base: Value, offset: Value, lanes: int, count: Value | None = None) -> Number:
        """Emit the load of numbers from an offset on."""
        at = f.at(base, f"[{self.stored.itemsize} x i8]", offset)
        return converted(f, load(f, self.stored, at, lanes, count=count), self.dtype)

    def write(self, f: Function, x: Number, base: Value, offset: Value, count: Value | None = None) -> None:
        """Emit the store of numbers from an offset on."""
        store(f, converted(f, x, self.stored), f.at(base, f"[{self.stored.itemsize} x i8]", offset), count=count)


def scanned(f: Function, scan: Scan, before: Number, x: Number) -> tuple[Number, Number]:
    """Emit the scan of a vector, and its last number in all lanes.

    `before` has in all lanes what came before the vector.
    """
    if scan.reduction.step != "logaddexp":
        return _combined(f, scan, before, x)
    greatest = splat(f, horizontal(f, reduction_of("reduce_max"), _op(f, "max", before, x)), x.lanes)
    start = _op(f, "max", before, taken(f, x, [_first(scan, x.lanes)] * x.lanes))
    near = _op(f, "sub", greatest, start)
    close = f.compare("fcmp ole", near.value, f.splat(Value(element_of(near.value.type), "1.0"), x.lanes))
    one = f.let("i1", f"extractelement {close}, i64 0")
    found = f.branch(one, lambda: _both(_summed(f, scan, before, x, greatest)), lambda: _both(_combined(f, scan, before, x)))
    return Number(x.dtype, (found[0],)), Number(x.dtype, (found[1],))


def _both(pair: tuple[Number, Number]) -> list[Value]:
    return [pair[0].value, pair[1].value]


def _combined(f: Function, scan: Scan, before: Number, x: Number) -> tuple[Number, Number]:
    reach = 1
    while reach < x.lanes:
        x = scan.combine(f, _moved(f, scan, x, reach), x)
        reach *= 2
    return scan.combine(f, before, x), scan.combine(f, before, taken(f, x, [_last(scan, x.lanes)] * x.lanes))


def _summed(f: Function, scan: Scan, before: Number, x: Number, greatest: Number) -> tuple[Number, Number]:
    """Emit log-sum-exps as sums of exponentials relative to the greatest number.

    That is as accurate where the first result is not much less than the greatest number.
    """
    sums = scan._replace(reduction=reduction_of("cumsum"))
    earlier = _op(f, "exp", _op(f, "sub", before, greatest))
    total, _ = _combined(f, sums, earlier, _op(f, "exp", _op(f, "sub", x, greatest)))
    result = _op(f, "add", greatest, _op(f, "log", total))
    return result, taken(f, result, [_last(scan, x.lanes)] * x.lanes)


def _op(f: Function, name: str, *operands: Number) -> Number:
    return apply(f, name, operands, operands[0].dtype, {})


def _first(scan: Scan, lanes: int) -> int:
    return lanes - 1 if scan.reverse else 0


def _last(scan: Scan, lanes: int) -> int:
    return 0 if scan.reverse else lanes - 1


def taken(f: Function, x: Number, order: Sequence[int], other: Number | None = None) -> Number:
    """Emit lanes of a vector (and of another, numbered on) in the given order."""
    others = other.components if other else (None,) * len(x.components)
    return Number(x.dtype, tuple([f.taken(p, order, o) for p, o in zip(x.components, others, strict=True)]))


def _moved(f: Function, scan: Scan, x: Number, reach: int) -> Number:
    """Emit a vector shifted by `reach` lanes, with identities at its beginning."""
    lanes = x.lanes
    order = [k + reach if scan.reverse else k - reach for k in range(lanes)]
    return taken(f, x, [k if 0 <= k < lanes else lanes for k in order], scan.neutral(f, lanes))
