"""Eigenvalues and eigenvectors of Hermitian matrices, by Jacobi's method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import rotations
from volta_fn.targets.wgsl.library.linalg.block_rotations import (
    BLOCK_SWEEPS,
    Blocks,
    apply_products,
    blocks_of,
    find_products,
    load_scale,
    padded,
    ranked,
    scale_dispatch,
)
from volta_fn.targets.wgsl.library.linalg.rotations import (
    HUGE,
    INVOCATIONS,
    LARGEST,
    SMALL,
    SWEEPS,
    Method,
    declare_rotations,
    element_dispatch,
    element_shader,
    field_shader,
    is_field,
    lanes,
    over_elements,
    real_part,
    rotated,
    scaled,
    state_size,
    swept,
    tile_rotations,
    together,
    turned,
    workers,
    written,
)
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader

# Eigenvalues and eigenvectors of matrices that fit in workgroup memory.

#: Off-diagonal elements that are negligible, relative to the largest number.
_EPSILON = {"float32": "1e-8f", "float64": "1e-17lf"}


def fits(n: int, dtype: np.dtype, capabilities: TargetCapabilities) -> bool:
    """Return whether a matrix and its vectors fit in workgroup memory.

    There is an invocation for every two pairs of columns.
    """
    real, count = real_part(dtype).itemsize, _invocations(n)
    needed = (2 * _size(n) * (_size(n) + 1) + _size(n)) * dtype.itemsize + (count + padded(n)) * real + 4 * count + 4 * n + 64
    return count <= capabilities.invocations and needed <= capabilities.workgroup_memory


def _size(n: int) -> int:
    return n + n % 2


def _invocations(n: int) -> int:
    """Return a power of two that is at least 64 and the square of the pairs.

    Trees of sums and maxima need a power of two.
    """
    return max(64, 1 << ((_size(n) // 2) ** 2 - 1).bit_length())


def _entry(source: str, base: str, n: int, *, lower: bool) -> str:
    """Return statements that read an entry of a Hermitian matrix by one triangle."""
    return f"""let here = {"row >= column" if lower else "row <= column"};
value = {source}[{base} + select(column * {n}u + row, row * {n}u + column, here)];
if (row == column) {{ value = number(real(value)); }} else if (!here) {{ value = conjugate(value); }}"""


def small_eigh(a: ShapedArray, lower: bool, capabilities: TargetCapabilities) -> Routine:
    """Return the routine for matrices that fit."""
    n, batch, real = a.shape[-1], math.prod(a.shape[:-2]), real_part(a.dtype)
    size = _size(n)
    pairs, pitch = size // 2, size + 1
    shader = field_shader(capabilities, a.dtype, _invocations(n))
    declare_rotations(shader, n, a.dtype)
    for name in ("tile", "turned"):
        shader.workgroup(name, "T", size * pitch)
    shader.workgroup("keys", "R", padded(n))
    shader.workgroup("order", "u32", n)
    source, vectors = shader.buffer(0, a.dtype).name, shader.buffer(1, a.dtype, written=True).name
    values = shader.buffer(2, real, written=True).name
    pairing = "pair_k = pair(turned_by, k);\n      pair_l = pair(turned_by, l);"
    written(
        shader,
        f"""
