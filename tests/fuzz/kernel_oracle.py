"""What a kernel gives, in float64, with a bound on how far results may be from that.

It shares no code with `compiler.ir.interpret` or with the primitives' evaluation rules. A bound follows from dtypes, sizes and operations:
an operation that rounds adds half a unit in the last place to what its operands' bounds make of it, a sum of n terms n such units of the
sum of absolute values. Where every step is exact, as sums of small integers are, the bound is 0, and bits must agree. What hangs on a
comparison that bounds leave open has an infinite bound, and is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.ir.index import Affine, Range
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, Load, Node, Position, Reduce, Store

F32, F64, C128 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.complex128)
HALVES = frozenset(map(np.dtype, (np.float16, ml_dtypes.bfloat16)))
#: Numbers that are multiples of 1 / _GRID, and small enough, are added and multiplied exactly in any order.
_GRID = 1024.0


class Bounded(NamedTuple):
    """Numbers in float64, complex128, or an integer's own dtype, and how far others may be from them."""

    value: np.ndarray
    error: np.ndarray


class Oracle:
    """Evaluates a kernel's nodes as arrays of the kernel's rank, of size 1 along axes that they do not depend on.

    If operations may be fused, as WGSL allows, every operation whose result is not a number of its dtype has an error; else IEEE's
    operations give the nearest number.
    """

    def __init__(self, kernel: Kernel, inputs: Sequence[np.ndarray], *, fused: bool = False) -> None:
        self.kernel, self.inputs, self.fused = kernel, inputs, fused
        self.ones = (1,) * len(kernel.sizes)

    def outputs(self) -> list[Bounded]:
        """Return the outputs, with the shapes of the stores."""
        values: list[Bounded] = []
        with np.errstate(all="ignore"):
            for node in self.kernel.nodes:
                value, error = self._node(node, values)
                error = np.broadcast_to(np.where(np.isnan(error), np.inf, error), value.shape)
                values.append(Bounded(value, error))
            return [self._stored(store, values[store.value]) for store in self.kernel.stores]

    def _affine(self, affine: Affine) -> np.ndarray:
        total = np.full(self.ones, affine.offset, np.int64)
        for axis, factor in affine.terms:
            steps = np.arange(self.kernel.sizes[axis], dtype=np.int64) * factor
            total = total + steps.reshape([-1 if a == axis else 1 for a in range(len(self.kernel.sizes))])
        return total

    def _inside(self, ranges: Sequence[Range]) -> np.ndarray:
        result = np.ones(self.ones, np.bool_)
        for condition in ranges:
            number = self._affine(condition.value)
            result = result & (number >= condition.low) & (number < condition.high)
        return result

    def _flat(self, index: Sequence[Affine], shape: Sequence[int]) -> np.ndarray:
        total = np.zeros(self.ones, np.int64)
        for affine, size in zip(index, shape, strict=True):
            total = total * size + self._affine(affine)
        return total

    def _node(self, node: Node, values: Sequence[Bounded]) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(node, Constant):
            return _exact(_wide(node.value.reshape(self.ones)))
        if isinstance(node, Position):
            number = self._affine(node.value)
            return _exact(number.astype(node.dtype) if node.dtype.kind in "iu" else _wide(_rounded(number.astype(F64), node.dtype)))
        if isinstance(node, Inside):
            return _exact(self._inside(node.ranges))
        if isinstance(node, Load):
            where, flat = self._inside(node.mask), self._flat(node.index, node.shape)
            where, flat = np.broadcast_arrays(where, flat)
            memory = _wide(self.inputs[node.input].reshape(-1))
            fill = _wide(node.fill.value)
            return _exact(np.where(where, memory[np.where(where, flat, 0)], fill) if memory.size else np.broadcast_to(fill, flat.shape))
        if isinstance(node, Reduce):
            return self._reduce(node, values[node.operand], self.kernel.nodes[node.operand].dtype)
        operands = [values[i] for i in node.operands]
        return self._apply(node, operands, self.kernel.nodes[node.operands[0]].dtype)

    def _stored(self, store: Store, x: Bounded) -> Bounded:
        flat = self._flat(store.index, store.shape)
        size = math.prod(store.shape)
        value, error = np.zeros(size, x.value.dtype), np.zeros(size)
        for memory, numbers in zip((value, error), x, strict=True):
            memory[np.broadcast_to(flat, np.broadcast_shapes(flat.shape, numbers.shape))] = numbers
        return Bounded(value, error)

    # operations

    def _apply(self, node: Apply, operands: Sequence[Bounded], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        x, op = operands[0], node.op
        uncertain = sum((np.where(o.error > 0, np.inf, 0.0) for o in operands), np.zeros(()))
        if op == "select_n":
            which, *cases = operands
            number = which.value.astype(np.int64)
            chosen = [np.choose(number, [case[part] for case in cases], mode="clip") for part in (0, 1)]
            return chosen[0], np.where(which.error > 0, np.inf, chosen[1])
        if op == "convert_element_type":
            return self._converted(x, dtype, node.dtype)
        if op in _COMPARISONS:
            y = operands[1]
            doubt = (x.error + y.error > 0) & ~(np.abs(x.value - y.value) > x.error + y.error) if dtype.kind not in "iub" else np.False_
            return _COMPARISONS[op](x.value, y.value), np.where(doubt | np.isinf(uncertain) & (dtype.kind in "iub"), np.inf, 0.0)
        if dtype.kind in "iub":
            return _integer(op, dtype, [o.value for o in operands]), uncertain
        if op in ("real", "imag"):
            return (x.value.real if op == "real" else x.value.imag).copy(), x.error
        if op == "complex":
            return x.value + 1j * operands[1].value, x.error + operands[1].error
        if op in ("neg", "conj"):
            return -x.value if op == "neg" else x.value.conj(), x.error
        if op in ("max", "min"):
            y = operands[1]
            signs = np.stack(np.broadcast_arrays(x.value, y.value), -1)
            return (np.maximum if op == "max" else np.minimum)(x.value, y.value), np.maximum(x.error, y.error) + _of_signs(signs)
        if op in _STEPS:
            return _STEPS[op](x.value), uncertain
        if op in _CURVES:
            return self._curve(op, x, node.dtype)
        return self._arithmetic(op, x, operands[-1], node.dtype)

    def _arithmetic(self, op: str, x: Bounded, y: Bounded, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        a, b, ea, eb = x.value, y.value, x.error, y.error
        size = np.abs(a) + np.abs(b)
        if op in ("add", "sub"):
            value, error = a + b if op == "add" else a - b, ea + eb
        elif op == "mul":
            size = np.abs(a) * np.abs(b)
            value, error = a * b, np.abs(a) * eb + np.abs(b) * ea + ea * eb
        elif op == "div":
            value, error = a / b, (ea + np.abs(a / b) * eb) / np.maximum(np.abs(b) - eb, 0.0)
        else:
            assert op == "abs", op
            value, error = np.abs(a), ea
        exact = (ea == 0) & (eb == 0)
        if dtype.kind != "c":
            return self._rounded(value, np.where(exact, 0.0, error), dtype)
        exact &= _on_grid(size, dtype) & _on_grid(value.real, dtype) & _on_grid(value.imag, dtype)
        error = np.where(exact, 0.0, error + 4.0 * _unit(dtype) * np.maximum(size, np.abs(value)))
        return value, np.where(np.isfinite(value), error, np.inf)

    def _rounded(self, value: np.ndarray, error: np.ndarray, dtype: np.dtype, units: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers rounded to a dtype where every machine rounds the same, else as they are, with the error of rounding."""
        error = np.where(np.isnan(error), np.inf, error)
        rounded = _wide(_rounded(value, dtype))
        grows = (error > 0) | (np.asarray(self.fused) & (rounded != value) & ~np.isnan(value))
        error = np.where(grows, error + units * _unit(dtype) * np.abs(value) + _tiny(dtype), 0.0)
        beyond = ~(np.abs(value) + error <= float(ml_dtypes.finfo(dtype).max))
        return np.where(grows, value, rounded), np.where(grows & beyond, np.inf, error)

    def _curve(self, op: str, x: Bounded, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        function = _CURVES[op]
        value, low, high = [function(x.value + shift) for shift in (0.0, -x.error, x.error)]
        error = np.where(x.error > 0, np.maximum(np.abs(high - value), np.abs(value - low)), 0.0)
        error = error + (8.0 + 2.0 * np.abs(x.value)) * _unit(F32 if dtype in HALVES else dtype) * np.abs(value) + _tiny(dtype)
        value, error = self._rounded(value, error, dtype)
        return value, np.where(np.isfinite(value), error, np.where(x.error == 0, 0.0, np.inf))

    def _converted(self, x: Bounded, old: np.dtype, new: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        value, error = x
        if old.kind == "c" and new.kind != "c" and new.kind != "b":
            value = value.real
        if new.kind == "b":
            return value != 0, np.where((error > 0) & (np.abs(value) <= error), np.inf, 0.0)
        if old.kind in "iub":
            if new.kind in "iu":
                return value.astype(new), error
            wide = value.astype(F64)
            inexact = (np.abs(wide) > 1 << 24) if new in HALVES else np.False_
            if new.kind == "c":
                return _rounded(wide, F32 if new.itemsize == 8 else F64).astype(C128), error
            nearest = _wide(value.astype(new)) if new not in HALVES else _wide(_rounded(wide, new))
            return nearest, np.where(inexact, error + 2 * _unit(new) * np.abs(wide), error)
        if new.kind in "iu":
            info = np.iinfo(new)
            low, high = np.trunc(value - error), np.trunc(value + error)
            return _saturated(value, new, info.min, info.max), np.where(low != high, np.inf, 0.0)
        if new.kind == "c":
            narrow = F32 if new.itemsize == 8 else F64
            rounded = _rounded(value.real, narrow).astype(F64) + 1j * _rounded(value.imag, narrow).astype(F64)
            return rounded, np.where(error > 0, error + _unit(narrow) * np.abs(value), 0.0)
        return self._rounded(value, error, new)

    # reductions

    def _reduce(self, node: Reduce, x: Bounded, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        axes = self.kernel.reduction_axes
        full = (*x.value.shape[: self.kernel.parallel], *[self.kernel.sizes[a] for a in axes])
        rows = full[: self.kernel.parallel]
        value, error = [np.broadcast_to(part, full).reshape((*rows, math.prod(full[self.kernel.parallel :]))) for part in x]
        result, bound = self._row(node, value, error, dtype)
        return result.reshape((*rows, *(1,) * len(axes))), np.broadcast_to(bound, result.shape).reshape((*rows, *(1,) * len(axes)))

    def _row(self, node: Reduce, value: np.ndarray, error: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Return the reduction of the last axis."""
        uncertain = np.where((error > 0).any(-1), np.inf, 0.0)
        if node.is_index:
            return (np.argmax if node.op == "argmax" else np.argmin)(value, -1).astype(node.dtype), uncertain
        if node.op in ("reduce_max", "reduce_min"):
            return (np.max if node.op == "reduce_max" else np.min)(value, -1), error.max(-1) + _of_signs(value)
        if dtype.kind in "iub":
            ufunc = {"sum": np.add, "prod": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[node.op[7:]]
            return ufunc.reduce(value, axis=-1, dtype=dtype), uncertain
        count, inner = value.shape[-1], F32 if dtype in HALVES else dtype
        if node.op == "reduce_sum":
            result, total = value.sum(-1), np.abs(value).sum(-1)
            parts = (value.real, value.imag) if dtype.kind == "c" else (value,)
            exact = (error == 0).all(-1) & np.logical_and.reduce([_on_grid(p, inner, 1 << 60).all(-1) for p in parts])
            exact &= _on_grid(np.ceil(total), inner)
            bound = error.sum(-1) + (count + 4) * _unit(inner) * total
        else:
            largest = np.prod(np.maximum(np.abs(value) + error, 1.0), -1)
            result, total = value.prod(-1), np.prod(np.abs(value) + error, -1)
            powers = np.log2(np.where(value == 0, 1.0, np.abs(value)))
            exact = (error == 0).all(-1) & (powers == np.trunc(powers)).all(-1) & (np.abs(powers).sum(-1) < 100)
            bound = total - np.abs(result) + 2 * (count + 4) * _unit(inner) * total + _tiny(inner) * largest
            total = largest
        settled = np.isnan(value).any(-1) | (node.op == "reduce_sum") & (np.where(np.isfinite(value), np.abs(value), 0.0).sum(-1) < 6e4)
        settled &= (error == 0).all(-1) & ~np.isfinite(value).all(-1)
        bound = np.where(exact | settled, 0.0, np.where(total < float(ml_dtypes.finfo(inner).max), bound, np.inf))
        if dtype.kind == "c":
            return result, np.where(np.isfinite(result), bound, np.inf)
        result, bound = self._rounded(result, bound, dtype)
        return result, np.where(np.isfinite(result) | (bound == 0), bound, np.inf)


def differs(result: np.ndarray, wanted: Bounded) -> np.ndarray:
    """Return where results are further from what is wanted than the bound allows."""
    actual = _wide(result.reshape(-1))
    with np.errstate(all="ignore"):
        same = (
            (actual == wanted.value) | (np.isnan(actual) & np.isnan(wanted.value)) if actual.dtype.kind in "fc" else actual == wanted.value
        )
        if actual.dtype.kind not in "fc":
            return ~(same | np.isinf(wanted.error))
        return ~(same | (np.abs(actual - wanted.value) <= wanted.error) | np.isinf(wanted.error))


def _exact(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return value, np.zeros(value.shape)


def _of_signs(x: np.ndarray) -> np.ndarray:
    """Return the error of extrema along the last axis: where there are zeros of both signs, either may be one, which a quotient tells."""
    zeros = x == 0
    signs = np.signbit(x) if x.dtype.kind == "f" else np.False_
    return np.where((zeros & signs).any(-1) & (zeros & ~signs).any(-1), np.finfo(F64).smallest_subnormal, 0.0)


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(C128) if x.dtype.kind == "c" else x.astype(F64) if x.dtype in dtypes.FLOATS else x


def _rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype != ml_dtypes.bfloat16 or x.dtype != F64:
        return x.astype(dtype)
    # `ml_dtypes` rounds by way of float32. Where that is inexact, a last bit of 1 keeps the second rounding from seeing a tie.
    narrow = x.astype(F32)
    down = np.where(np.abs(narrow) > np.abs(x), np.nextafter(narrow, F32.type(0)), narrow)
    odd = (down.view(np.uint32) | (down != x)).view(F32)
    return np.where(np.isfinite(narrow), odd, narrow).astype(dtype)


def _unit(dtype: np.dtype) -> float:
    """Return half a unit in the last place of 1; of float64 a whole one, as the oracle rounds, too."""
    narrow = {8: F32, 16: F64}[dtype.itemsize] if dtype.kind == "c" else dtype
    return float(ml_dtypes.finfo(narrow).eps) * (1.0 if narrow == F64 else 0.5)


def _tiny(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).tiny)


def _on_grid(x: np.ndarray, dtype: np.dtype, limit: float | None = None) -> np.ndarray:
    """Return where numbers are multiples of 1 / 1024 that a dtype adds exactly."""
    steps = np.abs(x) * _GRID
    return (steps == np.trunc(steps)) & (steps < (limit or 0.25 / _unit(dtype)))


def _saturated(value: np.ndarray, dtype: np.dtype, low: int, high: int) -> np.ndarray:
    whole = np.trunc(np.where(np.isnan(value), 0.0, value))
    inside = np.where((whole >= low) & (whole <= high - (high > 1 << 53)), whole, 0.0).astype(dtype)
    return np.where(whole < low, np.array(low, dtype), np.where(whole >= high, np.array(high, dtype), inside))


def _integer(op: str, dtype: np.dtype, x: Sequence[np.ndarray]) -> np.ndarray:
    if op == "not":
        return np.invert(x[0])
    if op == "neg":
        return (0 - x[0].astype(np.int64)).astype(dtype)
    if op == "abs":
        return np.abs(x[0])
    return _INTEGERS[op](*x).astype(dtype)


_INTEGERS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_STEPS: dict[str, Callable[..., np.ndarray]] = {"floor": np.floor, "ceil": np.ceil, "sign": np.sign}
#: Monotone functions.
_CURVES: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "sqrt": np.sqrt, "logistic": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip
