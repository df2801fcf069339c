"""Cholesky factors by blocks of columns.

A block's dispatch has a workgroup for each block of rows. Each computes what the earlier columns leave of its own rows and of the block on
the diagonal, which all of them factor, so that none waits for another.
"""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.blocks import (
    COUNTERS,
    INVOCATIONS,
    begin_count,
    block_width,
    count_blocks,
    element_dispatch,
    element_shader,
    over_elements,
    repeated,
)
from volta_fn.targets.wgsl.library.linalg.shader_templates import HUGE, field_shader, real_part, written
from volta_fn.targets.wgsl.routine import Dispatch, Routine

#: The operand, the result, and workspaces: the counters, and which matrices are not positive definite.
_OPERAND, _FACTOR, _COUNTERS, _BAD = range(4)

_UINT32 = np.dtype(np.uint32)


def blocked_cholesky(x: ShapedArray, device: TargetCapabilities) -> Routine:
    """Return the routine for matrices of several blocks."""
    n = x.shape[-1]
    batch = x.size // (n * n)
    blocks = -(-n // block_width(x.dtype))
    begin = field_shader(device, x.dtype, INVOCATIONS)
    begin_count(begin, _COUNTERS)
    written(begin, f"if (local == 0u) {{ {begin.buffer(_BAD, _UINT32, written=True).name}[group] = 0u; }}")
    panels = [_block(x, n, batch, device, reads) for reads in (0, 1)]
    end = element_shader(device, x.dtype, n * n)
    out, bad = end.buffer(_FACTOR, x.dtype, written=True).name, end.buffer(_BAD, _UINT32).name
    over_elements(
        end,
        n * n,
        f"""let at = matrix * {n * n}u + e;
if (e / {n}u < e % {n}u) {{ {out}[at] = zero(); }} else if ({bad}[matrix] != 0u) {{ {out}[at] = nan(); }}""",
    )
    first = begin.dispatch(batch, iteration_budget.work(batch, n * n))
    return Routine((first, *[panels[k % 2] for k in range(blocks)], element_dispatch(end, batch, n * n)), (COUNTERS, 4 * batch))


def _block(x: ShapedArray, n: int, batch: int, device: TargetCapabilities, reads: int) -> Dispatch:
    """Return the dispatch that factors a block of columns.

    Its number is in the counter that the dispatch `reads`.
    """
    size = block_width(x.dtype)
    blocks, tile = -(-n // size), size * (size + 1)
    shader = field_shader(device, x.dtype, INVOCATIONS)
    count_blocks(shader, _COUNTERS, reads, 1)
    a, out = shader.buffer(_OPERAND, x.dtype).name, shader.buffer(_FACTOR, x.dtype, written=True).name
    bad = shader.buffer(_BAD, _UINT32, written=True).name
    for name in ("own", "top"):
        shader.workgroup(name, "T", tile)
    written(
        shader,
        f"""
let base = (group / {blocks}u) * {n * n}u;
let below = group % {blocks}u;
if (below >= step && step < {blocks}u) {{
  let c = local % {size}u;
  let column = step * {size}u + c;
  {_rest(a, out, n, size)}
  {_factored(n, size, HUGE[real_part(x.dtype).name])}
  let root = sqrt(real(top[c * {size + 1}u + c]));
  for (var r = local / {size}u; r < {size}u; r += {INVOCATIONS // size}u) {{
    let row = below * {size}u + r;
    if (row < {n}u && column < {n}u) {{
      if (row == column) {{ {out}[base + row * {n}u + column] = number(root); }}
      if (row > column) {{ {out}[base + row * {n}u + column] = own[r * {size + 1}u + c] / root; }}
    }}
  }}
  if (isBad && below == step && local == 0u) {{ {bad}[group / {blocks}u] = 1u; }}
}}""",
    )
    return shader.dispatch(batch * blocks, iteration_budget.work(batch, n * n))


def _rest(a: str, out: str, n: int, size: int) -> str:
    """Return statements for what earlier columns leave of two tiles.

    These are the workgroup's `own` rows and the `top` ones, those of the block on the diagonal. Invocations have a column and some rows.
    """
    rows, pitch = range(size * size // INVOCATIONS), size + 1
    lanes = INVOCATIONS // size
    begun, loaded, subtracted, stored = [], [], [], []
    for k in rows:
        r = f"(local / {size}u + {k * lanes}u)"
        begun.append(f"let own_row_{k} = below * {size}u + {r};\n  let top_row_{k} = step * {size}u + {r};")
        for tile in ("own", "top"):
            row = f"{tile}_row_{k}"
            begun.append(
                f"var {tile}_{k} = zero();\n  if ({row} < {n}u && column <= {row}) {{ {tile}_{k} = {a}[base + {row} * {n}u + column]; }}"
            )
            loaded.append(f"{tile}[{r} * {pitch}u + c] = {out}[base + min({row}, {n - 1}u) * {n}u + earlier * {size}u + c];")
            subtracted.append(f"{tile}_{k} -= times({tile}[{r} * {pitch}u + t], factor);")
            stored.append(f"{tile}[{r} * {pitch}u + c] = {tile}_{k};")
    newline = "\n  "
    return f"""{newline.join(begun)}
  for (var earlier = 0u; earlier < step; earlier++) {{
    workgroupBarrier();
    {newline.join(loaded)}
    workgroupBarrier();
    {repeated(size, f"let factor = conjugate(top[c * {pitch}u + t]);{newline}{newline.join(subtracted)}")}
  }}
  workgroupBarrier();
  {newline.join(stored)}
  workgroupBarrier();"""


def _factored(n: int, size: int, huge: str) -> str:
    """Return statements that eliminate the columns of both tiles.

    They become those of the factor times its diagonal, whose squares stay on the diagonal of `top`. `isBad` tells whether one of these
    is not positive.
    """
    pitch, lanes = size + 1, INVOCATIONS // size
    rows = [f"(local / {size}u + {k * lanes}u)" for k in range(size // lanes)]
    loads = "\n      ".join(
        [f"let own_{k} = own[{r} * {pitch}u + s];\n      let top_{k} = top[{r} * {pitch}u + s];" for k, r in enumerate(rows)]
    )
    own = "\n      ".join([f"own[{r} * {pitch}u + c] -= times(own_{k}, factor);" for k, r in enumerate(rows)])
    top = "\n      ".join([f"if ({r} > s) {{ top[{r} * {pitch}u + c] -= times(top_{k}, factor); }}" for k, r in enumerate(rows)])
    return f"""var isBad = false;
  for (var s = 0u; s < min({size}u, {n}u - step * {size}u); s++) {{
    let square = real(top[s * {pitch}u + s]);
    let good = square > R(0) && square <= {huge};
    isBad = isBad || !good;
    if (c > s) {{
      let factor = conjugate(top[c * {pitch}u + s]) / select(R(1), square, good);
      {loads}
      {own}
      {top}
    }}
    workgroupBarrier();
  }}"""
