"""LU factors by blocks of columns, with pivots from all rows."""

from __future__ import annotations

import math

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import rotations
from volta_fn.targets.wgsl.library.linalg.rotations import (
    COUNTERS,
    INVOCATIONS,
    SMALL,
    Moved,
    begin_count,
    block_width,
    count_blocks,
    element_dispatch,
    element_shader,
    field_shader,
    over_elements,
    real_part,
    repeated,
    streamed,
    together,
    written,
)
from volta_fn.targets.wgsl.loops.reductions import fits_subgroups
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader

# One workgroup factors a block's columns. Each of its invocations holds a row in registers. Exchanging rows moves no numbers: it changes
# the indices of the rows that two invocations hold.

#: The operand, the results, and workspaces: the counters, and the source row of each row of a block.
_OPERAND, _FACTORS, _PIVOTS, _PERMUTATION, _COUNTERS, _ORIGINS = range(6)

_INT32, _UINT32 = np.dtype(np.int32), np.dtype(np.uint32)

#: Columns that a workgroup updates, and rows that it updates at a time.
_COLUMNS, _ROWS = 16, 64

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
  {_pivot(shader, columns, real_part(a.dtype) == np.float32)}
  if (target_row == place) {{
    target_row = diagonal;
    {pivots}[group * {min(m, n)}u + diagonal] = i32(place);
  }} else if (target_row == diagonal) {{
    target_row = place;
  }}
  {_eliminated(columns)}
}}
"""


def _pivot(shader: Shader, columns: range, is_exchanged: bool) -> str:
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
    size, groups = block_width(a.dtype), -(-n // _COLUMNS)
    shader = field_shader(capabilities, a.dtype, INVOCATIONS)
    count_blocks(shader, _COUNTERS, 1, 1)
    x = shader.buffer(_FACTORS, a.dtype, written=True).name
    pivots, origins = shader.buffer(_PIVOTS, _INT32).name, shader.buffer(_ORIGINS, _UINT32).name
    shader.workgroup("top", "T", size * _COLUMNS)
    shader.workgroup("solution", "T", 2 * _COLUMNS)
    shader.workgroup("lower", "T", max(size, _ROWS) * (size + 1))
    lanes = INVOCATIONS // _COLUMNS
    written(
        shader,
        f"""
let matrix = group / {groups}u;
let base = matrix * {m * n}u;
let begin = (group % {groups}u) * {_COLUMNS}u;
let first = step * {size}u;
let width = min({size}u, {min(m, n)}u - min(first, {min(m, n)}u));
let c = local % {_COLUMNS}u;
let lane = local / {_COLUMNS}u;
let column = begin + c;
let mine = column < {n}u && (column < first || column >= first + width);
let right = mine && column >= first;
{_moved(x, pivots, origins, m, n, size)}
if (begin + {_COLUMNS}u > first + width) {{
  {_solved(size, lanes)}
}}
if (mine) {{
  for (var t = lane; t < width; t += {lanes}u) {{ {x}[base + (first + t) * {n}u + column] = top[t * {_COLUMNS}u + c]; }}
}}
if (begin + {_COLUMNS}u > first + width) {{
  {_subtracted(x, m, n, size, lanes)}
}}""",
    )
    return shader.dispatch(batch * groups, rotations.work(batch, m * n))


def _moved(x: str, pivots: str, origins: str, m: int, n: int, size: int) -> str:
    """Return statements that load the block's rows of some columns as `top`.

    The block's own square is loaded as `lower`. The rows that they replace move to the rows of the pivots.
    """
    lanes = INVOCATIONS // _COLUMNS
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
  top[{t} * {_COLUMNS}u + c] = {x}[base + {origins}[matrix * {m}u + first + {t}] * {n}u + column];
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
    loads = "\n  ".join([f"var top_{k} = top[{r} * {_COLUMNS}u + c];" for k, r in enumerate(rows)])
    chosen = "\n      ".join([f"if (s >= {k * lanes}u) {{ component = top_{k}; }}" for k in range(1, len(rows))])
    changes = "\n    ".join(
        [
            f"top_{k} = select(top_{k}, top_{k} - times(lower[{r} * {size + 1}u + s], solved), right & ({r} > s));"
            for k, r in enumerate(rows)
        ]
    )
    stores = "\n  ".join([f"top[{r} * {_COLUMNS}u + c] = top_{k};" for k, r in enumerate(rows)])
    return f"""{loads}
  for (var s = 0u; s < width; s++) {{
    let offset = (s & 1u) * {_COLUMNS}u;
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
      {repeated(size, f"let factor = top[t * {_COLUMNS}u + c];{newline}{sums}")}
      {stores}
    }}"""
    return f"workgroupBarrier();\n  {streamed('first + width', m, _ROWS, INVOCATIONS, [lower], subtracted)}"
