"""Cholesky factors by blocks of columns.

A block's dispatch has a workgroup for each tile that is left, which subtracts the product of two tiles of the block before. Those in the
block's own columns do so for the tile on the diagonal, too, factor it, and solve for their rows, so that none waits for another.
"""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.blocks import (
    COUNTERS,
    INVOCATIONS,
    begin_count,
    block_width,
    count_blocks,
    element_dispatch,
    element_shader,
    over_elements,
    repeated,
)
from volta_fn.targets.wgsl.library.linalg.shader_templates import HUGE, field_shader, real_part, written
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars import Shader

#: The operand, the result, and workspaces: the counters, which matrices are not positive definite, and what is left of them.
_OPERAND, _FACTOR, _COUNTERS, _BAD, _REST = range(5)

_UINT32 = np.dtype(np.uint32)


def blocked_cholesky(x: ShapedArray, device: TargetCapabilities) -> Routine:
    """Return the routine for matrices of several blocks."""
    n = x.shape[-1]
    batch, blocks = x.size // (n * n), -(-n // block_width(x.dtype))
    begin = element_shader(device, x.dtype, n * n)
    begin_count(begin, _COUNTERS)
    source, rest = begin.buffer(_OPERAND, x.dtype).name, begin.buffer(_REST, x.dtype, written=True).name
    begun = f"if (e == 0u) {{ {begin.buffer(_BAD, _UINT32, written=True).name}[matrix] = 0u; }}"
    over_elements(begin, n * n, f"{rest}[matrix * {n * n}u + e] = {source}[matrix * {n * n}u + e];\n{begun}")
    panels = [_block(x, n, device, reads) for reads in (0, 1)]
    work = iteration_budget.work(batch, n * n)
    steps = [panels[k % 2].dispatch(batch * (blocks - k) ** 2, work) for k in range(blocks)]
    return Routine(
        (element_dispatch(begin, batch, n * n), *steps, _end(x, n, batch, device)), (COUNTERS, 4 * batch, x.size * x.dtype.itemsize)
    )


