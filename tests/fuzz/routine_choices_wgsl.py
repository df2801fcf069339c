"""The choices that are made about routines in WGSL."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.fuzz.routine_choices import DEFAULT, FAMILY_OF, Choice, Choices, Counted, alternatives, constant, each, nth, together
from tests.fuzz.routine_problems import Problem
from tests.targets.wgsl.running import capabilities, known_width
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.attention import blocks as attention_schedule
from volta_fn.targets.wgsl.matmul import contract as products
from volta_fn.targets.wgsl.scalars.number import is_supported
from volta_fn.targets.wgsl.target import ROUTINES

_BIG = 1 << 30
_SMALL_TILES = {"_LONG": 1, "_EACH": 4, "_EACH_OF_MANY": 4}
_SORTED = {"library.scatter:_FEW": 0, "library.scatter:_ATOMIC": {}}
_BY_POINTS = {"_DISPATCH": -(1 << 40)}  # which seem to cost nothing then
_BY_TILES = {"convolution:tiling_of": constant(None), "convolution:is_narrow": constant(False)}

#: Schedules of attention with less unrolled, which a GPU in software compiles sooner.
_BRIEF = {f"attention.blocks:{name}": getattr(attention_schedule, name)._replace(unroll=4) for name in ("_FORWARD", "_WIDE")}


def _schedules(c: Any, work: Any, device: TargetCapabilities, deferred_work: int = 0) -> list[Any]:
    """List one in eight of all tiles and splits, and of all variations of the first: others for products of other sizes."""
    some = products.candidates(c, work, device, 1000, deferred_work)
    return (some + products.variations(some[0], work, device))[(c.m + 3 * c.n + 5 * c.k) % 8 :: 8]


def _unless_empty(c: Any) -> bool:
    """Return True if a product has results and terms: nothing divides others."""
    return bool(c.batch * c.m * c.n * c.k)


def _schedule(k: int, others: Mapping[str, Any] = MappingProxyType({})) -> Choice:
    """Return the k-th schedule of a product."""
    tiled = {f"matmul.contract:{name}": constant(False) for name in ("is_of_few_terms", "is_of_few_results", "is_thin")}
    return nth("schedule", k, "matmul.contract:choose", _schedules, tiled | dict(others))


CHOICES: dict[str, Choices] = {
    "cumulative": [
        *each("library.cumulative", _LONG=(1, _BIG), _EACH=(4,), _FEW_TILES=(0,), _CHUNK=(1, 7), _ENOUGH=(_BIG,), _MOST_CHUNKS=(2,)),
        *each("library.cumulative", _BLOCK=(1, 4, _BIG), _STRETCH=(16, 100)),
        together("small tiles", library__cumulative=_SMALL_TILES),
        together("small tiles of many", library__cumulative={**_SMALL_TILES, "_FEW_TILES": 0}),
        together("short stretches of rows", library__cumulative={"_LONG": _BIG, "_STRETCH": 16}),
    ],
    "sort": [
        *each("library.small_sort", _VERY_SHORT=(0, 100), _KEYS=(4,), _ELEMENTS=(4, 16)),
        *each("library.sort", SHORT=(0, 64), _FEW_TILES=(0, 1 << 20), _MUCH=(0,), _DIGIT=(4,), _SUMMED=(1,)),
        together("large tiles", library__sort={"SHORT": 0, "_MUCH": 0, "_FEW_TILES": 0}),
        together("long rows", library__sort={"SHORT": 0, "_FEW_TILES": 0}),
    ],
    "top_k": [
        *each("library.sort", SHORT=(0, _BIG), _LEAST=(1 << 11,), _MANY=(1,)),
        *each("library.small_sort", _VERY_SHORT=(0, 100)),
    ],
    "window": [*each("library.cumulative", _AT_ONCE=(1, 2), _FEW=(0, 1 << 20))],
    "gather": [],
    "scatter": [
        *each("library.scatter", _FEW=(0, 1 << 20), _FEW_ELEMENTS=(0, 1 << 20), _ROWS_OF_GROUP=(1,)),
        together("in groups", library__scatter={"_FEW": 0, "_ROWS_OF_GROUP": 1}),
        Choice("sorted", _SORTED),
        together("sorted, in chunks", _SORTED, library__scatter={"_SHORTEST": 1, "_LONG": 1}),
        *each("library.scatter", _SHORTEST=(1, 4), _LONG=(1, 1 << 20), _BUSY=(1,), _AT_ONCE=(1, 3), _WALKED=((1, 4),)),
    ],
    "dynamic_slice": [],
    "pad": [],
    "product": [
        *[
            Choice(f"{name}={value}", {f"matmul.contract:{name}": _unless_empty if value else constant(False)})
            for name in ("is_of_few_terms", "is_of_few_results")
            for value in (False, True)
        ],
        *each("matmul.contract", _WRITTEN_OUT=(1,), _TOGETHER=(1, 4), _TOO_FEW=(0, _BIG), _CHUNK=(16,)),
        *each("matmul.contract", _TERMS=(1,), _FEW=(0, _BIG), _THIN_CHUNK=(16,), _THIN_TOGETHER=(4,)),
        Counted(_schedule),
    ],
    "convolution": [
        Choice("not narrow", {"convolution:is_narrow": constant(False)}),
        Choice("not by points", {"convolution:tiling_of": constant(None)}),
        Choice("by tiles", _BY_TILES),
        together("by 4 points", convolution={"_POINTS": {(3, 3): (4,)}, **_BY_POINTS}),
        together("by 6 points", convolution={"_POINTS": {(3, 3): (6,), (5, 5): (6,)}, **_BY_POINTS}),
        *each("convolution", _SUMS=(4,), _STAGED=(64,), _LONG=(1 << 20,), _FEW=(1,)),
        Counted(functools.partial(_schedule, others=_BY_TILES)),
    ],
    "linalg": [
        *each("library.linalg.rotations", _MULTIPLICATIONS=(64,), _BUDGET_TOGETHER=(1,), _BUDGET_MANY=(1,), _MANY=(256, 1 << 20)),
        *each("library.linalg.triangular", _COLUMNS=(1, 4), _LARGEST=(0,)),
        *each("library.linalg.triangular", _PANEL_PIVOTS=(1, 4), _NARROWEST=(16,), _GROUPS=(2,)),
        *each("library.linalg.block_rotations", _SIZES=((8,),)),
    ],
    "attention": [
        together("much work", _BRIEF, attention__blocks={"_MANY": 0}),
        together("much work by few", _BRIEF, attention__blocks={"_MANY": 0, "_ENOUGH": 0}),
        together("little work by few", _BRIEF, attention__blocks={"_MANY": _BIG, "_ENOUGH": 0}),
    ],
}

#: Numbers that choose nothing: estimates of time, numbers of buffers, sizes that shaders are written for, and limits of what is computed.
NO_CHOICES = {
    *(f"attention:{name}" for name in ("_MOST_EXTRA", "_SHORTEST", "_WIDEST", "_INVOCATIONS")),
    *(f"attention.{name}" for name in ("blocks:HIDDEN", "blocks:_MOST_BYTES")),
    *(f"convolution:{name}" for name in ("_BYTE", "_INVOCATIONS", "_MANY", "_MUCH", "_TAPS")),
    *(f"library.movement:{name}" for name in ("INVOCATIONS", "MANY", "TOGETHER")),
    "library.scatter:_GROUP",
    *(f"library.small_sort:{name}" for name in ("BITS", "_BITS", "_DIGITS_OF_LANE")),
    *(f"library.sort:{name}" for name in ("_FOURS", "_SAMPLED_SHARE")),
    *(f"library.{name}" for name in ("cumulative:_NONE", "sort:_LARGE_ROOM")),
    *(f"library.linalg.block_rotations:{name}" for name in ("BLOCK_SWEEPS", "_TOGETHER")),
    *(f"library.linalg.qr:{name}" for name in ("_COLUMNS", "_ROWS")),
    *(f"library.linalg.rotations:{name}" for name in ("COUNTERS", "INVOCATIONS", "LARGEST", "SEVERAL", "SMALL", "SWEEPS")),
    *(f"library.linalg.svd:{name}" for name in ("_BANKS", "_LANES", "_ROWS")),
    *(f"library.linalg.triangular:{name}" for name in ("LARGEST", "_EACH_LOOP", "_INVOCATIONS", "_LU_COLUMNS", "_ROWS")),
}


@functools.cache
def devices() -> list[tuple[str, TargetCapabilities]]:
    """List the capabilities that shaders may use: every device's, this one's, and those with subgroups of one constant width.

    How the device computes is no choice: where it flushes subnormal numbers, shaders must know.
    """
    actual = capabilities()
    least = TargetCapabilities(float64=actual.float64, int64=actual.int64, subnormals=actual.subnormals)
    some = [("least", least), ("device", actual)]
    return [*some, ("known subgroups", known_width())] if actual.subgroups else some


def routines(problem: Problem) -> Iterator[tuple[str, Any]]:
    """Yield the routines of a problem, each with the choice that first gives it.

    None stands for NumPy, an exception for a routine that could not be generated. What is chosen is tried with all that devices can do,
    every other choice with one of these in turn.
    """

    def routines_for(choice: Choice) -> list[tuple[str, Any]]:
        turn = (sum(map(ord, choice.label)) + problem.operands[0].seed) % len(devices())
        results = []
        for name, device in devices() if choice is DEFAULT else devices()[turn : turn + 1]:
            if problem.name in ROUTINES and all(is_supported(dtype, device) for dtype in _wide_dtypes(problem)):
                with choice.applied("wgsl"):
                    results.append((f"{choice.label}, {name}", ROUTINES[problem.name](problem.avals, problem.params, device)))
        return results

    return alternatives(CHOICES[FAMILY_OF[problem.name]], routines_for)


def _wide_dtypes(problem: Problem) -> set[np.dtype]:
    """Return the dtypes that runtimes refuse on devices without them."""
    return {d for d in (*[a.dtype for a in problem.avals], *[d for _, d in problem.outputs]) if d.itemsize in (8, 16)}
