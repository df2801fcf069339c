"""Products with quantised matrices, which are converted where they are used.

Codes are read as words of 32 bits. With few rows of x, the invocations of a workgroup share out the words of a row of weights, and add up
their sums. With more, a workgroup computes a tile of results, for which it converts a tile of weights to its own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.primitives.quantized import BLOCK, NF4_VALUES, QuantizedLayout
from volta_fn.targets.wgsl.routine import Routine, Shader
from volta_fn.targets.wgsl.scalars import Number
from volta_fn.targets.wgsl.scalars.number import constant
from volta_fn.targets.wgsl.scalars.operations import convert

#: The most rows of x whose sums an invocation has, and the invocations of a workgroup.
_FEW, _INVOCATIONS = 8, 64
#: Rows, outputs and terms of a tile, and the results of an invocation along either axis.
_TILE, _EACH = 32, 4
_FLOAT, _WORD = np.dtype(np.float32), np.dtype(np.uint32)
_DTYPES = frozenset(["float32", "float16", "bfloat16"])

_FLOAT8 = """fn float8_value(code: u32) -> f32 {
  let size = code & 0x7fu;
  var value = bitcast<f32>((size + 960u) << 20u);
  if (size < 8u) { value = f32(size) * 0x1p-9f; }
  if (size == 0x7fu) { value = bitcast<f32>(size | 0x7fc00000u); }
  return select(value, -value, (code & 0x80u) != 0u);
}"""


def suits(avals: Sequence[ShapedArray], layout: QuantizedLayout, transposed: bool) -> bool:
    """Return True if operands of these types have a routine."""
    x, data, *by_group = avals
    unit = BLOCK if layout.is_packed else 4
    whole = layout.size % unit == 0 and (layout.groups == 1 or layout.group_size % unit == 0)
    return not transposed and whole and x.size > 0 and data.size > 0 and all(a.dtype.name in _DTYPES for a in (x, *by_group))


def has_routine(eqn: Equation) -> bool:
    """Return True if a product with a quantised matrix has a routine."""
    return suits(tuple([v.aval for v in eqn.invars]), **eqn.params)


def quantized_dot(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    if not suits(avals, **params):
        return None
    writer = _Product(avals, params["layout"], capabilities)
    return writer.few_rows() if writer.rows <= _FEW else writer.tiles()


ROUTINES = {"quantized_dot": quantized_dot}


class _Product:
    """The shader; buffers are x, the codes, scales, perhaps offsets, and the result."""

    def __init__(self, avals: tuple[ShapedArray, ...], layout: QuantizedLayout, capabilities: TargetCapabilities) -> None:
        self.layout, self.dtype = layout, avals[0].dtype
        self.rows, self.outputs = avals[0].shape[-2], avals[1].shape[-2]
        self.stack = 1 if avals[0].ndim == 2 else avals[0].shape[0]
        self.words = layout.width // 4
        #: Numbers of a word of codes.
        self.per_word = 8 if layout.is_packed else 4
        self.f = f = Shader(capabilities, _INVOCATIONS)
        self.x = f.buffer(0, self.dtype, size=self.stack * self.rows * layout.size)
        self.codes = f.buffer(1, _WORD)
        self.by_group = [f.buffer(2 + k, aval.dtype) for k, aval in enumerate(avals[2:])]
        self.out = f.buffer(len(avals), self.dtype, written=True)
        self.result_count = self.stack * self.rows * self.outputs

    # numbers

    def four(self, row: str, position: str) -> str:
        """Emit four numbers of a row of x, from a position that is a multiple of 4 on."""
        index = self.f.let("u32", f"{row} * {self.layout.size // 4}u + {position} / 4u")
        return self.f.let("vec4<f32>", f"vec4<f32>({', '.join(convert(self.f, x, _FLOAT).text for x in self.x.load4(index))})")

    def weights(self, row: str, word: str) -> list[tuple[str, str]]:
        """Emit a word's weights: positions in the row, each with a vector of four."""
        f, layout = self.f, self.layout
        bits = f.let("u32", self.codes.load(f"{row} * {self.words}u + {word}").text)
        if layout.is_packed:
            first = f.let("u32", f"({word} / 4u) * {BLOCK}u + ({word} % 4u) * 4u")
            places = [first, f.let("u32", f"{first} + {BLOCK // 2}u")]
            codes = [[f"(({bits} >> {8 * byte + shift}u) & 15u)" for byte in range(4)] for shift in (0, 4)]
        else:
            places, codes = [f.let("u32", f"{word} * 4u")], [[self._byte(bits, byte) for byte in range(4)]]
        group = f.let("u32", f"{row} * {layout.groups}u + {places[0]} / {layout.group_size}u")
        scale, *offset = [f.let("f32", convert(f, array.load(group), _FLOAT).text) for array in self.by_group]
        vectors = [f"vec4<f32>({', '.join(map(self._value, four))}) * {scale}" for four in codes]
        return [(place, f.let("vec4<f32>", " + ".join([vector, *offset]))) for place, vector in zip(places, vectors, strict=True)]

    def _byte(self, bits: str, byte: int) -> str:
        if self.layout.scheme == "int8":
            return f"(bitcast<i32>({bits} << {24 - 8 * byte}u) >> 24u)"
        return f"(({bits} >> {8 * byte}u) & 255u)"

    def _value(self, code: str) -> str:
        """Return the expression of a code's value."""
        scheme = self.layout.scheme
        if scheme == "int8":
            return f"f32({code})"
        if scheme == "int4":
            return f"(f32({code}) - 8.0f)"
        if scheme == "fp8":
            return f"{self.f.helper('float8_value', _FLOAT8)}({code})"
        numbers = ", ".join(constant(_FLOAT, value).text for value in NF4_VALUES)
        self.f.module.declare("nf4_values", f"var<private> nf4_values: array<f32, 16> = array<f32, 16>({numbers});")
        return f"nf4_values[{code}]"

    def store(self, place: str, total: str) -> None:
        """Emit the store of a result."""
        self.out.store(place, convert(self.f, Number(_FLOAT, total), self.dtype))

    # few rows

    def few_rows(self) -> Routine:
        """Return the routine in which some invocations share a row of weights."""
        f = self.f
        lanes = min(_INVOCATIONS, 1 << (self.words - 1).bit_length())
        together = _INVOCATIONS // lanes
        row = f.let("u32", f"{f.group} * {together}u + {f.local} / {lanes}u")
        lane = f.let("u32", f"{f.local} % {lanes}u")
        inside = f.let("u32", f"min({row}, {self.stack * self.outputs - 1}u)")
        x_row = f.let("u32", f"({inside} / {self.outputs}u) * {self.rows}u")
        sums = [f.var("f32", "0.0f") for _ in range(self.rows)]
        with f.loop(self.words, lane, lanes) as word:
            for place, weights in self.weights(inside, word):
                for i, total in enumerate(sums):
                    f.emit(f"{total} += dot({self.four(f'({x_row} + {i}u)', place)}, {weights});")
        shared = f.workgroup("totals", "f32", self.rows * _INVOCATIONS)
        for i, total in enumerate(sums):
            f.emit(f"{shared}[{f.local} + {i * _INVOCATIONS}u] = {total};")
        half = lanes // 2
        while half:
            f.emit("workgroupBarrier();")
            with f.block(f"if ({lane} < {half}u)"):
                for i in range(self.rows):
                    f.emit(f"{shared}[{f.local} + {i * _INVOCATIONS}u] += {shared}[{f.local} + {i * _INVOCATIONS + half}u];")
            half //= 2
        with f.block(f"if ({lane} == 0u && {row} < {self.stack * self.outputs}u)"):
            for i in range(self.rows):
                place = f.let("u32", f"({x_row} + {i}u) * {self.outputs}u + {row} % {self.outputs}u")
                self.store(place, f.let("f32", f"{shared}[{f.local} + {i * _INVOCATIONS}u]"))
        work = self.result_count * self.layout.size
        return Routine((f.dispatch(-(-self.stack * self.outputs // together), work),))

    # tiles

    def tiles(self) -> Routine:
        """Return the routine in which a workgroup computes a square tile of results."""
        f = self.f
        down, across = -(-self.rows // _TILE), -(-self.outputs // _TILE)
        example = f.let("u32", f"{f.group} / {down * across}u")
        first_row = f.let("u32", f"({f.group} / {across}u) % {down}u * {_TILE}u")
        first_output = f.let("u32", f"{f.group} % {across}u * {_TILE}u")
        left, right = (f.workgroup(name, "f32", _TILE * _TILE) for name in ("left", "right"))
        per_side = _TILE // _EACH
        y, x = f.let("u32", f"{f.local} / {per_side}u * {_EACH}u"), f.let("u32", f"{f.local} % {per_side}u * {_EACH}u")
        sums = [[f.var("f32", "0.0f") for _ in range(_EACH)] for _ in range(_EACH)]
        with f.loop(self.layout.size, 0, _TILE) as start:
            with f.loop(_TILE * _TILE // 4, f.local, _INVOCATIONS) as number:
                # Terms are the slower axis in workgroup memory, so that neighbours read neighbouring numbers.
                row, position = f.let("u32", f"{number} % {_TILE}u"), f.let("u32", f"{number} / {_TILE}u * 4u")
                term = f.let("u32", f"{start} + {position}")
                inside = f.let("u32", f"min({first_row} + {row}, {self.rows - 1}u)")
                with f.block(f"if ({term} < {self.layout.size}u)"):
                    four = self.four(f.let("u32", f"{example} * {self.rows}u + {inside}"), term)
                    self._put(left, row, position, four)
            with f.loop(_TILE * _TILE // self.per_word, f.local, _INVOCATIONS) as number:
                output, word = f.let("u32", f"{number} % {_TILE}u"), f.let("u32", f"{number} / {_TILE}u")
                inside = f.let("u32", f"{example} * {self.outputs}u + min({first_output} + {output}, {self.outputs - 1}u)")
                at = f.let("u32", f"{start} / {self.per_word}u + {word}")
                with f.block(f"if ({at} < {self.words}u)"):
                    for place, weights in self.weights(inside, at):
                        self._put(right, output, f.let("u32", f"{place} - {start}"), weights)
            f.emit("workgroupBarrier();")
            with f.loop(f"min({_TILE}u, {self.layout.size}u - {start})") as term:
                xs = [f.let("f32", f"{left}[{term} * {_TILE}u + {y} + {i}u]") for i in range(_EACH)]
                ws = [f.let("f32", f"{right}[{term} * {_TILE}u + {x} + {j}u]") for j in range(_EACH)]
                for i, j in np.ndindex(_EACH, _EACH):
                    f.emit(f"{sums[i][j]} += {xs[i]} * {ws[j]};")
            f.emit("workgroupBarrier();")
        for i, j in np.ndindex(_EACH, _EACH):
            row, output = f.let("u32", f"{first_row} + {y} + {i}u"), f.let("u32", f"{first_output} + {x} + {j}u")
            with f.block(f"if ({row} < {self.rows}u && {output} < {self.outputs}u)"):
                place = f.let("u32", f"({example} * {self.rows}u + {row}) * {self.outputs}u + {output}")
                self.store(place, sums[i][j])
        return Routine((f.dispatch(self.stack * down * across, self.result_count * self.layout.size),))

    def _put(self, tile: str, column: str, term: str, four: str) -> None:
        for k, component in enumerate("xyzw"):
            self.f.emit(f"{tile}[({term} + {k}u) * {_TILE}u + {column}] = {four}.{component};")
