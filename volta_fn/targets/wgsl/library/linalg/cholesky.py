"""Cholesky factors of panels: the first columns of a matrix.

`expand_cholesky` of `compiler/passes/expansions.py` makes a program of panels and products for matrices that are wider than a panel.
"""

from __future__ import annotations

import math
from typing import Any

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import rotations
from volta_fn.targets.wgsl.library.linalg.rotations import HUGE, field_shader, is_field, real_part, written
from volta_fn.targets.wgsl.routine import Routine

#: The most columns of a panel, by the bytes of an element. An invocation of 256 holds 16 or 4 elements of two tiles of this width in
#: registers: of wider tiles of complex numbers they would be too many.
WIDEST = {4: 64, 8: 32, 16: 32}

#: The narrowest tile, which 64 invocations have.
_NARROWEST = 8


def panel_width(x: ShapedArray, device: TargetCapabilities) -> int | None:
    """Return the columns of the panels of matrices; None without a routine for these."""
    width = min(WIDEST[x.dtype.itemsize], x.shape[-1])
    return width if is_field(x.dtype, device, width) else None


def cholesky_panel(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive `cholesky_panel`.

    A workgroup has a tile of the panel's rows. It factors the tile on the diagonal, too, so that none waits for another. An invocation has
    some rows of one column of both tiles in registers; the column that is eliminated is in workgroup memory.
    """
    (x,) = avals
    width = params["width"]
    if not is_field(x.dtype, device, width):
        return None
    *stack, m, n = x.shape
    batch = math.prod(stack)
    if not batch * width:
        return Routine(())
    size = max(1 << (width - 1).bit_length(), _NARROWEST)
    invocations = 64 if size <= 16 else 256
    rows = size * size // invocations
    lanes = 4 if rows % 4 == 0 and x.dtype.kind == "f" else 1
    vectors, column = rows // lanes, size // lanes
    tiles = -(-m // size)
    names = ("diagonal", "tile") if tiles > 1 else ("diagonal",)
    result = names[-1]
    shader = field_shader(device, x.dtype, invocations)
    source, out = shader.buffer(0, x.dtype).name, shader.buffer(1, x.dtype, written=True).name
    scaled = "times(a, b)" if lanes == 1 else "a * b"
    shader.helper("vectors", f"alias V = {'T' if lanes == 1 else f'vec{lanes}<T>'};\nfn scaled(a: V, b: T) -> V {{ return {scaled}; }}")
    for name in names:
        shader.workgroup(f"{name}_column", "V", 2 * column)  # of this step and the next, so that a step has one barrier

    def vector(name: str, k: int) -> str:
        first = "0u" if name == "diagonal" else f"block * {size}u"
        rows = [f"{source}[base + min({first} + row + {k * lanes + lane}u, {m - 1}u) * {n}u + column]" for lane in range(lanes)]
        return f"var {name}_{k} = V({', '.join(rows)});"

    def element(row: str) -> str:
        return f"diagonal_column[parity + {row}]" if lanes == 1 else f"diagonal_column[parity + {row} / {lanes}u][{row} % {lanes}u]"

    def store(k: int, lane: int) -> str:
        value = f"{result}_{k}" + (f"[{lane}]" if lanes > 1 else "")
        return f"""{{ let i = block * {size}u + row + {k * lanes + lane}u;
  if (i < {m}u && c < {width}u) {{
    var value = {value} / root;
    if (c == i) {{ value = number(root); }}
    if (bad) {{ value = nan(); }}
    if (c > i) {{ value = zero(); }}
    {out}[(matrix * {m}u + i) * {width}u + c] = value;
  }}
}}"""

    each = [(name, k) for name in names for k in range(vectors)]
    at = f"parity + lane * {vectors}u"
    newline = "\n    "
    written(
        shader,
        f"""
let matrix = group / {tiles}u;
let block = group % {tiles}u;
let base = matrix * {m * n}u;
let c = local % {size}u;
let lane = local / {size}u;
let row = lane * {rows}u;
let column = min(c, {width - 1}u);
{chr(10).join([vector(name, k) for name, k in each])}
var bad = false;
var own = R(1);
for (var s = 0u; s < {width}u; s++) {{
  let parity = (s & 1u) * {column}u;
  if (c == s) {{
    {newline.join([f"{name}_column[{at} + {k}u] = {name}_{k};" for name, k in each])}
  }}
  workgroupBarrier();
  let square = real({element("s")});
  let good = square > R(0) && square <= {HUGE[real_part(x.dtype).name]};
  bad = bad || !good;
  own = select(own, square, c == s);
  if (c > s) {{
    let factor = conjugate({element("c")}) / select(R(1), square, good);
    {newline.join([f"{name}_{k} -= scaled({name}_column[{at} + {k}u], factor);" for name, k in each])}
  }}
}}
let root = sqrt(own);
{chr(10).join([store(k, lane) for k in range(vectors) for lane in range(lanes)])}""",
    )
    return Routine((shader.dispatch(batch * tiles, rotations.work(batch * tiles, width)),))
