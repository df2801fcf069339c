"""Data movement: gathers, dynamic slices, casts by bits, and positions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.windows import Dims, Layout, Starts, WindowStart, gather_of, merged, window_start
from volta_fn.compiler.contractions import contiguous_strides
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices import distribution
from volta_fn.primitives.data_movement.gather import default_fill, gather_p
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader, ShaderArray
from volta_fn.targets.wgsl.scalars import Number, constant
from volta_fn.targets.wgsl.shader import dotted, plus, quotient, times

# Elements that move without computation, in units of 16, 4, 2 or 1 bytes.
#
# Neighbouring bytes that move together are one unit, as large as possible: rows of 64 bytes move in fours of words, whatever their dtype. A
# unit's value is a list: its four words, or one number.

Unit = list[Number]

#: Invocations of a workgroup, where nothing else matters.
INVOCATIONS = 128

#: Units that an invocation moves together, where there are many.
TOGETHER, MANY = 4, 1 << 20

_DTYPES: dict[int, np.dtype] = {16: np.dtype(np.uint32), 4: np.dtype(np.uint32), 2: np.dtype(np.uint16), 1: np.dtype(np.uint8)}


def in_units(itemsize: int, loops: Sequence[Dims], others: Sequence[int] = ()) -> tuple[int, tuple[Dims, ...]]:
    """Return the bytes of a unit, and loops over elements as loops over units.

    Loops are sizes and strides of several arrays. The first two lists of strides count elements; any further ones do not change within a
    unit. `others` are further distances, in elements, that must be multiples of units.
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


