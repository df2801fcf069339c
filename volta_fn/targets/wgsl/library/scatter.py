"""Scatters: updates combined into the operand in the order of the indices.

Results have the same bits in every run. The first dispatch copies the operand; the others do not read it. Rows of updates that go to one
slot must not conflict: of replacements only the last row of each slot is written. Integers that are added or compared may come in any
order, atomically; many that go to few elements are combined in the memory of workgroups first. Else one invocation does all rows of a
slot: a few rows are searched by all of them, more are sorted by their slots. Of sorted rows, those of a slot that are many are combined
in chunks. float16 and bfloat16 are combined in float32, and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.targets.wgsl.index_arith import plus, quotient, remainder
from volta_fn.targets.wgsl.library.copy_units import INVOCATIONS, copy, fill, for_each, in_units, load_unit, store_unit, unit_array
from volta_fn.targets.wgsl.library.scatter_rows import ScatterRows, rows_of
from volta_fn.targets.wgsl.library.segment_reduce import combine_sorted
from volta_fn.targets.wgsl.loops.widening import wide_dtype
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars import Number, Shader, combine, constant, convert, supports, wgsl_type

OPERAND, INDICES, UPDATES, RESULT, SPACES = range(5)

_UINT32 = np.dtype(np.uint32)
_GROUP = 256

_ATOMIC = {"add": "atomicAdd", "min": "atomicMin", "max": "atomicMax"}

#: Up to so many rows are looked through.
_FEW = 32

#: Elements that workgroups have in their own memory, to which they bring so many rows each.
_FEW_ELEMENTS, _ROWS_OF_GROUP = 2048, 4096


def scatter(
    avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities, name: str, wraps: bool = False
) -> Routine | None:
    """Return the routine of the primitive of that name.

    If it `wraps`, negative positions count from the end.
    """
    combines = PRIMITIVES[name].combines
    operand, _, updates = avals
    if not operand.size:
        return Routine(())
    dtype = wide_dtype(operand.dtype)
    if combines and not supports(combines.step, (dtype, dtype), {}, device):
        return None
    copied = copy(Shader(device, INVOCATIONS), OPERAND, RESULT, operand.size * operand.dtype.itemsize)
    if not updates.size:
        return Routine((copied,))
    rows = rows_of(avals, params, wraps)
    alone = rows.number == 1 or params["unique_indices"]
    spaces: tuple[int, ...] = ()
    if combines is None:
        dispatches, spaces = _replace(avals, rows, alone, device)
    elif alone or rows.number <= _FEW:
        dispatches = [_few(avals, rows, combines, alone, device)]
    elif combines.step in _ATOMIC and operand.dtype.kind in "iu" and operand.dtype.itemsize == 4:
        few = rows.elements == 1 and operand.size <= _FEW_ELEMENTS and rows.number >= 4 * _ROWS_OF_GROUP
        dispatches = [(_atomic_in_groups if few else _atomic)(avals, rows, combines, device)]
    else:
        dispatches, spaces = combine_sorted(avals, rows, combines, device)
    return Routine((copied, *dispatches), spaces)


def _later(shader: Shader, rows: ScatterRows, number: str, target: str, indices: Any) -> str:
    found = shader.var("bool", "false")
    with shader.loop(rows.number, f"{number} + 1u") as other:
        row = rows.row(shader, indices, other)
        valid = f" && {row.valid}" if row.valid else ""
        shader.emit(f"{found} = {found} || ({row.target} == {target}{valid});")
    return found


def _replace(
    avals: tuple[ShapedArray, ...], rows: ScatterRows, alone: bool, device: TargetCapabilities
) -> tuple[list[Dispatch], tuple[int, ...]]:
    """Return the dispatches that write each slot's last row, and their workspaces."""
    operand, _, updates = avals
    itemsize = operand.dtype.itemsize
    unit, block = in_units(itemsize, rows.block, rows.distances)
    moved = rows.scaled(itemsize, unit, block)
    shader = Shader(device, INVOCATIONS)
    source = unit_array(shader, UPDATES, unit, updates.size * itemsize)
    target = shader.buffer(RESULT, source.dtype, written=True, size=operand.size * itemsize // 4 if unit == 16 else 0)
    indices = moved.indices(shader, INDICES)
    many = not alone and rows.number > _FEW
    last = shader.buffer(SPACES, _UINT32) if many else None

    def write(index: str) -> None:
        number = shader.let("u32", quotient(index, moved.elements))
        row = moved.row(shader, indices, number)
        conditions = [row.valid] if row.valid else []
        if last:
            conditions.append(f"{last.load(quotient(row.target, moved.spacing)).text} == {number} + 1u")
        elif not alone:
            conditions.append(f"!{_later(shader, moved, number, row.target, indices)}")
        with shader.block(f"if ({' && '.join(conditions) or 'true'})"):
            here, there = moved.within(shader, remainder(index, moved.elements))
            value = load_unit(source, unit, shader.let("u32", plus(row.source, here)))
            store_unit(target, unit, shader.let("u32", plus(row.target, there)), value)

    dispatches = [for_each(shader, moved.number * moved.elements, write)]
    if not many:
        return dispatches, ()
    clear = Shader(device, INVOCATIONS)
    cleared = fill(clear, clear.buffer(SPACES, _UINT32, written=True), rows.slots, lambda _: constant(_UINT32, 0))
    return [cleared, _find_last(rows, device), *dispatches], (4 * rows.slots,)


def _find_last(rows: ScatterRows, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that finds each slot's last row, by its number plus one."""
    shader = Shader(device, INVOCATIONS)
    last, indices = shader.atomics(SPACES, _UINT32), rows.indices(shader, INDICES)

    def mark(number: str) -> None:
        row = rows.row(shader, indices, number)
        with shader.block(f"if ({row.valid or 'true'})"):
            shader.emit(f"atomicMax(&{last.name}[{quotient(row.target, rows.spacing)}], {number} + 1u);")

    return for_each(shader, rows.number, mark)


def _atomic(avals: tuple[ShapedArray, ...], rows: ScatterRows, combines: Reduction, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that combines integers, in any order."""
    shader = Shader(device, INVOCATIONS)
    dtype = avals[OPERAND].dtype
    target, source, indices = shader.atomics(RESULT, dtype), shader.buffer(UPDATES, dtype), rows.indices(shader, INDICES)

    def write(index: str) -> None:
        row = rows.row(shader, indices, shader.let("u32", quotient(index, rows.elements)))
        with shader.block(f"if ({row.valid or 'true'})"):
            here, there = rows.within(shader, remainder(index, rows.elements))
            value = source.load(shader.let("u32", plus(row.source, here)))
            shader.emit(f"{_ATOMIC[combines.step]}(&{target.name}[{plus(row.target, there)}], {value.text});")

    return for_each(shader, rows.number * rows.elements, write)


def _atomic_in_groups(avals: tuple[ShapedArray, ...], rows: ScatterRows, combines: Reduction, device: TargetCapabilities) -> Dispatch:
    """Return the same for many rows and few elements, combined by workgroups first."""
    shader = Shader(device, _GROUP)
    dtype, size = avals[OPERAND].dtype, avals[OPERAND].size
    target, source, indices = shader.atomics(RESULT, dtype), shader.buffer(UPDATES, dtype), rows.indices(shader, INDICES)
    neutral = constant(dtype, combines.start(dtype)).text
    shader.workgroup("found", f"atomic<{wgsl_type(dtype)}>", size)
    with shader.loop(size, shader.local, _GROUP) as i:
        shader.emit(f"atomicStore(&found[{i}], {neutral});")
    shader.emit("workgroupBarrier();")
    first = shader.let("u32", f"{shader.group} * {_ROWS_OF_GROUP}u")
    with shader.loop(f"min({first} + {_ROWS_OF_GROUP}u, {rows.number}u)", f"{first} + {shader.local}", _GROUP) as number:
        row = rows.row(shader, indices, number)
        with shader.block(f"if ({row.valid or 'true'})"):
            shader.emit(f"{_ATOMIC[combines.step]}(&found[{row.target}], {source.load(row.source).text});")
    shader.emit("workgroupBarrier();")
    with shader.loop(size, shader.local, _GROUP) as i:
        one = shader.let(wgsl_type(dtype), f"atomicLoad(&found[{i}])")
        shader.emit(f"if ({one} != {neutral}) {{ {_ATOMIC[combines.step]}(&{target.name}[{i}], {one}); }}")
    return shader.dispatch(-(-rows.number // _ROWS_OF_GROUP))


def _few(avals: tuple[ShapedArray, ...], rows: ScatterRows, combines: Reduction, alone: bool, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch in which the first row of each slot combines the later ones."""
    shader = Shader(device, INVOCATIONS)
    stored = avals[OPERAND].dtype
    dtype = wide_dtype(stored)
    target, source, indices = shader.buffer(RESULT, stored, written=True), shader.buffer(UPDATES, stored), rows.indices(shader, INDICES)

    def write(index: str) -> None:
        number = shader.let("u32", quotient(index, rows.elements))
        row = rows.row(shader, indices, number)
        conditions = [row.valid] if row.valid else []
        if not alone:
            earlier = shader.var("bool", "false")
            with shader.loop(number) as other:
                before = rows.row(shader, indices, other)
                # One that is not valid was moved inside, but does not count.
                valid = f" && {before.valid}" if before.valid else ""
                shader.emit(f"{earlier} = {earlier} || ({before.target} == {row.target}{valid});")
            conditions.append(f"!{earlier}")
        with shader.block(f"if ({' && '.join(conditions) or 'true'})"):
            here, there = rows.within(shader, remainder(index, rows.elements))
            at = shader.let("u32", plus(row.target, there))
            start = convert(shader, target.load(at), dtype)
            total = Number(dtype, shader.var(start.type, start.text))

            def add(other_source: str) -> None:
                value = convert(shader, source.load(shader.let("u32", plus(other_source, here))), dtype)
                shader.emit(f"{total.text} = {combine(shader, combines, total, value).text};")

            add(row.source)
            if not alone:
                with shader.loop(rows.number, f"{number} + 1u") as other:
                    later = rows.row(shader, indices, other)
                    with shader.block(f"if ({later.target} == {row.target}{f' && {later.valid}' if later.valid else ''})"):
                        add(later.source)
            target.store(at, convert(shader, total, stored))

    return for_each(shader, rows.number * rows.elements, write)
