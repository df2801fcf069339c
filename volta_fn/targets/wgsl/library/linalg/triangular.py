"""Triangular solves, Cholesky factors, and LU factors of small matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import rotations
from volta_fn.targets.wgsl.library.linalg.lu import blocked_lu, is_blocked_lu
from volta_fn.targets.wgsl.library.linalg.rotations import (
    COUNTERS,
    HUGE,
    INVOCATIONS,
    SMALL,
    begin_count,
    block_width,
    count_blocks,
    element_dispatch,
    element_shader,
    field_shader,
    invocations,
    is_field,
    over_elements,
    real_part,
    repeated,
    written,
)
from volta_fn.targets.wgsl.loops.reductions import has_rows
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars import Shader

# ------------------------------------------------------------------------------
# LU factors of matrices that fit in workgroup memory.
# ------------------------------------------------------------------------------

_INVOCATIONS = 256
#: The most rows and columns.
_LARGEST = 64

_INT32 = np.dtype(np.int32)


def fits(m: int, n: int, dtype: np.dtype, device: TargetCapabilities) -> bool:
    """Return whether a matrix fits in workgroup memory."""
    needed = (m * n + m) * dtype.itemsize + _INVOCATIONS * (real_part(dtype).itemsize + 4) + 4 * m + 64
    return max(m, n) <= _LARGEST and device.invocations >= _INVOCATIONS and needed <= device.workgroup_memory


def small_lu(a: ShapedArray, device: TargetCapabilities, count: int) -> Routine:
    """Return the routine for matrices that fit.

    An invocation has at most `count` iterations.
    """
    m, n = a.shape[-2:]
    rank, batch = min(m, n), math.prod(a.shape[:-2])
    shader = field_shader(device, a.dtype, _INVOCATIONS)
    pivot = _small_pivot(shader, m, n, real_part(a.dtype) == np.float32)
    shader.workgroup("tile", "T", m * n)
    shader.workgroup("factors", "T", m)
    shader.workgroup("source_rows", "u32", m)
    source, x = shader.buffer(0, a.dtype).name, shader.buffer(1, a.dtype, written=True).name
    pivots, permutation = (shader.buffer(number, _INT32, written=True).name for number in (2, 3))
    written(
        shader,
        f"""
