"""Elements of a convolution's operands, from memory to registers.

A lane of a register is an element in the compute type, or a *group* of the narrow numbers of adjacent channels which one instruction
multiplies and sums (`volta_fn/targets/cpu/matmul/groups.py`). A correlation of groups is a correlation in every other respect: its channels
are groups, so algorithms need not know of them, only what reads elements does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.correlations import Correlation, View
from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, is_itself, load, read, stored_as, with_bias
from volta_fn.targets.cpu.matmul.packing import joined
from volta_fn.targets.cpu.scalars.number import everywhere, gathered


class Elements(NamedTuple):
    """How an operand's elements are read.

    A lane's numbers are adjacent in memory, and their group is an element of `dtype`, unless they are `apart`.
    """

    work: ComputeType
    dtype: np.dtype
    #: The stride between the numbers of a group in memory; 0 if they are adjacent, or if there are no groups.
    apart: int = 0
    #: How many channels there are, if the last group lacks some.
    channels: int | None = None
    #: The number of the group of channels that is read.
    channel: int | Value = 0

    @property
    def stored(self) -> str:
        """The LLVM type of elements in memory."""
        return stored_as(self.dtype)

    @property
    def unchanged(self) -> bool:
        """Whether memory holds what registers do."""
        return not self.apart and is_itself(self.work, self.dtype) and not self.work.biased

    def zero(self, f: Function) -> Value:
        """Emit what registers hold for zeros."""
        return with_bias(f, self.work, self.work.zero())

    def read(self, f: Function, at: Value, lanes: int, mask: Value | None = None) -> Value:
        """Load `lanes` adjacent elements; zeros where masked out."""
        if not self.apart:
            return read(f, self.work, self.dtype, at, lanes, mask)
        return self._joined(f, at, lanes, lambda pointer: load(f, self.stored, self.dtype.itemsize, pointer, lanes, mask))

    def _joined(self, f: Function, at: Value, lanes: int, numbers: Callable[[Value], Value]) -> Value:
        """Emit groups whose numbers are apart: `numbers` loads the n-th of each."""
        type_, group = vector_of(self.stored, lanes), []
        zeros = Value(type_, "zeroinitializer" if lanes > 1 else "0")
        for number in range(self.work.group):
            pointer = _moved(f, at, self.stored, number * self.apart)
            exists = self._exists(f, number)
            if isinstance(exists, Value):

                def existing(pointer: Value = pointer) -> list[Value]:
                    return [numbers(pointer)]

                group += f.branch(exists, existing, lambda: [zeros])
            else:
                group.append(numbers(pointer) if exists else zeros)
        return joined(f, self.work, group)

    def _exists(self, f: Function, number: int) -> bool | Value:
        """Emit whether the group has a number, which the last one may lack."""
        if self.channels is None or number == 0:
            return True
        last, remainder = divmod(self.channels, self.work.group)
        if number < remainder:
            return True
        return self.channel < last if isinstance(self.channel, int) else f.compare("icmp slt", self.channel, i64(last))

    def strided(self, f: Function, at: Value, stride: int, mask: Value | None) -> Value:
        """Emit a strided load of a register.

        Lanes that are masked out are zero, and not touched.
        """
        work = self.work
        if stride == 1:
            return self.read(f, at, work.lanes, mask)
        if is_itself(work, self.dtype) and not self.apart:
            return with_bias(f, work, gathered(f, work.vector, at, work.itemsize, stride, mask or everywhere(work.lanes)))
        if self.apart and 0 < stride <= _NEAR:
            return self._joined(f, at, work.lanes, lambda pointer: self._picked(f, pointer, stride, mask))
        result = Value(vector_of(work.type, work.lanes), "zeroinitializer")
        zero = with_bias(f, work, Value(work.type, "0" if work.type.startswith("i") else "0.0"))
        for lane in range(work.lanes):

            def element(lane: int = lane) -> list[Value]:
                return [self.read(f, _moved(f, at, self.stored, lane * stride), 1)]

            if mask is None:
                (number,) = element()
            else:
                (number,) = f.branch(f.let("i1", f"extractelement {mask}, i64 {lane}"), element, lambda: [zero])
            result = f.let(result.type, f"insertelement {result}, {number}, i64 {lane}")
        return result

    def _picked(self, f: Function, at: Value, stride: int, mask: Value | None) -> Value:
        """Emit a load of numbers with a small stride, by one of all numbers between them."""
        lanes = self.work.lanes
        wide = Value(
            vector_of("i1", lanes * stride), "<" + ", ".join("i1 false" if k % stride else "i1 true" for k in range(lanes * stride)) + ">"
        )
        if mask is not None:
            wide = f.binary("and", wide, f.shuffle(mask, [k // stride for k in range(lanes * stride)]))
        return f.shuffle(load(f, self.stored, self.dtype.itemsize, at, lanes * stride, wide), range(0, lanes * stride, stride))


#: The largest stride of numbers that are picked out of all numbers between them.
_NEAR = 4


def _moved(f: Function, pointer: Value, type_: str, offset: int) -> Value:
    return pointer if offset == 0 else f.let("ptr", f"getelementptr {type_}, {pointer}, {i64(offset)}")


# Correlations of groups.


class GroupedView(NamedTuple):
    """An operand by groups of channels, and how they are read."""

    view: View
    elements: Elements


def grouped_view(view: View, elements: Elements, channels: int) -> GroupedView:
    """Return the view of an operand by groups of channels.

    Groups that are adjacent in memory are elements of 32 bits.
    """
    group, along = elements.work.group, view.strides[2]
    others = (view.offset, *view.strides[:2], *view.strides[3:])
    if channels % group == 0 and along == 1 and all(offset % group == 0 for offset in others):
        offset, *rest = [offset // group for offset in others]
        return GroupedView(View(offset, (*rest[:2], 1, *rest[2:])), elements._replace(dtype=np.dtype(f"i{elements.work.itemsize}")))
    strides = (*view.strides[:2], along * group, *view.strides[3:])
    return GroupedView(View(view.offset, strides), elements._replace(apart=along, channels=channels if channels % group else None))


def grouped_correlation(c: Correlation, work: ComputeType, x: Elements, w: Elements) -> tuple[Correlation, Elements, Elements] | None:
    """Return a correlation by groups of channels, and how its operands are read.

    None if that does not pay.
    """
    x_along = c.x.strides[2]
    x_view, w_view = (
        grouped_view(c.x, x._replace(work=work.packed(0)), c.channels),
        grouped_view(c.w, w._replace(work=work.packed(1)), c.channels),
    )
    if c.channels == 1:
        return None
    if x_view.elements.apart and c.channels > work.group and x_along < min([s for s in c.x.strides[3:] if s], default=x_along):
        return None  # x would be read along channels that are apart
    grouped = replace(c, channels=-(-c.channels // work.group), x=x_view.view, w=w_view.view)
    return grouped, x_view.elements, w_view.elements
