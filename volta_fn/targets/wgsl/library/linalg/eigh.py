"""Eigenvalues and eigenvectors of Hermitian matrices, by Jacobi's method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.block_eigh import blocked_eigh
from volta_fn.targets.wgsl.library.linalg.blocks import SMALL
from volta_fn.targets.wgsl.library.linalg.rotations import LARGEST, declare_rotations, lanes, rotate, rotated, scaled, workers
from volta_fn.targets.wgsl.library.linalg.shader_templates import HUGE, field_shader, is_field, real_part
from volta_fn.targets.wgsl.library.linalg.small_eigh import fits, small_eigh
from volta_fn.targets.wgsl.library.linalg.sweeps import Method, state_size, swept
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars import Shader

#: The operand, the results, and workspaces: the matrix while it is made diagonal, the product of rotations, and what `sweeps` keeps.
_OPERAND, _VECTORS, _VALUES, _MATRIX, _PRODUCT, _STATE = range(6)


def eigh(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive. Matrices that are not finite have NaN."""
    (a,) = avals
    n = a.shape[-1]
    counted = iteration_budget.of_eigh(n)
    if not is_field(a.dtype, device, counted.of_a_dispatch) or n > LARGEST:
        return None
    if not a.size:
        return Routine(())
    if n > SMALL:
        return blocked_eigh(a, params["lower"], device)
    if fits(n, a.dtype, device):
        return small_eigh(a, params["lower"], device)
    batch, itemsize, real = math.prod(a.shape[:-2]), a.dtype.itemsize, real_part(a.dtype)

    def new() -> Shader:
        shader = field_shader(device, a.dtype, workers(n, n, a.dtype, device))
        declare_rotations(shader, n, a.dtype)
        return shader

    method = _method(a, n, params["lower"], real)
    spaces = (batch * n * n * itemsize,) * 2 + state_size(batch, counted, real)
    return Routine(tuple(swept(method, new, batch, counted, (_STATE, real))), spaces)


def _method(a: ShapedArray, n: int, lower: bool, real: np.dtype) -> Method:
    def own(shader: Shader) -> tuple[str, str]:
        """Return the workspaces of the matrix, and of its vectors."""
        return shader.buffer(_MATRIX, a.dtype, written=True).name, shader.buffer(_PRODUCT, a.dtype, written=True).name

    def after(shader: Shader) -> str:
        vectors, values = (shader.buffer(k, t, written=True).name for k, t in ((_VECTORS, a.dtype), (_VALUES, real)))
        return _sort(*own(shader), values, vectors, n)

    return Method(
        where=f"let base = group * {n * n}u;",
        before=lambda shader: _load(shader.buffer(_OPERAND, a.dtype).name, *own(shader), n, lower, real.name),
        sweep=lambda shader: _sweep(*own(shader), n, lanes(n, shader.invocations)),
        enough=_EPSILON[real.name],
        after=after,
    )


def _load(source: str, x: str, v: str, n: int, lower: bool, real: str) -> str:
    """Return statements that load a triangle as a scaled Hermitian matrix `x`.

    `v` becomes the identity.
    """
    return f"""
var most = R(0);
var finite = true;
for (var i = local; i < {n * n}u; i += STEP) {{
  let row = i / {n}u;
  let column = i % {n}u;
  let here = {"row >= column" if lower else "row <= column"};
  let value = {source}[base + select(column * {n}u + row, i, here)];
  most = max(most, size(value));
  finite = finite && size(value) <= {HUGE[real]};
  var kept = value;
  if (row == column) {{ kept = number(real(value)); }} else if (!here) {{ kept = conjugate(value); }}
  {x}[base + i] = kept;
  {v}[base + i] = number(select(R(0), R(1), row == column));
}}
sync();
{scaled(x, n * n)}"""


def _sweep(x: str, v: str, n: int, lanes: int) -> str:
    """Return statements that rotate rows and columns of `x`, once for each pair.

    That makes `x` more diagonal; `v` is the product of all rotations. Neighbouring invocations have neighbouring columns.
    """
    pairs = (n + 1) // 2
    return f"""
  var left = R(0);
  let k = local % {pairs}u;
  let lane = local / {pairs}u;
  for (var step = 0u; step < {max(2 * pairs - 1, 1)}u; step++) {{
    let at = pair(step, k);
    if (local < {pairs}u && at.y < {n}u) {{
      let g = {x}[base + at.x * {n}u + at.y];
      left = max(left, size(g));
      rotation(k, real({x}[base + at.x * {n + 1}u]), real({x}[base + at.y * {n + 1}u]), g);
    }}
    sync();
    if (lane < {lanes}u && at.y < {n}u) {{{rotated(x, "base", n, n, lanes)}{rotated(v, "base", n, n, lanes)}
    }}
    sync();
    for (var i = local; i < {pairs * n}u; i += STEP) {{
      let k = i / {n}u;
      let at = pair(step, k);
      if (at.y < {n}u) {{
        {rotate(x, f"base + at.x * {n}u + i % {n}u", f"base + at.y * {n}u + i % {n}u", conjugated=True)}
      }}
    }}
    sync();
  }}"""


def _sort(x: str, v: str, values: str, vectors: str, n: int) -> str:
    """Return statements that write the eigenvalues, in order, and their vectors."""
    return f"""
for (var i = local; i < {n}u; i += STEP) {{
  let value = real({x}[base + i * {n + 1}u]);
  var place = 0u;
  for (var j = 0u; j < {n}u; j++) {{
    let other = real({x}[base + j * {n + 1}u]);
    place += select(0u, 1u, other < value || (other == value && j < i));
  }}
  if (bad) {{ {values}[group * {n}u + i] = real(nan()); }} else {{ {values}[group * {n}u + place] = value * scale; }}
  for (var j = 0u; j < {n}u; j++) {{
    if (bad) {{ {vectors}[base + j * {n}u + i] = nan(); }} else {{ {vectors}[base + j * {n}u + place] = {v}[base + j * {n}u + i]; }}
  }}
}}"""


#: What is negligible relative to 1, by the dtype of real parts.
_EPSILON = {"float32": "1e-8f", "float64": "1e-17lf"}
