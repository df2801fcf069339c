"""Reductions of sliding windows, and the tangents and cotangents of their extrema."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.indices import Axis, Windows, windows_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import reduction_of
from volta_fn.dtypes import accumulator
from volta_fn.targets.wgsl.library.movement import INVOCATIONS, fill, result_array
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars import Array, Number, Shader, combine, combine_indexed, constant, supports
from volta_fn.targets.wgsl.scalars.operations import convert
from volta_fn.targets.wgsl.shader import Function, plus, quotient, times

# ------------------------------------------------------------------------------
# Sliding windows: the elements of a window, and the windows of an element.
# ------------------------------------------------------------------------------

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


# ------------------------------------------------------------------------------
# Reductions of windows, and the tangents and cotangents of their extrema.
#
# A window's *winner* is the first of its elements, in row-major order, that equals the maximum (or minimum); NaN wins over numbers.
# What a winner gets is summed by the winner, window after window, so that sums are the same in every run.
# ------------------------------------------------------------------------------

_UINT32 = np.dtype(np.uint32)

#: The winner of a window without elements.
_NONE = 0xFFFFFFFF

#: Windows that an invocation has at most: those whose results are packed in a word.
_AT_ONCE = 4

#: So many elements are few to be looked at.
_FEW = 16


def reduce_window(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities, name: str) -> Routine | None:
    """Return the routine of the primitive of that name, which reduces windows."""
    reduction = reduction_of(name)
    (operand,) = avals
    windows, dtype = windows_of(operand.shape, params), accumulator(operand.dtype)
    count = window_count(windows)
    if not count:
        return Routine(())
    if not supports(reduction.step, (dtype, dtype), {}, device) or _AT_ONCE * iterations_of(windows) > device.iterations:
        return None
    shader = Shader(device, INVOCATIONS)
    source, target = shader.buffer(0, operand.dtype), result_array(shader, 1, operand.dtype, count)

    def reduced(number: str) -> Number:
        start = constant(dtype, reduction.start(dtype))
        total = Number(dtype, shader.var(start.type, start.text))

        def add(element: str) -> None:
            value = combine(shader, reduction, total, convert(shader, source.load(element), dtype))
            shader.emit(f"{total.text} = {value.text};")

        over_taps(shader, windows, number, add)
        return convert(shader, total, operand.dtype)

    return Routine((fill(shader, target, count, reduced),))


def _windows(moved: ShapedArray, operand: ShapedArray, params: dict[str, Any], device: TargetCapabilities) -> Windows | None:
    """Return the windows, if their winners can be found and values can be moved."""
    fits = all(supports("max", (d, d), {}, device) for d in (operand.dtype, moved.dtype))
    if moved.dtype not in dtypes.FLOATS or operand.dtype.kind in "cb" or not fits:
        return None
    windows = windows_of(operand.shape, params)
    return windows if _AT_ONCE * iterations_of(windows) <= device.iterations else None


def _winner(shader: Shader, windows: Windows, operand: Array, select: str, number: str) -> str:
    at = Number(_UINT32, shader.var("u32", f"{_NONE}u"))
    zero = constant(operand.dtype, 0)
    best = Number(operand.dtype, shader.var(zero.type, zero.text))

    def meet(element: str) -> None:
        here = (operand.load(element), Number(_UINT32, shader.let("u32", element)))
        value, where = combine_indexed(shader, reduction_of("reduce_max" if select == "ge" else "reduce_min"), (best, at), here)
        first = f"{at.text} == {_NONE}u"
        taken = shader.let("u32", f"select({where.text}, {here[1].text}, {first})")
        shader.emit(f"{best.text} = select({value.text}, {here[0].text}, {first});")
        shader.emit(f"{at.text} = {taken};")

    over_taps(shader, windows, number, meet)
    return at.text


def select_and_gather_add(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive: each window gets the tangent of its winner."""
    tangents, operand = avals
    windows = _windows(tangents, operand, params, device)
    if windows is None:
        return None
    count = window_count(windows)
    if not count:
        return Routine(())
    shader = Shader(device, INVOCATIONS)
    rates, values = shader.buffer(0, tangents.dtype), shader.buffer(1, operand.dtype)
    zero = constant(tangents.dtype, 0)

    def brought(number: str) -> Number:
        at = _winner(shader, windows, values, params["select"], number)
        if not operand.size:
            return zero
        rate = rates.load(shader.let("u32", f"min({at}, {operand.size - 1}u)"))
        return Number(rate.dtype, shader.let(rate.type, f"select({rate.text}, {zero.text}, {at} == {_NONE}u)"))

    return Routine((fill(shader, result_array(shader, 2, tangents.dtype, count), count, brought),))


def select_and_scatter_add(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine: elements get the values of the windows that they win.

    First all windows' winners are found, unless every element meets so few that it may as well look for them itself.
    """
    source, operand = avals
    windows = _windows(source, operand, params, device)
    if windows is None:
        return None
    count, size = window_count(windows), element_count(windows)
    if not size:
        return Routine(())
    dtype, shader = accumulator(source.dtype), Shader(device, INVOCATIONS)
    target = result_array(shader, 2, source.dtype, size)
    if not count:
        return Routine((fill(shader, target, size, lambda _: constant(source.dtype, 0)),))
    given = shader.buffer(0, source.dtype)
    at_once = _searches(windows) <= _FEW
    winners = shader.buffer(1, operand.dtype) if at_once else shader.buffer(3, _UINT32)

    def summed(number: str) -> Number:
        zero = constant(dtype, 0)
        total = Number(dtype, shader.var(zero.type, zero.text))

        def add(window: str) -> None:
            window = shader.let("u32", window)
            winner = _winner(shader, windows, winners, params["select"], window) if at_once else winners.load(window).text
            with shader.block(f"if ({winner} == {number})"):
                value = combine(shader, reduction_of("reduce_sum"), total, convert(shader, given.load(window), dtype))
                shader.emit(f"{total.text} = {value.text};")

        over_windows(shader, windows, number, add)
        return convert(shader, total, source.dtype)

    sums = fill(shader, target, size, summed)
    if at_once:
        return Routine((sums,))
    finder = Shader(device, INVOCATIONS)
    values = finder.buffer(1, operand.dtype)
    elements = finder.buffer(3, _UINT32, written=True)
    found = fill(finder, elements, count, lambda i: Number(_UINT32, _winner(finder, windows, values, params["select"], i)))
    return Routine((found, sums), (4 * count,))


def _searches(windows: Windows) -> int:
    """Return how many elements are read if each looks for its windows' winners."""
    return windows.taps * math.prod(-(-axis.taps // axis.stride) for axis in (*windows.vertical, windows.across))
