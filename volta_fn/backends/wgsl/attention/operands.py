"""What a shader of attention has at hand: rows of operands and results, fours of which an invocation loads and stores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.backends.wgsl.attention.problem import Rows
from volta_fn.backends.wgsl.matmul.indices import digits, walked
from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.backends.wgsl.scalars.memory import Array
from volta_fn.backends.wgsl.scalars.shader import Shader

FLOAT = np.dtype(np.float32)

_WORK = Working(FLOAT)


class Matrix(NamedTuple):
    """The rows of one head, read or written by an invocation of a shader in fours of neighbours."""

    f: Shader
    array: Array
    rows: Rows
    base: str

    @classmethod
    def of(cls, f: Shader, number: int, rows: Rows, head: str, *, written: bool = False) -> Matrix:
        """The rows of a head, in the buffer of a number."""
        array = f.buffer(number, rows.dtype, written, rows.elements if rows.fours else 0)
        return cls(f, array, rows, walked(f, digits(f, head, rows.heads.sizes), rows.heads.strides))

    def four(self, row: str, column: str, block: int, deep: int) -> str:
        """Four neighbours in a row, as a vector; zeros for what is not there. Fours are asked for in blocks of so many rows and columns."""
        f, rows = self.f, self.rows
        at = f.let("u32", f"{self.base} + min({row}, {rows.count - 1}u) * {rows.step}u")
        inside = [f"{row} < {rows.count}u"] if rows.count % block else []
        if rows.fours:
            ok = " && ".join([*inside, *([f"{column} < {rows.width}u"] if rows.width % deep else [])])
            place = f.let("u32", f"({at} + min({column}, {rows.width - 4}u)) / 4u")
            whole = f"vec4<f32>({', '.join(_WORK.read(f, x) for x in self.array.load4(place))})"
            return f.let("vec4<f32>", f"select(vec4<f32>(), {whole}, {ok})" if ok else whole)
        texts = []
        for e in range(4):
            ok = " && ".join([*inside, f"{column} + {e}u < {rows.width}u"])
            x = _WORK.read(f, self.array.load(f.let("u32", f"{at} + min({column} + {e}u, {rows.width - 1}u)")))
            texts.append(f"select(0.0f, {x}, {ok})")
        return f.let("vec4<f32>", f"vec4<f32>({', '.join(texts)})")

    def store(self, row: str, column: str, value: str) -> None:
        """Write four neighbours in a row, those of them that are there."""
        f, rows = self.f, self.rows
        with f.block(f"if ({row} < {rows.count}u)"):
            at = f.let("u32", f"{self.base} + {row} * {rows.step}u + {column}")
            numbers = [_WORK.number(f, f"{value}.{c}", rows.dtype) for c in "xyzw"]
            if rows.fours:
                with f.block(f"if ({column} < {rows.width}u)"):
                    self.array.store4(f.let("u32", f"{at} / 4u"), numbers)
                return
            for e, number in enumerate(numbers):
                with f.block(f"if ({column} + {e}u < {rows.width}u)"):
                    self.array.store(f.let("u32", f"{at} + {e}u"), number)
