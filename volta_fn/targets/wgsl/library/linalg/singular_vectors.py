"""Statements that load matrices, and sort and complete singular vectors."""

from __future__ import annotations

from volta_fn.targets.wgsl.library.linalg.rotations import scaled
from volta_fn.targets.wgsl.library.linalg.shader_templates import HUGE

#: Columns are orthogonal if the cosine of their angle is no more than this; lengths are at least so much.
NEAR = {"float32": "1.2e-7f", "float64": "2.3e-16lf"}
TINY = {"float32": "1e-37f", "float64": "1e-300lf"}


def begun(source: str, x: str, v: str, m: int, n: int, turned: bool, real: str) -> str:
    """Return statements that load the scaled matrix or its adjoint as `x`.

    `v` becomes the identity.
    """
    entry = f"conjugate({source}[base + (i % {n}u) * {m}u + i / {n}u])" if turned else f"{source}[base + i]"
    one = f"number(select(R(0), R(1), i / {n}u == i % {n}u))"
    identity = f"for (var i = local; i < {n * n}u; i += STEP) {{ {v}[square_base + i] = {one}; }}"
    return f"""
var most = R(0);
var finite = true;
for (var i = local; i < {m * n}u; i += STEP) {{
  let value = {entry};
  {x}[base + i] = value;
  most = max(most, size(value));
  finite = finite && size(value) <= {HUGE[real]};
}}
{identity if v else ""}
sync();
{scaled(x, m * n)}"""


def sort(values: str, x: str, m: int, n: int) -> str:
    """Return statements that write the columns' lengths: the singular values.

    `order` tells which column is which.
    """
    return f"""
for (var j = local; j < {n}u; j += STEP) {{
  var total = R(0);
  for (var row = 0u; row < {m}u; row++) {{ total += square({x}[base + row * {n}u + j]); }}
  lengths[j] = sqrt(total);
  order[j] = j;  // so that it is in range whatever the lengths are
}}
workgroupBarrier();
for (var j = local; j < {n}u; j += STEP) {{
  let mine = lengths[j];
  var place = 0u;
  for (var other = 0u; other < {n}u; other++) {{
    place += select(0u, 1u, lengths[other] > mine || (lengths[other] == mine && other < j));
  }}
  if (bad) {{
    {values}[group * {n}u + j] = real(nan());
  }} else {{
    order[place] = j;
    {values}[group * {n}u + place] = mine * scale;
  }}
}}
sync();"""


def found(x: str, u: str, m: int, n: int, wide: int, real: str) -> str:
    """Return statements that normalise columns of `x` that are not zero, `found` ones."""
    return f"""
let left_base = group * {m * wide}u;
let least = lengths[order[0]] * {NEAR[real]} * R({m});
if (local == 0u) {{
  var count = 0u;
  for (var c = 0u; c < {n}u; c++) {{ count += select(0u, 1u, lengths[order[c]] > least); }}
  places[0] = count;
}}
let found = workgroupUniformLoad(&places[0]);
for (var i = local; i < {m * n}u; i += STEP) {{
  let c = i % {n}u;
  let length = lengths[order[c]];
  if (c < found) {{ {u}[left_base + (i / {n}u) * {wide}u + c] = {x}[base + (i / {n}u) * {n}u + order[c]] / length; }}
}}
sync();"""


def completed(u: str, projections: str, m: int, wide: int) -> str:
    """Return statements for the columns from `found` on.

    Each is what is left of a unit vector without its projections on the columns before, subtracted twice.
    """
    return f"""
for (var c = found; c < {wide}u; c++) {{
  var best = R(-1);
  var place = 0u;
  for (var row = local; row < {m}u; row += STEP) {{
    var rest = R(1);
    for (var k = 0u; k < c; k++) {{ rest -= square({u}[left_base + row * {wide}u + k]); }}
    if (rest > best) {{ best = rest; place = row; }}
  }}
  let at = min(greatest(best, place, local), {m - 1}u);
  for (var row = local; row < {m}u; row += STEP) {{
    var value = number(select(R(0), R(1), row == at));
    for (var k = 0u; k < c; k++) {{
      value -= times({u}[left_base + row * {wide}u + k], conjugate({u}[left_base + at * {wide}u + k]));
    }}
    {u}[left_base + row * {wide}u + c] = value;
  }}
  sync();
  for (var k = local; k < c; k += STEP) {{
    var total = zero();
    for (var row = 0u; row < {m}u; row++) {{
      total += times(conjugate({u}[left_base + row * {wide}u + k]), {u}[left_base + row * {wide}u + c]);
    }}
    {projections}[group * {wide}u + k] = total;
  }}
  sync();
  var squares = R(0);
  for (var row = local; row < {m}u; row += STEP) {{
    var value = {u}[left_base + row * {wide}u + c];
    for (var k = 0u; k < c; k++) {{ value -= times({u}[left_base + row * {wide}u + k], {projections}[group * {wide}u + k]); }}
    {u}[left_base + row * {wide}u + c] = value;
    squares += square(value);
  }}
  let length = sqrt(sum_all(squares, local));
  for (var row = local; row < {m}u; row += STEP) {{ {u}[left_base + row * {wide}u + c] = {u}[left_base + row * {wide}u + c] / length; }}
  sync();
}}"""
