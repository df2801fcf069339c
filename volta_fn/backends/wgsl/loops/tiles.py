"""Transposes: kernels without inner axes, some of whose loads lie side by side along another axis than their stores.

A workgroup does a square of turns of both axes: it reads those loads along their axis into workgroup memory, and then goes along the
stores' axis, so that memory is read and written in long pieces.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from volta_fn.backends.wgsl.facts import Facts as Device
from volta_fn.backends.wgsl.loops.place import Place, arrays
from volta_fn.backends.wgsl.loops.span import LANES, Span, Texts
from volta_fn.backends.wgsl.loops.step import Step
from volta_fn.backends.wgsl.routine import Dispatch
from volta_fn.backends.wgsl.scalars import Number, Shader, wgsl_type
from volta_fn.compiler.kernels.facts import Facts, coefficient

#: The sides of a square, and how far apart its lines are in memory, so that columns are in different banks.
_SIDE = 32
_PITCH = _SIDE + 1

#: Invocations of a workgroup.
_GROUP = 256

#: Turns from which on squares pay.
_LEAST = 1 << 14


class Crossing(NamedTuple):
    """The axis of the stores, that of the loads that cross it, and those loads."""

    axis: int
    other: int
    loads: tuple[int, ...]


def crossing(facts: Facts, device: Device, axis: int) -> Crossing | None:
    """What crosses the axis along which stores lie side by side; None if squares are no help."""
    sizes = facts.kernel.sizes
    if facts.size(facts.outer) < _LEAST or sizes[axis] < LANES:
        return None
    across = {n: p for n, p in facts.load_places.items() if coefficient(p, axis) not in (0, 1, -1)}
    found = Counter(a for p in across.values() for a, c in p.terms if abs(c) == 1 and sizes[a] >= LANES)
    if not found:
        return None
    other = min(found, key=lambda a: (-found[a], a))
    packed = any(b.dtype.itemsize < 4 for b in facts.kernel.outputs)
    loads = tuple([n for n, p in across.items() if abs(coefficient(p, other)) == 1])
    memory = sum(_PITCH * _SIDE * max(facts.kernel.nodes[n].dtype.itemsize, 4) for n in loads)
    fits = memory <= device.workgroup_memory and not (packed and sizes[axis] % LANES)
    return Crossing(axis, other, loads) if fits else None


def write_tiles(facts: Facts, cross: Crossing, device: Device, step: Step) -> Dispatch:
    """A step as a dispatch."""
    shader = Shader(device, _GROUP)
    sizes = facts.kernel.sizes
    along, across = [_line(axis, sizes[axis]) for axis in (cross.axis, cross.other)]
    nest = arrays(shader, facts, (along, across), step.buffers)
    rest = [a for a in range(len(sizes)) if a not in (cross.axis, cross.other)]
    count = {a: -(-sizes[a] // _SIDE) if a not in rest else sizes[a] for a in (*rest, cross.other, cross.axis)}
    squares = Span(tuple(count), tuple(count.values()))
    bound = squares.bind(shader, shader.group)
    corner = {a: shader.let("u32", f"{bound.pop(a)[0]} * {_SIDE}u") for a in (cross.axis, cross.other)}
    root = Place(nest, None, {})
    root.prepare(range(len(facts.kernel.nodes)))
    outer = root.child(bound)
    outer.prepare(range(len(facts.kernel.nodes)))
    tiles = {n: shader.workgroup(f"tile_{n}", wgsl_type(facts.kernel.nodes[n].dtype), _SIDE * _PITCH) for n in cross.loads}
    for turn in _turns(shader, outer, corner, across, along):
        with shader.block(turn.exists):
            place = turn.place.child({})
            for n, tile in tiles.items():
                for k, x in enumerate(place.spread(n)):
                    shader.line(f"{tile}[{turn.slow} * {_PITCH}u + {turn.fast[k]}] = {x.text};")
    shader.line("workgroupBarrier();")
    for turn in _turns(shader, outer, corner, along, across):
        with shader.block(turn.exists):
            place = turn.place.child({})
            for n, tile in tiles.items():
                dtype = facts.kernel.nodes[n].dtype
                texts = [shader.let(wgsl_type(dtype), f"{tile}[({one}) * {_PITCH}u + {turn.slow}]") for one in turn.fast]
                place.numbers[n] = tuple([Number(dtype, text) for text in texts])
            for s in range(len(facts.kernel.stores)):
                place.store(s)
    return shader.dispatch(squares.total)


def _line(axis: int, size: int) -> Span:
    """An axis, walked by lanes if that is possible."""
    return Span((axis,), (size,), LANES if size % LANES == 0 else 1)


class _Turn(NamedTuple):
    """What an invocation does at a time: lanes along one side of a square."""

    place: Place
    #: Whether there is something to do, as the head of a block.
    exists: str
    #: Where in the square it is along the other side, and for each lane along this side.
    slow: str
    fast: Texts


def _turns(shader: Shader, outer: Place, corner: dict[int, str], fast: Span, slow: Span) -> list[_Turn]:
    """The turns of an invocation in a square, whose groups of lanes are along one of its sides."""
    result = []
    width = _SIDE // fast.lanes
    for k in range(width * _SIDE // _GROUP):
        number = shader.named("u32", f"{shader.local} + {k * _GROUP}u" if k else shader.local)
        column, line = shader.let("u32", f"{number} % {width}u"), shader.let("u32", f"{number} / {width}u")
        (a,), (b,) = fast.axes, slow.axes
        group = shader.let("u32", f"{corner[a]} / {fast.lanes}u + {column}")
        other = shader.let("u32", f"{corner[b]} + {line}")
        place = outer.child({**fast.bind(shader, group), b: (other,)}, fast)
        tests = [f"{group} < {fast.groups}u"] if fast.total % _SIDE else []
        tests += [f"{other} < {slow.total}u"] if slow.total % _SIDE else []
        lanes = tuple([f"{column} * {fast.lanes}u + {j}u" for j in range(fast.lanes)])
        result.append(_Turn(place, f"if ({' && '.join(tests)})" if tests else "", line, lanes))
    return result
