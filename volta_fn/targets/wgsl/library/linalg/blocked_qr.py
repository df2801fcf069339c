"""QR factors by blocks of reflections, with LAPACK's choice of signs.

A block of reflections I - τ v vᴴ is I - V T Vᴴ, where T⁻¹ is the upper triangle of VᴴV with 1 / τ on its diagonal. One workgroup reflects a
block's columns, whose numbers its invocations keep in registers; many workgroups apply the block to the columns after it, and to Q.
"""

from __future__ import annotations

import math

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.block_reflections import Reflections, apply_block
from volta_fn.targets.wgsl.library.linalg.blocks import (
    COUNTERS,
    SMALL,
    begin_count,
    block_width,
    count_blocks,
    element_dispatch,
    element_shader,
    over_elements,
)
from volta_fn.targets.wgsl.library.linalg.shader_templates import field_shader, real_part, written
from volta_fn.targets.wgsl.routine import Dispatch, Routine

#: Rows of a column that an invocation keeps.
_ROWS = 32

#: Columns whose greatest number is less count as zero, as do their squares.
_TINY = {"float32": "1e-37f", "float64": "1e-300lf"}


def is_blocked_qr(a: ShapedArray, device: TargetCapabilities) -> bool:
    """Return whether there are several blocks, of rows that fit in registers."""
    m, n = a.shape[-2:]
    return max(m, n) > SMALL and min(m, n) > 1 and _lanes(a) * block_width(a.dtype) <= device.invocations


def _lanes(a: ShapedArray) -> int:
    """Return how many invocations share a column."""
    return -(-a.shape[-2] // _ROWS)


def blocked_qr(a: ShapedArray, wide: int, compute_q: bool, device: TargetCapabilities) -> Routine:
    """Return the routine for matrices of several blocks; Q has `wide` columns."""
    m, n = a.shape[-2:]
    k, batch, size, itemsize = min(m, n), math.prod(a.shape[:-2]), block_width(a.dtype), a.dtype.itemsize
    blocks = -(-k // size)
    r, q = 1 + compute_q, 1
    known = Reflections(m, n, k, r + 1)
    panel = _panel(a, known, device, batch)
    steps = [panel, apply_block(a, known, known.matrix, n, device, batch, reads=1)]
    steps = (steps * blocks)[: 2 * blocks - (k == n)]  # there are no columns after the last of a tall matrix
    if compute_q:
        last = 2 * blocks - 1 - (k == n)
        products = [apply_block(a, known, q, wide, device, batch, reads=reads, backward=last) for reads in (0, 1)]
        steps += [products[(step + (k == n)) % 2] for step in range(blocks)]
    end = element_shader(device, a.dtype, wide * n)
    x, upper = end.buffer(known.matrix, a.dtype).name, end.buffer(r, a.dtype, written=True).name
    over_elements(
        end,
        wide * n,
        f"""if (e % {n}u >= e / {n}u) {{ {upper}[matrix * {wide * n}u + e] = {x}[matrix * {m * n}u + e]; }}
else {{ {upper}[matrix * {wide * n}u + e] = zero(); }}""",
    )
    dispatches = (_begin(a, known, q if compute_q else 0, wide, device, batch), *steps, element_dispatch(end, batch, wide * n))
    sizes = (m * n, m * k, k, blocks * size * size)
    return Routine(dispatches, (*[batch * count * itemsize for count in sizes], COUNTERS))


def _begin(a: ShapedArray, known: Reflections, q: int, wide: int, device: TargetCapabilities, batch: int) -> Dispatch:
    """Return the dispatch that copies the matrix, and makes Q the identity."""
    m, n = a.shape[-2:]
    count = max(m * n, m * wide if q else 0)
    shader = element_shader(device, a.dtype, count)
    begin_count(shader, known.counters)
    source, x = shader.buffer(0, a.dtype).name, shader.buffer(known.matrix, a.dtype, written=True).name
    text = f"if (e < {m * n}u) {{ {x}[matrix * {m * n}u + e] = {source}[matrix * {m * n}u + e]; }}"
    if q:
        one = f"number(select(R(0), R(1), e / {wide}u == e % {wide}u))"
        target = shader.buffer(q, a.dtype, written=True).name
        text += f"\nif (e < {m * wide}u) {{ {target}[matrix * {m * wide}u + e] = {one}; }}"
    over_elements(shader, count, text)
    return element_dispatch(shader, batch, count)


def _panel(a: ShapedArray, known: Reflections, device: TargetCapabilities, batch: int) -> Dispatch:
    """Return the dispatch that reflects a block's columns."""
    m, n, k = known.rows, known.columns, known.total
    size, lanes = block_width(a.dtype), _lanes(a)
    rows = -(-m // lanes)
    shader = field_shader(device, a.dtype, lanes * size)
    count_blocks(shader, known.counters, 0, 0)
    x, v, taus, gram = (shader.buffer(number, a.dtype, written=True).name for number in known.workspaces)
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
    return shader.dispatch(batch, iteration_budget.work(batch, m * n))


def _published(rows: int, lanes: int) -> str:
    """Return statements that give column j to all invocations.

    These are the numbers below the diagonal, the one on it, and the lanes' greatest.
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
  let scale = select(greatest_of_all, R(1), greatest_of_all < {_TINY[real]});
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
