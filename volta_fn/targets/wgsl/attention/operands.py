"""Load and store rows of operands and results, in vectors of four elements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.targets.wgsl.attention.problem import Rows
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.indices import digits, walked
from volta_fn.targets.wgsl.scalars.memory import Array
from volta_fn.targets.wgsl.scalars.shader import Shader

FLOAT = np.dtype(np.float32)

_WORK = Working(FLOAT)


class Matrix(NamedTuple):
    """The rows of one head in a buffer, as an invocation of a shader accesses them."""

    f: Shader
    array: Array
    rows: Rows
    base: str

    @classmethod
    def of(cls, f: Shader, number: int, rows: Rows, head: str, *, written: bool = False) -> Matrix:
        """Return the rows of a head in the buffer `number`."""
        array = f.buffer(number, rows.dtype, written, rows.elements if rows.by_vectors else 0)
        return cls(f, array, rows, walked(f, digits(f, head, rows.heads.sizes), rows.heads.strides))

    def vector(self, row: str, column: str, block: int, depth: int) -> str:
        """Load four neighbours in a row as a vector, with zeros beyond the matrix.

        Blocks of `block` rows and `depth` columns are read: edges are only checked where these do not divide the matrix.
        """
        f, rows = self.f, self.rows
        at = f.let("u32", f"{self.base} + min({row}, {rows.count - 1}u) * {rows.step}u")
        inside = [f"{row} < {rows.count}u"] if rows.count % block else []
        if rows.by_vectors:
            ok = " && ".join([*inside, *([f"{column} < {rows.width}u"] if rows.width % depth else [])])
            vector_index = f.let("u32", f"({at} + min({column}, {rows.width - 4}u)) / 4u")
            loaded = f"vec4<f32>({', '.join(_WORK.read(f, x) for x in self.array.load4(vector_index))})"
            return f.let("vec4<f32>", f"select(vec4<f32>(), {loaded}, {ok})" if ok else loaded)
        texts = []
        for e in range(4):
            ok = " && ".join([*inside, f"{column} + {e}u < {rows.width}u"])
            x = _WORK.read(f, self.array.load(f.let("u32", f"{at} + min({column} + {e}u, {rows.width - 1}u)")))
            texts.append(f"select(0.0f, {x}, {ok})")
        return f.let("vec4<f32>", f"vec4<f32>({', '.join(texts)})")

    def store(self, row: str, column: str, value: str) -> None:
        """Store a vector to four neighbours in a row, but nothing beyond the matrix."""
        f, rows = self.f, self.rows
        with f.block(f"if ({row} < {rows.count}u)"):
            at = f.let("u32", f"{self.base} + {row} * {rows.step}u + {column}")
            numbers = [_WORK.number(f, f"{value}.{c}", rows.dtype) for c in "xyzw"]
            if rows.by_vectors:
                with f.block(f"if ({column} < {rows.width}u)"):
                    self.array.store4(f.let("u32", f"{at} / 4u"), numbers)
                return
            for e, number in enumerate(numbers):
                with f.block(f"if ({column} + {e}u < {rows.width}u)"):
                    self.array.store(f.let("u32", f"{at} + {e}u"), number)
