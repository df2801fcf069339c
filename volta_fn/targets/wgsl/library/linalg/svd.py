"""Singular values and vectors, by rotations of columns (Hestenes' method).

Of wide matrices the adjoint is factored. Left vectors that zeros in the singular values leave open are found as Gram and Schmidt would,
beginning with the unit vector that is furthest from those that there are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.copy_units import INVOCATIONS, fill
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.block_rotations import apply_products, blocks_of, find_products
from volta_fn.targets.wgsl.library.linalg.blocks import SMALL
from volta_fn.targets.wgsl.library.linalg.rotations import LARGEST, declare_rotations, lanes, rotated, scaled, workers
from volta_fn.targets.wgsl.library.linalg.shader_templates import HUGE, field_shader, is_field, real_part
from volta_fn.targets.wgsl.library.linalg.sweeps import Method, state_size, swept, swept_by_blocks
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars import Number, Shader, constant, wgsl_type


def svd(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive. Matrices that are not finite have NaN."""
    (a,) = avals
    rows, columns = a.shape[-2:]
    m, n, vectors = max(rows, columns), min(rows, columns), params["compute_uv"]
    wide = 0 if not vectors else m if params["full_matrices"] else n
    counted = iteration_budget.of_svd(m, n, wide)
    if not is_field(a.dtype, device, counted.of_a_dispatch) or m > LARGEST:
        return None
    if not a.size:
        return _of_nothing(a, params, device)
    batch, itemsize, real = math.prod(a.shape[:-2]), a.dtype.itemsize, real_part(a.dtype)
    sizes = [batch * m * n * itemsize]
    if vectors:
        sizes += [batch * n * n * itemsize, batch * m * wide * itemsize, batch * wide * itemsize]

    def new() -> Shader:
        shader = field_shader(device, a.dtype, workers(m, n, a.dtype, device))
        declare_rotations(shader, n)
        shader.workgroup("others", "R", shader.invocations)
        shader.workgroup("mixed", "T", shader.invocations)
        return shader

    spaces, method = 4 if vectors else 2, _method(a, (m, n, wide), rows < columns, real)
    state = spaces + len(sizes), real
    if n > SMALL:
        blocks = blocks_of(n, a.dtype, batch, device, state[0])
        turn = (
            find_products(
                a, blocks, device, lambda shader: _common(shader, a, (m, n), blocks.size, spaces), _share(real.name), _NEGLIGIBLE[real.name]
            ),
            apply_products(a, blocks, device, spaces, m, spaces + 1 if vectors else 0, both=False),
        )
        return Routine(tuple(swept_by_blocks(method, new, a, blocks, spaces, turn)), (*sizes, *blocks.spaces(a.dtype)))
    dispatches = swept(method, new, batch, counted, state)
    return Routine(tuple(dispatches), (*sizes, *state_size(batch, counted, real)))


def _method(a: ShapedArray, sizes: tuple[int, int, int], turned: bool, real: np.dtype) -> Method:
    """Return the method for a matrix, `turned` if its adjoint is factored.

    Results and workspaces of vectors are there if there are to be any, `wide`.
    """
    m, n, wide = sizes
    spaces = 4 if wide else 2

    def own(shader: Shader) -> tuple[str, str]:
        """Return the workspaces of the columns, and of the product of rotations."""
        return _written(shader, spaces, a.dtype), _written(shader, spaces + 1, a.dtype) if wide else ""

    def after(shader: Shader) -> str:
        shader.workgroup("order", "u32", n)
        shader.workgroup("lengths", "R", n)
        x, v = own(shader)
        text = _sort(_written(shader, 1, real), x, m, n)
        if not wide:
            return text
        arrays = x, v, _written(shader, spaces + 2, a.dtype), _written(shader, spaces + 3, a.dtype)
        return text + _finished(shader, arrays, sizes, turned, a, real.name)

    return Method(
        where=f"let base = group * {m * n}u;\nlet square_base = group * {n * n}u;",
        before=lambda shader: _begun(shader.buffer(0, a.dtype).name, *own(shader), m, n, turned, real.name),
        sweep=lambda shader: _sweep(*own(shader), m, n, real.name, lanes(n, shader.invocations)),
        enough="R(0)",
        after=after,
    )


