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
from volta_fn.targets.wgsl.library.linalg.block_svd import blocked_svd, is_blocked_svd
from volta_fn.targets.wgsl.library.linalg.rotations import LARGEST, declare_rotations, lanes, rotated, workers
from volta_fn.targets.wgsl.library.linalg.shader_templates import field_shader, is_field, real_part
from volta_fn.targets.wgsl.library.linalg.singular_vectors import NEAR, TINY, begun, completed, found, sort
from volta_fn.targets.wgsl.library.linalg.small_svd import declare_tiles, fits, invocations, loaded, stored, tile_sweep
from volta_fn.targets.wgsl.library.linalg.sweeps import Method, state_size, swept
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars import Number, Shader, constant, wgsl_type


def svd(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive. Matrices that are not finite have NaN."""
    (a,) = avals
    rows, columns = a.shape[-2:]
    m, n, vectors = max(rows, columns), min(rows, columns), params["compute_uv"]
    wide = 0 if not vectors else m if params["full_matrices"] else n
    counted = iteration_budget.of_svd(m, n, wide)
    blocked = is_blocked_svd(a, device)
    if not is_field(a.dtype, device, counted.of_a_dispatch) or (n if blocked else m) > LARGEST:
        return None
    if not a.size:
        return _of_nothing(a, params, device)
    if blocked:
        return blocked_svd(a, wide, device)
    batch, itemsize, real = math.prod(a.shape[:-2]), a.dtype.itemsize, real_part(a.dtype)
    sizes = [batch * m * n * itemsize]
    if vectors:
        sizes += [batch * n * n * itemsize, batch * m * wide * itemsize, batch * wide * itemsize]

    in_tiles = not counted.are_many and fits(m, n, vectors, a.dtype, device)

    def new() -> Shader:
        shader = field_shader(device, a.dtype, invocations(n) if in_tiles else workers(m, n, a.dtype, device))
        declare_rotations(shader, n, a.dtype)
        if in_tiles:
            declare_tiles(shader, m, n, vectors, a.dtype)
        shader.workgroup("others", "R", shader.invocations)
        shader.workgroup("mixed", "T", shader.invocations)
        return shader

    state = (4 if vectors else 2) + len(sizes), real
    method = _method(a, (m, n, wide), rows < columns, real, in_tiles=in_tiles)
    dispatches = swept(method, new, batch, counted, state)
    return Routine(tuple(dispatches), (*sizes, *state_size(batch, counted, real)))


def _method(a: ShapedArray, sizes: tuple[int, int, int], turned: bool, real: np.dtype, *, in_tiles: bool) -> Method:
    """Return the method for a matrix, `turned` if its adjoint is factored.

    With `in_tiles`, sweeps are over columns in workgroup memory.

    Results and workspaces of vectors are there if there are to be any, `wide`.
    """
    m, n, wide = sizes
    spaces = 4 if wide else 2

    def own(shader: Shader) -> tuple[str, str]:
        """Return the workspaces of the columns, and of the product of rotations."""
        return _written(shader, spaces, a.dtype), _written(shader, spaces + 1, a.dtype) if wide else ""

    def before(shader: Shader) -> str:
        x, v = own(shader)
        text = begun(shader.buffer(0, a.dtype).name, x, "" if in_tiles else v, m, n, turned, real.name)
        return text + loaded(x, m, n, wide > 0) if in_tiles else text

    def sweep(shader: Shader) -> str:
        if in_tiles:
            return tile_sweep(shader, m, n, wide > 0, a.dtype)
        return _sweep(*own(shader), m, n, real.name, lanes(n, shader.invocations))

    def after(shader: Shader) -> str:
        shader.workgroup("order", "u32", n)
        shader.workgroup("lengths", "R", n)
        x, v = own(shader)
        text = stored(x, v, m, n) if in_tiles else ""
        text += sort(_written(shader, 1, real), x, m, n)
        if not wide:
            return text
        arrays = x, v, _written(shader, spaces + 2, a.dtype), _written(shader, spaces + 3, a.dtype)
        return text + _finished(shader, arrays, sizes, turned, a, real.name)

    return Method(
        where=f"let base = group * {m * n}u;\nlet square_base = group * {n * n}u;",
        before=before,
        sweep=sweep,
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
      let near = size(g) <= lengths * {NEAR[real]};
      left = max(left, select(size(g) / max(lengths, {TINY[real]}), R(0), near));
      if (near) {{ g = zero(); }}
      rotation(k, a, b, g);
    }}"""


def _finished(
    shader: Shader, arrays: tuple[str, str, str, str], sizes: tuple[int, int, int], turned: bool, a: ShapedArray, real: str
) -> str:
    """Return statements that write the vectors; those of the long side are completed."""
    x, v, u, projections = arrays
    m, n, wide = sizes
    left, right = (_written(shader, number, a.dtype) for number in (2, 3))
    long, short = (right, left) if turned else (left, right)
    return found(x, u, m, n, wide, real) + completed(u, projections, m, wide) + _stored(u, v, long, short, sizes, turned)


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
