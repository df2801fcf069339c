"""QR factors by Householder's reflections, with LAPACK's choice of signs."""

from __future__ import annotations

import math
from typing import Any

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.blocked_qr import blocked_qr, is_blocked_qr
from volta_fn.targets.wgsl.library.linalg.shader_templates import field_shader, invocations, is_field, written
from volta_fn.targets.wgsl.library.linalg.triangular import LARGEST
from volta_fn.targets.wgsl.routine import Routine


def qr(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    (a,), compute_q = avals, params["compute_q"]
    m, n = a.shape[-2:]
    k = min(m, n)
    batch, wide = math.prod(a.shape[:-2]), m if params["full_matrices"] else k
    count = iteration_budget.of_qr(m, n, wide)
    if not is_field(a.dtype, device, count) or max(m, n) > LARGEST:
        return None
    if not batch * m or not (k or compute_q):
        return Routine(())
    if is_blocked_qr(a, device):
        return blocked_qr(a, wide, compute_q, device)
    shader = field_shader(device, a.dtype, invocations(max(m, n)))
    q = shader.buffer(1, a.dtype, written=True).name if compute_q else ""
    if not k:
        written(shader, f"for (var i = local; i < {m * wide}u; i += STEP) {{ {q}[group * {m * wide}u + i] = {_IDENTITY.format(wide)}; }}")
        return Routine((shader.dispatch(batch, iteration_budget.work(batch, count)),))
    source = shader.buffer(0, a.dtype).name
    r, x, factors = (shader.buffer(number + compute_q, a.dtype, written=True).name for number in (1, 2, 3))
    columns = _load(source, x, m, n) + _factor(x, factors, m, n, k) + _upper(x, r, n, wide)
    written(shader, columns + _product(x, factors, q, m, n, wide, k) if compute_q else columns)
    itemsize = a.dtype.itemsize
    return Routine((shader.dispatch(batch, iteration_budget.work(batch, count)),), (batch * m * n * itemsize, batch * k * itemsize))


def _load(source: str, x: str, m: int, n: int) -> str:
    """Return statements that load the matrix as `x`."""
    return f"""
let base = group * {m * n}u;
let taus = group * {min(m, n)}u;
for (var i = local; i < {m * n}u; i += STEP) {{ {x}[base + i] = {source}[base + i]; }}
sync();"""


def _factor(x: str, factors: str, m: int, n: int, k: int) -> str:
    """Return statements that reflect the columns of `x`, one after another.

    Each column's reflection is applied to the columns after it. The reflection leaves nothing below the diagonal of `x`, where it is kept.
    """
    return f"""
for (var j = 0u; j < {k}u; j++) {{
  var most = R(0);
  for (var i = j + local; i < {m}u; i += STEP) {{ most = max(most, size({x}[base + i * {n}u + j])); }}
  let largest = max_all(most, local);
  let scale = select(largest, R(1), largest == R(0));
  var squares = R(0);
  for (var i = j + 1u + local; i < {m}u; i += STEP) {{ squares += square({x}[base + i * {n}u + j] / scale); }}
  let below = sum_all(squares, local);
  let alpha = {x}[base + j * {n}u + j] / scale;
  let nothing = below == R(0) && imaginary(alpha) == R(0);
  let length = sqrt(square(alpha) + below);
  let beta = number(select(length, -length, real(alpha) >= R(0)));
  let divisor = alpha - beta;
  sync();
  for (var i = j + 1u + local; i < {m}u; i += STEP) {{
    if (!nothing) {{ {x}[base + i * {n}u + j] = over({x}[base + i * {n}u + j] / scale, divisor); }}
  }}
  if (local == 0u) {{
    if (nothing) {{
      {factors}[taus + j] = zero();
    }} else {{
      {factors}[taus + j] = over(beta - alpha, beta);
      {x}[base + j * {n}u + j] = beta * scale;
    }}
  }}
  sync();
  let tau = conjugate({factors}[taus + j]);
  for (var c = j + 1u + local; c < {n}u; c += STEP) {{{_reflect(x, x, "base", m, n, n)}
  }}
  sync();
}}"""


def _reflect(x: str, target: str, first: str, m: int, n: int, wide: int) -> str:
    """Return statements that apply the reflection of column j to column c.

    The matrix has `wide` columns.
    """
    return f"""
    var total = {target}[{first} + j * {wide}u + c];
    for (var i = j + 1u; i < {m}u; i++) {{ total += times(conjugate({x}[base + i * {n}u + j]), {target}[{first} + i * {wide}u + c]); }}
    total = times(total, tau);
    {target}[{first} + j * {wide}u + c] -= total;
    for (var i = j + 1u; i < {m}u; i++) {{ {target}[{first} + i * {wide}u + c] -= times({x}[base + i * {n}u + j], total); }}"""


def _upper(x: str, r: str, n: int, wide: int) -> str:
    """Return statements that write the upper triangle of `x`."""
    return f"""
for (var i = local; i < {wide * n}u; i += STEP) {{
  if (i % {n}u >= i / {n}u) {{ {r}[group * {wide * n}u + i] = {x}[base + i]; }} else {{ {r}[group * {wide * n}u + i] = zero(); }}
}}"""


def _product(x: str, factors: str, q: str, m: int, n: int, wide: int, k: int) -> str:
    """Return statements that reflect the identity to make `q`, the last one first."""
    return f"""
let first = group * {m * wide}u;
for (var i = local; i < {m * wide}u; i += STEP) {{ {q}[first + i] = {_IDENTITY.format(wide)}; }}
sync();
for (var step = 0u; step < {k}u; step++) {{
  let j = {k - 1}u - step;
  let tau = {factors}[taus + j];
  for (var c = j + local; c < {wide}u; c += STEP) {{{_reflect(x, q, "first", m, n, wide)}
  }}
  sync();
}}"""


#: An element of the identity, of matrices so wide.
_IDENTITY = "number(select(R(0), R(1), i / {0}u == i % {0}u))"
