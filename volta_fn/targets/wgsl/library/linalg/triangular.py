"""Triangular systems, LU factors of all sizes, and Cholesky factors of panels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import rotations
from volta_fn.targets.wgsl.library.linalg.rotations import (
    COUNTERS,
    HUGE,
    INVOCATIONS,
    SMALL,
    Moved,
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
    streamed,
    together,
    written,
)
from volta_fn.targets.wgsl.loops.reductions import fits_subgroups
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader

# LU factors by blocks of columns, with pivots from all rows.
#
# One workgroup factors a block's columns. Each of its invocations holds a row in registers. Exchanging rows moves no numbers: it changes
# the indices of the rows that two invocations hold.

#: The operand, the results, and workspaces: the counters, and the source row of each row of a block.
_OPERAND, _FACTORS, _PIVOTS, _PERMUTATION, _COUNTERS, _ORIGINS = range(6)

_INT32, _UINT32 = np.dtype(np.int32), np.dtype(np.uint32)

#: Columns that a workgroup updates, and rows that it updates at a time.
_LU_COLUMNS, _ROWS = 16, 64

#: Columns per loop of the elimination: within a loop, an invocation selects the current column among this many registers.
_EACH_LOOP = 4

#: Groups of rows in each of which an invocation finds the greatest number of a column.
_GROUPS = 32

#: Takes a number x and its row y if they come before `best` and `place`: without a branch, for which invocations would wait.
_BETTER = "let takes = (x > best) | ((x == best) & (y < place)); best = select(best, x, takes); place = select(place, y, takes);"


def is_blocked_lu(m: int, n: int, capabilities: TargetCapabilities) -> bool:
    """Return whether there are several blocks, and an invocation for each row."""
    return max(m, n) > SMALL and min(m, n) > 1 and _invocations(m) <= capabilities.invocations


def _invocations(m: int) -> int:
    return max(1 << (m - 1).bit_length(), 64)


def blocked_lu(a: ShapedArray, capabilities: TargetCapabilities) -> Routine:
    """Return the routine for matrices of several blocks."""
    m, n = a.shape[-2:]
    batch = math.prod(a.shape[:-2])
    begin = element_shader(capabilities, a.dtype, m * n)
    begin_count(begin, _COUNTERS)
    source, x = begin.buffer(_OPERAND, a.dtype).name, begin.buffer(_FACTORS, a.dtype, written=True).name
    permutation = begin.buffer(_PERMUTATION, _INT32, written=True).name
    over_elements(
        begin,
        m * n,
        f"""{x}[matrix * {m * n}u + e] = {source}[matrix * {m * n}u + e];
if (e < {m}u) {{ {permutation}[matrix * {m}u + e] = i32(e); }}""",
    )
    both = [_panel(a, capabilities, batch), _update(a, capabilities, batch)]
    blocks = -(-min(m, n) // block_width(a.dtype))
    return Routine((element_dispatch(begin, batch, m * n), *both * blocks), (COUNTERS, 4 * batch * m))


def _panel(a: ShapedArray, capabilities: TargetCapabilities, batch: int) -> Dispatch:
    """Return the dispatch that factors a block of columns."""
    m, n = a.shape[-2:]
    size = block_width(a.dtype)
    shader = field_shader(capabilities, a.dtype, _invocations(m))
    if fits_subgroups(capabilities, capabilities.subgroup_most, shader.invocations):
        shader.number_by_subgroups()
    count_blocks(shader, _COUNTERS, 0, 0)
    x = shader.buffer(_FACTORS, a.dtype, written=True).name
    permutation = shader.buffer(_PERMUTATION, _INT32, written=True).name
    origins = shader.buffer(_ORIGINS, _UINT32, written=True).name
    columns, starts = range(size), range(0, size, _EACH_LOOP)
    loads = "\n".join([f"var x{c} = zero();\nif (mine && {c}u < width) {{ x{c} = {x}[source_offset + {c}u]; }}" for c in columns])
    stores = "\n  ".join([f"if ({c}u < width) {{ {x}[target_offset + {c}u] = x{c}; }}" for c in columns])
    written(
        shader,
        f"""
