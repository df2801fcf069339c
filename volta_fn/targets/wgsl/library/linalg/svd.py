"""Singular values and vectors, by rotations of columns (Hestenes' method)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import rotations as iteration_budget
from volta_fn.targets.wgsl.library.linalg.block_rotations import BLOCK_SWEEPS as SWEEPS
from volta_fn.targets.wgsl.library.linalg.block_rotations import (
    Blocks,
    apply_products,
    blocks_of,
    find_products,
    load_scale,
    many_invocations,
    padded,
    ranked,
    scale_dispatch,
)
from volta_fn.targets.wgsl.library.linalg.qr import blocked_qr, is_blocked_qr
from volta_fn.targets.wgsl.library.linalg.rotations import (
    HUGE,
    LARGEST,
    SMALL,
    Method,
    Moved,
    declare_rotations,
    element_dispatch,
    element_shader,
    field_shader,
    is_field,
    lanes,
    over_elements,
    real_part,
    repeated,
    rotated,
    scaled,
    state_size,
    streamed,
    swept,
    turned,
    workers,
    written,
)
from volta_fn.targets.wgsl.library.movement import INVOCATIONS, fill
from volta_fn.targets.wgsl.loops.reductions import fits_subgroups
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader
from volta_fn.targets.wgsl.scalars import Number, constant, wgsl_type

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


# Singular values and vectors of matrices that many workgroups share.
#
# A = QR first, then the columns of Rᴴ are rotated until they are orthogonal, which takes few sweeps: they are so nearly, and in their
# order. With the product J of all rotations, Rᴴ J = W Σ and A = (Q J) Σ Wᴴ. So Q is rotated along, and W are the columns themselves,
# divided by their lengths.

_UINT32 = np.dtype(np.uint32)

#: Cosines of columns' angles that are negligible: the products of rotations have as large rounding errors.
_NEGLIGIBLE = {"float32": 6e-7, "float64": 1.2e-15}


class _Problem(NamedTuple):
    """The adjoint of a wide matrix, or a matrix itself, and its buffers."""

    a: ShapedArray
    m: int
    n: int
    batch: int
    #: Columns of the vectors of the long side; 0 for values alone.
    wide: int
    turned: bool
    #: The first workspace.
    first: int

    @property
    def scaled(self) -> int:
        """The number of the scaled matrix, and then of the short side's vectors."""
        return self.first

    @property
    def q(self) -> int:
        """The number of Q."""
        return self.first + 1

    @property
    def r(self) -> int:
        """The number of R, and of projections in the end."""
        return self.first + 2

    @property
    def x(self) -> int:
        """The number of the columns that are rotated."""
        return self.first + 3

    @property
    def order(self) -> int:
        """The number of the order of the columns."""
        return self.first + 4

    @property
    def lengths(self) -> int:
        """The number of the columns' lengths."""
        return self.first + 5

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of these workspaces."""
        m, n, wide = self.m, self.n, self.wide
        rows = m if wide > n else n
        arrays = [self.batch * self.a.dtype.itemsize * count for count in (m * n, m * max(wide, 1), rows * n, n * n)]
        return (*arrays, 4 * self.batch * (n + 1), self.batch * n * real_part(self.a.dtype).itemsize)


def is_blocked_svd(a: ShapedArray, capabilities: TargetCapabilities) -> bool:
    """Return whether a matrix has several blocks, and may be made triangular by them."""
    rows, columns = a.shape[-2:]
    tall = a if rows >= columns else a.update(shape=(*a.shape[:-2], columns, rows))
    return min(rows, columns) > SMALL and is_blocked_qr(tall, capabilities)


def blocked_svd(a: ShapedArray, wide: int, capabilities: TargetCapabilities) -> Routine:
    """Return the routine for matrices of several blocks; `wide` is as in `_Problem`."""
    rows, columns = a.shape[-2:]
    m, n, batch = max(rows, columns), min(rows, columns), math.prod(a.shape[:-2])
    problem = _Problem(a, m, n, batch, wide, rows < columns, 4 if wide else 2)
    triangular = blocked_qr(a.update(shape=(batch, m, n)), wide or n, wide > 0, capabilities)
    first = problem.first + len(problem.sizes)
    numbers = [problem.scaled, *([problem.q] if wide else []), problem.r]
    numbers += range(first, first + len(triangular.workspaces))
    blocks = blocks_of(n, a.dtype, batch, capabilities, first + len(triangular.workspaces))
    square = a.update(shape=(batch, n, n))
    both = (
        find_products(square, blocks, capabilities, lambda shader: _common(shader, problem, blocks), _share(a), _NEGLIGIBLE[_real(a)]),
        apply_products(square, blocks, capabilities, problem.x, (problem.q, m, wide) if wide else None, both=False),
    )
    dispatches = (
        scale_dispatch(a, blocks, capabilities),
        _load(problem, blocks, capabilities),
        *[_renumbered(dispatch, numbers) for dispatch in triangular.dispatches],
        _turned(problem, capabilities),
        *both * (blocks.rounds * SWEEPS),
        _sort(problem, blocks, capabilities),
        *(
            [_normalised(problem, capabilities), _completed(problem, capabilities), _stored_blocks(problem, blocks, capabilities)]
            if wide
            else []
        ),
    )
    return Routine(dispatches, (*problem.sizes, *triangular.workspaces, *blocks.spaces(a.dtype)))


def _real(a: ShapedArray) -> str:
    return real_part(a.dtype).name


def _renumbered(dispatch: Dispatch, numbers: list[int]) -> Dispatch:
    return replace(dispatch, buffers=tuple([numbers[k] for k in dispatch.buffers]))


def _load(problem: _Problem, blocks: Blocks, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that loads the scaled matrix, or its adjoint."""
    a, m, n, *_ = problem
    shader = element_shader(capabilities, a.dtype, m * n)
    source, state = shader.buffer(0, a.dtype).name, shader.buffer(blocks.state, real_part(a.dtype)).name
    x = shader.buffer(problem.scaled, a.dtype, written=True).name
    entry = f"{source}[matrix * {m * n}u + {{}}]"
    value = f"conjugate({entry.format(f'(e % {n}u) * {m}u + e / {n}u')})" if problem.turned else entry.format("e")
    written(shader, f"let stored_scale = {state}[matrix * 2u];\nlet scale = select(stored_scale, R(1), stored_scale == R(0));")
    over_elements(shader, m * n, f"{x}[matrix * {m * n}u + e] = {value} / scale;")
    return element_dispatch(shader, problem.batch, m * n)


