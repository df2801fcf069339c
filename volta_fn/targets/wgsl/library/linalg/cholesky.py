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

#: Columns that are eliminated between two barriers. A panel of 64 takes 13.7 µs on an H200 with one, 11.1 with two and 11.4 with four.
_PIVOTS = 2

#: The narrowest tile, which 64 invocations have.
_NARROWEST = 8


def panel_width(x: ShapedArray, capabilities: TargetCapabilities) -> int | None:
    """Return the columns of the panels of matrices; None without a routine for these.

    In 32-bit numbers, an invocation of 256 has 16 elements of each of two tiles of 64 columns in registers: of wider numbers they would be
    too many, so these have panels of 32 columns. The widths for 32-bit numbers are those that were faster on an H200:

    - Up to 64 columns one panel is enough: 64×64 takes 11 µs, and 17 by two panels of 32.
    - Up to 512 columns the panels take longest, and those of 32 columns less in all: 256×256 takes 103 µs by 64 columns and 93 by 32,
      512×512 takes 369 (290 of them in panels) and 330 (188). A stack of 64 of 256×256 takes 151 and 188.
    - Beyond, products take longer, each of which reads and writes what is left of the matrix: 4 of 1024×1024 take 1352 µs by 64 columns
      (513 of them in products) and 1403 by 32 (807). A single one takes about as long by either, but 32 columns are twice as many shaders.
    """
    n = x.shape[-1]
    width = 64 if x.dtype.itemsize == 4 and (n <= 64 or n > 512) else 32
    return width if is_field(x.dtype, capabilities, width) else None


def cholesky_panel(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive `cholesky_panel`.

    A workgroup has a tile of the panel's rows. It factors the tile on the diagonal, too, so that none waits for another. An invocation has
    some rows of one column of both tiles in registers, as vectors `V`; the columns that are eliminated are in workgroup memory.
    """
    (x,) = avals
    width = params["width"]
    if not is_field(x.dtype, capabilities, width):
        return None
    *stack, m, n = x.shape
    batch = math.prod(stack)
    if not batch * width:
        return Routine(())
    size = max(1 << (width - 1).bit_length(), _NARROWEST)
    tiles, pivots = -(-m // size), _PIVOTS
    invocations = 64 if size <= 16 else 256
    rows = size * size // invocations
    lanes = 4 if rows % 4 == 0 and x.dtype.kind == "f" else 1
    names = ("diagonal", "tile") if tiles > 1 else ("diagonal",)
    vectors = [(name, k) for name in names for k in range(rows // lanes)]
    shader = field_shader(capabilities, x.dtype, invocations)
    source, out = shader.buffer(0, x.dtype).name, shader.buffer(1, x.dtype, written=True).name
    shader.helper(
        "vectors",
        f"""alias V = {"T" if lanes == 1 else f"vec{lanes}<T>"};
fn scaled(a: V, b: T) -> V {{ return {"times(a, b)" if lanes == 1 else "a * b"}; }}""",
    )
    for name in names:
        # The columns of this step and of the next one, so that one barrier between them is enough.
        shader.workgroup(f"{name}_columns", "V", 2 * pivots * size // lanes)

    def load(name: str, k: int) -> str:
        indices = [f"({'' if name == 'diagonal' else f'block * {size}u + '}row + {k * lanes + lane}u)" for lane in range(lanes)]
        loads = [f"select(zero(), {source}[base + min({i}, {m - 1}u) * {n}u + min(c, {width - 1}u)], {i} >= c)" for i in indices]
        return f"var {name}_{k} = V({', '.join(loads)});"

    def column(name: str, k: int, q: str) -> str:
        return f"{name}_columns[(parity + {q}) * {size // lanes}u + lane * {rows // lanes}u + {k}u]"

    def element(q: int, i: str) -> str:
        columns = f"diagonal_columns[(parity + {q}u) * {size // lanes}u + "
        return f"{columns}{i}]" if lanes == 1 else f"{columns}{i} / {lanes}u][{i} % {lanes}u]"

    def eliminate(name: str, k: int) -> str:
        lines = [f"let v{q} = {column(name, k, f'{q}u')}{_minus('scaled', 'v', q)};" for q in range(pivots)]
        return f"{{ {' '.join(lines)} {name}_{k} -= {' + '.join([f'scaled(v{q}, factor_{q})' for q in range(pivots)])}; }}"

    def store(k: int, lane: int) -> str:
        value = f"{names[-1]}_{k}" + (f"[{lane}]" if lanes > 1 else "")
        return f"""{{
  let i = block * {size}u + row + {k * lanes + lane}u;
  if (i < {m}u && c < {width}u) {{
    var value = {value} / root;
    if (c == i) {{ value = number(root); }}
    if (bad) {{ value = nan(); }}
    if (c > i) {{ value = zero(); }}
    {out}[(matrix * {m}u + i) * {width}u + c] = value;
  }}
}}"""

    squares, factors = [], []
    for q in range(pivots):
        squares += [f"let pivot_{p}_{q} = {element(q, f'(s + {p}u)')}{_minus('times', f'pivot_{p}_', q)};" for p in range(q, pivots)]
        beyond = f" || s + {q}u >= {width}u" if width % pivots else ""
        squares.append(
            f"""let square_{q} = real(pivot_{q}_{q});
let good_{q} = (square_{q} > R(0) && square_{q} <= {HUGE[real_part(x.dtype).name]}){beyond};
let inverse_{q} = R(1) / select(R(1), square_{q}, good_{q});
bad = bad || !good_{q};
diagonal_square = select(diagonal_square, square_{q}, c == s + {q}u);"""
        )
        squares += [f"let l_{p}_{q} = conjugate(pivot_{p}_{q} * inverse_{q});" for p in range(q + 1, pivots)]
        factors.append(f"let top_{q} = {element(q, 'c')}{_minus('times', 'top_', q)};")
        factors.append(f"let factor_{q} = select(zero(), conjugate(top_{q} * inverse_{q}), c > s + {q}u);")
    newline = "\n"
    written(
        shader,
        f"""
let matrix = group / {tiles}u;
let block = group % {tiles}u;
let base = matrix * {m * n}u;
let c = local % {size}u;
let lane = local / {size}u;
let row = lane * {rows}u;
{newline.join([load(name, k) for name, k in vectors])}
var bad = false;
var diagonal_square = R(1);
for (var s = 0u; s < {width}u; s += {pivots}u) {{
  let parity = s % {2 * pivots}u;
  if (c >= s && c < s + {pivots}u) {{
    {newline.join([f"{column(name, k, '(c - s)')} = {name}_{k};" for name, k in vectors])}
  }}
  workgroupBarrier();
  {newline.join(squares)}
  if (c > s) {{
    {newline.join(factors)}
    {newline.join([eliminate(name, k) for name, k in vectors])}
  }}
}}
let root = sqrt(diagonal_square);
{newline.join([store(k, lane) for k in range(rows // lanes) for lane in range(lanes)])}""",
    )
    return Routine((shader.dispatch(batch * tiles, rotations.work(batch * tiles, width)),))


def _minus(multiply: str, columns: str, q: int) -> str:
    """Return the subtraction, from pivot column q, of the pivot columns before it."""
    return "".join([f" - {multiply}({columns}{k}, l_{q}_{k})" for k in range(q)])