def _written(shader: Shader, number: int, dtype: np.dtype) -> str:
    return shader.buffer(number, dtype, written=True).name


def _of_nothing(a: ShapedArray, params: dict[str, Any], device: TargetCapabilities) -> Routine:
    """Return the routine of matrices without elements, whose vectors are the identity."""
    dispatches = []
    for number, n in ((2, a.shape[-2]), (3, a.shape[-1])):
        count = math.prod(a.shape[:-2]) * n * n
        if count and params["compute_uv"] and params["full_matrices"]:
            shader = Shader(device, INVOCATIONS)
            one, zero = constant(a.dtype, 1).text, constant(a.dtype, 0).text

            def entry(i: str, shader: Shader = shader, n: int = n, one: str = one, zero: str = zero) -> Number:
                return Number(a.dtype, shader.let(wgsl_type(a.dtype), f"select({zero}, {one}, ({i} / {n}u) % {n}u == {i} % {n}u)"))

            dispatches.append(fill(shader, shader.buffer(number, a.dtype, written=True), count, entry))
    return Routine(tuple(dispatches))


def _common(shader: Shader, a: ShapedArray, shape: tuple[int, int], size: int, number: int) -> str:
    """Return statements for the products of two blocks' columns, whose rows are loaded a few at a time."""
    m, n = shape
    pitch, corners = 2 * size + 1, [(i, j) for i in (0, 1) for j in (0, 1)]
    x = shader.buffer(number, a.dtype).name
    begun = "\n  ".join([f"var sum_{i}{j} = zero();" for i, j in corners])
    loads = "\n      ".join(
        [f"let l{i} = conjugate(tile[t * {pitch}u + left + {i * size}u]);\n      let r{i} = tile[t * {pitch}u + right + {i * size}u];" for i in (0, 1)]
    )
    sums = "\n      ".join([f"sum_{i}{j} += times(l{i}, r{j});" for i, j in corners])
    stores = "\n  ".join([f"tile[(left + {i * size}u) * {pitch}u + right + {j * size}u] = sum_{i}{j};" for i, j in corners])
    return f"""let left = local / {size}u;
  let right = local % {size}u;
  {begun}
  for (var begin = 0u; begin < {m}u; begin += {2 * size}u) {{
    for (var i = local; i < {4 * size * size}u; i += STEP) {{
      let row = begin + i / {2 * size}u;
      let column = place(at, i % {2 * size}u);
      var value = zero();
      if (row < {m}u && column < {n}u) {{ value = {x}[matrix * {m * n}u + row * {n}u + column]; }}
      tile[(i / {2 * size}u) * {pitch}u + i % {2 * size}u] = value;
    }}
    workgroupBarrier();
    for (var t = 0u; t < {2 * size}u; t++) {{
      {loads}
      {sums}
    }}
    workgroupBarrier();
  }}
  {stores}
  workgroupBarrier();"""


def _share(real: str) -> str:
    """Return the expression for the cosine of two columns' angle; columns that are nothing but rounding count as longer."""
    least = f"max(norm * norm * R({_NEGLIGIBLE[real] ** 2}), R({1e-37 if real == 'float32' else 1e-300}))"
    return f"g / (sqrt(max(p, {least})) * sqrt(max(q, {least})))"


def _sweep(x: str, v: str, m: int, n: int, real: str, lanes: int) -> str:
    """Return statements that rotate pairs of columns of `x` towards orthogonality.

    `v` is the product of all rotations. Each pair has so many `lanes` of invocations, which divide its rows; neighbouring invocations have
    neighbouring columns.
    """
    pairs = (n + 1) // 2
    rotations = rotated(x, "base", m, n, lanes) + (rotated(v, "square_base", n, n, lanes) if v else "")
    return f"""
  var left = R(0);
  let k = local % {pairs}u;
  let lane = local / {pairs}u;
  for (var step = 0u; step < {max(2 * pairs - 1, 1)}u; step++) {{
    let at = pair(step, k);
    let mine = lane < {lanes}u && at.y < {n}u;
    {_products(x, m, n, lanes)}
    workgroupBarrier();
    {_angles(n, pairs, lanes, real)}
    workgroupBarrier();
    if (mine) {{{rotations}
    }}
    sync();
  }}"""


