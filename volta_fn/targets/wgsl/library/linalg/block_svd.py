"""Singular values and vectors of matrices that many workgroups share, by rotations of columns.

A = QR first, then the columns of Rᴴ are rotated until they are orthogonal, which takes few sweeps: they are so nearly, and in their order.
With the product J of all rotations, Rᴴ J = W Σ and A = (Q J) Σ Wᴴ. So Q is rotated along, and W are the columns themselves, divided by
their lengths.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.block_rotations import (
    SWEEPS,
    Blocks,
    apply_products,
    begun,
    blocks_of,
    find_products,
    known,
)
from volta_fn.targets.wgsl.library.linalg.blocked_qr import blocked_qr, is_blocked_qr
from volta_fn.targets.wgsl.library.linalg.blocks import SMALL, element_dispatch, element_shader, over_elements, repeated, together
from volta_fn.targets.wgsl.library.linalg.rotations import workers
from volta_fn.targets.wgsl.library.linalg.shader_templates import field_shader, real_part, written
from volta_fn.targets.wgsl.library.linalg.singular_vectors import begun as loaded
from volta_fn.targets.wgsl.library.linalg.singular_vectors import completed, found, sort
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars import Shader

#: Cosines of columns' angles that are negligible: the products of rotations round as much.
_NEGLIGIBLE = {"float32": 6e-7, "float64": 1.2e-15}


class _Problem(NamedTuple):
    """The adjoint of a wide matrix, or a matrix itself: its rows m and columns n, and the buffers of its dispatches."""

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
        """The number of the scaled matrix, and of the vectors of the short side in the end."""
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
    def sizes(self) -> tuple[int, ...]:
        """The bytes of these workspaces."""
        m, n, wide = self.m, self.n, self.wide
        rows = m if wide > n else n
        return tuple([self.batch * self.a.dtype.itemsize * count for count in (m * n, m * max(wide, 1), rows * n, n * n)])


def is_blocked_svd(a: ShapedArray, device: TargetCapabilities) -> bool:
    """Return whether a matrix has several blocks of columns, and may be made triangular by blocks."""
    rows, columns = a.shape[-2:]
    tall = a if rows >= columns else a.update(shape=(*a.shape[:-2], columns, rows))
    return min(rows, columns) > SMALL and is_blocked_qr(tall, device)


def blocked_svd(a: ShapedArray, wide: int, device: TargetCapabilities) -> Routine:
    """Return the routine for matrices of several blocks; `wide` is as in `_Problem`."""
    rows, columns = a.shape[-2:]
    m, n, batch = max(rows, columns), min(rows, columns), math.prod(a.shape[:-2])
    problem = _Problem(a, m, n, batch, wide, rows < columns, 4 if wide else 2)
    triangular = blocked_qr(a.update(shape=(batch, m, n)), wide or n, wide > 0, device)
    first = problem.first + len(problem.sizes)
    numbers = [problem.scaled, *([problem.q] if wide else []), problem.r]
    numbers += range(first, first + len(triangular.workspaces))
    blocks = blocks_of(n, a.dtype, batch, device, first + len(triangular.workspaces))
    square = a.update(shape=(batch, n, n))
    turn = (
        find_products(square, blocks, device, lambda shader: _common(shader, problem, blocks), _share(a), _NEGLIGIBLE[_real(a)]),
        apply_products(square, blocks, device, problem.x, (problem.q, m, wide) if wide else None, both=False),
    )
    dispatches = (
        _begin(problem, blocks, device),
        *[_renumbered(dispatch, numbers) for dispatch in triangular.dispatches],
        _turned(problem, device),
        *turn * (blocks.rounds * SWEEPS),
        _end(problem, blocks, device),
    )
    return Routine(dispatches, (*problem.sizes, *triangular.workspaces, *blocks.spaces(a.dtype)))


def _real(a: ShapedArray) -> str:
    return real_part(a.dtype).name


def _renumbered(dispatch: Dispatch, numbers: list[int]) -> Dispatch:
    """Return the dispatch with other buffers, by the numbers that it has."""
    buffers = tuple([numbers[k] for k in dispatch.buffers])
    return replace(dispatch, buffers=buffers, written=frozenset([numbers[k] for k in dispatch.written]))


def _begin(problem: _Problem, blocks: Blocks, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that scales the matrix."""
    a, m, n, *_ = problem
    shader = field_shader(device, a.dtype, workers(m, n, a.dtype, device))
    x = shader.buffer(problem.scaled, a.dtype, written=True).name
    load = loaded(shader.buffer(0, a.dtype).name, x, "", m, n, problem.turned, _real(a))
    written(shader, f"let base = group * {m * n}u;\n{load}\n{begun(shader, blocks, a.dtype, x, m * n)}")
    return shader.dispatch(problem.batch, iteration_budget.work(problem.batch, m * n))


