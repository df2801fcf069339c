"""Singular values and vectors of small matrices."""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.library.linalg.rotations import HUGE, real_part, scaled, turned
from volta_fn.targets.wgsl.loops.reductions import fits_subgroups
from volta_fn.targets.wgsl.routine import Shader

# Statements that load matrices, and sort and complete singular vectors.

#: Columns are orthogonal if the cosine of their angle is no more than `NEAR`; products of lengths count as at least `TINY`.
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


def normalised(x: str, u: str, m: int, n: int, wide: int, real: str) -> str:
    """Return statements that normalise the columns of `x` that are not zero.

    They set `rank` to the number of these.
    """
    return f"""
let left_base = group * {m * wide}u;
let least = lengths[order[0]] * {NEAR[real]} * R({m});
if (local == 0u) {{
  var count = 0u;
  for (var c = 0u; c < {n}u; c++) {{ count += select(0u, 1u, lengths[order[c]] > least); }}
  places[0] = count;
}}
let rank = workgroupUniformLoad(&places[0]);
for (var i = local; i < {m * n}u; i += STEP) {{
  let c = i % {n}u;
  let length = lengths[order[c]];
  if (c < rank) {{ {u}[left_base + (i / {n}u) * {wide}u + c] = {x}[base + (i / {n}u) * {n}u + order[c]] / length; }}
}}
sync();"""


def completed(u: str, projections: str, m: int, wide: int) -> str:
    """Return statements for the columns from `rank` on."""
    # Each is a unit vector minus its projections on the columns before, which are subtracted twice.
    return f"""
for (var c = rank; c < {wide}u; c++) {{
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


# Rotate columns in workgroup memory, for singular values of small matrices.
#
# A column is contiguous, and ends with zeros. Of each pair of columns some neighbouring invocations have a share of the rows; all of them
# compute the pair's rotation, so that a step needs one barrier where subgroups exchange sums, and two where they do not.

#: Invocations that share a pair of columns, and the most rows of a column.
_LANES, _ROWS = 8, 64

#: Banks of workgroup memory. From one column to the next they advance by the invocations of a pair.
_BANKS = 32


def fits(m: int, n: int, vectors: bool, dtype: np.dtype, capabilities: TargetCapabilities) -> bool:
    """Return whether n columns of m rows fit in workgroup memory.

    With `vectors`, so does the product of their rotations.
    """
    even, real, count = n + n % 2, real_part(dtype).itemsize, invocations(n)
    tiles = even * (_pitch(m) + (_pitch(n) if vectors else 0)) * dtype.itemsize
    others = count * (2 * real + dtype.itemsize + 4) + n * (real + 4) + even * dtype.itemsize + 64
    return m <= _ROWS and count <= capabilities.invocations and tiles + others <= capabilities.workgroup_memory


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
    return real_part(dtype) == np.float32 and fits_subgroups(shader.module.capabilities, _LANES, shader.invocations)


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
    rotations = "\n      ".join([turned(f"tile[p + {j * _LANES}u]", f"tile[q + {j * _LANES}u]", f"x_{j}", f"y_{j}") for j in rows])
    if vectors:
        elements = [(f"turned[v + {j}u]", f"turned[w + {j}u]") for j in range(0, _padded(n), _LANES)]
        vector_rotations = "\n      ".join([turned(p, q, p, q) for p, q in elements])
        rotations += f"""
      let v = at.x * {_pitch(n)}u + lane;
      let w = at.y * {_pitch(n)}u + lane;
      {vector_rotations}"""
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
    let result = rotation_of(a, b, g);
    let s = result.sine;
    let t = result.tangent;
    {"" if shader.invocations == pairs * _LANES else f"if (local < {pairs * _LANES}u)"} {{
      {rotations}
    }}
    workgroupBarrier();
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