let base = group * {m * n}u;
let first = step * {size}u;
let width = min({size}u, {min(m, n)}u - min(first, {min(m, n)}u));
let mine = local >= first && local < {m}u;
let source_offset = base + min(local, {m - 1}u) * {n}u + first;
{loads}
var source_row = 0i;
if (mine) {{ source_row = {permutation}[group * {m}u + local]; }}
var target_row = local;
{"".join([_columns_eliminated(a, shader, range(start, size)) for start in starts])}
sync();
if (mine) {{
  let target_offset = base + target_row * {n}u + first;
  {stores}
  {permutation}[group * {m}u + target_row] = source_row;
  {origins}[group * {m}u + target_row] = local;
}}""",
    )
    return shader.dispatch(batch, rotations.work(batch, m * n))


def _columns_eliminated(a: ShapedArray, shader: Shader, columns: range) -> str:
    """Return statements that eliminate the first few of these columns."""
    m, n = a.shape[-2:]
    pivots = shader.buffer(_PIVOTS, _INT32, written=True).name
    chosen = "\n  ".join([f"value = select(value, x{c}, j == {c}u);" for c in columns[1:_EACH_LOOP]])
    return f"""for (var j = {columns[0]}u; j < min({columns[0] + _EACH_LOOP}u, width); j++) {{
  var value = x{columns[0]};
  {chosen}
  let diagonal = first + j;
  let magnitude = size(value);
  var best = select(R(-2), select(R(-1), magnitude, magnitude >= R(0)), mine & (target_row >= diagonal));
  var place = target_row;
  {_block_pivot(shader, columns, real_part(a.dtype) == np.float32)}
  if (target_row == place) {{
    target_row = diagonal;
    {pivots}[group * {min(m, n)}u + diagonal] = i32(place);
  }} else if (target_row == diagonal) {{
    target_row = place;
  }}
  {_eliminated(columns)}
}}
"""


def _block_pivot(shader: Shader, columns: range, is_exchanged: bool) -> str:
    """Return statements that set `place` to the row of the greatest `best`.

    Of equal numbers the first is chosen. They copy that row's numbers in these columns to `rows`, from `row` on. NaN comes after all
    numbers.
    """
    capabilities, width, size = shader.module.capabilities, shader.module.capabilities.subgroup_most, columns.stop
    row_stores = "\n    ".join([f"rows[row + {c}u] = x{c};" for c in columns])
    shader.workgroup("bests", "R", 2 * _GROUPS)
    shader.workgroup("spots", "u32", 2 * _GROUPS)
    if is_exchanged and fits_subgroups(capabilities, width, shader.invocations) and shader.invocations <= width * min(width, _GROUPS):
        # Each subgroup copies the row of its own greatest number before the greatest of all is known: then one barrier is enough.
        groups = shader.invocations // width
        shader.workgroup("rows", "T", 2 * groups * size)
        inside, number = shader.builtin("subgroup_invocation_id"), shader.builtin("subgroup_id")
        return f"""{exchanged(width)}
  let offset = (j & 1u) * {groups}u;
  if (target_row == place) {{
    let row = (offset + {number}) * {size}u;
    {row_stores}
    bests[offset + {number}] = best;
    spots[offset + {number}] = place * {groups}u + {number};
  }}
  workgroupBarrier();
  best = bests[offset + {inside} % {groups}u];
  place = spots[offset + {inside} % {groups}u];
  {exchanged(groups)}
  let row = (offset + place % {groups}u) * {size}u;
  place = place / {groups}u;"""
    shader.workgroup("rows", "T", size)
    loads = "\n    ".join(
        [
            f"{{ let x = part[local + {k * _GROUPS}u]; let y = places[local + {k * _GROUPS}u]; {_BETTER} }}"
            for k in range(1, shader.invocations // _GROUPS)
        ]
    )
    compared = "\n  ".join([f"{{ let x = bests[{k}]; let y = spots[{k}]; {_BETTER} }}" for k in range(_GROUPS)])
    return f"""part[local] = best;
  places[local] = place;
  workgroupBarrier();
  if (local < {_GROUPS}u) {{
    {loads}
    bests[local] = best;
    spots[local] = place;
  }}
  workgroupBarrier();
  {compared}
  let row = 0u;
  if (target_row == place) {{
    {row_stores}
  }}
  workgroupBarrier();"""


def exchanged(width: int) -> str:
    """Return statements that reduce `best` and `place` over `width` neighbours."""
    return "\n  ".join(
        [
            f"{{ let x = subgroupShuffleXor(best, {1 << k}u); let y = subgroupShuffleXor(place, {1 << k}u); {_BETTER} }}"
            for k in reversed(range(width.bit_length() - 1))
        ]
    )


def _eliminated(columns: range) -> str:
    """Return statements that eliminate column j from the rows below its pivot."""
    near = [
        f"x{c} = select(select(x{c}, factor, j == {c}u), x{c} - times(factor, rows[row + {c}u]), j < {c}u);" for c in columns[:_EACH_LOOP]
    ]
    far = [f"x{c} -= times(factor, rows[row + {c}u]);" for c in columns[_EACH_LOOP:]]
    newline = "\n    "
    return f"""if (mine & (target_row > diagonal)) {{
    let pivot = rows[row + j];
    var factor = value;
    if (size(pivot) != R(0)) {{ factor = over(value, pivot); }}
    {newline.join([*near, *far])}
  }}"""


def _update(a: ShapedArray, capabilities: TargetCapabilities, batch: int) -> Dispatch:
    """Return the dispatch that updates the columns outside of the block."""
    # A workgroup has a few. Rows are exchanged in all columns. In those on the right, a triangular solve gives the block's rows, whose
    # multiples are subtracted from the rows below.
    m, n = a.shape[-2:]
    size, groups = block_width(a.dtype), -(-n // _LU_COLUMNS)
    shader = field_shader(capabilities, a.dtype, INVOCATIONS)
    count_blocks(shader, _COUNTERS, 1, 1)
    x = shader.buffer(_FACTORS, a.dtype, written=True).name
    pivots, origins = shader.buffer(_PIVOTS, _INT32).name, shader.buffer(_ORIGINS, _UINT32).name
    shader.workgroup("top", "T", size * _LU_COLUMNS)
    shader.workgroup("solution", "T", 2 * _LU_COLUMNS)
    shader.workgroup("lower", "T", max(size, _ROWS) * (size + 1))
    lanes = INVOCATIONS // _LU_COLUMNS
    written(
        shader,
        f"""
