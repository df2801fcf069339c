"""Cholesky factors, triangular solves and LU factors, column after column."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.blocked_cholesky import blocked_cholesky
from volta_fn.targets.wgsl.library.linalg.blocked_lu import blocked_lu, is_blocked_lu
from volta_fn.targets.wgsl.library.linalg.blocks import SMALL
from volta_fn.targets.wgsl.library.linalg.shader_templates import HUGE, field_shader, invocations, is_field, real_part, written
from volta_fn.targets.wgsl.library.linalg.small_lu import fits, small_lu
from volta_fn.targets.wgsl.routine import Routine

#: Matrices up to this size: larger ones keep a workgroup busy for too long.
LARGEST = 1024

_INT32 = np.dtype(np.int32)
#: Columns of right-hand sides that a workgroup solves for.
_COLUMNS = 16


def cholesky(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive. What is not positive definite becomes NaN."""
    (x,) = avals
    n = x.shape[-1]
    count = iteration_budget.of_cholesky(n)
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
    return Routine((shader.dispatch(batch, iteration_budget.work(batch, count)),))


def _factored(a: str, out: str, n: int, real: str) -> str:
    """Return statements that write the factor, with zeros above its diagonal.

    It is NaN if a pivot is not positive. Until all are done columns are in rows, so that neighbouring invocations have neighbours of a
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
    count = iteration_budget.of_triangular_solve(n, min(columns, _COLUMNS))
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
    written(shader, _eliminated(source, x, n, columns, offset, lower=lower, unit=params["unit_diagonal"]))
    value = f"conjugate({entry})" if params["conjugate_a"] else entry
    shader.helper("entry", f"fn entry(first: u32, r: u32, c: u32) -> T {{ return {value}; }}")
    groups = blocks * (b.size // (n * columns))
    return Routine((shader.dispatch(groups, iteration_budget.work(groups, count)),))


def _eliminated(source: str, x: str, n: int, columns: int, offset: str, *, lower: bool, unit: bool) -> str:
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
    count = iteration_budget.of_lu(m, n)
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
        return Routine((shader.dispatch(batch, iteration_budget.work(batch, count)),))
    source, x = shader.buffer(0, a.dtype).name, shader.buffer(1, a.dtype, written=True).name
    pivots = shader.buffer(2, _INT32, written=True).name
    start = f"""
let base = group * {m * n}u;
for (var i = local; i < {m * n}u; i += STEP) {{ {x}[base + i] = {source}[base + i]; }}
for (var i = local; i < {m}u; i += STEP) {{ {permutation}[group * {m}u + i] = i32(i); }}
sync();"""
    column = _pivot(x, pivots, permutation, m, n) + _eliminate(x, m, n)
    written(shader, f"{start}\nfor (var j = 0u; j < {rank}u; j++) {{{column}\n}}")
    return Routine((shader.dispatch(batch, iteration_budget.work(batch, count)),))


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
    let kept = {permutation}[group * {m}u + j];
    {permutation}[group * {m}u + j] = {permutation}[group * {m}u + p];
    {permutation}[group * {m}u + p] = kept;
  }}
  if (p != j) {{
    for (var k = local; k < {n}u; k += STEP) {{
      let kept = {x}[base + j * {n}u + k];
      {x}[base + j * {n}u + k] = {x}[base + p * {n}u + k];
      {x}[base + p * {n}u + k] = kept;
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