let base = group * {n * n}u;
var most = R(0);
var finite = true;
for (var i = local; i < {size * size}u; i += STEP) {{
  let row = i / {size}u;
  let column = i % {size}u;
  var value = zero();
  if (row < {n}u && column < {n}u) {{ {_entry(source, "base", n, lower=lower)} }}
  most = max(most, size(value));
  finite = finite & (size(value) <= {HUGE[real.name]});
  tile[row * {pitch}u + column] = value;
  turned[row * {pitch}u + column] = number(select(R(0), R(1), row == column));
}}
let bad = max_all(select(R(1), R(0), finite), local) > R(0);
let largest = max_all(most, local);
let scale = select(largest, R(1), largest == R(0) || bad);
for (var i = local; i < {size * size}u; i += STEP) {{
  let at = (i / {size}u) * {pitch}u + i % {size}u;
  tile[at] = tile[at] / scale;
}}
for (var sweep = 0u; sweep < {SWEEPS}u; sweep++) {{
  workgroupBarrier();
  var left = R(0);
  for (var i = local; i < {size * size}u; i += STEP) {{
    if (i / {size}u < i % {size}u) {{ left = max(left, size(tile[(i / {size}u) * {pitch}u + i % {size}u])); }}
  }}
  if (max_all(select(left, R(0), bad), local) <= {_EPSILON[real.name]}) {{ break; }}
  {tile_rotations(pairs, pitch, f"{max(size - 1, 1)}u", pairing, all_work=shader.invocations == pairs * pairs)}
}}
for (var i = local; i < {padded(n)}u; i += STEP) {{
  keys[i] = {HUGE[real.name]};
  if (i < {n}u) {{
    keys[i] = real(tile[i * {pitch + 1}u]);
    order[i] = i;
  }}
}}
workgroupBarrier();
for (var i = local; i < {n}u; i += STEP) {{
  {ranked(n, "keys", "other < mine")}
  if (bad) {{
    {values}[group * {n}u + i] = real(nan());
  }} else {{
    {values}[group * {n}u + place] = mine * scale;
    order[place] = i;
  }}
}}
workgroupBarrier();
for (var i = local; i < {n * n}u; i += STEP) {{
  if (bad) {{ {vectors}[base + i] = nan(); }} else {{ {vectors}[base + i] = turned[(i / {n}u) * {pitch}u + order[i % {n}u]]; }}
}}""",
    )
    return Routine((shader.dispatch(batch, rotations.work(batch, n * n)),))


# Eigenvalues and eigenvectors of matrices that many workgroups share.

#: The operand, the results, and workspaces: the matrix while it is made diagonal, the product of rotations, the order of the diagonal, and
#: what `Blocks` have.
_BLOCK_OPERAND, _BLOCK_VECTORS, _BLOCK_VALUES, _BLOCK_MATRIX, _BLOCK_PRODUCT, _ORDER, _BLOCKS = range(7)

_UINT32 = np.dtype(np.uint32)

#: Off-diagonal elements that are negligible, relative to the diagonal: the products of rotations have as large rounding errors.
_NEGLIGIBLE = {"float32": 1.2e-6, "float64": 2.5e-15}


def blocked_eigh(a: ShapedArray, lower: bool, capabilities: TargetCapabilities) -> Routine:
    """Return the routine for matrices of several blocks."""
    n, batch, real = a.shape[-1], math.prod(a.shape[:-2]), real_part(a.dtype)
    blocks = blocks_of(n, a.dtype, batch, capabilities, _BLOCKS)
    both = (
        find_products(a, blocks, capabilities, lambda shader: _common(shader, a, n, blocks), _share(n), _NEGLIGIBLE[real.name]),
        apply_products(a, blocks, capabilities, _BLOCK_MATRIX, (_BLOCK_PRODUCT, n, n), both=True),
    )
    row, column = f"i / {n}u", f"i % {n}u"
    weight = f"select(0, select(2, 1, {row} == {column}), {row} {'>=' if lower else '<='} {column})"
    dispatches = (
        scale_dispatch(a, blocks, capabilities, weight, f"select(value, number(real(value)), {row} == {column})"),
        _load_blocks(a, n, lower, blocks, capabilities),
        *both * (blocks.rounds * BLOCK_SWEEPS),
        _sort_blocks(a, n, blocks, capabilities),
        _store(a, n, blocks, capabilities),
    )
    size = batch * n * n * a.dtype.itemsize
    return Routine(dispatches, (size, size, 4 * batch * n, *blocks.spaces(a.dtype)))


def _load_blocks(a: ShapedArray, n: int, lower: bool, blocks: Blocks, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that loads a triangle as a scaled Hermitian matrix.

    The vectors begin as the identity.
    """
    shader = element_shader(capabilities, a.dtype, n * n)
    source, state = shader.buffer(_BLOCK_OPERAND, a.dtype).name, shader.buffer(blocks.state, real_part(a.dtype)).name
    x, v = (shader.buffer(number, a.dtype, written=True).name for number in (_BLOCK_MATRIX, _BLOCK_PRODUCT))
    written(shader, f"let stored_scale = {state}[matrix * 2u];\nlet scale = select(stored_scale, R(1), stored_scale == R(0));")
    over_elements(
        shader,
        n * n,
        f"""let row = e / {n}u;
let column = e % {n}u;
var value = zero();
{_entry(source, f"matrix * {n * n}u", n, lower=lower)}
{x}[matrix * {n * n}u + e] = value / scale;
{v}[matrix * {n * n}u + e] = number(select(R(0), R(1), row == column));""",
    )
    return element_dispatch(shader, blocks.batch, n * n)