def _begun(source: str, x: str, v: str, m: int, n: int, turned: bool, real: str) -> str:
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


def _products(x: str, m: int, n: int, lanes: int) -> str:
    """Return statements for a lane's products of two columns.

    Each is multiplied with itself and with the other.
    """
    return f"""if (mine) {{
      var a = R(0);
      var b = R(0);
      var g = zero();
      for (var row = lane; row < {m}u; row += {lanes}u) {{
        let p = {x}[base + row * {n}u + at.x];
        let q = {x}[base + row * {n}u + at.y];
        a += square(p);
        b += square(q);
        g += times(conjugate(p), q);
      }}
      part[local] = a;
      others[local] = b;
      mixed[local] = g;
    }}"""


def _angles(n: int, pairs: int, lanes: int, real: str) -> str:
    """Return statements for a step's rotations, and whether anything is `left`."""
    return f"""if (local < {pairs}u && at.y < {n}u) {{
      var a = part[local];
      var b = others[local];
      var g = mixed[local];
      for (var other = 1u; other < {lanes}u; other++) {{
        a += part[local + other * {pairs}u];
        b += others[local + other * {pairs}u];
        g += mixed[local + other * {pairs}u];
      }}
      let lengths = sqrt(a) * sqrt(b);
      // Columns that are as good as orthogonal stay: more is not to be had.
      let near = size(g) <= lengths * {_NEAR[real]};
      left = max(left, select(size(g) / max(lengths, {_TINY[real]}), R(0), near));
      if (near) {{ g = zero(); }}
      rotation(k, a, b, g);
    }}"""


#: Cosines that are negligible in a round of blocks: the products of rotations round as much.
_NEGLIGIBLE = {"float32": 6e-7, "float64": 1.2e-15}

#: Columns are orthogonal if the cosine of their angle is no more than this; lengths are at least so much.
_NEAR = {"float32": "1.2e-7f", "float64": "2.3e-16lf"}
_TINY = {"float32": "1e-37f", "float64": "1e-300lf"}


def _sort(values: str, x: str, m: int, n: int) -> str:
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


def _finished(
    shader: Shader, arrays: tuple[str, str, str, str], sizes: tuple[int, int, int], turned: bool, a: ShapedArray, real: str
) -> str:
    """Return statements that write the vectors; those of the long side are completed."""
    x, v, u, projections = arrays
    m, n, wide = sizes
    left, right = (_written(shader, number, a.dtype) for number in (2, 3))
    long, short = (right, left) if turned else (left, right)
    found = _found(x, u, m, n, wide, real) + _completed(u, projections, m, wide)
    return found + _stored(u, v, long, short, sizes, turned)


def _found(x: str, u: str, m: int, n: int, wide: int, real: str) -> str:
    """Return statements that normalise columns of `x` that are not zero, `found` ones."""
    return f"""
let left_base = group * {m * wide}u;
let least = lengths[order[0]] * {_NEAR[real]} * R({m});
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


def _completed(u: str, projections: str, m: int, wide: int) -> str:
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


def _stored(u: str, v: str, long: str, short: str, sizes: tuple[int, int, int], turned: bool) -> str:
    """Return statements that write the vectors of both sides.

    They are those of the matrix, also if its adjoint was factored.
    """
    m, n, wide = sizes
    return f"""
for (var i = local; i < {m * wide}u; i += STEP) {{
  let value = {f"conjugate({u}[left_base + (i % {m}u) * {wide}u + i / {m}u])" if turned else f"{u}[left_base + i]"};
  if (bad) {{ {long}[left_base + i] = nan(); }} else {{ {long}[left_base + i] = value; }}
}}
for (var i = local; i < {n * n}u; i += STEP) {{
  let row = i / {n}u;
  let column = i % {n}u;
  let value = {f"{v}[square_base + row * {n}u + order[column]]" if turned else f"conjugate({v}[square_base + column * {n}u + order[row]])"};
  if (bad) {{ {short}[square_base + i] = nan(); }} else {{ {short}[square_base + i] = value; }}
}}"""