let matrix = group / {groups}u;
let base = matrix * {m * n}u;
let begin = (group % {groups}u) * {_LU_COLUMNS}u;
let first = step * {size}u;
let width = min({size}u, {min(m, n)}u - min(first, {min(m, n)}u));
let c = local % {_LU_COLUMNS}u;
let lane = local / {_LU_COLUMNS}u;
let column = begin + c;
let mine = column < {n}u && (column < first || column >= first + width);
let right = mine && column >= first;
{_moved(x, pivots, origins, m, n, size)}
if (begin + {_LU_COLUMNS}u > first + width) {{
  {_solved(size, lanes)}
}}
if (mine) {{
  for (var t = lane; t < width; t += {lanes}u) {{ {x}[base + (first + t) * {n}u + column] = top[t * {_LU_COLUMNS}u + c]; }}
}}
if (begin + {_LU_COLUMNS}u > first + width) {{
  {_subtracted(x, m, n, size, lanes)}
}}""",
    )
    return shader.dispatch(batch * groups, rotations.work(batch, m * n))


def _moved(x: str, pivots: str, origins: str, m: int, n: int, size: int) -> str:
    """Return statements that load the block's rows of some columns as `top`.

    The block's own square is loaded as `lower`. The rows that they replace move to the rows of the pivots.
    """
    lanes = INVOCATIONS // _LU_COLUMNS
    numbers = range(-(-size // lanes))
    loads, stores = [], []
    for k in numbers:
        t = f"(lane + {k * lanes}u)"
        loads.append(
            f"""var place_{k} = 0u;
var other_{k} = zero();
if ({t} < width && mine) {{
  place_{k} = u32({pivots}[matrix * {min(m, n)}u + first + {t}]);
  other_{k} = {x}[base + {origins}[matrix * {m}u + place_{k}] * {n}u + column];
  top[{t} * {_LU_COLUMNS}u + c] = {x}[base + {origins}[matrix * {m}u + first + {t}] * {n}u + column];
}}"""
        )
        stores.append(f"if (place_{k} >= first + width) {{ {x}[base + place_{k} * {n}u + column] = other_{k}; }}")
    lower = together(
        size * size,
        INVOCATIONS,
        f"""let row = i / {size}u;
