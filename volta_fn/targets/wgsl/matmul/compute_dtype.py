"""Define the dtypes of sums, and conversions of other dtypes to and from them.

float32, float64, integers of 32 and 64 bits and complex numbers are summed in their own dtype; float16 and bfloat16 in float32, rounded
once at the end; narrower integers in 32 bits, of which they are the low ones; bools as 0 and 1, in "any of (a and b)".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from volta_fn.targets.wgsl.scalars.convert import convert
from volta_fn.targets.wgsl.scalars.number import Number, wgsl_type
from volta_fn.targets.wgsl.scalars.values import Lanes
from volta_fn.targets.wgsl.text import Function


@dataclass(frozen=True)
class Working:
    """The dtype of sums (uint32 for bools)."""

    dtype: np.dtype
    boolean: bool = False

    @cached_property
    def type(self) -> str:
        """A sum's type in WGSL."""
        return wgsl_type(self.dtype)

    @cached_property
    def lanes(self) -> int:
        """Numbers that are computed at once: 4 if WGSL has vectors of them, otherwise 1."""
        return 4 if self.dtype.name in ("float32", "int32", "uint32", "float64") else 1

    @cached_property
    def vector(self) -> str:
        """The type of `lanes` numbers."""
        return f"vec4<{self.type}>" if self.lanes == 4 else self.type

    @property
    def zero(self) -> str:
        """A vector of zeros."""
        return f"{self.vector}()"

    def padding(self, f: Function, type_: str) -> str:
        """Return zeros of this type or a vector in place of numbers out of bounds.

        Compilers do not know them: where they know what is out of bounds, they would take its product with NaN for 0.
        """
        return f"{type_}({Lanes(f, 'f32', '').zero().text})" if self.dtype.kind in "fc" else f"{type_}()"

    def read(self, f: Function, x: Number) -> str:
        """Convert a number of another dtype to this type."""
        if self.boolean:
            return f.let("u32", f"select(0u, 1u, {x.text})") if x.dtype == np.bool_ else x.text
        return convert(f, x, self.dtype).text

    def number(self, f: Function, text: str, dtype: np.dtype) -> Number:
        """Convert a sum to a dtype."""
        if self.boolean:
            return Number(dtype, f.let("bool", f"{text} != 0u"))
        return convert(f, Number(self.dtype, text), dtype)

    def add(self, x: str, y: str) -> str:
        """Return the sum of two sums."""
        return f"{x} | {y}" if self.boolean else f"{x} + {y}"

    def across(self, x: str) -> str:
        """Return the sum of a vector's four numbers."""
        return self.add(f"({self.add(f'{x}.x', f'{x}.y')})", f"({self.add(f'{x}.z', f'{x}.w')})")

    def fused(self, x: str, y: str, total: str) -> str:
        """Return ``total + x * y`` for three numbers or three vectors."""
        if self.boolean:
            return f"{total} | ({x} & {y})"
        if self.dtype.kind == "c":
            return self.multiply_add(x, y, total)
        return f"fma({x}, {y}, {total})" if self.dtype.kind == "f" else f"{total} + {x} * {y}"

    def multiply_add(self, x: str, y: str, total: str) -> str:
        """Return ``total + x * y`` for a number x and vectors y and total."""
        if self.dtype.kind == "c":
            real = f"fma(-{x}.y, {y}.y, fma({x}.x, {y}.x, {total}.x))"
            return f"{self.type}({real}, fma({x}.y, {y}.x, fma({x}.x, {y}.y, {total}.y)))"
        return self.fused(f"{self.vector}({x})", y, total)


def working(dtype: np.dtype) -> Working:
    """Return the dtype in which contractions with results of `dtype` sum."""
    if dtype == np.bool_:
        return Working(np.dtype(np.uint32), boolean=True)
    if dtype.kind in "iu" and dtype.itemsize < 4:
        return Working(np.dtype(f"{dtype.kind}4"))
    if dtype.kind in "iufc" and dtype != np.float16:
        return Working(dtype)
    return Working(np.dtype(np.float32))