let base = group * {m * n}u;
for (var i = local; i < {m * n}u; i += STEP) {{ tile[i] = {source}[base + i]; }}
for (var i = local; i < {m}u; i += STEP) {{ source_rows[i] = i; }}
workgroupBarrier();
for (var j = 0u; j < {rank}u; j++) {{
  {pivot}
  if (local < {n}u) {{
    let pivot_value = tile[p * {n}u + local];
    tile[p * {n}u + local] = tile[j * {n}u + local];
    tile[j * {n}u + local] = pivot_value;
  }}
  if (local == 0u) {{
    {pivots}[group * {rank}u + j] = i32(p);
    let pivot_row = source_rows[p];
    source_rows[p] = source_rows[j];
    source_rows[j] = pivot_row;
  }}
  workgroupBarrier();
  let diagonal = tile[j * {n + 1}u];
  if (local > j && local < {m}u) {{
    var factor = tile[local * {n}u + j];
    if (size(diagonal) != R(0)) {{ factor = over(factor, diagonal); }}
    factors[local] = factor;
  }}
  workgroupBarrier();
  for (var i = (j + 1u) * {n}u + local; i < {m * n}u; i += STEP) {{
    let row = i / {n}u;
    let column = i % {n}u;
    if (column == j) {{ tile[i] = factors[row]; }}
    if (column > j) {{ tile[i] -= times(factors[row], tile[j * {n}u + column]); }}
  }}
  workgroupBarrier();
}}
for (var i = local; i < {m * n}u; i += STEP) {{ {x}[base + i] = tile[i]; }}
for (var i = local; i < {m}u; i += STEP) {{ {permutation}[group * {m}u + i] = i32(source_rows[i]); }}""",
    )
    return Routine((shader.dispatch(batch, rotations.work(batch, count)),))


def _small_pivot(shader: Shader, m: int, n: int, is_exchanged: bool) -> str:
    """Return statements that name the row `p` of column j's largest element.

    It is the first of equals, and row j if none is a number. Where a subgroup holds a column, each finds it by itself.
    """
    rows = 1 << (m - 1).bit_length()
    if not (is_exchanged and has_rows(shader.module.device, rows, shader.invocations)):
        return f"""var best = R(-1);
  var place = j;
  if (local >= j && local < {m}u) {{
    let here = size(tile[local * {n}u + j]);
    if (here > best) {{ best = here; place = local; }}
  }}
  let p = min(max(greatest(best, place, local), j), {m - 1}u);"""
    shader.number_by_subgroups()
    # Without a branch, for which invocations would wait.
    better = "let takes = (x > best) | ((x == best) & (y < place)); best = select(best, x, takes); place = select(place, y, takes);"
    exchanges = "\n  ".join(
        [
            f"{{ let x = subgroupShuffleXor(best, {1 << k}u); let y = subgroupShuffleXor(place, {1 << k}u); {better} }}"
            for k in reversed(range(rows.bit_length() - 1))
        ]
    )
    return f"""var place = local % {rows}u;
  let magnitude = size(tile[min(place, {m - 1}u) * {n}u + j]);
  var best = select(R(-2), select(R(-1), magnitude, magnitude >= R(0)), place >= j && place < {m}u);
  {exchanges}
  let p = place;
  workgroupBarrier();"""


# ------------------------------------------------------------------------------
# Cholesky factors, triangular solves and LU factors, column after column.
# ------------------------------------------------------------------------------

#: Matrices up to this size: larger ones keep a workgroup busy for too long.
LARGEST = 1024


#: Columns of right-hand sides that a workgroup solves for.
_COLUMNS = 16


def cholesky(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive.

    The factor of a matrix that is not positive definite is NaN.
    """
    (x,) = avals
    n = x.shape[-1]
    count = rotations.of_cholesky(n)
    if not is_field(x.dtype, device, count) or n > LARGEST:
        return None
    if not x.size:
        return Routine(())
    if n > SMALL:
        return blocked_cholesky(x, device)
    shader = field_shader(device, x.dtype, invocations(n))
    a, out = shader.buffer(0, x.dtype).name, shader.buffer(1, x.dtype, written=True).name
    written(shader, _factored(a, out, n, real_part(x.dtype).name))
    batch = x.size // (n * n)
    return Routine((shader.dispatch(batch, rotations.work(batch, count)),))


def _factored(a: str, out: str, n: int, real: str) -> str:
    """Return statements that write the factor, with zeros above its diagonal.

    It is NaN if a pivot is not positive. The transposed factor is computed first, so that neighbouring invocations access neighbours of a
    column.
    """
    return f"""
let base = group * {n * n}u;
var bad = false;
for (var j = 0u; j < {n}u; j++) {{
  for (var i = j + local; i < {n}u; i += STEP) {{
    var total = {a}[base + i * {n}u + j];
    for (var k = 0u; k < j; k++) {{
      total -= times({out}[base + k * {n}u + i], conjugate({out}[base + k * {n}u + j]));
    }}
    {out}[base + j * {n}u + i] = total;
  }}
  sync();
  let square = real({out}[base + j * {n + 1}u]);
  sync();
  let good = square > R(0) && square <= {HUGE[real]};
  bad = bad || !good;
  let pivot = sqrt(select(R(1), square, good));
  for (var i = j + local; i < {n}u; i += STEP) {{
    let at = base + j * {n}u + i;
    if (i == j) {{ {out}[at] = number(pivot); }} else {{ {out}[at] = {out}[at] / pivot; }}
  }}
  sync();
}}
for (var i = local; i < {n * n}u; i += STEP) {{
  let row = i / {n}u;
  let column = i % {n}u;
  if (row < column) {{
    let below = base + column * {n}u + row;
    if (bad) {{ {out}[below] = nan(); }} else {{ {out}[below] = {out}[base + i]; }}
    {out}[base + i] = zero();
  }} else if (row == column && bad) {{
    {out}[base + i] = nan();
  }}
}}"""