def unit_array(shader: Shader, number: int, unit: int, size: int, written: bool = False) -> ShaderArray:
    """Return buffer `number`, of `size` bytes, as an array of units."""
    dtype = _DTYPES[unit]
    return shader.buffer(number, dtype, written, size // dtype.itemsize if unit != 4 else 0)


def result_array(shader: Shader, number: int, dtype: np.dtype, size: int) -> ShaderArray:
    """Return a buffer that `fill` writes."""
    return shader.buffer(number, dtype, written=True, size=size if dtype.itemsize < 4 else 0)


def load_unit(array: ShaderArray, unit: int, index: str) -> Unit:
    """Emit the load of a unit."""
    return array.load4(index) if unit == 16 else [array.load(index)]


def store_unit(array: ShaderArray, unit: int, index: str, value: Unit) -> None:
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


def fill(shader: Shader, target: ShaderArray, count: int, element: Callable[[str], Number]) -> Dispatch:
    """Return the dispatch that writes ``element(index)`` to every element of an array."""
    # Of packed dtypes an invocation has four.
    if target.dtype.itemsize >= 4:
        return shader.for_each(count, lambda i: target.store(i, element(i)))

    def four(number: str) -> None:
        positions = [shader.let("u32", f"min({number} * 4u + {k}u, {count - 1}u)") for k in range(4)]
        target.store4(number, [element(position) for position in positions])

    return shader.for_each(-(-count // 4), four)


def fill_units(shader: Shader, target: ShaderArray, unit: int, count: int, element: Callable[[str], Unit]) -> Dispatch:
    """Return the dispatch that writes ``element(index)`` to every unit of an array."""
    if unit < 4:
        return fill(shader, target, count, lambda i: element(i)[0])
    each = TOGETHER if count >= MANY else 1
    first = shader.let("u32", f"{shader.group} * {shader.invocations * each}u + {shader.local}")
    positions = [shader.let("u32", plus(first, f"{k * shader.invocations}u" if k else "0u")) for k in range(each)]
    # All loads precede the first store, so that they are in flight together.
    values = [element(shader.let("u32", f"min({position}, {count - 1}u)")) for position in positions]
    for position, value in zip(positions, values, strict=True):
        with shader.block(f"if ({position} < {count}u)"):
            store_unit(target, unit, position, value)
    return shader.dispatch(-(-count // (shader.invocations * each)))


def copy(shader: Shader, source: int, target: int, size: int) -> Dispatch:
    """Return the dispatch that copies `size` bytes from one buffer to another."""
    words = -(-size // 4)
    unit = 4 if words % 4 else 16
    read, write = unit_array(shader, source, unit, words * 4), unit_array(shader, target, unit, words * 4, written=True)
    return fill_units(shader, write, unit, words * 4 // unit, lambda i: load_unit(read, unit, i))


# Index vectors in buffers: where each window of a gather or scatter begins.

_UINT32 = np.dtype(np.uint32)


class Integers:
    """A buffer of positions, clamped into ranges; 64-bit ones are pairs of words.

    With a size to be `added`, negative int32 positions count from there.
    """

    def __init__(self, shader: Shader, number: int, dtype: np.dtype, added: int = 0) -> None:
        self.shader = shader
        self.added = added
        self.wide = dtype.itemsize == 8
        self.signed = dtype.kind == "i"
        self._number, self._dtype = number, _UINT32 if self.wide else dtype

    @functools.cached_property
    def array(self) -> ShaderArray:
        """The buffer, which is bound on first use."""
        return self.shader.buffer(self._number, self._dtype)

    def within(self, index: str, limit: int) -> tuple[str, str]:
        """Emit an integer clamped to [0, limit], and whether it was in this range."""
        f = self.shader
        if self.wide:
            low, high = (self.array.load(plus(times(index, 2), f"{k}u")).text for k in (0, 1))
            outer = f"select({limit}u, 0u, {high} >= 0x80000000u)" if self.signed else f"{limit}u"
            inside = f.let("bool", f"{high} == 0u && {low} <= {limit}u")
            return f.let("u32", f"select({outer}, min({low}, {limit}u), {high} == 0u)"), inside
        x = self.array.load(index).text
        signed = self.signed and self.added < 1 << 31
        if self.added and signed:
            x = f.let("i32", f"select({x}, {x} + {self.added}i, {x} < 0i)")
        elif self.added:  # no position is negative
            x = f.let("u32", f"bitcast<u32>({x}) + select(0u, {self.added}u, {x} < 0i)")
        if signed:
            limit = min(limit, (1 << 31) - 1)
            return f.let("u32", f"u32(clamp({x}, 0i, {limit}i))"), f.let("bool", f"bitcast<u32>({x}) <= {limit}u")
        return f.let("u32", f"min({x}, {limit}u)"), f.let("bool", f"{x} <= {limit}u")


def start_of(shader: Shader, starts: Starts, indices: Integers, number: str) -> WindowStart[str]:
    """Emit the start of the window of a number, in elements."""
    start = window_start(shader, starts, indices.within, "{} && {}".format, number)
    valid = None if start.valid is None else shader.let("bool", start.valid)
    return start._replace(valid=valid, offset=shader.let("u32", start.offset))


# Gather: each unit of the result is read at an offset from its window's start.


def gather(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities, wraps: bool = False) -> Routine | None:
    """Return the routine of the primitive.

    If it `wraps`, negative positions count from the end.
    """
    operand, indices = avals
    result = gather_p.result_avals(avals, params)
    if not result.size:
        return Routine(())
    starts, _, layout = gather_of(avals, params)
    dtype, itemsize = operand.dtype, operand.dtype.itemsize
    strides = [stride for _, stride, _ in starts.addressed + starts.batching]
    unit, (sizes, _, theirs, steps) = in_units(itemsize, window_loops(layout), strides)
    shader = Shader(capabilities, INVOCATIONS)
    source = unit_array(shader, 0, unit, operand.size * itemsize)
    added = operand.shape[params["dimension_numbers"].start_index_map[0]] if wraps else 0
    vectors = Integers(shader, 1, indices.dtype, added)
    target = unit_array(shader, 2, unit, result.size * itemsize, written=True)
    value = default_fill(dtype) if params["fill_value"] is None else params["fill_value"]

    def element(index: str) -> Unit:
        position = shader.coordinates(index, sizes)
        start = start_of(shader, starts, vectors, shader.named("u32", dotted(position, steps)))
        within = dotted(position, theirs)
        if itemsize >= unit:
            at = plus(f"{start.offset} * {itemsize // unit}u", within)
        else:
            at = plus(quotient(start.offset, unit // itemsize), within)
        read = load_unit(source, unit, shader.let("u32", at))
        return read if start.valid is None else chosen(shader, start.valid, read, units_of(value, dtype, unit, index))

    return Routine((fill_units(shader, target, unit, result.size * itemsize // unit, element),))


def window_loops(layout: Layout) -> tuple[Dims, ...]:
    """Return loops over an array of windows, in the order of its memory.

    They are sizes, strides in the array, strides in the operand, and steps of the window's number.
    """
    sizes, strides = layout.batch
    batch = [(n, s, 0, step) for n, s, step in zip(sizes, strides, contiguous_strides(sizes), strict=True)]
    inside = [
        (n, stride, operand_stride, 0) for dims in (layout.lead, layout.rest) for n, stride, operand_stride in zip(*dims, strict=True)
    ]
    loops = sorted([*batch, *inside], key=lambda loop: -loop[1])
    columns = tuple(zip(*loops, strict=True))
    return columns or ((), (), (), ())


# Blocks read or replaced at positions that are computed at run time.


def dynamic_slice(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    operand, *starts = avals
    sizes: tuple[int, ...] = params["slice_sizes"]
    count = math.prod(sizes)
    if not count:
        return Routine(())
    corner = _Corner(operand, starts, sizes, 1, len(avals) + 1, capabilities)
    itemsize = operand.dtype.itemsize
    unit, (loops, _, theirs) = in_units(itemsize, (sizes, contiguous_strides(sizes), contiguous_strides(operand.shape)), corner.strides)
    shader = Shader(capabilities, INVOCATIONS)
    source = unit_array(shader, 0, unit, operand.size * itemsize)
    target = unit_array(shader, len(avals), unit, count * itemsize, written=True)
    first = corner.offset(shader, itemsize, unit)

    def element(index: str) -> Unit:
        at = plus(first, dotted(shader.coordinates(index, loops), theirs))
        return load_unit(source, unit, shader.let("u32", at))

    done = fill_units(shader, target, unit, count * itemsize // unit, element)
    return Routine((*corner.dispatches, done), corner.workspaces)


def dynamic_update_slice(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    # Its first dispatch copies the operand, which the others do not read.
    operand, update, *starts = avals
    if not operand.size:
        return Routine(())
    size, itemsize = operand.size * operand.dtype.itemsize, operand.dtype.itemsize
    copied = copy(Shader(capabilities, INVOCATIONS), 0, len(avals), size)
    if not update.size:
        return Routine((copied,))
    corner = _Corner(operand, starts, update.shape, 2, len(avals) + 1, capabilities)
    loops = (update.shape, contiguous_strides(update.shape), contiguous_strides(operand.shape))
    unit, (sizes, _, theirs) = in_units(itemsize, loops, corner.strides)
    shader = Shader(capabilities, INVOCATIONS)
    source = unit_array(shader, 1, unit, update.size * itemsize)
    target = shader.buffer(len(avals), source.dtype, written=True, size=size // 4 if unit == 16 else 0)
    first = corner.offset(shader, itemsize, unit)

    def move(index: str) -> None:
        at = plus(first, dotted(shader.coordinates(index, sizes), theirs))
        store_unit(target, unit, shader.let("u32", at), load_unit(source, unit, index))

    done = shader.for_each(update.size * itemsize // unit, move)
    return Routine((copied, *corner.dispatches, done), corner.workspaces)


class _Corner:
    """The offset of a block that begins at given positions.

    If a shader cannot bind all starts, other shaders add up some of them first.
    """

    def __init__(
        self,
        operand: ShapedArray,
        starts: Sequence[ShapedArray],
        sizes: Sequence[int],
        first: int,
        workspace: int,
        capabilities: TargetCapabilities,
    ) -> None:
        strides = contiguous_strides(operand.shape)
        limits = [n - size for n, size in zip(operand.shape, sizes, strict=True)]
        #: Of the starts that matter: the number of the buffer, the dtype, the greatest start, the stride.
        self._starts = [
            (first + d, start.dtype, limit, stride)
            for d, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True))
            if limit
        ]
        self._workspace = workspace
        self._device = capabilities
        self._partial_sums = 0
        self.dispatches: tuple[Dispatch, ...] = ()
        if len(self._starts) + first + 1 > capabilities.buffers:
            each = capabilities.buffers - 1
            groups = [self._starts[k : k + each] for k in range(0, len(self._starts), each)]
            self._partial_sums = len(groups)
            self.dispatches = tuple([self._partial_sum(group, k) for k, group in enumerate(groups)])

    @property
    def strides(self) -> list[int]:
        return [stride for *_, stride in self._starts]

    @property
    def workspaces(self) -> tuple[int, ...]:
        return (4 * self._partial_sums,) if self._partial_sums else ()

    def _partial_sum(self, starts: Sequence[tuple[int, np.dtype, int, int]], number: int) -> Dispatch:
        shader = Shader(self._device, 1)
        sums = shader.buffer(self._workspace, _UINT32, written=True)
        shader.emit(f"{sums.name}[{number}] = {self._sum(shader, starts)};")
        return shader.dispatch(1)

    @staticmethod
    def _sum(shader: Shader, starts: Sequence[tuple[int, np.dtype, int, int]]) -> str:
        terms = [times(Integers(shader, number, dtype).within("0u", limit)[0], stride) for number, dtype, limit, stride in starts]
        return plus(*terms)

    def offset(self, shader: Shader, itemsize: int, unit: int) -> str:
        """Emit the number of the block's first unit."""
        if self._partial_sums:
            sums = shader.buffer(self._workspace, _UINT32)
            total = plus(*[f"{sums.name}[{k}]" for k in range(self._partial_sums)])
        else:
            total = self._sum(shader, self._starts)
        scaled = times(total, itemsize // unit) if itemsize >= unit else f"({total} / {unit // itemsize}u)"
        return shader.let("u32", scaled)


# Bitcasts to other sizes, which kernels cannot express.


def bitcast_convert_type(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive, which copies the bytes.

    It is None for integers of less than a byte, whose bits are packed.
    """
    (operand,) = avals
    if {operand.dtype, params["new_dtype"]} & dtypes.STORAGE_INTEGERS:
        return None
    return Routine((copy(Shader(capabilities, INVOCATIONS), 0, 1, operand.size * operand.dtype.itemsize),) if operand.size else ())


# Positions along axes.


def axis_index(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine:
    """Return the routine that stores the position of this process or device."""
    shader = Shader(capabilities, 1)
    position = distribution.members_of(params["axis_names"], None).index(distribution.current().rank)
    result = shader.buffer(0, _UINT32, written=True)
    shader.emit(f"{result.name}[0] = {position}u;")
    return Routine((shader.dispatch(1),))