def _turned(problem: _Problem, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that makes the columns the adjoint of R."""
    a, _, n, batch, wide, *_ = problem
    rows = problem.m if wide > n else n
    shader = element_shader(device, a.dtype, n * n)
    r, x = shader.buffer(problem.r, a.dtype).name, shader.buffer(problem.x, a.dtype, written=True).name
    entry = f"conjugate({r}[matrix * {rows * n}u + (e % {n}u) * {n}u + e / {n}u])"
    over_elements(shader, n * n, f"{x}[matrix * {n * n}u + e] = {entry};")
    return element_dispatch(shader, batch, n * n)


def _common(shader: Shader, problem: _Problem, blocks: Blocks) -> str:
    """Return statements for the products of two blocks' columns, whose rows are loaded a few at a time."""
    n, size = problem.n, blocks.size
    pitch, corners = 2 * size + 1, [(i, j) for i in (0, 1) for j in (0, 1)]
    x = shader.buffer(problem.x, problem.a.dtype).name
    begun = "\n  ".join([f"var sum_{i}{j} = zero();" for i, j in corners])
    loads = "\n      ".join(
        [
            f"let l{i} = conjugate(tile[t * {pitch}u + left + {i * size}u]);\n      let r{i} = tile[t * {pitch}u + right + {i * size}u];"
            for i in (0, 1)
        ]
    )
    sums = "\n      ".join([f"sum_{i}{j} += times(l{i}, r{j});" for i, j in corners])
    lines = "\n      "
    rows = together(
        4 * size * size,
        size * size,
        f"""let row = begin + i / {2 * size}u;
let column = place(at, i % {2 * size}u);
if (row < {n}u && column < {n}u) {{ value = {x}[matrix * {n * n}u + row * {n}u + column]; }}""",
        f"tile[(i / {2 * size}u) * {pitch}u + i % {2 * size}u] = value;",
    )
    stores = "\n  ".join([f"tile[(left + {i * size}u) * {pitch}u + right + {j * size}u] = sum_{i}{j};" for i, j in corners])
    return f"""let left = local / {size}u;
  let right = local % {size}u;
  {begun}
  for (var begin = 0u; begin < {n}u; begin += {2 * size}u) {{
    {rows}
    workgroupBarrier();
    {repeated(2 * size, f"{loads}{lines}{sums}")}
    workgroupBarrier();
  }}
  {stores}
  workgroupBarrier();"""


def _share(a: ShapedArray) -> str:
    """Return the expression for the cosine of two columns' angle; columns that are nothing but rounding count as longer."""
    least = f"max(norm * norm * R({_NEGLIGIBLE[_real(a)] ** 2}), R({1e-37 if _real(a) == 'float32' else 1e-300}))"
    return f"g / (sqrt(max(p, {least})) * sqrt(max(q, {least})))"


def _end(problem: _Problem, blocks: Blocks, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that sorts the columns, and writes the results."""
    a, m, n, batch, wide, turned, _ = problem
    shader = field_shader(device, a.dtype, workers(m, n, a.dtype, device))
    shader.workgroup("order", "u32", n)
    shader.workgroup("lengths", "R", n)
    x = shader.buffer(problem.x, a.dtype).name
    values = shader.buffer(1, real_part(a.dtype), written=True).name
    text = f"let base = group * {n * n}u;\n{known(shader, blocks, a.dtype)}\n{sort(values, x, n, n)}"
    if wide:
        u, projections = (shader.buffer(number, a.dtype, written=True).name for number in (problem.scaled, problem.r))
        q = shader.buffer(problem.q, a.dtype).name
        left, right = (shader.buffer(number, a.dtype, written=True).name for number in (2, 3))
        text += found(x, u, n, n, n, _real(a)) + completed(u, projections, n, n)
        text += _stored(u, q, (right, left) if turned else (left, right), (m, n, wide), turned)
    written(shader, text)
    return shader.dispatch(batch, iteration_budget.work(batch, m * max(n, wide)))


def _stored(u: str, q: str, sides: tuple[str, str], sizes: tuple[int, int, int], turned: bool) -> str:
    """Return statements that write the vectors of the long side, from `q`, and of the short one, from `u`."""
    m, n, wide = sizes
    long, short = sides
    # The vectors of the right side are rows.
    row, column = (f"i % {m}u", f"i / {m}u") if turned else (f"i / {wide}u", f"i % {wide}u")
    value = f"{q}[group * {m * wide}u + row * {wide}u + source]"
    return f"""
for (var i = local; i < {m * wide}u; i += STEP) {{
  let row = {row};
  let column = {column};
  var source = column;
  if (column < {n}u) {{ source = order[min(column, {n - 1}u)]; }}
  let value = {f"conjugate({value})" if turned else value};
  if (bad) {{ {long}[group * {m * wide}u + i] = nan(); }} else {{ {long}[group * {m * wide}u + i] = value; }}
}}
for (var i = local; i < {n * n}u; i += STEP) {{
  let value = {f"{u}[base + i]" if turned else f"conjugate({u}[base + (i % {n}u) * {n}u + i / {n}u])"};
  if (bad) {{ {short}[base + i] = nan(); }} else {{ {short}[base + i] = value; }}
}}"""
