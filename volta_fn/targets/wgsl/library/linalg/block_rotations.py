"""Jacobi's method by blocks, for matrices that many workgroups share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import rotations
from volta_fn.targets.wgsl.library.linalg.rotations import (
    HUGE,
    count_blocks,
    field_shader,
    real_part,
    repeated,
    rotation,
    round_robin,
    tile_rotations,
    together,
    written,
)
from volta_fn.targets.wgsl.routine import Dispatch, Shader

# Scales and norms before rounds of blocks, and the order of results after them.

#: Elements of an invocation whose loads overlap.
_TOGETHER = 8


def many_invocations(capabilities: TargetCapabilities, needed: int) -> int:
    """Return the invocations of a workgroup that has a matrix for itself.

    Each invocation needs `needed` bytes of workgroup memory.
    """
    return 1024 if capabilities.invocations >= 1024 and 1024 * needed + 4096 <= capabilities.workgroup_memory else 256


def scale_dispatch(a: ShapedArray, blocks: Blocks, capabilities: TargetCapabilities, weight: str = "1", entry: str = "value") -> Dispatch:
    """Return the dispatch that computes the scale and the norm of each matrix.

    It also clears all marks. The norm is that of the scaled matrix. The scale is the largest magnitude, or zero if some number is not
    finite. `weight` is the number of times that an element i counts, 0, 1 or 2; `entry` is the part of its `value` that counts.
    """
    count, real = a.shape[-2] * a.shape[-1], real_part(a.dtype)
    shader = field_shader(capabilities, a.dtype, many_invocations(capabilities, real.itemsize + 4))
    source = shader.buffer(0, a.dtype).name
    state = shader.buffer(blocks.state, real, written=True).name
    marks = shader.atomics(blocks.marks, MARK).name
    largest = f"value = {entry}; most = max(most, size(value)); finite = finite & (size(value) <= {HUGE[real.name]});"
    squares = f"value = {entry}; squared += square(value / scale) * times_counted;"
    written(
        shader,
        f"""