def _end(x: ShapedArray, n: int, batch: int, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that clears upper triangles, and fills failures with NaN."""
    end = element_shader(device, x.dtype, n * n)
    out, bad = end.buffer(_FACTOR, x.dtype, written=True).name, end.buffer(_BAD, _UINT32).name
    over_elements(
        end,
        n * n,
        f"""let at = matrix * {n * n}u + e;
if (e / {n}u < e % {n}u) {{ {out}[at] = zero(); }} else if ({bad}[matrix] != 0u) {{ {out}[at] = nan(); }}""",
    )
    return element_dispatch(end, batch, n * n)


def _block(x: ShapedArray, n: int, device: TargetCapabilities, reads: int) -> Shader:
    """Return the shader that factors a block of columns.

    Its number is in the counter that the shader `reads`. Invocations have a column and some rows of each tile, a `V`. Rows and columns
    after the last are copies of it, which affect nothing else and are not stored.
    """
    size = block_width(x.dtype)
    lanes, blocks, each = INVOCATIONS // size, -(-n // size), size * size // INVOCATIONS
    shader = field_shader(device, x.dtype, INVOCATIONS)
    count_blocks(shader, _COUNTERS, reads, 1)
    rest, out = (shader.buffer(number, x.dtype, written=True).name for number in (_REST, _FACTOR))
    bad = shader.buffer(_BAD, _UINT32, written=True).name
    shader.helper("rows", f"alias V = {'T' if each == 1 else f'vec{each}<T>'};\n{_scaled(each)}")
    for tile in ("upper", "lower"):
        shader.workgroup(f"{tile}_tile", "V", size * (lanes + 1))
        shader.workgroup(f"{tile}_column", "V", 2 * lanes)

    def entries(array: str, block: str, column: str) -> str:
        rows = [f"{array}[base + min({block} * {size}u + r + {k}u, {n - 1}u) * {n}u + min({column}, {n - 1}u)]" for k in range(each)]
        return f"V({', '.join(rows)})"

    def row(k: int) -> tuple[str, str]:
        return f"(block_row * {size}u + r + {k}u)", "lower" if each == 1 else f"lower[{k}]"

    rows = [row(k) for k in range(each)]
    stored = [f"if ({at} < {n}u && column <= {at}) {{ {rest}[base + {at} * {n}u + column] = {value}; }}" for at, value in rows]
    solved = [
        f"""if ({at} < {n}u && column <= {at}) {{
      {out}[base + {at} * {n}u + column] = select({value} / root, number(root), {at} == column);
    }}"""
        for at, value in rows
    ]
    newline = "\n    "
    factor = f"let factor = conjugate({_entry('upper_tile', 't', 'c', lanes + 1, each)});"
    subtracted = f"lower -= scaled(lower_tile[t * {lanes + 1}u + lane], factor);"
    written(
        shader,
        f"""
let side = {blocks}u - step;
let block_row = step + group % (side * side) / side;
let block_column = step + group % side;
let isOwn = block_column == step;
if (block_row >= block_column && (isOwn || step > 0u)) {{
  let base = group / (side * side) * {n * n}u;
  let c = local % {size}u;
  let lane = local / {size}u;
  let r = lane * {each}u;
  let column = block_column * {size}u + c;
  var upper = {entries(rest, "block_column", "column")};
  var lower = {entries(rest, "block_row", "column")};
  if (step > 0u) {{
    let before = (step - 1u) * {size}u + c;
    upper_tile[c * {lanes + 1}u + lane] = {entries(out, "block_column", "before")};
    lower_tile[c * {lanes + 1}u + lane] = {entries(out, "block_row", "before")};
    workgroupBarrier();
    if (isOwn) {{
      {repeated(size, f"{factor}{newline}{subtracted}{newline}upper -= scaled(upper_tile[t * {lanes + 1}u + lane], factor);", 8)}
    }} else {{
      {repeated(size, f"{factor}{newline}{subtracted}", 8)}
    }}
  }}
  if (isOwn) {{
    {_eliminated(n, size, HUGE[real_part(x.dtype).name])}
    let root = sqrt(own);
    {newline.join(solved)}
    if (isBad && block_row == step && local == 0u) {{ {bad}[group / (side * side)] = 1u; }}
  }} else {{
    {newline.join(stored)}
  }}
}}""",
    )
    return shader


def _scaled(each: int) -> str:
    """Return the function that multiplies an invocation's rows by a number."""
    return f"fn scaled(a: V, b: T) -> V {{ return {'times(a, b)' if each == 1 else 'a * b'}; }}"


def _entry(array: str, number: str, row: str, pitch: int, each: int) -> str:
    """Return the element in a row of a column in workgroup memory."""
    return f"{array}[{number} * {pitch}u + {row} / {each}u]" + ("" if each == 1 else f"[{row} % {each}u]")


def _eliminated(n: int, size: int, huge: str) -> str:
    """Return statements that eliminate the columns of both tiles.

    They become those of the factor times its diagonal, whose square in an invocation's column is its `own`. `isBad` tells whether a square
    is not positive.
    """
    lanes, each = INVOCATIONS // size, size * size // INVOCATIONS
    diagonal, top = (_entry("upper_column", "parity", row, lanes, each) for row in ("s", "c"))
    return f"""var isBad = false;
    var own = R(1);
    for (var s = 0u; s < min({size}u, {n}u - step * {size}u); s++) {{
      let parity = s & 1u;
      if (c == s) {{
        upper_column[parity * {lanes}u + lane] = upper;
        lower_column[parity * {lanes}u + lane] = lower;
      }}
      workgroupBarrier();
      let square = real({diagonal});
      let good = square > R(0) && square <= {huge};
      isBad = isBad || !good;
      own = select(own, square, c == s);
      if (c > s) {{
        let factor = conjugate({top}) / select(R(1), square, good);
        upper -= scaled(upper_column[parity * {lanes}u + lane], factor);
        lower -= scaled(lower_column[parity * {lanes}u + lane], factor);
      }}
    }}"""
