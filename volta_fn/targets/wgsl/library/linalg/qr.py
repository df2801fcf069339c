"""QR factors by Householder's reflections, with LAPACK's choice of signs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import rotations
from volta_fn.targets.wgsl.library.linalg.rotations import (
    COUNTERS,
    INVOCATIONS,
    SMALL,
    Moved,
    begin_count,
    block_width,
    count_blocks,
    element_dispatch,
    element_shader,
    field_shader,
    invocations,
    is_field,
    over_elements,
    real_part,
    repeated,
    streamed,
    together,
    written,
)
from volta_fn.targets.wgsl.library.linalg.triangular import LARGEST
from volta_fn.targets.wgsl.routine import Dispatch, Routine

# Blocks of Householder's reflections, applied to the columns of a matrix.
#
# Each workgroup has a few columns.

#: Columns that a workgroup reflects.
_COLUMNS = 16


class Reflections(NamedTuple):
    """The `total` reflections of a matrix, and the numbers of their buffers."""

    rows: int
    columns: int
    total: int
    #: The number of the first workspace: the matrix while it becomes R, vectors, factors τ, products VᴴV of blocks, counters.
    matrix: int

    @property
    def workspaces(self) -> tuple[int, int, int, int]:
        """The numbers of the matrix, the vectors, their factors and their products."""
        return self.matrix, self.matrix + 1, self.matrix + 2, self.matrix + 3

    @property
    def counters(self) -> int:
        """The number of the counters."""
        return self.matrix + 4


def apply_block(
    a: ShapedArray,
    reflections: Reflections,
    target: int,
    wide: int,
    capabilities: TargetCapabilities,
    batch: int,
    *,
    reads: int,
    backward: int | None = None,
) -> Dispatch:
    """Return the dispatch that applies a block to the `target`'s later columns.

    The block's number is in the counter that the dispatch `reads`. The target has `wide` columns. The adjoint of the block is applied;
    `backward`, from the last block to the first, the block itself, to columns of the identity. Its number is then `backward` without the
    counter's value.
    """
    m, _, k, _ = reflections
    forward = backward is None
    size, groups, blocks = block_width(a.dtype), -(-wide // _COLUMNS), -(-reflections.total // block_width(a.dtype))
    shader = field_shader(capabilities, a.dtype, INVOCATIONS)
    count_blocks(shader, reflections.counters, reads, 1)
    x = shader.buffer(target, a.dtype, written=True).name
    v, taus, gram = (shader.buffer(number, a.dtype).name for number in reflections.workspaces[1:])
    lanes = INVOCATIONS // _COLUMNS
    shader.workgroup("vectors", "T", size * (size + 1))
    shader.workgroup("tile", "T", size * _COLUMNS)
    shader.workgroup("sums", "T", size * _COLUMNS)
    shader.workgroup("factors", "T", size)
    shader.workgroup("solution", "T", 2 * _COLUMNS)
    written(
        shader,
        f"""
let matrix = group / {groups}u;
let base = matrix * {m * wide}u;
let block = {"step" if forward else f"{backward}u - step"};
let first = block * {size}u;
let width = min({size}u, {k}u - min(first, {k}u));
let c = local % {_COLUMNS}u;
let lane = local / {_COLUMNS}u;
let column = (group % {groups}u) * {_COLUMNS}u + c;
let mine = column < {wide}u && column >= first{" + width" if forward else ""};
if ((group % {groups}u + 1u) * {_COLUMNS}u > first{" + width" if forward else ""}) {{
  {_sums(x, v, (m, k, wide), size, lanes)}
  {_solved(gram, taus, k, size, lanes, blocks, backward=not forward)}
  {_subtracted(x, v, (m, k, wide), size, lanes)}
}}""",
    )
    return shader.dispatch(batch * groups, rotations.work(batch, m * wide))


def _vectors(v: str, m: int, k: int, size: int) -> Moved:
    """Return the move of some rows of the block's vectors to workgroup memory."""
    return Moved(
        size * size,
        f"""let row = begin + i / {size}u;
let t = i % {size}u;
if (row < {m}u && t < width) {{ value = {v}[matrix * {m * k}u + row * {k}u + first + t]; }}""",
        f"vectors[(i / {size}u) * {size + 1}u + i % {size}u] = value;",
    )