let base = group * {count}u;
var most = R(0);
var finite = true;
{_over_all(shader, count, source, weight, largest)}
let bad = max_all(select(R(1), R(0), finite), local) > R(0);
let largest = max_all(most, local);
let scale = select(largest, R(1), largest == R(0) || bad);
var squared = R(0);
{_over_all(shader, count, source, weight, squares)}
let norm = sqrt(sum_all(squared, local));
if (local == 0u) {{
  {state}[group * 2u] = select(scale, R(0), bad);
  {state}[group * 2u + 1u] = norm;
}}
for (var i = local; i < {BLOCK_SWEEPS}u; i += STEP) {{ atomicStore(&{marks}[2u + group * {BLOCK_SWEEPS}u + i], 0u); }}
if (group == 0u && local < 2u) {{ atomicStore(&{marks}[local], 0u); }}""",
    )
    return shader.dispatch(blocks.batch, rotations.work(blocks.batch, count))


def _over_all(shader: Shader, count: int, source: str, weight: str, statements: str) -> str:
    """Return statements for each `value` of a matrix, several at a time."""
    step = shader.invocations
    numbers = range(_TOGETHER)
    loads = "\n".join([f"let i{k} = start + {k * step}u;\nlet value_{k} = {source}[base + min(i{k}, {count - 1}u)];" for k in numbers])
    uses = "\n".join(
        [
            f"if (i{k} < {count}u) {{ let i = i{k}; let times_counted = R({weight}); var value = value_{k};"
            f" if (times_counted == R(0)) {{ value = zero(); }} {statements} }}"
            for k in numbers
        ]
    )
    return f"for (var start = local; start < {count}u; start += {_TOGETHER * step}u) {{\n{loads}\n{uses}\n}}"


def ranked(n: int, keys: str, comes_first: str) -> str:
    """Return statements that set `place` to the rank of key i in sorted order.

    There are n keys, in an array padded to a multiple of eight. `comes_first` is the condition that key `other` precedes key `mine`; equal
    keys are in the order of their indices.
    """
    compared = f"let other = {keys}[t]; place += select(0u, 1u, ({comes_first}) | ((other == mine) & (t < i)));"
    return f"let mine = {keys}[i];\nvar place = 0u;\n{repeated(padded(n), compared, 8)}"


def padded(n: int) -> int:
    """Return the length of an array of n keys for `ranked`."""
    return -(-n // 8) * 8


# Jacobi's method by blocks, for matrices that many workgroups share.
#
# A round pairs all blocks of columns. For each pair, a workgroup computes the product of the rotations that make the pair's small Hermitian
# matrix diagonal, in workgroup memory. Then many workgroups multiply the matrix by these products. In the rounds of a sweep each block
# meets every other one. Products of a round are flagged if they are not the identity. Sweeps end after one without flags; the remaining
# dispatches have nothing to do.

#: Sweeps at most: eight to ten are enough for most matrices, thirteen for those whose eigenvalues are a millionth of each other.
BLOCK_SWEEPS = 14

#: Columns of blocks, the most that fit in workgroup memory. With more, rounds are fewer, but each takes longer than they save.
_SIZES = (16, 8)

#: The dtype of marks.
MARK = np.dtype(np.uint32)


class Blocks(NamedTuple):
    """Pairs of blocks of columns, and the numbers of the buffers of their rounds."""

    #: Columns of a block; a workgroup has as many invocations as two blocks have pairs of rows and columns.
    size: int
    pairs: int
    batch: int
    #: Buffers: scale and norm of each matrix; counters, remainders of sweeps, and flags of pairs; products of rotations.
    state: int
    marks: int
    products: int

    @property
    def pitch(self) -> int:
        """The pitch of rows in workgroup memory.

        With it the invocations of a subgroup, which have elements of adjacent rows and columns, access different banks.
        """
        return 3 * self.size

    @property
    def rounds(self) -> int:
        """The rounds of a sweep."""
        return 2 * self.pairs - 1

    @property
    def marked(self) -> int:
        """The number of marks."""
        return 2 + self.batch * (BLOCK_SWEEPS + self.pairs)

    def spaces(self, dtype: np.dtype) -> tuple[int, int, int]:
        """Return the bytes of the three buffers."""
        products = self.batch * self.pairs * (2 * self.size) ** 2 * dtype.itemsize
        return 2 * self.batch * real_part(dtype).itemsize, 4 * self.marked, products


def blocks_of(n: int, dtype: np.dtype, batch: int, capabilities: TargetCapabilities, first: int) -> Blocks:
    """Return the blocks of n columns; their buffers are numbered from `first` on."""
    size = next(s for s in _SIZES if _fits(s, dtype, capabilities) or s == _SIZES[-1])
    return Blocks(size, -(-n // (2 * size)), batch, first, first + 1, first + 2)


def _fits(size: int, dtype: np.dtype, capabilities: TargetCapabilities) -> bool:
    needed = (2 * (2 * size) * (3 * size) + 2 * size) * dtype.itemsize + size * size * (real_part(dtype).itemsize + 4) + 16
    return size * size <= capabilities.invocations and needed <= capabilities.workgroup_memory


def load_scale(shader: Shader, blocks: Blocks, dtype: np.dtype) -> str:
    """Return statements that name a matrix's scale, and `bad` if it is not finite."""
    state = shader.buffer(blocks.state, real_part(dtype)).name
    return f"let scale = {state}[group * 2u];\nlet bad = scale == R(0);"


