"""Elements moved without looking at them, in units of 16, 4, 2 or 1 bytes.

Neighbouring bytes that move together are one unit, the larger the better: rows of 64 bytes move in fours of words, whatever their dtype.
A unit's value is a list: its four words, or one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from volta_fn.codegen.geometry.strides import Dims, merged
from volta_fn.targets.wgsl.index_arith import plus
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars import Array, Number, Shader, constant

Unit = list[Number]

#: Invocations of a workgroup, where nothing else matters.
INVOCATIONS = 128

#: Units that an invocation moves together, where there are many.
TOGETHER, MANY = 4, 1 << 20

_DTYPES: dict[int, np.dtype] = {16: np.dtype(np.uint32), 4: np.dtype(np.uint32), 2: np.dtype(np.uint16), 1: np.dtype(np.uint8)}


def in_units(itemsize: int, loops: Sequence[Dims], others: Sequence[int] = ()) -> tuple[int, tuple[Dims, ...]]:
    """Return the bytes of a unit, and loops over elements as loops over units.

    Loops are sizes and strides of several arrays. The first two strides are those of arrays of bytes; any more are of something else, in
    which a unit is no step. `others` are further distances, in elements, that must be multiples of units.
    """
    sizes, *strides = loops
    in_bytes = [tuple([s * itemsize for s in steps]) for steps in strides[:2]]
    merged_sizes, *steps = merged((*sizes, itemsize), *[(*s, 1) for s in in_bytes], *[(*s, 0) for s in strides[2:]])
    runs = bool(merged_sizes) and [s[-1] for s in steps] == [1, 1] + [0] * len(steps[2:])
    outer = len(merged_sizes) - runs
    run = math.prod(merged_sizes[outer:])
    distances = (run, *steps[0][:outer], *steps[1][:outer], *[itemsize * o for o in others])
    unit = next(u for u in _DTYPES if not any(n % u for n in distances))
    moved = [(*[n // unit for n in s[:outer]], 1) for s in steps[:2]]
    return unit, ((*merged_sizes[:outer], run // unit), *moved, *[(*s[:outer], 0) for s in steps[2:]])


def unit_array(shader: Shader, number: int, unit: int, size: int, written: bool = False) -> Array:
    """Return the buffer of a number, of so many bytes, in units."""
    dtype = _DTYPES[unit]
    return shader.buffer(number, dtype, written, size // dtype.itemsize if unit != 4 else 0)


def result_array(shader: Shader, number: int, dtype: np.dtype, size: int) -> Array:
    """Return a buffer that `fill` writes."""
    return shader.buffer(number, dtype, written=True, size=size if dtype.itemsize < 4 else 0)


def load_unit(array: Array, unit: int, index: str) -> Unit:
    """Emit the load of a unit."""
    return array.load4(index) if unit == 16 else [array.load(index)]


def store_unit(array: Array, unit: int, index: str, value: Unit) -> None:
    """Emit the store of a unit, while other invocations may store its neighbours."""
    if unit == 16:
        array.store4(index, value)
    else:
        array.store(index, value[0])


def units_of(value: object, dtype: np.dtype, unit: int, index: str) -> Unit:
    """Return the unit of an array in which a number of a dtype is repeated."""
    data = np.asarray(value).astype(dtype).tobytes()
    words = np.frombuffer(data * math.ceil(16 / len(data)), _DTYPES[unit])
    number = _DTYPES[unit]
    if unit == 16:
        return [constant(number, w) for w in words[:4]]
    period = max(1, dtype.itemsize // unit)
    text = constant(number, words[0]).text
    for k in range(1, period):
        text = f"select({text}, {constant(number, words[k]).text}, {index} % {period}u == {k}u)"
    return [Number(number, text)]


def chosen(shader: Shader, condition: str, yes: Unit, no: Unit) -> Unit:
    """Emit one of two units."""
    return [Number(y.dtype, shader.let(y.type, f"select({n.text}, {y.text}, {condition})")) for y, n in zip(yes, no, strict=True)]


def invocation(shader: Shader) -> str:
    """Emit the number of the invocation in the grid."""
    return shader.let("u32", f"{shader.group} * {shader.invocations}u + {shader.local}")


def for_each(shader: Shader, count: int, body: Callable[[str], None]) -> Dispatch:
    """Return the dispatch that does the body for the numbers below `count`."""
    number = invocation(shader)
    with shader.block(f"if ({number} < {count}u)"):
        body(number)
    return shader.dispatch(-(-count // shader.invocations))


def fill(shader: Shader, target: Array, count: int, element: Callable[[str], Number]) -> Dispatch:
    """Return the dispatch that writes ``element(index)`` to every element of an array.

    Of packed dtypes an invocation has four.
    """
    if target.dtype.itemsize >= 4:
        return for_each(shader, count, lambda i: target.store(i, element(i)))

    def four(number: str) -> None:
        positions = [shader.let("u32", f"min({number} * 4u + {k}u, {count - 1}u)") for k in range(4)]
        target.store4(number, [element(position) for position in positions])

    return for_each(shader, -(-count // 4), four)


def fill_units(shader: Shader, target: Array, unit: int, count: int, element: Callable[[str], Unit]) -> Dispatch:
    """Return the dispatch that writes ``element(index)`` to every unit of an array."""
    if unit < 4:
        return fill(shader, target, count, lambda i: element(i)[0])
    each = TOGETHER if count >= MANY else 1
    first = shader.let("u32", f"{shader.group} * {shader.invocations * each}u + {shader.local}")
    positions = [shader.let("u32", plus(first, f"{k * shader.invocations}u" if k else "0u")) for k in range(each)]
    # All are in flight together: what is loaded does not wait for what is stored.
    values = [element(shader.let("u32", f"min({position}, {count - 1}u)")) for position in positions]
    for position, value in zip(positions, values, strict=True):
        with shader.block(f"if ({position} < {count}u)"):
            store_unit(target, unit, position, value)
    return shader.dispatch(-(-count // (shader.invocations * each)))


def copy(shader: Shader, source: int, target: int, size: int) -> Dispatch:
    """Return the dispatch that copies so many bytes from one buffer to another."""
    words = -(-size // 4)
    unit = 4 if words % 4 else 16
    read, write = unit_array(shader, source, unit, words * 4), unit_array(shader, target, unit, words * 4, written=True)
    return fill_units(shader, write, unit, words * 4 // unit, lambda i: load_unit(read, unit, i))