let t = i % {size}u;
if (row < width && t < width) {{ value = {x}[base + (first + row) * {n}u + first + t]; }}""",
        f"lower[(i / {size}u) * {size + 1}u + i % {size}u] = value;",
    )
    return "\n".join([lower, *loads, "sync();", *stores, "sync();"])


def _solved(size: int, lanes: int) -> str:
    """Return statements that solve for the block's rows of columns on its right."""
    rows = [f"(lane + {k * lanes}u)" for k in range(-(-size // lanes))]
    loads = "\n  ".join([f"var top_{k} = top[{r} * {_LU_COLUMNS}u + c];" for k, r in enumerate(rows)])
    chosen = "\n      ".join([f"if (s >= {k * lanes}u) {{ component = top_{k}; }}" for k in range(1, len(rows))])
    changes = "\n    ".join(
        [
            f"top_{k} = select(top_{k}, top_{k} - times(lower[{r} * {size + 1}u + s], solved), right & ({r} > s));"
            for k, r in enumerate(rows)
        ]
    )
    stores = "\n  ".join([f"top[{r} * {_LU_COLUMNS}u + c] = top_{k};" for k, r in enumerate(rows)])
    return f"""{loads}
  for (var s = 0u; s < width; s++) {{
    let offset = (s & 1u) * {_LU_COLUMNS}u;
    if (lane == s % {lanes}u) {{
      var component = top_0;
      {chosen}
      solution[offset + c] = component;
    }}
    workgroupBarrier();
    let solved = solution[offset + c];
    {changes}
  }}
  {stores}"""


def _subtracted(x: str, m: int, n: int, size: int, lanes: int) -> str:
    """Return statements that subtract multiples of the block's rows from those below."""
    numbers, newline = range(_ROWS // lanes), "\n      "
    entry = f"{x}[base + min(row_{{k}}, {m - 1}u) * {n}u + min(column, {n - 1}u)]"
    rows = newline.join([f"let row_{k} = begin + lane + {k * lanes}u;{newline}var rest_{k} = {entry.format(k=k)};" for k in numbers])
    sums = newline.join([f"rest_{k} -= times(lower[(lane + {k * lanes}u) * {size + 1}u + t], factor);" for k in numbers])
    lower = Moved(
        _ROWS * size,
        f"""let row = begin + i / {size}u;
let t = i % {size}u;
if (row < {m}u && t < width) {{ value = {x}[base + row * {n}u + first + t]; }}""",
        f"lower[(i / {size}u) * {size + 1}u + i % {size}u] = value;",
    )
    stores = newline.join([f"if (row_{k} < {m}u) {{ {x}[base + row_{k} * {n}u + column] = rest_{k}; }}" for k in numbers])
    subtracted = f"""{rows}
    if (right) {{
      {repeated(size, f"let factor = top[t * {_LU_COLUMNS}u + c];{newline}{sums}")}
      {stores}
    }}"""
    return f"workgroupBarrier();\n  {streamed('first + width', m, _ROWS, INVOCATIONS, [lower], subtracted)}"


# LU factors of matrices that fit in workgroup memory.

_INVOCATIONS = 256
#: The most rows and columns.
_LARGEST = 64


def fits(m: int, n: int, dtype: np.dtype, capabilities: TargetCapabilities) -> bool:
    """Return whether a matrix fits in workgroup memory."""
    needed = (m * n + m) * dtype.itemsize + _INVOCATIONS * (real_part(dtype).itemsize + 4) + 4 * m + 64
    return max(m, n) <= _LARGEST and capabilities.invocations >= _INVOCATIONS and needed <= capabilities.workgroup_memory


def small_lu(a: ShapedArray, capabilities: TargetCapabilities, count: int) -> Routine:
    """Return the routine for matrices that fit.

    An invocation has at most `count` iterations.
    """
    m, n = a.shape[-2:]
    rank, batch = min(m, n), math.prod(a.shape[:-2])
    shader = field_shader(capabilities, a.dtype, _INVOCATIONS)
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
    """Return statements that name the row `p` of column j's largest element."""
    # It is the first of equals, and row j if none is a number. Where a subgroup holds a column, each finds it by itself.
    rows = 1 << (m - 1).bit_length()
    if not (is_exchanged and fits_subgroups(shader.module.capabilities, rows, shader.invocations)):
        return f"""var best = R(-1);
  var place = j;
  if (local >= j && local < {m}u) {{
    let here = size(tile[local * {n}u + j]);
    if (here > best) {{ best = here; place = local; }}
  }}
  let p = min(max(greatest(best, place, local), j), {m - 1}u);"""
    shader.number_by_subgroups()
    return f"""var place = local % {rows}u;
  let magnitude = size(tile[min(place, {m - 1}u) * {n}u + j]);
  var best = select(R(-2), select(R(-1), magnitude, magnitude >= R(0)), place >= j && place < {m}u);
  {exchanged(rows)}
  let p = place;
  workgroupBarrier();"""


# Triangular solves and LU factors, column after column.

#: Matrices up to this size: larger ones keep a workgroup busy for too long.
LARGEST = 1024

#: Columns of right-hand sides that a workgroup solves for.
_COLUMNS = 16


def triangular_solve(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive, which eliminates one unknown after another."""
    # A workgroup has some columns of right-hand sides.
    a, b = avals
    n = a.shape[-1]
    left = params["left_side"]
    columns = b.shape[-1] if left else b.shape[-2]
    count = rotations.of_triangular_solve(n, min(columns, _COLUMNS))
    if not is_field(a.dtype, capabilities, count) or n > 4 * LARGEST:
        return None
    if not b.size:
        return Routine(())
    turned = params["transpose_a"] != (not left)
    lower = params["lower"] != turned
    blocks = -(-columns // _COLUMNS)
    shader = field_shader(capabilities, a.dtype, invocations(n * min(columns, _COLUMNS)))
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


def lu(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive: partial pivoting, column by column."""
    (a,) = avals
    m, n = a.shape[-2:]
    rank = min(m, n)
    count = rotations.of_lu(m, n)
    if not is_field(a.dtype, capabilities, count) or max(m, n) > LARGEST:
        return None
    batch = math.prod(a.shape[:-2])
    if not batch * m:
        return Routine(())
    if is_blocked_lu(m, n, capabilities):
        return blocked_lu(a, capabilities)
    if rank and fits(m, n, a.dtype, capabilities):
        return small_lu(a, capabilities, count)
    shader = field_shader(capabilities, a.dtype, invocations(max(m, n)))
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


# Cholesky factors of panels: the first columns of a matrix.
#
# `expand_cholesky` of `compiler/passes/expansions.py` makes a program of panels and products for matrices that are wider than a panel.

#: Columns that are eliminated between two barriers. A panel of 64 takes 13.7 µs on an H200 with one, 11.1 with two and 11.4 with four.
_PANEL_PIVOTS = 2

#: The narrowest tile, which 64 invocations have.
_NARROWEST = 8


def panel_width(x: ShapedArray, capabilities: TargetCapabilities) -> int | None:
    """Return the columns of the panels of matrices; None without a routine for these.

    In 32-bit numbers, an invocation of 256 has 16 elements of each of two tiles of 64 columns in registers: of wider numbers they would be
    too many, so these have panels of 32 columns. The widths for 32-bit numbers are those that were faster on an H200:

    - Up to 64 columns one panel is enough: 64×64 takes 11 µs, and 17 by two panels of 32.
    - Up to 512 columns the panels take longest, and those of 32 columns less in all: 256×256 takes 103 µs by 64 columns and 93 by 32,
      512×512 takes 369 (290 of them in panels) and 330 (188). A stack of 64 of 256×256 takes 151 and 188.
    - Beyond, products take longer, each of which reads and writes what is left of the matrix: 4 of 1024×1024 take 1352 µs by 64 columns
      (513 of them in products) and 1403 by 32 (807). A single one takes about as long by either, but 32 columns are twice as many shaders.
    """
    n = x.shape[-1]
    width = 64 if x.dtype.itemsize == 4 and (n <= 64 or n > 512) else 32
    return width if is_field(x.dtype, capabilities, width) else None


def cholesky_panel(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive `cholesky_panel`."""
    # A workgroup has a tile of the panel's rows. It factors the tile on the diagonal, too, so that none waits for another. An invocation
    # has some rows of one column of both tiles in registers, as vectors `V`; the columns that are eliminated are in workgroup memory.
    (x,) = avals
    width = params["width"]
    if not is_field(x.dtype, capabilities, width):
        return None
    *stack, m, n = x.shape
    batch = math.prod(stack)
    if not batch * width:
        return Routine(())
    size = max(1 << (width - 1).bit_length(), _NARROWEST)
    tiles, pivots = -(-m // size), _PANEL_PIVOTS
    invocations = 64 if size <= 16 else 256
    rows = size * size // invocations
    lanes = 4 if rows % 4 == 0 and x.dtype.kind == "f" else 1
    names = ("diagonal", "tile") if tiles > 1 else ("diagonal",)
    vectors = [(name, k) for name in names for k in range(rows // lanes)]
    shader = field_shader(capabilities, x.dtype, invocations)
    source, out = shader.buffer(0, x.dtype).name, shader.buffer(1, x.dtype, written=True).name
    shader.helper(
        "vectors",
        f"""alias V = {"T" if lanes == 1 else f"vec{lanes}<T>"};
fn scaled(a: V, b: T) -> V {{ return {"times(a, b)" if lanes == 1 else "a * b"}; }}""",
    )
    for name in names:
        # The columns of this step and of the next one, so that one barrier between them is enough.
        shader.workgroup(f"{name}_columns", "V", 2 * pivots * size // lanes)

    def load(name: str, k: int) -> str:
        indices = [f"({'' if name == 'diagonal' else f'block * {size}u + '}row + {k * lanes + lane}u)" for lane in range(lanes)]
        loads = [f"select(zero(), {source}[base + min({i}, {m - 1}u) * {n}u + min(c, {width - 1}u)], {i} >= c)" for i in indices]
        return f"var {name}_{k} = V({', '.join(loads)});"

    def column(name: str, k: int, q: str) -> str:
        return f"{name}_columns[(parity + {q}) * {size // lanes}u + lane * {rows // lanes}u + {k}u]"

    def element(q: int, i: str) -> str:
        columns = f"diagonal_columns[(parity + {q}u) * {size // lanes}u + "
        return f"{columns}{i}]" if lanes == 1 else f"{columns}{i} / {lanes}u][{i} % {lanes}u]"

    def eliminate(name: str, k: int) -> str:
        lines = [f"let v{q} = {column(name, k, f'{q}u')}{_minus('scaled', 'v', q)};" for q in range(pivots)]
        return f"{{ {' '.join(lines)} {name}_{k} -= {' + '.join([f'scaled(v{q}, factor_{q})' for q in range(pivots)])}; }}"

    def store(k: int, lane: int) -> str:
        value = f"{names[-1]}_{k}" + (f"[{lane}]" if lanes > 1 else "")
        return f"""{{
  let i = block * {size}u + row + {k * lanes + lane}u;
  if (i < {m}u && c < {width}u) {{
    var value = {value} / root;
    if (c == i) {{ value = number(root); }}
    if (bad) {{ value = nan(); }}
    if (c > i) {{ value = zero(); }}
    {out}[(matrix * {m}u + i) * {width}u + c] = value;
  }}
}}"""

    squares, factors = [], []
    for q in range(pivots):
        squares += [f"let pivot_{p}_{q} = {element(q, f'(s + {p}u)')}{_minus('times', f'pivot_{p}_', q)};" for p in range(q, pivots)]
        beyond = f" || s + {q}u >= {width}u" if width % pivots else ""
        squares.append(
            f"""let square_{q} = real(pivot_{q}_{q});
let good_{q} = (square_{q} > R(0) && square_{q} <= {HUGE[real_part(x.dtype).name]}){beyond};
let inverse_{q} = R(1) / select(R(1), square_{q}, good_{q});
bad = bad || !good_{q};
diagonal_square = select(diagonal_square, square_{q}, c == s + {q}u);"""
        )
        squares += [f"let l_{p}_{q} = conjugate(pivot_{p}_{q} * inverse_{q});" for p in range(q + 1, pivots)]
        factors.append(f"let top_{q} = {element(q, 'c')}{_minus('times', 'top_', q)};")
        factors.append(f"let factor_{q} = select(zero(), conjugate(top_{q} * inverse_{q}), c > s + {q}u);")
    newline = "\n"
    written(
        shader,
        f"""
let matrix = group / {tiles}u;
let block = group % {tiles}u;
let base = matrix * {m * n}u;
let c = local % {size}u;
let lane = local / {size}u;
let row = lane * {rows}u;
{newline.join([load(name, k) for name, k in vectors])}
var bad = false;
var diagonal_square = R(1);
for (var s = 0u; s < {width}u; s += {pivots}u) {{
  let parity = s % {2 * pivots}u;
  if (c >= s && c < s + {pivots}u) {{
    {newline.join([f"{column(name, k, '(c - s)')} = {name}_{k};" for name, k in vectors])}
  }}
  workgroupBarrier();
  {newline.join(squares)}
  if (c > s) {{
    {newline.join(factors)}
    {newline.join([eliminate(name, k) for name, k in vectors])}
  }}
}}
let root = sqrt(diagonal_square);
{newline.join([store(k, lane) for k in range(rows // lanes) for lane in range(lanes)])}""",
    )
    return Routine((shader.dispatch(batch * tiles, rotations.work(batch * tiles, width)),))


def _minus(multiply: str, columns: str, q: int) -> str:
    """Return the subtraction, from pivot column q, of the pivot columns before it."""
    return "".join([f" - {multiply}({columns}{k}, l_{q}_{k})" for k in range(q)])