def find_products(
    a: ShapedArray, blocks: Blocks, capabilities: TargetCapabilities, common: Callable[[Shader], str], share: str, enough: float
) -> Dispatch:
    """Return the dispatch that computes a round's products of rotations.

    `common` returns statements that make `tile` the Hermitian matrix of two blocks `at`. `share` is an expression for the size of its
    element g relative to the diagonal elements p and q; an element is negligible if it is at most `enough`.
    """
    size = blocks.size
    shader = _shader(a, blocks, capabilities, blocks.pitch, reads=0, added=0)
    shader.helper("rotation", rotation(a.dtype))
    shader.workgroup("sines", "T", size)
    shader.workgroup("halves", "T", size)
    shader.workgroup("goes_on", "u32")
    state = shader.buffer(blocks.state, real_part(a.dtype)).name
    marks = shader.atomics(blocks.marks, MARK).name
    products = shader.buffer(blocks.products, a.dtype, written=True).name
    flag = f"{marks}[{2 + blocks.batch * BLOCK_SWEEPS}u + group]"
    unconverged = f"{marks}[2u + matrix * {BLOCK_SWEEPS}u + sweep{{}}]"
    pitch, count = blocks.pitch, 4 * size * size
    # In the first round of a sweep all columns meet, in others those of one block and of the other.
    steps = f"select({size}u, {2 * size - 1}u, turn == 0u)"
    pairing = f"""pair_k = vec2<u32>(k, {size}u + (k + turned_by) % {size}u);
      pair_l = vec2<u32>(l, {size}u + (l + turned_by) % {size}u);
      if (turn == 0u) {{
        pair_k = paired(turned_by, k);
        pair_l = paired(turned_by, l);
      }}"""
    written(
        shader,
        f"""
let matrix = group / {blocks.pairs}u;
let at = met(turn, group % {blocks.pairs}u);
if (local == 0u) {{
  goes_on = select(0u, 1u, {state}[matrix * 2u] != R(0));
  if (sweep > 0u && bitcast<f32>(atomicLoad(&{unconverged.format(" - 1u")})) <= {enough}f) {{ goes_on = 0u; }}
  atomicStore(&{flag}, 0u);
}}
if (workgroupUniformLoad(&goes_on) == 1u) {{
  let norm = {state}[matrix * 2u + 1u];
  {common(shader)}
  var greatest_share = R(0);
  for (var i = local; i < {count}u; i += STEP) {{
    let row = i / {2 * size}u;
    let column = i % {2 * size}u;
    let p = size(tile[row * {pitch + 1}u]);
    let q = size(tile[column * {pitch + 1}u]);
    let g = size(tile[row * {pitch}u + column]);
    if (row != column) {{ greatest_share = max(greatest_share, {share}); }}
    turned[row * {pitch}u + column] = number(select(R(0), R(1), row == column));
  }}
  let most = max_all(greatest_share, local);
  if (local == 0u) {{ atomicMax(&{unconverged.format("")}, bitcast<u32>(f32(most))); }}
  if (most > R({enough})) {{
    {tile_rotations(size, pitch, steps, pairing)}
    for (var i = local; i < {count}u; i += STEP) {{
      {products}[group * {count}u + i] = turned[(i / {2 * size}u) * {pitch}u + i % {2 * size}u];
    }}
    if (local == 0u) {{ atomicStore(&{flag}, 1u); }}
  }}
}}""",
    )
    return shader.dispatch(blocks.batch * blocks.pairs, rotations.work(blocks.batch, a.shape[-1] ** 2))


def _shader(a: ShapedArray, blocks: Blocks, capabilities: TargetCapabilities, pitch: int, reads: int, added: int) -> Shader:
    """Return a shader that names the sweep and the round in it."""
    # Its functions tell which blocks meet, and which columns they have.
    size = blocks.size
    shader = field_shader(capabilities, a.dtype, size * size)
    round_robin(shader, "met", 2 * blocks.pairs)
    round_robin(shader, "paired", 2 * size)
    shader.helper(
        "place",
        f"fn place(at: vec2<u32>, i: u32) -> u32 {{ return select(at.y * {size}u + i - {size}u, at.x * {size}u + i, i < {size}u); }}",
    )
    for name in ("tile", "turned"):
        shader.workgroup(name, "T", 2 * size * pitch)
    count_blocks(shader, blocks.marks, reads, added, atomic=True)
    written(shader, f"let sweep = step / {blocks.rounds}u;\nlet turn = step % {blocks.rounds}u;")
    return shader


