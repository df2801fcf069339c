"""Tasks and their numbers: which product, which block, which panels."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.matmul.schedule import Schedule


class Task(NamedTuple):
    """What a task does: a product of the stack, a part of the sum, and ranges of panels."""

    batch: Value
    split: Value
    first_row: Value
    end_row: Value
    first_column: Value
    end_column: Value
    number: Value


class PackTasks(NamedTuple):
    """The tasks that pack an operand of so many panels, a group of them for a block of k in each."""

    plan: Schedule
    panels: int
    group: int

    @property
    def groups(self) -> int:
        """Groups of panels."""
        return -(-self.panels // self.group)

    @property
    def tasks(self) -> int:
        """All tasks."""
        return self.plan.batch * self.plan.blocks * self.groups

    def decode(self, f: Function, number: Value) -> tuple[Value, Value, tuple[Value, Value]]:
        """The product of the stack, the block of k and the range of panels of a task."""
        batch, block, group = digits_of(f, number, self.plan.batch, self.plan.blocks, self.groups)
        return batch, block, part_of(f, group, self.groups, self.panels)


_POINTERS = frozenset({"buffers", "target", "a", "b", "strip"})


def parameters_of(*names: str) -> list[Value]:
    """Parameters of functions, by name."""
    return [Value("ptr" if name in _POINTERS else "i64", f"%{name}") for name in names]


def entry(module: Module, name: str) -> tuple[Function, Value, Value, Value]:
    """The function of a phase, and its parameters."""
    f = Function(module, name, [Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")])
    buffers, begin, end = f.parameters
    return f, buffers, begin, end


def part_of(f: Function, number: Value, count: int, total: int) -> tuple[Value, Value]:
    """The part number `number` of ``range(total)`` cut into so many near-equal parts."""
    if count == 1:
        return i64(0), i64(total)
    if total % count == 0:
        start = f.binary("mul", number, i64(total // count))
        return start, f.binary("add", start, i64(total // count))
    start, end = [f.binary("udiv", f.binary("mul", n, i64(total)), i64(count)) for n in (number, f.binary("add", number, i64(1)))]
    return start, end


def digits_of(f: Function, number: Value, *sizes: int) -> list[Value]:
    """A number taken apart: the place in an array of these sizes. The first digit is not reduced."""
    digits = []
    for place in range(len(sizes) - 1, -1, -1):
        if prod(sizes[:place]) == 1:
            digits.append(number)
            digits += [i64(0)] * place
            break
        if sizes[place] == 1:
            digits.append(i64(0))
            continue
        digits.append(f.binary("urem", number, i64(sizes[place])))
        number = f.binary("udiv", number, i64(sizes[place]))
    return digits[::-1]


def number_of(f: Function, *digits: tuple[Value, int]) -> Value:
    """The inverse of `digits_of`."""
    total, *_ = digits[0]
    for digit, size in digits[1:]:
        if size > 1:
            total = f.binary("add", f.binary("mul", total, i64(size)), digit)
    return total
