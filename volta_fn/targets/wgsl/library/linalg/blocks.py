"""What factorisations by blocks of columns share: counters, sizes, copies.

Each block of columns is factored by one workgroup per matrix, and many bring the later columns up to date. The number of the block is in
memory, so that all blocks have the same shaders: a dispatch reads one of two counters and writes the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.library.linalg import rotations
from volta_fn.targets.wgsl.library.linalg.rotations import field_shader, written
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars import Shader

#: Matrices up to this size have a workgroup each.
SMALL = 64

#: Invocations of workgroups that bring columns up to date.
INVOCATIONS = 256

#: Elements that a workgroup copies.
_COPIED = 4 * INVOCATIONS

_UINT32 = np.dtype(np.uint32)

#: Bytes of the two counters.
COUNTERS = 8


def repeated(count: int, statements: str, by: int = 4) -> str:
    """Return statements for t from 0 to `count`.

    A GPU has several iterations under way together. Otherwise it would wait for each one's loads from workgroup memory.
    """
    by = min(by, count)
    numbers = "\n".join([f"{{ let t = start + {k}u;\n{statements} }}" for k in range(by)])
    return f"for (var start = 0u; start < {count}u; start += {by}u) {{\n{numbers}\n}}"


class Moved(NamedTuple):
    """Numbers that a workgroup moves together, by statements.

    `load` may assign element `i` to `value`, and `store` moves it.
    """

    numbers: int
    load: str
    store: str


def _staged(moved: Sequence[Moved], invocations: int) -> tuple[str, str, str]:
    """Return statements that declare, load and store an invocation's numbers."""
    declared, loads, stores = [], [], []
    for which, (count, load, store) in enumerate(moved):
        guard = f"if (i < {count}u) " if count % invocations else ""
        for k in range(-(-count // invocations)):
            name, number = f"ahead_{which}_{k}", f"let i = local + {k * invocations}u;"
            declared.append(f"var {name} = zero();")
            loads.append(f"{{ {number}\nvar value = zero();\n{guard}{{ {load} }}\n{name} = value; }}")
            stores.append(f"{{ {number}\nlet value = {name};\n{guard}{{ {store} }} }}")
    return "\n".join(declared), "\n".join(loads), "\n".join(stores)


def together(count: int, invocations: int, load: str, store: str) -> str:
    """Return statements that load numbers and then store them, as in `Moved`.

    All loads of an invocation are under way together.
    """
    return "\n".join(["{", *_staged([Moved(count, load, store)], invocations), "}"])


def streamed(first: str, end: int, by: int, invocations: int, moved: Sequence[Moved], statements: str) -> str:
    """Return a loop over rows from `begin` on, so many at a time.

    Their numbers are moved before the statements. Those of the next rows, zeros after the last, are loaded while the statements run.
    """
    declared, loads, stores = _staged(moved, invocations)
    return f"""{{
{declared}
{{ let begin = {first};
{loads} }}
for (var begin = {first}; begin < {end}u; begin += {by}u) {{
{stores}
workgroupBarrier();
let following = begin + {by}u;
{{ let begin = following;
{loads} }}
{statements}
workgroupBarrier();
}}
}}"""


def block_width(dtype: np.dtype) -> int:
    """Return the columns of a block.

    They are so few that three square tiles fit in the least workgroup memory.
    """
    return 32 if dtype.itemsize == 4 else 16


def count_blocks(shader: Shader, number: int, reads: int, added: int, atomic: bool = False) -> None:
    """Write statements that name a counter's value `step`.

    The other counter becomes that value and what is `added`. Both are the first words in the buffer of a number, which may be `atomic`.
    """
    shader.workgroup("counted", "u32")
    array = shader.atomics(number, _UINT32) if atomic else shader.buffer(number, _UINT32, written=True)
    old, new = (f"{array.name}[{k}u]" for k in (reads, 1 - reads))
    load, store = (f"atomicLoad(&{old})", f"atomicStore(&{new}, step + {added}u)") if atomic else (old, f"{new} = step + {added}u")
    written(
        shader,
        f"""
if (local == 0u) {{ counted = {load}; }}
let step = workgroupUniformLoad(&counted);
if (group == 0u && local == 0u) {{ {store}; }}""",
    )


def begin_count(shader: Shader, number: int) -> None:
    """Write statements that set both counters to zero."""
    counters = shader.buffer(number, _UINT32, written=True).name
    written(shader, f"if (group == 0u && local < 2u) {{ {counters}[local] = 0u; }}")


def element_shader(device: TargetCapabilities, dtype: np.dtype, count: int) -> Shader:
    """Return a shader for `over_elements`, which names the matrix of a workgroup."""
    shader = field_shader(device, dtype, INVOCATIONS)
    groups = max(-(-count // _COPIED), 1)
    written(shader, f"let matrix = group / {groups}u;\nlet first = (group % {groups}u) * {_COPIED}u;")
    return shader


def over_elements(shader: Shader, count: int, statements: str) -> None:
    """Write statements for each of the elements `e` of a matrix that has so many."""
    written(shader, f"for (var e = first + local; e < min(first + {_COPIED}u, {count}u); e += STEP) {{\n{statements}\n}}")


def element_dispatch(shader: Shader, batch: int, count: int) -> Dispatch:
    """Return the dispatch of an `element_shader` for so many elements of each matrix."""
    return shader.dispatch(batch * max(-(-count // _COPIED), 1), rotations.work(batch, count))
