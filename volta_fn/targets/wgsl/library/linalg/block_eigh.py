"""Eigenvalues and eigenvectors of matrices that many workgroups share."""

from __future__ import annotations

import math

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.block_rotations import (
    SWEEPS,
    Blocks,
    apply_products,
    blocks_of,
    find_products,
    known,
)
from volta_fn.targets.wgsl.library.linalg.block_scaling import padded, ranked, scale_dispatch
from volta_fn.targets.wgsl.library.linalg.blocks import INVOCATIONS, element_dispatch, element_shader, over_elements, together
from volta_fn.targets.wgsl.library.linalg.shader_templates import HUGE, field_shader, real_part, written
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars import Shader

#: The operand, the results, and workspaces: the matrix while it is made diagonal, the product of rotations, the order of the diagonal, and
#: what `Blocks` have.
_OPERAND, _VECTORS, _VALUES, _MATRIX, _PRODUCT, _ORDER, _BLOCKS = range(7)

_UINT32 = np.dtype(np.uint32)

#: What is negligible: the products of rotations round as much.
_NEGLIGIBLE = {"float32": 1.2e-6, "float64": 2.5e-15}


def blocked_eigh(a: ShapedArray, lower: bool, device: TargetCapabilities) -> Routine:
    """Return the routine for matrices of several blocks."""
    n, batch, real = a.shape[-1], math.prod(a.shape[:-2]), real_part(a.dtype)
    blocks = blocks_of(n, a.dtype, batch, device, _BLOCKS)
    both = (
        find_products(a, blocks, device, lambda shader: _common(shader, a, n, blocks), _share(n), _NEGLIGIBLE[real.name]),
        apply_products(a, blocks, device, _MATRIX, (_PRODUCT, n, n), both=True),
    )
    row, column = f"i / {n}u", f"i % {n}u"
    weight = f"select(0, select(2, 1, {row} == {column}), {row} {'>=' if lower else '<='} {column})"
    dispatches = (
        scale_dispatch(a, blocks, device, weight),
        _load(a, n, lower, blocks, device),
        *both * (blocks.rounds * SWEEPS),
        _sort(a, n, blocks, device),
        _store(a, n, blocks, device),
    )
    size = batch * n * n * a.dtype.itemsize
    return Routine(dispatches, (size, size, 4 * batch * n, *blocks.spaces(a.dtype)))


def _load(a: ShapedArray, n: int, lower: bool, blocks: Blocks, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that loads a triangle as a scaled Hermitian matrix.

    The vectors begin as the identity.
    """
    shader = element_shader(device, a.dtype, n * n)
    source, state = shader.buffer(_OPERAND, a.dtype).name, shader.buffer(blocks.state, real_part(a.dtype)).name
    x, v = (shader.buffer(number, a.dtype, written=True).name for number in (_MATRIX, _PRODUCT))
    written(shader, f"let known = {state}[matrix * 2u];\nlet scale = select(known, R(1), known == R(0));")
    over_elements(
        shader,
        n * n,
        f"""let row = e / {n}u;
let column = e % {n}u;
let here = {"row >= column" if lower else "row <= column"};
var value = {source}[matrix * {n * n}u + select(column * {n}u + row, e, here)];
if (row == column) {{ value = number(real(value)); }} else if (!here) {{ value = conjugate(value); }}
{x}[matrix * {n * n}u + e] = value / scale;
{v}[matrix * {n * n}u + e] = number(select(R(0), R(1), row == column));""",
    )
    return element_dispatch(shader, blocks.batch, n * n)


def _common(shader: Shader, a: ShapedArray, n: int, blocks: Blocks) -> str:
    """Return statements that load what two blocks of the matrix have in common."""
    x, size = shader.buffer(_MATRIX, a.dtype).name, blocks.size
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


def _sort(a: ShapedArray, n: int, blocks: Blocks, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that writes the eigenvalues in their order."""
    real = real_part(a.dtype)
    shader = field_shader(device, a.dtype, INVOCATIONS)
    x, order = shader.buffer(_MATRIX, a.dtype).name, shader.buffer(_ORDER, _UINT32, written=True).name
    values = shader.buffer(_VALUES, real, written=True).name
    shader.workgroup("keys", "R", padded(n))
    written(
        shader,
        f"""
{known(shader, blocks, a.dtype)}
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
    return shader.dispatch(blocks.batch, iteration_budget.work(blocks.batch, n * n))


def _store(a: ShapedArray, n: int, blocks: Blocks, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that writes the eigenvectors in the order of the values."""
    shader = element_shader(device, a.dtype, n * n)
    v, order = shader.buffer(_PRODUCT, a.dtype).name, shader.buffer(_ORDER, _UINT32).name
    state, vectors = shader.buffer(blocks.state, real_part(a.dtype)).name, shader.buffer(_VECTORS, a.dtype, written=True).name
    over_elements(
        shader,
        n * n,
        f"""let value = {v}[matrix * {n * n}u + (e / {n}u) * {n}u + {order}[matrix * {n}u + e % {n}u]];
if ({state}[matrix * 2u] == R(0)) {{ {vectors}[matrix * {n * n}u + e] = nan(); }} else {{ {vectors}[matrix * {n * n}u + e] = value; }}""",
    )
    return element_dispatch(shader, blocks.batch, n * n)
