"""All choices that the targets make about routines, to be forced.

A target chooses by functions (which algorithm, which schedule) and by constants (from which size on, in chunks of how many elements).
`choices` lists for a primitive every function's every alternative, and for every constant values on either side of what problems meet:
each choice is a set of attributes of modules to replace while a routine is generated. So the compiler has nothing to do for it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from tests.fuzz.routine_problems import Problem
from tests.targets.wgsl.running import capabilities, known_width
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.cpu.matmul.micro_kernel import tile_shapes as _TILE_SHAPES
from volta_fn.targets.cpu.target import ROUTINES as CPU_ROUTINES
from volta_fn.targets.wgsl.attention import schedule as attention_schedule
from volta_fn.targets.wgsl.matmul import choice as wgsl_products
from volta_fn.targets.wgsl.routines import ROUTINES as WGSL_ROUTINES
from volta_fn.targets.wgsl.scalars.number import is_supported

_CPU, _WGSL = "volta_fn.targets.cpu.", "volta_fn.targets.wgsl."


class Exhausted(Exception):
    """There are fewer alternatives than the number of the one that is asked for."""


class Choice(NamedTuple):
    """Attributes of modules ("module:attribute"), with what they are replaced by."""

    label: str
    changes: dict[str, Any]

    @contextlib.contextmanager
    def applied(self, root: str) -> Iterator[None]:
        """Replace them."""
        with contextlib.ExitStack() as stack:
            for name, value in self.changes.items():
                module, attribute = name.split(":")
                target = importlib.import_module(root + module)
                stack.enter_context(patch.object(target, attribute, value(target) if isinstance(value, _Made) else value))
            yield


class _Made(NamedTuple):
    """A replacement that is made from the module."""

    make: Callable[[Any], Any]

    def __call__(self, module: Any) -> Any:
        return self.make(module)


class Counted(NamedTuple):
    """Choices whose number depends on the problem: `choice(k)` is the k-th, and raises `Exhausted` when it is applied to too few."""

    label: str
    choice: Callable[[int], Choice]


def _of(module: str, **constants: Sequence[Any]) -> list[Choice]:
    """For each constant each value, the others being what they are."""
    return [
        Choice(f"{module.rpartition('.')[2]}.{name}={value}", {f"{module}:{name}": value})
        for name, some in constants.items()
        for value in some
    ]


DEFAULT = Choice("as chosen", {})

_LIBRARY = "library."
_SORT = _LIBRARY + "sort"
_CHUNKED_SORT = {f"{_SORT}:_FEW": 1 << 30, f"{_SORT}:_LONG": 1, f"{_SORT}:_CHUNK": 64, f"{_SORT}:SHORT": 0}
_BY_RADIX = {f"{_SORT}:sort_by_numpy": lambda rows: None, f"{_SORT}:SHORT": 0}
_BLOCKING = "matmul.blocking"


def _nth(label: str, k: int, name: str, options: Callable[..., Sequence[Any]], **others: Any) -> Choice:
    """The choice in which a function `name` gives the k-th of some options, which are made of its arguments."""
    module, attribute = name.split(":")

    def chosen(*args: Any, **kwargs: Any) -> Any:
        chosen.consulted = True  # type: ignore[attr-defined]
        some = options(*args, **kwargs)
        if k >= len(some):
            raise Exhausted
        return some[k]

    return Choice(f"{label} {k}", {name: chosen, **others})


def _algorithm(k: int, **smaller: Any) -> Choice:
    """The k-th algorithm of a convolution on the CPU."""
    changes = {
        "convolution.choice:algorithms": _Made(lambda module: functools.partial(module.algorithms, slow=True)),
        "convolution.choice:_by_spectra": lambda c: False,
        "convolution.choice:is_product": lambda c, work: False,
    }
    return _nth("algorithm", k, "convolution.choice:fastest", lambda found, wanted: found, **changes, **smaller)


def _tile(k: int) -> Choice:
    """The k-th register tile of products: the largest ones, and those of a row less."""

    def options() -> list[dict[int, int]]:
        shapes = list(_TILE_SHAPES().items())
        return [{wide: rows} for wide, rows in shapes] + [{wide: rows - 1} for wide, rows in shapes if rows > 1] + [{1: 1}]

    return _nth("tile", k, f"{_BLOCKING}:tile_shapes", options, **_NO_SHORTCUTS)


_NO_SHORTCUTS = {"matmul.choice:few_rows": lambda problem: False, "matmul.choice:one_row": lambda problem: False}


def _packing(rows: int, columns: bool) -> Choice:
    """The packing of rows, and whether columns are packed, as far as operands can be read in place."""

    def rows_of(module: Any) -> Any:
        none, task, ahead = module.Packing

        def chosen(work: Any, strides: Any, panels: Any, each: int, group: int, *, transposed: bool) -> Any:
            possible = {none: strides is not None, task: True, ahead: transposed and strides is not None}
            return (none, task, ahead)[rows] if possible[(none, task, ahead)[rows]] else task

        return chosen

    near: Any = lambda work, strides, row_panels: strides is not None and strides[0] <= 1 and columns
    return Choice(
        f"rows packed {rows}, columns read in place {columns}",
        {f"{_BLOCKING}:_pack_rows": _Made(rows_of), f"{_BLOCKING}:_near": near, **_NO_SHORTCUTS},
    )


def _blocked(label: str, **constants: Any) -> Choice:
    return Choice(label, {**{f"{_BLOCKING}:{name}": value for name, value in constants.items()}, **_NO_SHORTCUTS})


_PRODUCT: list[Choice | Counted] = [
    Choice("tiles", _NO_SHORTCUTS),
    Choice("dot products", {"matmul.dot_products:_SHORT": 1, "matmul.dot_products:_FEW": 24}),
    Choice("short dot products", {"matmul.dot_products:_SHORT": 1, "matmul.dot_products:_LONG": 64, "matmul.dot_products:_TASK_STEPS": 1}),
    Choice("gemv", {"matmul.choice:few_rows": lambda problem: False, "matmul.gemv:_NARROW": 1, "matmul.gemv:_RUN": 32, "matmul.gemv:_TOGETHER": 3}),
    Counted("tile", _tile),
    *[_packing(rows, columns) for rows in (0, 1, 2) for columns in (False, True)],
    _blocked("short blocks", _DEPTH=8, _UNBLOCKED_DEPTH=8),
    _blocked("blocks of one", _DEPTH=1, _UNBLOCKED_DEPTH=1),
    _blocked("split sums", _DEPTH=8, _UNBLOCKED_DEPTH=8, _splits=lambda tiles, steps, blocks: (-(-blocks // -(-blocks // min(blocks, 3))), -(-blocks // min(blocks, 3)))),
    _blocked("many tasks", _TASK_STEPS=1, _MOST_TASKS=1 << 20, _TASKS=1 << 20, _FEW=0, _PANELS=1, _NEAR_BYTES=0),
    _blocked("many tasks of few rows", _TASK_STEPS=1, _MOST_TASKS=1 << 20, _TASKS=1 << 20),
    _blocked("small blocks", _BLOCK_BYTES=1, _STACK_BYTES=1),
    _blocked("packed one by one", _GROUP=1, _SET=4),
    _blocked("packed in groups", _GROUP=3, _GROUP_BYTES=1 << 30, _SET=1),
    Choice("packed by many", {"matmul.packing:_TASK_BYTES": 64, f"{_BLOCKING}:_near": lambda *args: False, f"{_BLOCKING}:_FEW": 0, f"{_BLOCKING}:_PANELS": 1, f"{_BLOCKING}:_TASK_STEPS": 1, f"{_BLOCKING}:_NEAR_BYTES": 0, **_NO_SHORTCUTS}),
    *_of("matmul.gemm", _GROUP=(1, 3)),
    *_of("matmul.macro_kernel", _STRIP_BYTES=(64,)),
]  # fmt: skip

#: Convolutions in as small blocks as there are.
_SMALL_BLOCKS = {
    **dict.fromkeys(
        ["convolution.blocking:TILE", "convolution.direct:TILE", "convolution.igemm_plan:SUMS", "convolution.winograd_plan:TILE"], 64
    ),
    "convolution.blocking:SUMS": 128,
    "convolution.blocking:STEPS": 4,
    "convolution.winograd_plan:_BLOCK": 1,
    "convolution.winograd_plan:_TILES": 1,
}

#: Choices about machine code, by a family of primitives.
CPU: dict[str, list[Choice | Counted]] = {
    "cumulative": [
        *_of(_LIBRARY + "cumulative", _CHUNK=(64, 192), _TASK=(1, 100), _VECTORS=(1, 2, 3), _CHAINS=(1, 3)),
        Choice("one by one", {_LIBRARY + "cumulative:_along": _Made(lambda module: module._one_by_one)}),
        Choice("across", {_LIBRARY + "cumulative:_along": _Made(lambda module: module._across)}),
        Choice("many tasks of one vector", {_LIBRARY + "cumulative:_VECTORS": 1, _LIBRARY + "cumulative:_TASK": 1}),
    ],
    "sort": [
        *_of(_SORT, SHORT=(0, 300), _TASK=(1,)),
        *_of(_LIBRARY + "numpy_sort", _TASK=(1,), _TOGETHER=(1, 3)),
        Choice("ranked", {f"{_SORT}:sort_by_numpy": lambda rows: None, f"{_SORT}:SHORT": 600}),
        Choice("radix", _BY_RADIX),
        Choice("radix of wide digits", {**_BY_RADIX, f"{_SORT}:_WIDE": 0}),
        Choice("radix of narrow digits", {**_BY_RADIX, f"{_SORT}:_WIDE": 1 << 30}),
        Choice("radix in chunks", {**_BY_RADIX, **_CHUNKED_SORT}),
        Choice("radix in chunks of wide digits", {**_BY_RADIX, **_CHUNKED_SORT, f"{_SORT}:_WIDE": 0}),
        Choice("radix, many tasks", {**_BY_RADIX, f"{_SORT}:_TASK": 1}),
    ],
    "top_k": [
        *_of(_LIBRARY + "top_k", _TASK=(1,), SHORT=(0, 600)),
        Choice("chosen", {_LIBRARY + "top_k:_FEW": 1 << 30, _LIBRARY + "top_k:_OF_MANY": 1}),
        Choice("chosen in chunks", {_LIBRARY + "top_k:_FEW": 1 << 30, _LIBRARY + "top_k:_OF_MANY": 1, _LIBRARY + "top_k:_LONG": 1, _LIBRARY + "top_k:_ROWS": 1 << 30, _LIBRARY + "top_k:_CHUNK": 64}),
        Choice("ranked", {_LIBRARY + "top_k:_FEW": 0, _LIBRARY + "top_k:SHORT": 600}),
        Choice("sorted", {_LIBRARY + "top_k:_FEW": 0, _LIBRARY + "top_k:SHORT": 0}),
        Choice("sorted in chunks", {_LIBRARY + "top_k:_FEW": 0, _LIBRARY + "top_k:SHORT": 0, **_CHUNKED_SORT}),
        Choice("sorted by wide digits", {_LIBRARY + "top_k:_FEW": 0, _LIBRARY + "top_k:SHORT": 0, f"{_SORT}:_WIDE": 0}),
    ],
    "window": [
        *_of(_LIBRARY + "pooling", _TILE=(1, 40), _MOST_BYTES=(1, 256), _VECTORS=(1, 2), _TASK=(1,)),
        *_of(_LIBRARY + "window_argmax", _TASK=(1,)),
        *_of(_LIBRARY + "pooling_cotangents", _TASK=(1,)),
        *_of(_LIBRARY + "strided", _NEAR=(0, 1)),
        *_of(_LIBRARY + "windows", _UNROLLED=(0, 1 << 30)),
    ],
    "gather": [
        *_of(_LIBRARY + "gather", _BLOCK=(1, 3), _UNROLLED=(2, 4), TASK_BYTES=(1, 64)),
        Choice("small blocks of small tasks", {_LIBRARY + "gather:_BLOCK": 3, _LIBRARY + "gather:TASK_BYTES": 1}),
    ],
    "scatter": [
        *_of(_LIBRARY + "scatter", _FETCHED=(range(0), range(1, 1 << 30))),
        *[Choice(f"{count} tasks", {_LIBRARY + "scatter:_task_count": (lambda count: lambda *sizes: count)(count)}) for count in (1, 2, 8)],
        Choice("small copies", {_LIBRARY + "scatter:TASK_BYTES": 4, _LIBRARY + "dynamic_slices:TASK_BYTES": 1}),
    ],
    "dynamic_slice": [*_of(_LIBRARY + "dynamic_slices", TASK_BYTES=(1, 64))],
    "product": _PRODUCT,
    "convolution": [
        Counted("algorithm", _algorithm),
        *_of("convolution.stages", _TASKS=(1, 1 << 20)),
        *_of("convolution.choice", ROOM=(1 << 12, 1 << 16)),
        *_of("convolution.blocking", TILE=(64, 1 << 10), SUMS=(64, 1 << 10), STEPS=(1, 16)),
        *_of("convolution.igemm_plan", _FEW=(1, 64), SUMS=(64,)),
        *_of("convolution.winograd_plan", _BLOCK=(1, 1 << 12), _RELOADED=(1,), _TILES=(1,), TILE=(64,), SPREAD=(0,), MANY=(0, 1 << 20), _TAPS=(0,)),
        *_of("convolution.winograd_weight_gradient", _TERMS=(1, 7)),
        *_of("convolution.loop_nest", _UNROLLED=(1,)),
        *_of("convolution.direct", _FEW_REGISTERS=(5, 32), TILE=(64, 1 << 10)),
        Counted("algorithm in small blocks", lambda k: _algorithm(k, **_SMALL_BLOCKS)._replace(label=f"algorithm {k} in small blocks")),
        Choice("a product", {"convolution.choice:_VECTORS": 0}),
    ],
    "fourier": [
        *_of("fourier.routine", _LONGEST=(1, 64), _MOST_TASKS=(1, 1 << 20)),
        *_of("fourier.long_signals", _MOST_TASKS=(1, 1 << 20), _MOST_ROWS=(16, 64), _MOST_COLUMNS=(64, 1 << 20)),
        *_of("fourier.pairs", _MOST_TASKS=(1, 1 << 20)),
        *_of("fourier.passes", _FACTORS=((2, 3, 5, 7, 11, 13), (4, 8, 2, 7, 5, 3))),
        *_of("fourier.primes", _REGISTERS=(1, 2)),
    ],
    "linalg": [
        *_of("lapack.stacks", _TASK=(1.0, 1e12), _SCRATCH=(1,), _MOST_TASKS=(1, 1000), _FEW_TASKS=(1, 1000), _SMALL=(0,), _MEDIUM=(0,)),
        *_of("lapack.triangular", LARGE=(0,)),
    ],
}  # fmt: skip


def _schedules(c: Any, work: Any, device: TargetCapabilities, batch_products: int = 0) -> list[Any]:
    """Of all tiles and splits, and all variations of the first, one in eight: others for products of other sizes."""
    some = wgsl_products.candidates(c, work, device, 1000, batch_products)
    return (some + wgsl_products.variations(some[0], work, device))[(c.m + 3 * c.n + 5 * c.k) % 8 :: 8]


def _schedule(k: int, **others: Any) -> Choice:
    """The k-th schedule of a product in WGSL."""
    tiled = {f"matmul.contract:{name}": lambda *args: False for name in ("is_of_few_terms", "is_of_few_results", "is_thin")}
    return _nth("schedule", k, "matmul.contract:choose", _schedules, **tiled, **others)


#: Convolutions by tiles.
_BY_TILES = {"convolution.choice:shape_of": lambda *args, **kwargs: None, "convolution.choice:is_narrow": lambda *args: False}

#: Schedules of attention with less unrolled, which a GPU in software compiles sooner.
_BRIEF_ATTENTION = {
    "attention.schedule:_FORWARD": attention_schedule._FORWARD._replace(unroll=4),
    "attention.schedule:_WIDE": attention_schedule._WIDE._replace(unroll=4),
}

#: Choices about WGSL, by a family of primitives.
WGSL: dict[str, list[Choice | Counted]] = {
    "cumulative": [
        *_of("library.cumulative", _LONG=(1, 1 << 30), _EACH=(4,), _FEW_TILES=(0,), _CHUNK=(1, 7), _ENOUGH=(1 << 30,), _MOST_CHUNKS=(2,), _STRETCH=(16, 100)),
        Choice("small tiles", {"library.cumulative:_LONG": 1, "library.cumulative:_EACH": 4, "library.cumulative:_EACH_OF_MANY": 4}),
        Choice("small tiles of many", {"library.cumulative:_LONG": 1, "library.cumulative:_EACH": 4, "library.cumulative:_EACH_OF_MANY": 4, "library.cumulative:_FEW_TILES": 0}),
        Choice("short stretches of rows", {"library.cumulative:_LONG": 1 << 30, "library.cumulative:_STRETCH": 16}),
    ],
    "sort": [
        *_of("library.small_sort", _VERY_SHORT=(0, 100), _KEYS=(4,), _ELEMENTS=(4, 16)),
        *_of("library.radix", SHORT=(0, 64), _FEW_TILES=(0, 1 << 20), _MUCH=(0,), _DIGIT=(4,), _SUMMED=(1,)),
        Choice("large tiles", {"library.radix:SHORT": 0, "library.radix:_MUCH": 0, "library.radix:_FEW_TILES": 0}),
        Choice("long rows", {"library.radix:SHORT": 0, "library.radix:_FEW_TILES": 0}),
    ],
    "top_k": [
        *_of("library.top_k", SHORT=(0, 1 << 30), _LEAST=(1 << 11,), _MANY=(1,)),
        *_of("library.small_sort", _VERY_SHORT=(0, 100)),
        *_of("library.radix", SHORT=(0,)),
    ],
    "window": [*_of("library.pooling", _AT_ONCE=(1, 2), _FEW=(0, 1 << 20))],
    "gather": [],
    "scatter": [
        *_of("library.scatter", _FEW=(0, 1 << 20), _FEW_ELEMENTS=(0, 1 << 20), _ROWS_OF_GROUP=(0, 1)),
        Choice("in groups", {"library.scatter:_FEW": 0, "library.scatter:_ROWS_OF_GROUP": 1}),
        Choice("sorted", {"library.scatter:_FEW": 0, "library.scatter:_ATOMIC": {}}),
        Choice("sorted, in chunks", {"library.scatter:_FEW": 0, "library.scatter:_ATOMIC": {}, "library.segment_reduce:_SHORTEST": 1, "library.segment_reduce:_LONG": 1}),
        *_of("library.segment_reduce", _SHORTEST=(1, 4), _LONG=(1, 1 << 20), _BUSY=(1,), _AT_ONCE=(1, 3), _WALKED=((1, 4),)),
    ],
    "dynamic_slice": [],
    "product": [
        *[Choice(f"{name}={value}", {f"matmul.contract:{name}": (lambda value: lambda *args: value)(value)}) for name in ("is_of_few_terms", "is_of_few_results") for value in (False, True)],
        *_of("matmul.direct", _WRITTEN_OUT=(1,), _TOGETHER=(1, 4), _TOO_FEW=(0, 1 << 30), _CHUNK=(16,)),
        *_of("matmul.thin", _TERMS=(1,), _FEW=(0, 1 << 30), _CHUNK=(16,), _TOGETHER=(4,)),
        Counted("schedule", _schedule),
    ],
    "convolution": [
        Choice("not narrow", {"convolution.choice:is_narrow": lambda *args: False}),
        Choice("not by points", {"convolution.choice:shape_of": lambda *args, **kwargs: None}),
        Choice("by tiles", _BY_TILES),
        Choice("by 4 points", {"convolution.winograd_schedule:_POINTS": {(3, 3): (4,)}, "convolution.winograd_schedule:_DISPATCH": -(1 << 40)}),
        Choice("by 6 points", {"convolution.winograd_schedule:_POINTS": {(3, 3): (6,), (5, 5): (6,)}, "convolution.winograd_schedule:_DISPATCH": -(1 << 40)}),
        *_of("convolution.narrow", _SUMS=(4,), _STAGED=(64,), _LONG=(1 << 20,), _FEW=(12,)),
        Counted("schedule", lambda k: _schedule(k, **_BY_TILES)),
    ],
    "attention": [
        Choice("much work", {**_BRIEF_ATTENTION, "attention.schedule:_MANY": 0}),
        Choice("much work by few", {**_BRIEF_ATTENTION, "attention.schedule:_MANY": 0, "attention.schedule:_ENOUGH": 0}),
        Choice("little work by few", {**_BRIEF_ATTENTION, "attention.schedule:_MANY": 1 << 30, "attention.schedule:_ENOUGH": 0}),
    ],
    "linalg": [
        *_of("library.linalg.iteration_budget", _MULTIPLICATIONS=(64,), _TOGETHER=(1,), _MANY=(1,)),
        *_of("library.linalg.triangular", SMALL=(2, 100), _COLUMNS=(1, 4)),
        *_of("library.linalg.small_lu", _LARGEST=(0,)),
        *_of("library.linalg.block_rotations", _SIZES=((8,),)),
        *_of("library.linalg.blocked_lu", _GROUPS=(2,)),
        *_of("library.linalg.rotations", _MANY=(1,)),
    ],
}  # fmt: skip

#: The families of primitives.
FAMILY_OF = {
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"], "cumulative"),
    **dict.fromkeys(["reduce_window_sum", "reduce_window_max", "reduce_window_min", "select_and_gather_add", "select_and_scatter_add"], "window"),
    **dict.fromkeys(["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"], "scatter"),
    **dict.fromkeys(["cholesky", "triangular_solve", "lu", "qr", "eigh", "svd"], "linalg"),
    **dict.fromkeys(["dynamic_slice", "dynamic_update_slice"], "dynamic_slice"),
    "sort": "sort", "top_k": "top_k", "gather": "gather", "wrapped_gather": "gather", "wrapped_scatter_add": "scatter", "dot_general": "product", "conv_general_dilated": "convolution", "fft": "fourier",
    "attention_routine": "attention", "attention_gradient_routine": "attention",
}  # fmt: skip


def devices() -> dict[str, TargetCapabilities]:
    """What shaders may use: what every device has, what this one has, and that with subgroups of one known width."""
    known = capabilities()
    some = {"least": TargetCapabilities(float64=known.float64, int64=known.int64, float16=known.float16), "device": known}
    return {**some, "known subgroups": known_width()} if known.subgroups else some


def routines(problem: Problem, target: str) -> Iterator[tuple[str, Any]]:
    """The routines of a problem, each by the choices that give it first; equal ones once. None: NumPy computes it."""
    seen: set[Any] = set()
    for each in [DEFAULT, *(CPU if target == "cpu" else WGSL)[FAMILY_OF[problem.name]]]:
        for choice in [each] if isinstance(each, Choice) else map(each.choice, itertools.count()):
            try:
                made = list(_made(problem, target, choice))
            except Exhausted:
                break
            except Exception as error:  # whatever a generator raises is its fault
                yield choice.label, error
                break
            for label, routine in made:
                if routine not in seen:
                    seen.add(routine)
                    yield label, routine
            if not isinstance(each, Choice) and not any(getattr(f, "consulted", False) for f in choice.changes.values()):
                break


def _made(problem: Problem, target: str, choice: Choice) -> Iterator[tuple[str, Any]]:
    """The routines of a choice: in WGSL what is chosen with all that devices can do, and each other choice with one of these in turn."""
    if target == "cpu":
        with choice.applied(_CPU):
            yield choice.label, CPU_ROUTINES[problem.name](problem.avals, problem.params) if problem.name in CPU_ROUTINES else None
        return
    some = list(devices().items())
    turn = (sum(map(ord, choice.label)) + problem.operands[0].seed) % len(some)
    for name, device in some if choice is DEFAULT else [some[turn]]:
        if problem.name in WGSL_ROUTINES and all(is_supported(dtype, device) for dtype in _stored(problem)):
            with choice.applied(_WGSL):
                yield f"{choice.label}, {name}", WGSL_ROUTINES[problem.name](problem.avals, problem.params, device)


def _stored(problem: Problem) -> set[np.dtype]:
    """The dtypes that a device must have: arrays of others are not given to it."""
    return {d for d in (*[a.dtype for a in problem.avals], *[d for _, d in problem.outputs]) if d.itemsize in (8, 16)}


def constants(target: str, folders: Sequence[str]) -> set[str]:
    """The numbers that modules of a target name, as choices do."""
    root = Path(importlib.import_module(f"volta_fn.targets.{target}").__file__ or "").parent
    found = set()
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.Assign) and _is_number(node.value):
                    names = [name for target in node.targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
                    found.update(f"{module}:{name.id}" for name in names if isinstance(name, ast.Name) and name.id.isupper())
    return found


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(map(_is_number, node.elts))
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def forced(target: str) -> set[str]:
    """The attributes that some choice replaces."""
    some = [c if isinstance(c, Choice) else c.choice(0) for choices in (CPU if target == "cpu" else WGSL).values() for c in choices]
    return {name for choice in some for name in choice.changes}


#: Names of numbers that choose nothing: estimates of time, numbers of buffers, sizes that other code relies on, and limits of what is
#: computed elsewhere.
NO_CHOICES = {
    "cpu": {
        *(
            f"convolution.{name}"
            for name in ("choice:_CYCLE", "choice:_OVERHEAD", "stages:NANOSECONDS", "winograd_weight_gradient:_POSITIONS")
        ),
        *(f"fourier.{name}" for name in ("long_signals:_PASS", "pairs:_NUMBER", "passes:_LONGEST_PRIME", "passes:_LONGEST_UNROLLED")),
        *(f"lapack.stacks:{name}" for name in ("_ALIGNMENT", "_CALL", "_SPEED")),
        *(f"library.scalar_loops:{name}" for name in ("_LONG", "_MOST_NODES")),
        "library.scatter:_MOST_TASKS",  # `_task_count` is replaced
    },
    "wgsl": {
        *(f"attention.{name}" for name in ("__init__:_SHORTEST", "__init__:_WIDEST", "backward:_INVOCATIONS", "schedule:_MOST_BYTES")),
        *(f"convolution.{name}" for name in ("choice:_MUCH", "narrow:_INVOCATIONS", "narrow:_TAPS", "winograd:_INVOCATIONS")),
        *(f"convolution.winograd_schedule:{name}" for name in ("_BYTE", "_MANY")),
        *(f"library.ballot_sort:{name}" for name in ("_BITS", "_DIGITS_OF_LANE")),
        *(f"library.copy_units:{name}" for name in ("INVOCATIONS", "MANY", "TOGETHER")),
        *(f"library.segment_reduce:{name}" for name in ("_INDICES", "_RESULT", "_SPACES", "_UPDATES")),
        *(f"library.{name}" for name in ("pooling:_NONE", "radix:_LARGE_ROOM", "scatter:_GROUP", "tile_sort:BITS")),
        *(f"library.top_k_threshold:{name}" for name in ("_FOURS", "_SAMPLED_SHARE")),
        *(f"library.linalg.{name}" for name in ("block_reflections:_COLUMNS", "block_rotations:SWEEPS", "block_scaling:_TOGETHER")),
        *(f"library.linalg.blocked_{name}" for name in ("lu:_COLUMNS", "lu:_EACH_LOOP", "lu:_ROWS", "qr:_ROWS")),
        *(f"library.linalg.blocks:{name}" for name in ("COUNTERS", "INVOCATIONS")),
        *(f"library.linalg.rotations:{name}" for name in ("LARGEST", "SEVERAL", "SWEEPS")),
        *(f"library.linalg.small_{name}" for name in ("lu:_INVOCATIONS", "svd:_BANKS", "svd:_LANES", "svd:_ROWS")),
        "library.linalg.triangular:LARGEST",
    },
}
