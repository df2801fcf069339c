"""Arithmetic that Winograd's transforms are made of, on vectors."""

from __future__ import annotations

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.matmul.compute_dtype import Working


class Algebra:
    """Arithmetic of vectors with known factors."""

    def __init__(self, f: Function, work: Working) -> None:
        self.f, self.work = f, work

    def plus(self, x: Value, y: Value) -> Value:
        """x + y"""
        return self.f.binary("fadd", x, y)

    def minus(self, x: Value, y: Value) -> Value:
        """x - y"""
        return self.f.binary("fsub", x, y)

    def more(self, x: Value, factor: float, y: Value) -> Value:
        """x + factor y"""
        if factor in (1, -1):
            return self.plus(x, y) if factor == 1 else self.minus(x, y)
        return self.work.multiply_add(self.f, y, self.number(factor), x)

    def number(self, factor: float) -> Value:
        """A known number in all lanes."""
        bits = np.float64(np.float32(factor) if self.work.type == "float" else factor).view(np.uint64)
        return self.f.splat(Value(self.work.type, f"0x{int(bits):016X}"), self.work.lanes)

    def times(self, factor: float, x: Value) -> Value:
        """factor x"""
        return x if factor == 1 else self.f.binary("fmul", x, self.number(factor))