def apply_products(
    a: ShapedArray, blocks: Blocks, capabilities: TargetCapabilities, matrix: int, vectors: tuple[int, int, int] | None, both: bool
) -> Dispatch:
    """Return the dispatch that multiplies a `matrix` by a round's products.

    It is square; the first columns of `vectors` are multiplied, too. The vectors are given as their buffer, rows and columns. If `both`,
    the matrix is also multiplied by the adjoint of the product of all on its left.
    """
    n, size, pairs = a.shape[-1], blocks.size, blocks.pairs
    strips = pairs
    _, rows, wide = vectors or (0, 0, 0)
    jobs = pairs * (strips + -(-rows // (2 * size)))
    shader = _shader(a, blocks, capabilities, 2 * size + 1, reads=1, added=1)
    shader.workgroup("flags", "u32")
    marks = shader.atomics(blocks.marks, MARK).name
    products = shader.buffer(blocks.products, a.dtype).name
    x = shader.buffer(matrix, a.dtype, written=True).name
    v = shader.buffer(vectors[0], a.dtype, written=True).name if vectors else ""
    flag = f"atomicLoad(&{marks}[{2 + blocks.batch * BLOCK_SWEEPS}u + matrix * {pairs}u + {{}}])"
    down = f"row = place(below, i / {2 * size}u);" if both else ""
    unconverged = flag.format("strip") if both else "0u"
    written(
        shader,
        f"""
let matrix = group / {jobs}u;
let job = group % {jobs}u;
let strip = (job / {pairs}u) % {strips}u;
let isMatrix = job < {pairs * strips}u;
let offset = select(job / {pairs}u - {strips}u, job / {pairs}u, isMatrix) * {2 * size}u;
let at = met(turn, job % {pairs}u);
{"let below = met(turn, strip);" if both else ""}
if (local == 0u) {{ flags = {flag.format(f"job % {pairs}u")} + select(0u, 2u * {unconverged}, isMatrix); }}
let flagged = workgroupUniformLoad(&flags);
if (flagged != 0u) {{
  {_load_product(products, size, f"matrix * {pairs}u + job % {pairs}u")}
  {_later_product(products, size, f"matrix * {pairs}u + strip") if both else ""}
  {_loaded((x, v), size, (n, rows, wide), down)}
  if ((flagged & 1u) != 0u) {{
    {_multiplied(size, "tile[{row} * PITCH + t]", "turned[t * PITCH + {column}]")}
  }}
  {_left(size) if both else ""}
  {_stored((x, v), size, (n, rows, wide), down)}
}}""",
    )
    return shader.dispatch(blocks.batch * jobs, rotations.work(blocks.batch, max(n, rows) * n))


def _left(size: int) -> str:
    """Return statements that multiply by the adjoint of the product kept for later."""
    pitch = 2 * size + 1
    stores = "\n    ".join(
        [f"{{ let i = local + {k * size * size}u; turned[(i / {2 * size}u) * {pitch}u + i % {2 * size}u] = later_{k}; }}" for k in range(4)]
    )
    return f"""if (flagged >= 2u) {{
    {stores}
    workgroupBarrier();
    {_multiplied(size, "conjugate(turned[t * PITCH + {row}])", "tile[t * PITCH + {column}]")}
  }}"""


def _tile_element(arrays: tuple[str, str], size: int, sizes: tuple[int, int, int], down: str) -> tuple[str, str]:
    """Return statements that find a tile's element i, and the one that moves it.

    It is in the matrix or in the vectors; `MOVE` stands for the rest of the statement.
    """
    x, v = arrays
    n, rows, wide = sizes

    def move(array: str, count: int, pitch: int) -> str:
        element = f"{array}[matrix * {count * pitch}u + row * {pitch}u + column]"
        return f"if (row < {count}u && column < {n}u) {{ {element} MOVE }}"

    locate = f"""var row = i / {2 * size}u + offset;
let column = place(at, i % {2 * size}u);
{f"if (isMatrix) {{ {down} }}" if down else ""}"""
    return locate, f"if (isMatrix) {{ {move(x, n, n)} }} {f'else {{ {move(v, rows, wide)} }}' if v else ''}"


def _loaded(arrays: tuple[str, str], size: int, sizes: tuple[int, int, int], down: str) -> str:
    """Return statements that load a tile of the matrix or of the vectors."""
    locate, move = _tile_element(arrays, size, sizes, down)
    load = re.sub(r"{ (\S+\[[^{}]*\]) MOVE }", r"{ value = \1; }", move)
    store = f"tile[(i / {2 * size}u) * {2 * size + 1}u + i % {2 * size}u] = value;"
    return f"{together(4 * size * size, size * size, f'{locate}{chr(10)}{load}', store)}\n  workgroupBarrier();"


def _stored(arrays: tuple[str, str], size: int, sizes: tuple[int, int, int], down: str) -> str:
    """Return statements that store the tile where it was."""
    locate, move = _tile_element(arrays, size, sizes, down)
    value = f"tile[(i / {2 * size}u) * {2 * size + 1}u + i % {2 * size}u]"
    return f"""for (var i = local; i < {4 * size * size}u; i += STEP) {{
    {locate}
    {move.replace("MOVE", f"= {value};")}
  }}"""


def _load_product(products: str, size: int, number: str) -> str:
    """Return statements that load a product of rotations as `turned`."""
    element = f"turned[(i / {2 * size}u) * {2 * size + 1}u + i % {2 * size}u]"
    return together(4 * size * size, size * size, f"value = {products}[({number}) * {4 * size * size}u + i];", f"{element} = value;")


def _later_product(products: str, size: int, number: str) -> str:
    """Return statements that load another product in variables."""
    # It moves to workgroup memory once there is room.
    loads = [f"later_{k} = {products}[({number}) * {4 * size * size}u + local + {k * size * size}u];" for k in range(4)]
    begun = "\n  ".join([f"var later_{k} = zero();" for k in range(4)])
    return f"""{begun}
  if (flagged >= 2u) {{ {" ".join(loads)} }}"""


def _multiplied(size: int, left: str, right: str) -> str:
    """Return statements that make `tile` a product, four elements an invocation."""
    corners = [(f"row{' + ' * i}{f'{size}u' * i}", f"column{' + ' * j}{f'{size}u' * j}", f"{i}{j}") for i in (0, 1) for j in (0, 1)]
    lefts = "\n      ".join([f"let l{i} = {left.format(row=f'(row + {i * size}u)')};" for i in (0, 1)])
    rights = "\n      ".join([f"let r{j} = {right.format(column=f'column + {j * size}u')};" for j in (0, 1)])
    sums = "\n      ".join([f"sum_{name} += times(l{name[0]}, r{name[1]});" for *_, name in corners])
    begun_ = "\n    ".join([f"var sum_{name} = zero();" for *_, name in corners])
    stores = "\n    ".join([f"tile[({row}) * PITCH + {column}] = sum_{name};" for row, column, name in corners])
    newline = "\n      "
    text = f"""{{
    let row = local / {size}u;
    let column = local % {size}u;
    {begun_}
    {repeated(2 * size, f"{lefts}{newline}{rights}{newline}{sums}")}
    workgroupBarrier();
    {stores}
    workgroupBarrier();
    }}"""
    return text.replace("PITCH", f"{2 * size + 1}u")
