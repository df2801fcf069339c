"""LU factors of matrices that fit in workgroup memory."""

from __future__ import annotations

import math

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.shader_templates import field_shader, real_part, written
from volta_fn.targets.wgsl.loops.subgroups import has_rows
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars import Shader

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
    pivot = _pivot(shader, m, n, real_part(a.dtype) == np.float32)
    shader.workgroup("tile", "T", m * n)
    shader.workgroup("factors", "T", m)
    shader.workgroup("came", "u32", m)
    source, x = shader.buffer(0, a.dtype).name, shader.buffer(1, a.dtype, written=True).name
    pivots, permutation = (shader.buffer(number, _INT32, written=True).name for number in (2, 3))
    written(
        shader,
        f"""
let base = group * {m * n}u;
for (var i = local; i < {m * n}u; i += STEP) {{ tile[i] = {source}[base + i]; }}
for (var i = local; i < {m}u; i += STEP) {{ came[i] = i; }}
workgroupBarrier();
for (var j = 0u; j < {rank}u; j++) {{
  {pivot}
  if (local < {n}u) {{
    let kept = tile[j * {n}u + local];
    tile[j * {n}u + local] = tile[p * {n}u + local];
    tile[p * {n}u + local] = kept;
  }}
  if (local == 0u) {{
    {pivots}[group * {rank}u + j] = i32(p);
    let kept = came[j];
    came[j] = came[p];
    came[p] = kept;
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
for (var i = local; i < {m}u; i += STEP) {{ {permutation}[group * {m}u + i] = i32(came[i]); }}""",
    )
    return Routine((shader.dispatch(batch, iteration_budget.work(batch, count)),))


def _pivot(shader: Shader, m: int, n: int, is_exchanged: bool) -> str:
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