def _sums(x: str, v: str, sizes: tuple[int, int, int], size: int, lanes: int) -> str:
    """Return statements for an invocation's products of vectors with the columns."""
    m, k, wide = sizes
    numbers, newline = range(-(-size // lanes)), "\n      "
    begun = "\n  ".join([f"var sum_{i} = zero();" for i in numbers])
    added = newline.join([f"sum_{i} += times(conjugate(vectors[t * {size + 1}u + lane + {i * lanes}u]), value);" for i in numbers])
    columns = Moved(
        size * _COLUMNS,
        f"""let row = begin + i / {_COLUMNS}u;
if (mine && row < {m}u) {{ value = {x}[base + row * {wide}u + column]; }}""",
        "tile[i] = value;",
    )
    products = repeated(size, f"let value = tile[t * {_COLUMNS}u + c];{newline}{added}")
    return f"{begun}\n  {streamed('first', m, size, INVOCATIONS, [_vectors(v, m, k, size), columns], products)}"


def _solved(gram: str, taus: str, k: int, size: int, lanes: int, blocks: int, *, backward: bool) -> str:
    """Return statements that multiply the sums by T, or by its adjoint.

    They solve with the inverse, a triangle, and store the results as `sums`.
    """
    product = f"{gram}[products + {{}}]"
    entry = product.format(f"t * {size}u + s") if backward else f"conjugate({product.format(f's * {size}u + t')})"
    triangle = together(
        size * size,
        INVOCATIONS,
        f"""let t = i / {size}u;
let s = i % {size}u;
if (t < width && s < width && {"t < s" if backward else "s < t"}) {{ value = {entry}; }}""",
        f"vectors[(i / {size}u) * {size + 1}u + i % {size}u] = value;",
    )
    rows = [f"(lane + {k * lanes}u)" for k in range(-(-size // lanes))]
    factor = "factors[{}]" if backward else "conjugate(factors[{}])"
    chosen = "\n      ".join([f"if (s >= {k * lanes}u) {{ component = sum_{k}; }}" for k in range(1, len(rows))])
    affected = "{0} < s" if backward else "{0} > s"
    changes = "\n    ".join(
        [
            f"sum_{k} = select(sum_{k}, sum_{k} - times(vectors[{r} * {size + 1}u + s], solved), {affected.format(r)});"
            for k, r in enumerate(rows)
        ]
    )
    stored = "\n  ".join(
        [f"sums[{r} * {_COLUMNS}u + c] = select(zero(), times({factor.format(r)}, sum_{k}), {r} < width);" for k, r in enumerate(rows)]
    )
    return f"""let products = (matrix * {blocks}u + block) * {size * size}u;
  {triangle}
  if (local < width) {{ factors[local] = {taus}[matrix * {k}u + first + local]; }}
  workgroupBarrier();
  for (var iteration = 0u; iteration < width; iteration++) {{
    let s = {"width - 1u - iteration" if backward else "iteration"};
    let at = (iteration & 1u) * {_COLUMNS}u;
    if (lane == s % {lanes}u) {{
      var component = sum_0;
      {chosen}
      solution[at + c] = times({factor.format("s")}, component);
    }}
    workgroupBarrier();
    let solved = solution[at + c];
    {changes}
  }}
  {stored}
  workgroupBarrier();"""


def _subtracted(x: str, v: str, sizes: tuple[int, int, int], size: int, lanes: int) -> str:
    """Return statements that subtract multiples of vectors from the columns."""
    m, k, wide = sizes
    numbers, newline = range(-(-size // lanes)), "\n    "
    entry = f"{x}[base + min(row_{{i}}, {m - 1}u) * {wide}u + min(column, {wide - 1}u)]"
    begun = newline.join([f"let row_{i} = begin + lane + {i * lanes}u;{newline}var rest_{i} = {entry.format(i=i)};" for i in numbers])
    added = newline.join([f"rest_{i} -= times(vectors[(lane + {i * lanes}u) * {size + 1}u + t], value);" for i in numbers])
    stored = newline.join([f"if (mine && row_{i} < {m}u) {{ {x}[base + row_{i} * {wide}u + column] = rest_{i}; }}" for i in numbers])
    products = repeated(size, f"let value = sums[t * {_COLUMNS}u + c];{newline}{added}")
    return streamed("first", m, size, INVOCATIONS, [_vectors(v, m, k, size)], f"{begun}\n{products}\n{stored}")


def qr(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    (a,), compute_q = avals, params["compute_q"]
    m, n = a.shape[-2:]
    k = min(m, n)
    batch, wide = math.prod(a.shape[:-2]), m if params["full_matrices"] else k
    count = rotations.of_qr(m, n, wide)
    if not is_field(a.dtype, capabilities, count) or max(m, n) > LARGEST:
        return None
    if not batch * m or not (k or compute_q):
        return Routine(())
    if is_blocked_qr(a, capabilities):
        return blocked_qr(a, wide, compute_q, capabilities)
    shader = field_shader(capabilities, a.dtype, invocations(max(m, n)))
    q = shader.buffer(1, a.dtype, written=True).name if compute_q else ""
    if not k:
        written(shader, f"for (var i = local; i < {m * wide}u; i += STEP) {{ {q}[group * {m * wide}u + i] = {_IDENTITY.format(wide)}; }}")
        return Routine((shader.dispatch(batch, rotations.work(batch, count)),))
    source = shader.buffer(0, a.dtype).name
    r, x, factors = (shader.buffer(number + compute_q, a.dtype, written=True).name for number in (1, 2, 3))
    columns = _load(source, x, m, n) + _factor(x, factors, m, n, k) + _upper(x, r, n, wide)
    written(shader, columns + _product(x, factors, q, m, n, wide, k) if compute_q else columns)
    itemsize = a.dtype.itemsize
    return Routine((shader.dispatch(batch, rotations.work(batch, count)),), (batch * m * n * itemsize, batch * k * itemsize))


def _load(source: str, x: str, m: int, n: int) -> str:
    """Return statements that load the matrix as `x`."""
    return f"""
let base = group * {m * n}u;
let taus = group * {min(m, n)}u;
for (var i = local; i < {m * n}u; i += STEP) {{ {x}[base + i] = {source}[base + i]; }}
sync();"""


def _factor(x: str, factors: str, m: int, n: int, k: int) -> str:
    """Return statements that reflect the columns of `x`, one after another."""
    # Each column's reflection is applied to the columns after it. Its vector is stored below the diagonal of `x`, where R is zero.
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


#: An element i of an identity matrix; the field is its number of columns.
_IDENTITY = "number(select(R(0), R(1), i / {0}u == i % {0}u))"


# QR factors by blocks of reflections, with LAPACK's choice of signs.
#
# A block of reflections I - τ v vᴴ is I - V T Vᴴ, where T⁻¹ is the upper triangle of VᴴV with 1 / τ on its diagonal. One workgroup
# reflects a block's columns, whose numbers its invocations keep in registers; many workgroups apply the block to the columns after it,
# and to Q.

#: Rows of a column that an invocation keeps.
_ROWS = 32

#: Columns whose greatest number is less count as zero, as do their squares; others are scaled by at most the second number, whose inverse
#: is a normal one: some devices flush subnormal numbers to zero.
_TINY = {"float32": "1e-37f", "float64": "1e-300lf"}
_LARGE = {"float32": "0x1p125f", "float64": "0x1p1021lf"}


def is_blocked_qr(a: ShapedArray, capabilities: TargetCapabilities) -> bool:
    """Return whether there are several blocks, of rows that fit in registers."""
    m, n = a.shape[-2:]
    return max(m, n) > SMALL and min(m, n) > 1 and _lanes(a) * block_width(a.dtype) <= capabilities.invocations


def _lanes(a: ShapedArray) -> int:
    """Return the number of invocations that share a column."""
    return -(-a.shape[-2] // _ROWS)


def blocked_qr(a: ShapedArray, wide: int, compute_q: bool, capabilities: TargetCapabilities) -> Routine:
    """Return the routine for matrices of several blocks; Q has `wide` columns."""
    m, n = a.shape[-2:]
    k, batch, size, itemsize = min(m, n), math.prod(a.shape[:-2]), block_width(a.dtype), a.dtype.itemsize
    blocks = -(-k // size)
    r, q = 1 + compute_q, 1
    reflections = Reflections(m, n, k, r + 1)
    panel = _panel(a, reflections, capabilities, batch)
    steps = [panel, apply_block(a, reflections, reflections.matrix, n, capabilities, batch, reads=1)]
    steps = (steps * blocks)[: 2 * blocks - (k == n)]  # there are no columns after the last of a tall matrix
    if compute_q:
        last = 2 * blocks - 1 - (k == n)
        products = [apply_block(a, reflections, q, wide, capabilities, batch, reads=reads, backward=last) for reads in (0, 1)]
        steps += [products[(step + (k == n)) % 2] for step in range(blocks)]
    end = element_shader(capabilities, a.dtype, wide * n)
    x, upper = end.buffer(reflections.matrix, a.dtype).name, end.buffer(r, a.dtype, written=True).name
    over_elements(
        end,
        wide * n,
        f"""if (e % {n}u >= e / {n}u) {{ {upper}[matrix * {wide * n}u + e] = {x}[matrix * {m * n}u + e]; }}
else {{ {upper}[matrix * {wide * n}u + e] = zero(); }}""",
    )
    dispatches = (_begin(a, reflections, q if compute_q else 0, wide, capabilities, batch), *steps, element_dispatch(end, batch, wide * n))
    sizes = (m * n, m * k, k, blocks * size * size)
    return Routine(dispatches, (*[batch * count * itemsize for count in sizes], COUNTERS))


def _begin(a: ShapedArray, reflections: Reflections, q: int, wide: int, capabilities: TargetCapabilities, batch: int) -> Dispatch:
    """Return the dispatch that copies the matrix, and makes Q the identity."""
    m, n = a.shape[-2:]
    count = max(m * n, m * wide if q else 0)
    shader = element_shader(capabilities, a.dtype, count)
    begin_count(shader, reflections.counters)
    source, x = shader.buffer(0, a.dtype).name, shader.buffer(reflections.matrix, a.dtype, written=True).name
    text = f"if (e < {m * n}u) {{ {x}[matrix * {m * n}u + e] = {source}[matrix * {m * n}u + e]; }}"
    if q:
        one = f"number(select(R(0), R(1), e / {wide}u == e % {wide}u))"
        target = shader.buffer(q, a.dtype, written=True).name
        text += f"\nif (e < {m * wide}u) {{ {target}[matrix * {m * wide}u + e] = {one}; }}"
    over_elements(shader, count, text)
    return element_dispatch(shader, batch, count)


def _panel(a: ShapedArray, reflections: Reflections, capabilities: TargetCapabilities, batch: int) -> Dispatch:
    """Return the dispatch that reflects a block's columns."""
    m, n, k = reflections.rows, reflections.columns, reflections.total
    size, lanes = block_width(a.dtype), _lanes(a)
    rows = -(-m // lanes)
    shader = field_shader(capabilities, a.dtype, lanes * size)
    count_blocks(shader, reflections.counters, 0, 0)
    x, v, taus, gram = (shader.buffer(number, a.dtype, written=True).name for number in reflections.workspaces)
    for name, type_, length in (
        ("pivots", "T", 2 * lanes * rows),
        ("heads", "T", 2),
        ("tops", "R", 2 * lanes),
        ("dots", "T", lanes * size),
        ("squares", "R", lanes),
        ("diagonals", "T", size),
    ):
        shader.workgroup(name, type_, length)
    each = range(rows)
    loads = "\n".join([f"var x{i} = zero();\nif (begin + {i}u < {m}u && column < {k}u) {{ x{i} = {x}[base + {i * n}u]; }}" for i in each])
    stores = "\n  ".join([_stored(x, v, i, (m, n, k)) for i in each])
    written(
        shader,
        f"""
let first = step * {size}u;
let width = min({size}u, {k}u - min(first, {k}u));
let c = local % {size}u;
let lane = local / {size}u;
let begin = lane * {rows}u;
let column = first + c;
let base = group * {m * n}u + begin * {n}u + column;
let reflected = group * {m * k}u + begin * {k}u + column;
{loads}
var head = zero();
for (var j = 0u; j < width; j++) {{
  let diagonal = first + j;
  let parity = j & 1u;
  {_published(rows, lanes)}
  {_products(rows, lanes, size, real_part(a.dtype).name)}
  {_reflection(lanes, size)}
  if (local == 0u) {{ {taus}[group * {k}u + diagonal] = tau; }}
  if (c < j && lane == 0u) {{ {gram}[(group * {-(-k // size)}u + step) * {size * size}u + c * {size}u + j] = conjugate(dot); }}
  {_reflected(rows)}
}}
if (column < {k}u) {{
  {stores}
}}""",
    )
    return shader.dispatch(batch, rotations.work(batch, m * n))


def _published(rows: int, lanes: int) -> str:
    """Return statements that store column j in workgroup memory for all invocations.

    They store the numbers below the diagonal, the one on it, and each lane's greatest magnitude.
    """
    target = f"pivots[parity * {lanes * rows}u + begin + {{}}u]"
    newline = "\n      "
    below = newline.join([f"{target.format(i)} = x{i};" for i in range(rows)] + _most([f"size(x{i})" for i in range(rows)]))
    across = newline.join(
        [
            f"""{target.format(i)} = select(zero(), x{i}, begin + {i}u > diagonal);
      if (begin + {i}u == diagonal) {{ heads[parity] = x{i}; }}"""
            for i in range(rows)
        ]
        + _most([f"select(R(0), size(x{i}), begin + {i}u >= diagonal)" for i in range(rows)])
    )
    return f"""let isBelow = begin > diagonal;
  let isAbove = begin + {rows}u <= diagonal;
  if (c == j) {{
    var most = R(0);
    if (isBelow) {{
      {below}
    }} else {{
      {across}
    }}
    tops[parity * {lanes}u + lane] = most;
  }}
  workgroupBarrier();"""


def _most(values: list[str]) -> list[str]:
    """Return statements for the greatest of values, in four independent chains."""
    chains = [values[k::4] for k in range(min(4, len(values)))]
    begun = [f"var most_{k} = {chain[0]};" for k, chain in enumerate(chains)]
    steps = [f"most_{k} = max(most_{k}, {chain[i]});" for i in range(1, len(chains[0])) for k, chain in enumerate(chains) if i < len(chain)]
    return [*begun, *steps, *[f"most = max(most, most_{k});" for k in range(len(chains))]]


def _products(rows: int, lanes: int, size: int, real: str) -> str:
    """Return statements for a lane's products of column j with all columns.

    Column j is scaled. Its square is computed, too.
    """
    each = "\n  ".join(
        [
            f"""let y{i} = pivots[parity * {lanes * rows}u + begin + {i}u] * inverse;
  total += times(conjugate(y{i}), x{i});
  squared += square(y{i});"""
            for i in range(rows)
        ]
    )
    chosen = "\n    ".join([f"if (begin + {i}u == diagonal) {{ diagonals[c] = x{i}; }}" for i in range(rows)])
    largest = "\n  ".join([f"greatest_of_all = max(greatest_of_all, tops[parity * {lanes}u + {k}u]);" for k in range(1, lanes)])
    return f"""var greatest_of_all = tops[parity * {lanes}u];
  {largest}
  let scale = select(min(greatest_of_all, {_LARGE[real]}), R(1), greatest_of_all < {_TINY[real]});
  let inverse = R(1) / scale;
  var total = zero();
  var squared = R(0);
  {each}
  dots[lane * {size}u + c] = total;
  if (c == 0u) {{ squares[lane] = squared; }}
  if (lane == diagonal / {rows}u) {{
    {chosen}
  }}
  workgroupBarrier();"""


def _reflection(lanes: int, size: int) -> str:
    """Return statements for the reflection.

    They name its `tau`, the inverse of its divisor, and its product `dot` with a column.
    """
    others = "\n  ".join([f"below += squares[{k}];\n  sum += dots[{k * size}u + c];" for k in range(1, lanes)])
    return f"""var below = squares[0];
  var sum = dots[c];
  {others}
  let alpha = heads[parity] * inverse;
  let nothing = below == R(0) && imaginary(alpha) == R(0);
  let length = sqrt(square(alpha) + below);
  let beta = number(select(length, -length, real(alpha) >= R(0)));
  var divisor = alpha - beta;
  var tau = zero();
  if (nothing) {{ divisor = number(R(1)); }} else {{ tau = over(beta - alpha, beta); }}
  let inverted = over(number(R(1)), divisor);
  let dot = diagonals[c] + times(sum, conjugate(inverted));"""


def _reflected(rows: int) -> str:
    """Return statements that reflect later columns.

    Column j keeps its numbers above the diagonal, and gets the reflection's vector below it. Its `head` is to be on the diagonal.
    """
    newline = "\n      "
    below = newline.join([f"x{i} -= times(y{i}, multiple);" for i in range(rows)])
    diagonal = newline.join([f"if (begin + {i}u == diagonal) {{ x{i} -= change; }}" for i in range(rows)])
    vector = newline.join([f"x{i} = select(x{i}, times(y{i}, inverted), begin + {i}u > diagonal);" for i in range(rows)])
    return f"""if (c > j && !nothing && !isAbove) {{
    let change = times(dot, conjugate(tau));
    let multiple = times(change, inverted);
    {below}
    if (!isBelow) {{
      {diagonal}
    }}
  }} else if (c == j) {{
    head = beta * scale;
    if (nothing) {{ head = heads[parity]; }}
    if (!isAbove) {{
      {vector}
    }}
  }}"""


def _stored(x: str, v: str, i: int, sizes: tuple[int, int, int]) -> str:
    """Return statements that store a number of R and one of a reflection's vector."""
    m, n, k = sizes
    return f"""if (begin + {i}u < {m}u) {{
    {v}[reflected + {i * k}u] = select(number(select(R(0), R(1), begin + {i}u == column)), x{i}, begin + {i}u > column);
    if (begin + {i}u <= column) {{ {x}[base + {i * n}u] = select(x{i}, head, begin + {i}u == column); }}
  }}"""
