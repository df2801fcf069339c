"""Scans over the invocations of a workgroup."""

from __future__ import annotations

from volta_fn.codegen.geometry.cumulative import CumulativeOp
from volta_fn.codegen.geometry.strides import row_offset
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.index_arith import TEXT
from volta_fn.targets.wgsl.scalars import Number, Shader, combine, constant, supports
from volta_fn.targets.wgsl.text import Function


class Scan(CumulativeOp):
    """A cumulative operation, and the code of its steps."""

    @property
    def row_count(self) -> int:
        """The number of accumulations."""
        return self.rows * self.columns

    def supported(self, device: TargetCapabilities) -> bool:
        """Return True if the device can compute it."""
        return supports(self.reduction.step, (self.dtype, self.dtype), {}, device)

    def combine(self, f: Function, x: Number, y: Number) -> Number:
        """Emit `x`, which came before, combined with `y`."""
        return combine(f, self.reduction, x, y)

    def neutral(self) -> Number:
        """Return the identity."""
        return constant(self.dtype, self.reduction.start(self.dtype))

    def offset(self, row: str, i: str) -> str:
        """Return the offset of the element of a row that comes as number `i`."""
        turned = f"({self.size - 1}u - {i})" if self.reverse else i
        return row_offset(TEXT, row, turned, self.size, self.columns)


def variable(f: Function, value: Number) -> Number:
    """Declare a variable that holds a number at first."""
    return Number(value.dtype, f.var(value.type, value.text))


def accumulate(f: Function, scan: Scan, total: Number, value: Number) -> None:
    """Emit the combination of a variable with what comes next."""
    f.emit(f"{total.text} = {scan.combine(f, total, value).text};")


def scan_group(shader: Shader, scan: Scan, values: list[Number]) -> tuple[list[Number], list[Number]]:
    """Emit the values of all earlier invocations combined, and those of all.

    All invocations must execute this.
    """
    count = shader.invocations
    held = [shader.workgroup(f"held{k}", value.type, 2 * count) for k, value in enumerate(values)]
    totals, here = [variable(shader, value) for value in values], shader.var("u32", "0u")
    for name, total in zip(held, totals, strict=True):
        shader.emit(f"{name}[{shader.local}] = {total.text};")
    shader.emit("workgroupBarrier();")
    with shader.block(f"for (var reach = 1u; reach < {count}u; reach <<= 1u)"):
        with shader.block(f"if ({shader.local} >= reach)"):
            for name, total in zip(held, totals, strict=True):
                before = Number(scan.dtype, shader.let(total.type, f"{name}[{here} + {shader.local} - reach]"))
                shader.emit(f"{total.text} = {scan.combine(shader, before, total).text};")
        shader.emit(f"{here} = {count}u - {here};")
        for name, total in zip(held, totals, strict=True):
            shader.emit(f"{name}[{here} + {shader.local}] = {total.text};")
        shader.emit("workgroupBarrier();")
    befores = [variable(shader, scan.neutral()) for _ in values]
    with shader.block(f"if ({shader.local} > 0u)"):
        for name, before in zip(held, befores, strict=True):
            shader.emit(f"{before.text} = {name}[{here} + {shader.local} - 1u];")
    group_totals = [
        Number(scan.dtype, shader.let(value.type, f"{name}[{here} + {count - 1}u]")) for name, value in zip(held, values, strict=True)
    ]
    shader.emit("workgroupBarrier();")
    return befores, group_totals
