"""Cholesky factors by blocks of columns.

A block's dispatch has a workgroup for each tile of rows and columns that are left. Each factors the block on the diagonal, and solves for
the block's columns of its own two tiles' rows, so that none waits for another; what they multiply to is subtracted from its tile.
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

#: The tiles whose columns are eliminated: that on the diagonal, and those of the rows and of the columns of a workgroup's tile.
_TILES = ("top", "left", "right")


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
    """Return the dispatch that clears the upper triangle, and matrices that have no factor."""
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

    Its number is in the counter that the shader `reads`. Invocations have a column and some rows of each tile. Rows and columns after the
    last are copies of it, which affect nothing else and are not stored.
    """
    size = block_width(x.dtype)
    each, pitch = range(size * size // INVOCATIONS), size + 1
    shader = field_shader(device, x.dtype, INVOCATIONS)
    count_blocks(shader, _COUNTERS, reads, 1)
    rest, out = (shader.buffer(number, x.dtype, written=True).name for number in (_REST, _FACTOR))
    bad = shader.buffer(_BAD, _UINT32, written=True).name
    for tile in _TILES:
        shader.workgroup(f"{tile}_column", "T", 2 * size)
    for tile in _TILES[1:]:
        shader.workgroup(f"{tile}_tile", "T", size * pitch)
    blocks = {"top": "step", "left": "block_row", "right": "block_column"}
    entry = f"{rest}[base + min({{row}}, {n - 1}u) * {n}u + min({{column}}, {n - 1}u)]"
    loads = [
        f"var {tile}_{k} = {entry.format(row=f'({blocks[tile]} * {size}u + r + {k}u)', column='column')};" for k in each for tile in _TILES
    ]
    loads += [f"let row_{k} = block_row * {size}u + r + {k}u;\n  var sum_{k} = {entry.format(row=f'row_{k}', column='destination')};" for k in each]
    stored = [f"{tile}_tile[c * {pitch}u + r + {k}u] = {tile}_{k} / root;" for k in each for tile in _TILES[1:]]
    sums = [f"sum_{k} -= times(left_tile[t * {pitch}u + r + {k}u], factor);" for k in each]
    left = [f"if (row_{k} < {n}u && destination <= row_{k}) {{ {rest}[base + row_{k} * {n}u + destination] = sum_{k}; }}" for k in each]
    solved = [
        f"""if (row_{k} < {n}u && column <= row_{k}) {{
      {out}[base + row_{k} * {n}u + column] = select(left_{k} / root, number(root), row_{k} == column);
    }}"""
        for k in each
    ]
    newline = "\n    "
    written(
        shader,
        f"""
let side = {-(-n // size)}u - step;
let block_row = step + group % (side * side) / side;
let block_column = step + group % side;
if (block_row >= block_column) {{
  let base = group / (side * side) * {n * n}u;
  let c = local % {size}u;
  let r = local / {size}u * {len(each)}u;
  let column = step * {size}u + c;
  let destination = block_column * {size}u + c;
  {newline.join(loads)}
  {_eliminated(n, size, HUGE[real_part(x.dtype).name])}
  let root = sqrt(own);
  if (block_column == step) {{
    {newline.join(solved)}
    if (isBad && block_row == step && local == 0u) {{ {bad}[group / (side * side)] = 1u; }}
  }} else {{
    {newline.join(stored)}
    workgroupBarrier();
    {repeated(size, f"let factor = conjugate(right_tile[t * {pitch}u + c]);{newline}{newline.join(sums)}")}
    {newline.join(left)}
  }}
}}""",
    )
    return shader


def _eliminated(n: int, size: int, huge: str) -> str:
    """Return statements that eliminate the columns of all tiles.

    They become those of the factor times its diagonal, whose square in an invocation's column is its `own`. `isBad` tells whether a square
    is not positive.
    """
    each = range(size * size // INVOCATIONS)
    newline = "\n      "
    given = newline.join([f"{tile}_column[turn + r + {k}u] = {tile}_{k};" for k in each for tile in _TILES])
    changes = newline.join([f"{tile}_{k} -= times({tile}_column[turn + r + {k}u], factor);" for k in each for tile in _TILES])
    return f"""var isBad = false;
  var own = R(1);
  for (var s = 0u; s < min({size}u, {n}u - step * {size}u); s++) {{
    let turn = (s & 1u) * {size}u;
    if (c == s) {{
      {given}
    }}
    workgroupBarrier();
    let square = real(top_column[turn + s]);
    let good = square > R(0) && square <= {huge};
    isBad = isBad || !good;
    own = select(own, square, c == s);
    if (c > s) {{
      let factor = conjugate(top_column[turn + c]) / select(R(1), square, good);
      {changes}
    }}
  }}"""
