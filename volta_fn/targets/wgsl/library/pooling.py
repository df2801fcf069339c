"""Reductions of windows, and the tangents and cotangents of their extrema.

A window's *winner* is the first of its elements, in row-major order, that equals the maximum (or minimum); NaN wins over numbers. What a
winner gets is summed by the winner, window after window, so that sums are the same in every run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.geometry.windows import Windows, windows_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import reduction_of
from volta_fn.dtypes import accumulator
from volta_fn.targets.wgsl.library.copy_units import INVOCATIONS, fill, result_array
from volta_fn.targets.wgsl.library.windows import element_count, iterations_of, over_taps, over_windows, window_count
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars import Array, Number, Shader, combine, combine_indexed, constant, convert, supports

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