def triangular_solve(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive, which eliminates one unknown after another.

    A workgroup has some columns of right-hand sides.
    """
    a, b = avals
    n = a.shape[-1]
    left = params["left_side"]
    columns = b.shape[-1] if left else b.shape[-2]
    count = rotations.of_triangular_solve(n, min(columns, _COLUMNS))
    if not is_field(a.dtype, device, count) or n > 4 * LARGEST:
        return None
    if not b.size:
        return Routine(())
    turned = params["transpose_a"] != (not left)
    lower = params["lower"] != turned
    blocks = -(-columns // _COLUMNS)
    shader = field_shader(device, a.dtype, invocations(n * min(columns, _COLUMNS)))
    matrix, source = shader.buffer(0, a.dtype).name, shader.buffer(1, b.dtype).name
    x = shader.buffer(2, b.dtype, written=True).name
    entry = f"{matrix}[first + c * {n}u + r]" if turned else f"{matrix}[first + r * {n}u + c]"
    offset = f"r * {columns}u + c" if left else f"c * {n}u + r"
    written(shader, _eliminated_column(source, x, n, columns, offset, lower=lower, unit=params["unit_diagonal"]))
    value = f"conjugate({entry})" if params["conjugate_a"] else entry
    shader.helper("entry", f"fn entry(first: u32, r: u32, c: u32) -> T {{ return {value}; }}")
    groups = blocks * (b.size // (n * columns))
    return Routine((shader.dispatch(groups, rotations.work(groups, count)),))


def _eliminated_column(source: str, x: str, n: int, columns: int, offset: str, *, lower: bool, unit: bool) -> str:
    """Return statements that solve for `x`; row r and column c are at an `offset`.

    `entry` gives the matrix's elements; a `unit` diagonal is not read.
    """
    blocks = -(-columns // _COLUMNS)
    below = offset.replace("r *", "s *").replace("+ r", "+ s")
    return f"""
let first = (group / {blocks}u) * {n * n}u;
let base = (group / {blocks}u) * {n * columns}u;
let begin = (group % {blocks}u) * {_COLUMNS}u;
let count = min({_COLUMNS}u, {columns}u - begin);
for (var i = local; i < {n}u * count; i += STEP) {{
  let r = i / count;
  let c = begin + i % count;
  {x}[base + {offset}] = {source}[base + {offset}];
}}
sync();
for (var step = 0u; step < {n}u; step++) {{
  let s = {"step" if lower else f"{n - 1}u - step"};
  {"" if unit else _divided(x, offset)}
  for (var i = local; i < ({n}u - 1u - step) * count; i += STEP) {{
    let r = {"s + 1u + i / count" if lower else "i / count"};
    let c = begin + i % count;
    {x}[base + {offset}] -= times(entry(first, r, s), {x}[base + {below}]);
  }}
  sync();
}}"""


def _divided(x: str, offset: str) -> str:
    """Return statements that divide the unknowns of row s by the diagonal."""
    return f"""let pivot = entry(first, s, s);
  if (local < count) {{
    let r = s;
    let c = begin + local;
    {x}[base + {offset}] = over({x}[base + {offset}], pivot);
  }}
  sync();"""


def lu(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive: partial pivoting, column by column."""
    (a,) = avals
    m, n = a.shape[-2:]
    rank = min(m, n)
    count = rotations.of_lu(m, n)
    if not is_field(a.dtype, device, count) or max(m, n) > LARGEST:
        return None
    batch = math.prod(a.shape[:-2])
    if not batch * m:
        return Routine(())
    if is_blocked_lu(m, n, device):
        return blocked_lu(a, device)
    if rank and fits(m, n, a.dtype, device):
        return small_lu(a, device, count)
    shader = field_shader(device, a.dtype, invocations(max(m, n)))
    permutation = shader.buffer(3, _INT32, written=True).name
    if not rank:
        written(shader, f"for (var i = local; i < {m}u; i += STEP) {{ {permutation}[group * {m}u + i] = i32(i); }}")
        return Routine((shader.dispatch(batch, rotations.work(batch, count)),))
    source, x = shader.buffer(0, a.dtype).name, shader.buffer(1, a.dtype, written=True).name
    pivots = shader.buffer(2, _INT32, written=True).name
    start = f"""
let base = group * {m * n}u;
for (var i = local; i < {m * n}u; i += STEP) {{ {x}[base + i] = {source}[base + i]; }}
for (var i = local; i < {m}u; i += STEP) {{ {permutation}[group * {m}u + i] = i32(i); }}
sync();"""
    column = _pivot(x, pivots, permutation, m, n) + _eliminate(x, m, n)
    written(shader, f"{start}\nfor (var j = 0u; j < {rank}u; j++) {{{column}\n}}")
    return Routine((shader.dispatch(batch, rotations.work(batch, count)),))


def _pivot(x: str, pivots: str, permutation: str, m: int, n: int) -> str:
    """Return statements that swap the row of the column's largest element and row j."""
    return f"""
  var best = R(-1);
  var place = j;
  for (var i = j + local; i < {m}u; i += STEP) {{
    let here = size({x}[base + i * {n}u + j]);
    if (here > best) {{ best = here; place = i; }}
  }}
  let p = min(max(greatest(best, place, local), j), {m - 1}u);
  if (local == 0u) {{
    {pivots}[group * {min(m, n)}u + j] = i32(p);
    let pivot_row = {permutation}[group * {m}u + p];
    {permutation}[group * {m}u + p] = {permutation}[group * {m}u + j];
    {permutation}[group * {m}u + j] = pivot_row;
  }}
  if (p != j) {{
    for (var k = local; k < {n}u; k += STEP) {{
      let pivot_value = {x}[base + p * {n}u + k];
      {x}[base + p * {n}u + k] = {x}[base + j * {n}u + k];
      {x}[base + j * {n}u + k] = pivot_value;
    }}
  }}
  sync();"""


def _eliminate(x: str, m: int, n: int) -> str:
    """Return statements that eliminate row j from the rows below it.

    The column becomes the factors of that row.
    """
    return f"""
  let diagonal = {x}[base + j * {n}u + j];
  if (size(diagonal) != R(0)) {{
    for (var i = j + 1u + local; i < {m}u; i += STEP) {{
      {x}[base + i * {n}u + j] = over({x}[base + i * {n}u + j], diagonal);
    }}
  }}
  sync();
  let width = {n}u - 1u - j;
  for (var i = local; i < ({m}u - 1u - j) * width; i += STEP) {{
    let row = j + 1u + i / max(width, 1u);
    let column = j + 1u + i % max(width, 1u);
    {x}[base + row * {n}u + column] -= times({x}[base + row * {n}u + j], {x}[base + j * {n}u + column]);
  }}
  sync();"""


# ------------------------------------------------------------------------------
# Cholesky factors by blocks of columns.
#
# A block's dispatch has a workgroup for each remaining tile, which subtracts the product of two tiles of the block before. Workgroups of
# the block's own columns also update the tile on the diagonal, factor it, and solve for their rows, so that none waits for another.
# ------------------------------------------------------------------------------

#: The operand, the result, and workspaces: the counters, flags of matrices that are not positive definite, and the updated matrices.
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
    work = rotations.work(batch, n * n)
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
    product = "times(a, b)" if each == 1 else "a * b"
    shader.helper("rows", f"alias V = {'T' if each == 1 else f'vec{each}<T>'};\nfn scaled(a: V, b: T) -> V {{ return {product}; }}")
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
    {_eliminated_block(n, size, HUGE[real_part(x.dtype).name])}
    let root = sqrt(own);
    {newline.join(solved)}
    if (isBad && block_row == step && local == 0u) {{ {bad}[group / (side * side)] = 1u; }}
  }} else {{
    {newline.join(stored)}
  }}
}}""",
    )
    return shader


def _entry(array: str, number: str, row: str, pitch: int, each: int) -> str:
    """Return the element in a row of a column in workgroup memory."""
    return f"{array}[{number} * {pitch}u + {row} / {each}u]" + ("" if each == 1 else f"[{row} % {each}u]")


def _eliminated_block(n: int, size: int, huge: str) -> str:
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
