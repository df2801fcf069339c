"""Sliding windows: the elements of a window, and the windows of an element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volta_fn.codegen.geometry.windows import Axis, Windows
from volta_fn.targets.wgsl.index_arith import plus, quotient, times
from volta_fn.targets.wgsl.text import Function

#: ``body(number)`` gets the number of an element of the operand, or of a window.
Body = Callable[[str], None]


def over_taps(f: Function, windows: Windows, number: str, body: Body) -> None:
    """Emit the body for every element, in row-major order, that a window meets."""
    axes = (*windows.vertical, windows.across)
    outer, *position = f.coordinates(number, [windows.outer, *[axis.positions for axis in axes]])

    def meet(axis: Axis, at: str, go_on: Body) -> None:
        if axis.plain:
            return go_on(at)
        with f.loop(axis.taps) as k:
            # Less than zero is very much, which is out of range, too.
            element = (
                f.let("u32", f"{plus(times(at, axis.stride), times(k, axis.dilation))} - {axis.low}u")
                if axis.low >= 0
                else f.let("u32", plus(times(at, axis.stride), times(k, axis.dilation), f"{-axis.low}u"))
            )
            if axis.inside:
                return go_on(element)
            divisible = f" && {element} % {axis.base}u == 0u" if axis.base > 1 else ""
            with f.block(f"if ({element} < {(axis.size - 1) * axis.base + 1}u{divisible})"):
                return go_on(quotient(element, axis.base))

    _nested(axes, position, outer, [axis.size for axis in axes], meet, body)


def over_windows(f: Function, windows: Windows, number: str, body: Body) -> None:
    """Emit the body for every window that meets an element."""
    axes = (*windows.vertical, windows.across)
    outer, *element = f.coordinates(number, [windows.outer, *[axis.size for axis in axes]])

    def meet(axis: Axis, at: str, go_on: Body) -> None:
        if axis.plain:
            return go_on(at)
        # The element is `reach` after the first window's first tap.
        sign = "+" if axis.low >= 0 else "-"
        reach = f.let("u32", f"{times(at, axis.base)} {sign} {abs(axis.low)}u")
        with f.loop(axis.taps) as k:
            start = f.let("u32", f"{reach} - {times(k, axis.dilation)}")
            divisible = f" && {start} % {axis.stride}u == 0u" if axis.stride > 1 else ""
            with f.block(f"if ({start} <= {(axis.positions - 1) * axis.stride}u{divisible})"):
                return go_on(quotient(start, axis.stride))

    _nested(axes, element, outer, [axis.positions for axis in axes], meet, body)


def _nested(
    axes: Sequence[Axis],
    element: Sequence[str],
    outer: str,
    sizes: Sequence[int],
    meet: Callable[[Axis, str, Body], None],
    body: Body,
) -> None:
    """Emit loops along all axes, which build the number from what is met along each."""

    def level(depth: int, number: str) -> None:
        if depth == len(axes):
            return body(number)
        return meet(axes[depth], element[depth], lambda met: level(depth + 1, plus(times(number, sizes[depth]), met)))

    level(0, outer)


def iterations_of(windows: Windows) -> int:
    """Return the iterations of the loops along a window's axes, with their last ones."""
    found = 0
    for axis in (windows.across, *reversed(windows.vertical)):
        found = found if axis.plain else axis.taps * (1 + found) + 1
    return found


def window_count(windows: Windows) -> int:
    """Return the number of windows."""
    return windows.outer * windows.results * windows.across.positions


def element_count(windows: Windows) -> int:
    """Return the number of elements of the operand."""
    return windows.outer * windows.rows * windows.across.size
