"""Eigenvalues and eigenvectors of Hermitian matrices, by Jacobi's rotations from both sides."""

from __future__ import annotations

import math
from typing import Any

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.library.linalg import turns
from volta_fn.backends.wgsl.library.linalg.fields import HUGE, field_shader, is_field, real_part, written
from volta_fn.backends.wgsl.library.linalg.rotations import LARGEST, SWEEPS, declare_rotations, rotate, scaled
from volta_fn.backends.wgsl.routine import Routine
from volta_fn.core.aval import ShapedArray


def eigh(avals: tuple[ShapedArray, ...], params: dict[str, Any], facts: Facts) -> Routine | None:
    """The routine of the primitive. Matrices that are not finite have NaN."""
    (a,) = avals
    n = a.shape[-1]
    if not is_field(a.dtype, facts, turns.of_eigh(n)) or n > LARGEST:
        return None
    if not a.size:
        return Routine(())
    batch, itemsize = math.prod(a.shape[:-2]), a.dtype.itemsize
    shader = field_shader(facts, a.dtype, n)
    declare_rotations(shader, n)
    source = shader.buffer(0, a.dtype).name
    vectors, values = (shader.buffer(k, t, written=True).name for k, t in ((1, a.dtype), (2, real_part(a.dtype))))
    x, v = (shader.buffer(k, a.dtype, written=True).name for k in (3, 4))
    real = real_part(a.dtype).name
    written(shader, _load(source, x, v, n, params["lower"], real) + _diagonalize(x, v, n, real) + _sort(x, v, values, vectors, n))
    return Routine((shader.dispatch(batch),), (batch * n * n * itemsize,) * 2)


def _load(source: str, x: str, v: str, n: int, lower: bool, real: str) -> str:
    """`x` becomes the Hermitian matrix that one triangle tells, in proportion; `v` becomes the identity."""
    return f"""
let base = group * {n * n}u;
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


def _diagonalize(x: str, v: str, n: int, real: str) -> str:
    """Rotations of rows and columns of `x`, each of its pairs once in a sweep, until it is diagonal; `v` is their product."""
    pairs = (n + 1) // 2
    return f"""
for (var sweep = 0u; sweep < {SWEEPS}u; sweep++) {{
  var left = R(0);
  for (var step = 0u; step < {max(2 * pairs - 1, 1)}u; step++) {{
    for (var k = local; k < {pairs}u; k += STEP) {{
      let at = pair(step, k);
      if (at.y < {n}u) {{
        let g = {x}[base + at.x * {n}u + at.y];
        left = max(left, size(g));
        rotation(k, real({x}[base + at.x * {n + 1}u]), real({x}[base + at.y * {n + 1}u]), g);
      }}
    }}
    sync();
    for (var i = local; i < {pairs * n}u; i += STEP) {{
      let k = i / {n}u;
      let at = pair(step, k);
      let row = base + (i % {n}u) * {n}u;
      if (at.y < {n}u) {{
        {{ {rotate(x, "row + at.x", "row + at.y")} }}
        {{ {rotate(v, "row + at.x", "row + at.y")} }}
      }}
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
  }}
  if (max_all(left, local) <= {_EPSILON[real]}) {{ break; }}
}}"""


def _sort(x: str, v: str, values: str, vectors: str, n: int) -> str:
    """The diagonal is the eigenvalues, written with their vectors, the least first."""
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


#: What is nothing beside 1, in real parts of each dtype.
_EPSILON = {"float32": "1e-8f", "float64": "1e-17lf"}
