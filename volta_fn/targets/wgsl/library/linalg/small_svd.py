"""Rotate columns in workgroup memory, for singular values of small matrices.

A column is contiguous, and ends with zeros. Of each pair of columns some neighbouring invocations have a share of the rows; all of them
compute the pair's rotation, so that a step needs one barrier where subgroups exchange sums, and two where they do not.
"""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.library.linalg.shader_templates import real_part
from volta_fn.targets.wgsl.library.linalg.singular_vectors import NEAR, TINY
from volta_fn.targets.wgsl.loops.subgroups import has_rows
from volta_fn.targets.wgsl.scalars import Shader

#: Invocations that share a pair of columns, and the most rows of a column.
_LANES, _ROWS = 8, 64

#: Banks of workgroup memory. From one column to the next they advance by the invocations of a pair.
_BANKS = 32


def fits(m: int, n: int, vectors: bool, dtype: np.dtype, device: TargetCapabilities) -> bool:
    """Return whether n columns of m rows fit in workgroup memory.

    With `vectors`, so does the product of their rotations.
    """
    even, real, count = n + n % 2, real_part(dtype).itemsize, invocations(n)
    tiles = even * (_pitch(m) + (_pitch(n) if vectors else 0)) * dtype.itemsize
    others = count * (2 * real + dtype.itemsize + 4) + n * (real + 4) + even * dtype.itemsize + 64
    return m <= _ROWS and count <= device.invocations and tiles + others <= device.workgroup_memory


def invocations(n: int) -> int:
    """Return the size of the workgroup for n columns."""
    return max(64, 1 << ((n + 1) // 2 * _LANES - 1).bit_length())


def _padded(rows: int) -> int:
    return -(-rows // _LANES) * _LANES


def _pitch(rows: int) -> int:
    return _padded(rows) + (_LANES - _padded(rows)) % _BANKS


def declare_tiles(shader: Shader, m: int, n: int, vectors: bool, dtype: np.dtype) -> None:
    """Declare the columns as `tile`, and the product of their rotations as `turned`."""
    if _exchanges(shader, dtype):
        shader.number_by_subgroups()
    shader.workgroup("tile", "T", (n + n % 2) * _pitch(m))
    if vectors:
        shader.workgroup("turned", "T", (n + n % 2) * _pitch(n))


def _exchanges(shader: Shader, dtype: np.dtype) -> bool:
    return real_part(dtype) == np.float32 and has_rows(shader.module.device, _LANES, shader.invocations)


def loaded(x: str, m: int, n: int, vectors: bool) -> str:
    """Return statements that load the columns; `turned` is the identity."""
    even, pitch, square = n + n % 2, _pitch(m), _pitch(n)
    identity = f"""
for (var i = local; i < {even * square}u; i += STEP) {{
  turned[i] = number(select(R(0), R(1), i / {square}u == i % {square}u && i / {square}u < {n}u));
}}"""
    return f"""
for (var i = local; i < {even * pitch}u; i += STEP) {{
  let column = i / {pitch}u;
  let row = i % {pitch}u;
  var value = zero();
  if (column < {n}u && row < {m}u) {{ value = {x}[base + row * {n}u + column]; }}
  tile[i] = value;
}}{identity if vectors else ""}
workgroupBarrier();"""


def stored(x: str, v: str, m: int, n: int) -> str:
    """Return statements that store the columns, and `turned` if `v` has a name."""
    arrays = [(x, "base", "tile", m)] + ([(v, "square_base", "turned", n)] if v else [])
    loops = [
        f"for (var i = local; i < {rows * n}u; i += STEP) {{ {array}[{base} + i] = {tile}[(i % {n}u) * {_pitch(rows)}u + i / {n}u]; }}"
        for array, base, tile, rows in arrays
    ]
    return "\n".join(["", *loops, "sync();"])


def tile_sweep(shader: Shader, m: int, n: int, vectors: bool, dtype: np.dtype) -> str:
    """Return statements that rotate all pairs of columns towards orthogonality.

    `left` tells how far they were from it.
    """
    pairs, real, rows = (n + 1) // 2, real_part(dtype).name, range(_padded(m) // _LANES)
    loads = "\n    ".join([f"let x_{j} = tile[p + {j * _LANES}u];\n    let y_{j} = tile[q + {j * _LANES}u];" for j in rows])
    sums = [" + ".join([term.format(j=j) for j in rows]) for term in ("square(x_{j})", "square(y_{j})", "times(conjugate(x_{j}), y_{j})")]
    rotations = "\n      ".join([_rotated("tile", "p", "q", j * _LANES, f"x_{j}", f"y_{j}") for j in rows])
    if vectors:
        offsets = range(0, _padded(n), _LANES)
        own = "\n      ".join([_rotated("turned", "v", "w", j, f"turned[v + {j}u]", f"turned[w + {j}u]") for j in offsets])
        rotations += f"""
      let v = at.x * {_pitch(n)}u + lane;
      let w = at.y * {_pitch(n)}u + lane;
      {own}"""
    return f"""
  var left = R(0);
  let k = min(local / {_LANES}u, {pairs - 1}u);
  let lane = local % {_LANES}u;
  for (var step = 0u; step < {max(2 * pairs - 1, 1)}u; step++) {{
    let at = pair(step, k);
    let p = at.x * {_pitch(m)}u + lane;
    let q = at.y * {_pitch(m)}u + lane;
    {loads}
    var a = {sums[0]};
    var b = {sums[1]};
    var g = {sums[2]};
    {_added(_exchanges(shader, dtype))}
    let lengths = sqrt(a) * sqrt(b);
    // Columns that are as good as orthogonal stay: more is not to be had.
    let near = size(g) <= lengths * {NEAR[real]};
    left = max(left, select(size(g) / max(lengths, {TINY[real]}), R(0), near));
    if (near) {{ g = zero(); }}
    let made = rotation_of(a, b, g);
    let s = made.sine;
    let t = made.tangent;
    {"" if shader.invocations == pairs * _LANES else f"if (local < {pairs * _LANES}u)"} {{
      {rotations}
    }}
    workgroupBarrier();
  }}"""


def _rotated(array: str, p: str, q: str, offset: int, x: str, y: str) -> str:
    return f"""{{
        let x = {x};
        let y = {y};
        {array}[{p} + {offset}u] = x - times(conjugate(s), y + times(t, x));
        {array}[{q} + {offset}u] = y + times(s, x - times(conjugate(t), y));
      }}"""


def _added(exchanges: bool) -> str:
    """Return statements that give a pair's invocations the sums of their products."""
    if exchanges:
        reaches = [1 << k for k in reversed(range(_LANES.bit_length() - 1))]
        return "\n    ".join([f"{x} += subgroupShuffleXor({x}, {reach}u);" for reach in reaches for x in "abg"])
    terms = range(1, _LANES)
    return f"""part[local] = a;
    others[local] = b;
    mixed[local] = g;
    workgroupBarrier();
    let first = local - lane;
    a = part[first]{"".join([f" + part[first + {j}u]" for j in terms])};
    b = others[first]{"".join([f" + others[first + {j}u]" for j in terms])};
    g = mixed[first]{"".join([f" + mixed[first + {j}u]" for j in terms])};"""
