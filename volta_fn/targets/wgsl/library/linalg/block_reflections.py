"""Blocks of Householder's reflections, applied to the columns of a matrix.

Each workgroup has a few columns.
"""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.blocks import INVOCATIONS, Moved, block_width, count_blocks, repeated, streamed, together
from volta_fn.targets.wgsl.library.linalg.shader_templates import field_shader, written
from volta_fn.targets.wgsl.routine import Dispatch

#: Columns that a workgroup reflects.
_COLUMNS = 16


class Reflections(NamedTuple):
    """The `total` reflections of a matrix, and where they are."""

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
    known: Reflections,
    target: int,
    wide: int,
    device: TargetCapabilities,
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
    m, _, k, _ = known
    forward = backward is None
    size, groups, blocks = block_width(a.dtype), -(-wide // _COLUMNS), -(-known.total // block_width(a.dtype))
    shader = field_shader(device, a.dtype, INVOCATIONS)
    count_blocks(shader, known.counters, reads, 1)
    x = shader.buffer(target, a.dtype, written=True).name
    v, taus, gram = (shader.buffer(number, a.dtype).name for number in known.workspaces[1:])
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
    return shader.dispatch(batch * groups, iteration_budget.work(batch, m * wide))


def _vectors(v: str, m: int, k: int, size: int) -> Moved:
    """Return how some rows of the block's vectors are moved to workgroup memory."""
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
    chosen = "\n      ".join([f"if (s >= {k * lanes}u) {{ given = sum_{k}; }}" for k in range(1, len(rows))])
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
      var given = sum_0;
      {chosen}
      solution[at + c] = times({factor.format("s")}, given);
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