def _common(shader: Shader, a: ShapedArray, n: int, blocks: Blocks) -> str:
    """Return statements that load the rows and columns of two blocks of the matrix."""
    x, size = shader.buffer(_BLOCK_MATRIX, a.dtype).name, blocks.size
    loads = together(
        4 * size * size,
        size * size,
        f"""let row = place(at, i / {2 * size}u);
let column = place(at, i % {2 * size}u);
if (row < {n}u && column < {n}u) {{ value = {x}[matrix * {n * n}u + row * {n}u + column]; }}""",
        f"tile[(i / {2 * size}u) * {blocks.pitch}u + i % {2 * size}u] = value;",
    )
    return f"{loads}\nworkgroupBarrier();"


def _share(n: int) -> str:
    """Return the expression for an element's size relative to the diagonal.

    Or to the least that the largest eigenvalue may be, if that is greater.
    """
    return f"g / max(max(p, q), max(norm * R({n**-0.5}), R(1e-30)))"


def _sort_blocks(a: ShapedArray, n: int, blocks: Blocks, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that writes the eigenvalues in their order."""
    real = real_part(a.dtype)
    shader = field_shader(capabilities, a.dtype, INVOCATIONS)
    x, order = shader.buffer(_BLOCK_MATRIX, a.dtype).name, shader.buffer(_ORDER, _UINT32, written=True).name
    values = shader.buffer(_BLOCK_VALUES, real, written=True).name
    shader.workgroup("keys", "R", padded(n))
    written(
        shader,
        f"""
{load_scale(shader, blocks, a.dtype)}
for (var i = local; i < {padded(n)}u; i += STEP) {{
  keys[i] = {HUGE[real.name]};
  if (i < {n}u) {{ keys[i] = real({x}[group * {n * n}u + i * {n + 1}u]); }}
}}
workgroupBarrier();
for (var i = local; i < {n}u; i += STEP) {{
  {ranked(n, "keys", "other < mine")}
  if (bad) {{
    {values}[group * {n}u + i] = real(nan());
    {order}[group * {n}u + i] = i;
  }} else {{
    {values}[group * {n}u + place] = mine * scale;
    {order}[group * {n}u + place] = i;
  }}
}}""",
    )
    return shader.dispatch(blocks.batch, rotations.work(blocks.batch, n * n))


def _store(a: ShapedArray, n: int, blocks: Blocks, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that writes the eigenvectors in the order of the values."""
    shader = element_shader(capabilities, a.dtype, n * n)
    v, order = shader.buffer(_BLOCK_PRODUCT, a.dtype).name, shader.buffer(_ORDER, _UINT32).name
    state, vectors = shader.buffer(blocks.state, real_part(a.dtype)).name, shader.buffer(_BLOCK_VECTORS, a.dtype, written=True).name
    over_elements(
        shader,
        n * n,
        f"""let value = {v}[matrix * {n * n}u + (e / {n}u) * {n}u + {order}[matrix * {n}u + e % {n}u]];
if ({state}[matrix * 2u] == R(0)) {{ {vectors}[matrix * {n * n}u + e] = nan(); }} else {{ {vectors}[matrix * {n * n}u + e] = value; }}""",
    )
    return element_dispatch(shader, blocks.batch, n * n)


#: The operand, the results, and workspaces: the matrix while it is made diagonal, the product of rotations, and the state of the sweeps.
_OPERAND, _VECTORS, _VALUES, _MATRIX, _PRODUCT, _STATE = range(6)


def eigh(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive. Matrices that are not finite have NaN."""
    (a,) = avals
    n = a.shape[-1]
    counted = rotations.of_eigh(n)
    if not is_field(a.dtype, capabilities, counted.of_a_dispatch) or n > LARGEST:
        return None
    if not a.size:
        return Routine(())
    if n > SMALL:
        return blocked_eigh(a, params["lower"], capabilities)
    if fits(n, a.dtype, capabilities):
        return small_eigh(a, params["lower"], capabilities)
    batch, itemsize, real = math.prod(a.shape[:-2]), a.dtype.itemsize, real_part(a.dtype)

    def new() -> Shader:
        shader = field_shader(capabilities, a.dtype, workers(n, n, a.dtype, capabilities))
        declare_rotations(shader, n, a.dtype)
        return shader

    method = _method(a, n, params["lower"], real)
    spaces = (batch * n * n * itemsize,) * 2 + state_size(batch, counted, real)
    return Routine(tuple(swept(method, new, batch, counted, (_STATE, real))), spaces)


def _method(a: ShapedArray, n: int, lower: bool, real: np.dtype) -> Method:
    def workspaces(shader: Shader) -> tuple[str, str]:
        """Return the workspaces of the matrix, and of its vectors."""
        return shader.buffer(_MATRIX, a.dtype, written=True).name, shader.buffer(_PRODUCT, a.dtype, written=True).name

    def after(shader: Shader) -> str:
        vectors, values = (shader.buffer(k, t, written=True).name for k, t in ((_VECTORS, a.dtype), (_VALUES, real)))
        return _sort(*workspaces(shader), values, vectors, n)

    return Method(
        where=f"let base = group * {n * n}u;",
        before=lambda shader: _load(shader.buffer(_OPERAND, a.dtype).name, *workspaces(shader), n, lower, real.name),
        sweep=lambda shader: _sweep(*workspaces(shader), n, lanes(n, shader.invocations)),
        enough=_EPSILON[real.name],
        after=after,
    )


def _load(source: str, x: str, v: str, n: int, lower: bool, real: str) -> str:
    """Return statements that load a triangle as a scaled Hermitian matrix `x`.

    `v` becomes the identity.
    """
    return f"""
var most = R(0);
var finite = true;
for (var i = local; i < {n * n}u; i += STEP) {{
  let row = i / {n}u;
  let column = i % {n}u;
  var value = zero();
  {_entry(source, "base", n, lower=lower)}
  most = max(most, size(value));
  finite = finite && size(value) <= {HUGE[real]};
  {x}[base + i] = value;
  {v}[base + i] = number(select(R(0), R(1), row == column));
}}
sync();
{scaled(x, n * n)}"""


def _sweep(x: str, v: str, n: int, lanes: int) -> str:
    """Return statements that rotate rows and columns of `x`, once for each pair."""
    # That makes `x` more diagonal; `v` is the product of all rotations. Neighbouring invocations have neighbouring columns.
    pairs = (n + 1) // 2
    p, q = (f"{x}[base + at.{c} * {n}u + i % {n}u]" for c in "xy")
    return f"""
  var left = R(0);
  let k = local % {pairs}u;
  let lane = local / {pairs}u;
  for (var step = 0u; step < {max(2 * pairs - 1, 1)}u; step++) {{
    let at = pair(step, k);
    if (local < {pairs}u && at.y < {n}u) {{
      let g = {x}[base + at.x * {n}u + at.y];
      left = max(left, size(g));
      rotation(k, real({x}[base + at.x * {n + 1}u]), real({x}[base + at.y * {n + 1}u]), g);
    }}
    sync();
    if (lane < {lanes}u && at.y < {n}u) {{{rotated(x, "base", n, n, lanes)}{rotated(v, "base", n, n, lanes)}
    }}
    sync();
    for (var i = local; i < {pairs * n}u; i += STEP) {{
      let k = i / {n}u;
      let at = pair(step, k);
      if (at.y < {n}u) {{
        let s = conjugate(sines[k]);
        let t = conjugate(halves[k]);
        {turned(p, q, p, q)}
      }}
    }}
    sync();
  }}"""


def _sort(x: str, v: str, values: str, vectors: str, n: int) -> str:
    """Return statements that write the eigenvalues, in order, and their vectors."""
    return f"""
for (var i = local; i < {n}u; i += STEP) {{
  let value = real({x}[base + i * {n + 1}u]);
  var place = 0u;
  for (var j = 0u; j < {n}u; j++) {{
    let other = real({x}[base + j * {n + 1}u]);
    place += select(0u, 1u, other < value || (other == value && j < i));
  }}
  if (bad) {{ {values}[group * {n}u + i] = real(nan()); }} else {{ {values}[group * {n}u + place] = value * scale; }}
  for (var j = 0u; j < {n}u; j++) {{
    if (bad) {{ {vectors}[base + j * {n}u + i] = nan(); }} else {{ {vectors}[base + j * {n}u + place] = {v}[base + j * {n}u + i]; }}
  }}
}}"""
