"""Eigenvalues and eigenvectors of matrices that fit in workgroup memory."""

from __future__ import annotations

import math

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.block_scaling import padded, ranked
from volta_fn.targets.wgsl.library.linalg.rotations import SWEEPS, declare_rotations, tile_rotations
from volta_fn.targets.wgsl.library.linalg.shader_templates import HUGE, field_shader, real_part, written
from volta_fn.targets.wgsl.routine import Routine

#: What is negligible relative to the largest number.
_EPSILON = {"float32": "1e-8f", "float64": "1e-17lf"}


def fits(n: int, dtype: np.dtype, device: TargetCapabilities) -> bool:
    """Return whether a matrix and its vectors fit in workgroup memory.

    There is an invocation for every two pairs of columns.
    """
    real, count = real_part(dtype).itemsize, _invocations(n)
    needed = (2 * _size(n) * (_size(n) + 1) + _size(n)) * dtype.itemsize + (count + padded(n)) * real + 4 * count + 4 * n + 64
    return count <= device.invocations and needed <= device.workgroup_memory


def _size(n: int) -> int:
    return n + n % 2


def _invocations(n: int) -> int:
    """Return a multiple of 64 that is at least the square of the pairs."""
    return -(-((_size(n) // 2) ** 2) // 64) * 64 if n > 16 else 64


def small_eigh(a: ShapedArray, lower: bool, device: TargetCapabilities) -> Routine:
    """Return the routine for matrices that fit."""
    n, batch, real = a.shape[-1], math.prod(a.shape[:-2]), real_part(a.dtype)
    size = _size(n)
    pairs, pitch = size // 2, size + 1
    # Trees of sums and maxima need a power of two.
    shader = field_shader(device, a.dtype, 1 << (_invocations(n) - 1).bit_length())
    declare_rotations(shader, n, a.dtype)
    for name in ("tile", "turned"):
        shader.workgroup(name, "T", size * pitch)
    shader.workgroup("keys", "R", padded(n))
    shader.workgroup("order", "u32", n)
    source, vectors = shader.buffer(0, a.dtype).name, shader.buffer(1, a.dtype, written=True).name
    values = shader.buffer(2, real, written=True).name
    pairing = "pair_k = pair(turned_by, k);\n      pair_l = pair(turned_by, l);"
    written(
        shader,
        f"""
let base = group * {n * n}u;
var most = R(0);
var finite = true;
for (var i = local; i < {size * size}u; i += STEP) {{
  let row = i / {size}u;
  let column = i % {size}u;
  let here = {"row >= column" if lower else "row <= column"};
  var value = zero();
  if (row < {n}u && column < {n}u) {{ value = {source}[base + select(column * {n}u + row, row * {n}u + column, here)]; }}
  if (row == column) {{ value = number(real(value)); }} else if (!here) {{ value = conjugate(value); }}
  most = max(most, size(value));
  finite = finite & (size(value) <= {HUGE[real.name]});
  tile[row * {pitch}u + column] = value;
  turned[row * {pitch}u + column] = number(select(R(0), R(1), row == column));
}}
let bad = max_all(select(R(1), R(0), finite), local) > R(0);
let largest = max_all(most, local);
let scale = select(largest, R(1), largest == R(0) || bad);
for (var i = local; i < {size * size}u; i += STEP) {{
  let at = (i / {size}u) * {pitch}u + i % {size}u;
  tile[at] = tile[at] / scale;
}}
for (var sweep = 0u; sweep < {SWEEPS}u; sweep++) {{
  workgroupBarrier();
  var left = R(0);
  for (var i = local; i < {size * size}u; i += STEP) {{
    if (i / {size}u < i % {size}u) {{ left = max(left, size(tile[(i / {size}u) * {pitch}u + i % {size}u])); }}
  }}
  if (max_all(select(left, R(0), bad), local) <= {_EPSILON[real.name]}) {{ break; }}
  {tile_rotations(pairs, pitch, f"{max(size - 1, 1)}u", pairing, all_work=shader.invocations == pairs * pairs)}
}}
for (var i = local; i < {padded(n)}u; i += STEP) {{
  keys[i] = {HUGE[real.name]};
  if (i < {n}u) {{
    keys[i] = real(tile[i * {pitch + 1}u]);
    order[i] = i;
  }}
}}
workgroupBarrier();
for (var i = local; i < {n}u; i += STEP) {{
  {ranked(n, "keys", "other < mine")}
  if (bad) {{
    {values}[group * {n}u + i] = real(nan());
  }} else {{
    {values}[group * {n}u + place] = mine * scale;
    order[place] = i;
  }}
}}
workgroupBarrier();
for (var i = local; i < {n * n}u; i += STEP) {{
  if (bad) {{ {vectors}[base + i] = nan(); }} else {{ {vectors}[base + i] = turned[(i / {n}u) * {pitch}u + order[i % {n}u]]; }}
}}""",
    )
    return Routine((shader.dispatch(batch, iteration_budget.work(batch, n * n)),))