def _turned(problem: _Problem, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that makes the columns the adjoint of R."""
    a, _, n, batch, wide, *_ = problem
    rows = problem.m if wide > n else n
    shader = element_shader(capabilities, a.dtype, n * n)
    r, x = shader.buffer(problem.r, a.dtype).name, shader.buffer(problem.x, a.dtype, written=True).name
    entry = f"conjugate({r}[matrix * {rows * n}u + (e % {n}u) * {n}u + e / {n}u])"
    over_elements(shader, n * n, f"{x}[matrix * {n * n}u + e] = {entry};")
    return element_dispatch(shader, batch, n * n)


def _common(shader: Shader, problem: _Problem, blocks: Blocks) -> str:
    """Return statements for the products of two blocks' columns."""
    # A few rows are loaded at a time, while those before are multiplied.
    n, size = problem.n, blocks.size
    pitch, corners = blocks.pitch, [(i, j) for i in (0, 1) for j in (0, 1)]
    x = shader.buffer(problem.x, problem.a.dtype).name
    begun = "\n  ".join([f"var sum_{i}{j} = zero();" for i, j in corners])
    loads = "\n      ".join(
        [
            f"let l{i} = conjugate(tile[t * {pitch}u + left + {i * size}u]);\n      let r{i} = tile[t * {pitch}u + right + {i * size}u];"
            for i in (0, 1)
        ]
    )
    sums = "\n      ".join([f"sum_{i}{j} += times(l{i}, r{j});" for i, j in corners])
    newline = "\n      "
    rows = Moved(
        4 * size * size,
        f"""let row = begin + i / {2 * size}u;
let column = place(at, i % {2 * size}u);
if (row < {n}u && column < {n}u) {{ value = {x}[matrix * {n * n}u + row * {n}u + column]; }}""",
        f"tile[(i / {2 * size}u) * {pitch}u + i % {2 * size}u] = value;",
    )
    stores = "\n  ".join([f"tile[(left + {i * size}u) * {pitch}u + right + {j * size}u] = sum_{i}{j};" for i, j in corners])
    return f"""let left = local / {size}u;
  let right = local % {size}u;
  {begun}
  {streamed("0u", n, 2 * size, size * size, [rows], repeated(2 * size, f"{loads}{newline}{sums}"))}
  {stores}
  workgroupBarrier();"""


def _share(a: ShapedArray) -> str:
    """Return the expression for the cosine of two columns' angle."""
    # Columns that consist of rounding errors count as longer.
    least = f"max(norm * norm * R({_NEGLIGIBLE[_real(a)] ** 2}), R({1e-37 if _real(a) == 'float32' else 1e-300}))"
    return f"g / (sqrt(max(p, {least})) * sqrt(max(q, {least})))"


def _sort(problem: _Problem, blocks: Blocks, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that writes the singular values, and keeps their order.

    The singular values are the columns' lengths. The order is followed by the rank; the lengths are stored, too.
    """
    a, _, n, batch, *_ = problem
    real = real_part(a.dtype)
    shader = field_shader(capabilities, a.dtype, many_invocations(capabilities, real.itemsize + 4))
    x, order = shader.buffer(problem.x, a.dtype).name, shader.buffer(problem.order, _UINT32, written=True).name
    lengths, values = (shader.buffer(number, real, written=True).name for number in (problem.lengths, 1))
    shader.workgroup("keys", "R", padded(n))
    shader.workgroup("rank", "atomic<u32>")
    lanes, each = shader.invocations // n, 4
    rows = "\n".join(
        [
            f"total += square({x}[base + min(row + {k * lanes}u, {n - 1}u) * {n}u + c]) * select(R(0), R(1), row + {k * lanes}u < {n}u);"
            for k in range(each)
        ]
    )
    written(
        shader,
        f"""
{load_scale(shader, blocks, a.dtype)}
let base = group * {n * n}u;
let c = local % {n}u;
var total = R(0);
if (local < {lanes * n}u) {{
  for (var row = local / {n}u; row < {n}u; row += {each * lanes}u) {{
    {rows}
  }}
}}
part[local] = total;
if (local == 0u) {{ atomicStore(&rank, 0u); }}
workgroupBarrier();
for (var i = local; i < {padded(n)}u; i += STEP) {{
  var sum = R(-1);
  if (i < {n}u) {{
    sum = part[i];
    for (var k = 1u; k < {lanes}u; k++) {{ sum += part[i + k * {n}u]; }}
    sum = sqrt(sum);
  }}
  keys[i] = sum;
}}
workgroupBarrier();
var longest = R(0);
for (var i = local; i < {n}u; i += STEP) {{ longest = max(longest, keys[i]); }}
let least = max_all(longest, local) * {NEAR[real.name]} * R({n});
for (var i = local; i < {n}u; i += STEP) {{
  {ranked(n, "keys", "other > mine")}
  if (bad) {{
    {values}[group * {n}u + i] = real(nan());
    {order}[group * {n + 1}u + i] = i;
  }} else {{
    {values}[group * {n}u + place] = mine * scale;
    {order}[group * {n + 1}u + place] = i;
  }}
  {lengths}[group * {n}u + i] = mine;
  if (mine > least) {{ atomicAdd(&rank, 1u); }}
}}
workgroupBarrier();
if (local == 0u) {{ {order}[group * {n + 1}u + {n}u] = select(atomicLoad(&rank), {n}u, bad); }}""",
    )
    return shader.dispatch(batch, iteration_budget.work(batch, n * n))


def _normalised(problem: _Problem, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that divides the columns by their lengths, in their order."""
    a, _, n, batch, *_ = problem
    shader = element_shader(capabilities, a.dtype, n * n)
    x, order = shader.buffer(problem.x, a.dtype).name, shader.buffer(problem.order, _UINT32).name
    lengths = shader.buffer(problem.lengths, real_part(a.dtype)).name
    u = shader.buffer(problem.scaled, a.dtype, written=True).name
    over_elements(
        shader,
        n * n,
        f"""let from_column = min({order}[matrix * {n + 1}u + e % {n}u], {n - 1}u);
if (e % {n}u < {order}[matrix * {n + 1}u + {n}u]) {{
  {u}[matrix * {n * n}u + e] = {x}[matrix * {n * n}u + (e / {n}u) * {n}u + from_column] / {lengths}[matrix * {n}u + from_column];
}}""",
    )
    return element_dispatch(shader, batch, n * n)


def _completed(problem: _Problem, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that completes the vectors where columns are zero."""
    a, _, n, batch, *_ = problem
    shader = field_shader(capabilities, a.dtype, workers(n, n, a.dtype, capabilities))
    order = shader.buffer(problem.order, _UINT32).name
    u, projections = (shader.buffer(number, a.dtype, written=True).name for number in (problem.scaled, problem.r))
    shader.workgroup("counted", "u32")
    written(
        shader,
        f"""
let left_base = group * {n * n}u;
if (local == 0u) {{ counted = {order}[group * {n + 1}u + {n}u]; }}
let rank = workgroupUniformLoad(&counted);
{completed(u, projections, n, n)}""",
    )
    return shader.dispatch(batch, iteration_budget.work(batch, n * n))


def _stored_blocks(problem: _Problem, blocks: Blocks, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that writes the vectors of both sides.

    Those of the right one are rows.
    """
    a, m, n, batch, wide, turned, _ = problem
    shader = element_shader(capabilities, a.dtype, m * wide)
    u, q = shader.buffer(problem.scaled, a.dtype).name, shader.buffer(problem.q, a.dtype).name
    order, state = shader.buffer(problem.order, _UINT32).name, shader.buffer(blocks.state, real_part(a.dtype)).name
    left, right = (shader.buffer(number, a.dtype, written=True).name for number in (2, 3))
    long, short = (right, left) if turned else (left, right)
    row, column = (f"e % {m}u", f"e / {m}u") if turned else (f"e / {wide}u", f"e % {wide}u")
    value = f"{q}[matrix * {m * wide}u + row * {wide}u + source]"
    over_elements(
        shader,
        m * wide,
        f"""let row = {row};
let column = {column};
let bad = {state}[matrix * 2u] == R(0);
var source = column;
if (column < {n}u) {{ source = {order}[matrix * {n + 1}u + column]; }}
let value = {f"conjugate({value})" if turned else value};
if (bad) {{ {long}[matrix * {m * wide}u + e] = nan(); }} else {{ {long}[matrix * {m * wide}u + e] = value; }}
if (e < {n * n}u) {{
  let value = {f"{u}[matrix * {n * n}u + e]" if turned else f"conjugate({u}[matrix * {n * n}u + (e % {n}u) * {n}u + e / {n}u])"};
  if (bad) {{ {short}[matrix * {n * n}u + e] = nan(); }} else {{ {short}[matrix * {n * n}u + e] = value; }}
}}""",
    )
    return element_dispatch(shader, batch, m * wide)


# Of wide matrices the adjoint is factored. Left vectors of singular values that are zero are computed by the Gram-Schmidt process, which
# begins with the unit vector that is furthest from the span of the others.


def svd(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive. Matrices that are not finite have NaN."""
    (a,) = avals
    rows, columns = a.shape[-2:]
    m, n, vectors = max(rows, columns), min(rows, columns), params["compute_uv"]
    wide = 0 if not vectors else m if params["full_matrices"] else n
    counted = iteration_budget.of_svd(m, n, wide)
    blocked = is_blocked_svd(a, capabilities)
    if not is_field(a.dtype, capabilities, counted.of_a_dispatch) or (n if blocked else m) > LARGEST:
        return None
    if not a.size:
        return _without_elements(a, params, capabilities)
    if blocked:
        return blocked_svd(a, wide, capabilities)
    batch, itemsize, real = math.prod(a.shape[:-2]), a.dtype.itemsize, real_part(a.dtype)
    sizes = [batch * m * n * itemsize]
    if vectors:
        sizes += [batch * n * n * itemsize, batch * m * wide * itemsize, batch * wide * itemsize]

    in_tiles = not counted.are_many and fits(m, n, vectors, a.dtype, capabilities)

    def new() -> Shader:
        shader = field_shader(capabilities, a.dtype, invocations(n) if in_tiles else workers(m, n, a.dtype, capabilities))
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

    With `in_tiles`, sweeps are over columns in workgroup memory. There are results and workspaces of vectors only if `wide` is not 0.
    """
    m, n, wide = sizes
    spaces = 4 if wide else 2

    def workspaces(shader: Shader) -> tuple[str, str]:
        """Return the workspaces of the columns, and of the product of rotations."""
        return _written(shader, spaces, a.dtype), _written(shader, spaces + 1, a.dtype) if wide else ""

    def before(shader: Shader) -> str:
        x, v = workspaces(shader)
        text = begun(shader.buffer(0, a.dtype).name, x, "" if in_tiles else v, m, n, turned, real.name)
        return text + loaded(x, m, n, wide > 0) if in_tiles else text

    def sweep(shader: Shader) -> str:
        if in_tiles:
            return tile_sweep(shader, m, n, wide > 0, a.dtype)
        return _sweep(*workspaces(shader), m, n, real.name, lanes(n, shader.invocations))

    def after(shader: Shader) -> str:
        shader.workgroup("order", "u32", n)
        shader.workgroup("lengths", "R", n)
        x, v = workspaces(shader)
        text = stored(x, v, m, n) if in_tiles else ""
        text += sort(_written(shader, 1, real), x, m, n)
        if not wide:
            return text
        arrays = x, v, _written(shader, spaces + 2, a.dtype), _written(shader, spaces + 3, a.dtype)
        return text + _finished(shader, arrays, sizes, turned, a, real.name)

    return Method(
        where=f"let base = group * {m * n}u;\nlet square_base = group * {n * n}u;", before=before, sweep=sweep, enough="R(0)", after=after
    )


def _written(shader: Shader, number: int, dtype: np.dtype) -> str:
    return shader.buffer(number, dtype, written=True).name


def _without_elements(a: ShapedArray, params: dict[str, Any], capabilities: TargetCapabilities) -> Routine:
    """Return the routine of matrices without elements, whose vectors are the identity."""
    dispatches = []
    for number, n in ((2, a.shape[-2]), (3, a.shape[-1])):
        count = math.prod(a.shape[:-2]) * n * n
        if count and params["compute_uv"] and params["full_matrices"]:
            shader = Shader(capabilities, INVOCATIONS)
            one, zero = constant(a.dtype, 1).text, constant(a.dtype, 0).text

            def entry(i: str, shader: Shader = shader, n: int = n, one: str = one, zero: str = zero) -> Number:
                return Number(a.dtype, shader.let(wgsl_type(a.dtype), f"select({zero}, {one}, ({i} / {n}u) % {n}u == {i} % {n}u)"))

            dispatches.append(fill(shader, shader.buffer(number, a.dtype, written=True), count, entry))
    return Routine(tuple(dispatches))


def _sweep(x: str, v: str, m: int, n: int, real: str, lanes: int) -> str:
    """Return statements that rotate pairs of columns of `x` towards orthogonality."""
    # `v` is the product of all rotations. Each pair has `lanes` invocations, which divide its rows; neighbouring invocations have
    # neighbouring columns.
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
    return normalised(x, u, m, n, wide, real) + completed(u, projections, m, wide) + _stored(u, v, long, short, sizes, turned)


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
