"""The choices that are made about routines of machine code."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from tests.fuzz.routine_choices import FAMILY_OF, Choice, Choices, Counted, Replacement, alternatives, constant, each, nth, together
from tests.fuzz.routine_problems import Problem
from volta_fn.targets.cpu.matmul.micro_kernel import tile_shapes
from volta_fn.targets.cpu.target import ROUTINES

_BIG = 1 << 30


def _function(name: str) -> Replacement:
    """Another function of the module."""
    return Replacement(lambda module: getattr(module, name))


# sorts

_BY_RADIX = {"library.sort:sort_by_numpy": constant(None), "library.sort:SHORT": 0}
_IN_CHUNKS = {"library.sort:_FEW": _BIG, "library.sort:_LONG": 1, "library.sort:_CHUNK": 64}
_LIST = {"library.sort:_TOP_FEW": _BIG, "library.sort:_OF_MANY": 1}
_NO_LIST = {"library.sort:_TOP_FEW": 0, "library.sort:SHORT": 0}

# products

_TILES_ONLY = {"matmul:suits_dot_products": constant(False), "matmul:suits_scaled_rows": constant(False)}
_SMALL_TASKS = {"_TASK_STEPS": 1, "_MOST_TASKS": 1 << 20, "_TASKS": 1 << 20}
_MANY_ROWS = {"_FEW": 0, "_PANELS": 1, "_NEAR_BYTES": 0}


def _tile(k: int) -> Choice:
    """Return the k-th register tile of products: the largest ones, and those of a row less."""

    def options() -> list[dict[int, int]]:
        shapes = list(tile_shapes().items())
        return [{wide: rows} for wide, rows in shapes] + [{wide: rows - 1} for wide, rows in shapes if rows > 1] + [{1: 1}]

    return nth("tile", k, "matmul.blocking:tile_shapes", options, _TILES_ONLY)


def _packing(number: int, in_place: bool) -> Choice:
    """Return the choice of how rows are packed (not, by tasks, ahead), and whether columns are read in place, as far as operands can be."""

    def rows(module: Any) -> Any:
        none, task, ahead = module.Packing

        def chosen(work: Any, strides: Any, panels: Any, rows: int, group: int, *, transposed: bool) -> Any:
            possible = {none: strides is not None, task: True, ahead: transposed and strides is not None}
            wanted = (none, task, ahead)[number]
            return wanted if possible[wanted] else task

        return chosen

    def near(work: Any, strides: Any, row_panels: int) -> bool:
        return strides is not None and strides[0] <= 1 and in_place

    label = f"rows packed {('not', 'by tasks', 'ahead')[number]}, columns {'in place' if in_place else 'packed'}"
    return Choice(label, {"matmul.blocking:_pack_rows": Replacement(rows), "matmul.blocking:_near": near, **_TILES_ONLY})


def _three_splits(tiles: int, steps: int, blocks: int) -> tuple[int, int]:
    split = -(-blocks // min(blocks, 3))
    return -(-blocks // split), split


def _blocked(label: str, **constants: Any) -> Choice:
    return together(label, _TILES_ONLY, matmul__blocking=constants)


# convolutions

_SMALL_BLOCKS = {
    **{f"convolution.{name}": 64 for name in ("blocking:TILE", "direct:TILE", "igemm:SUMS", "winograd:TILE")},
    "convolution.blocking:SUMS": 128,
    "convolution.blocking:STEPS": 4,
    "convolution.winograd:_BLOCK": 1,
    "convolution.winograd:_TILES": 1,
}


def _algorithm(k: int, label: str = "algorithm", others: Mapping[str, Any] = MappingProxyType({})) -> Choice:
    """Return the k-th algorithm of a convolution."""
    changes = {
        "convolution:algorithms": Replacement(lambda module: functools.partial(module.algorithms, slow=True)),
        "convolution:_by_spectra": constant(False),
        "convolution:is_product": constant(False),
    }
    return nth(label, k, "convolution:fastest", lambda actual, wanted: actual, changes | dict(others))


# factorisations

_STACKS = [
    *each(
        "lapack",
        _TASK=(1.0, 1e12),
        _SCRATCH=(1,),
        _MOST_TASKS=(1, 1000),
        _FEW_TASKS=(1, 1000),
        _SMALL=(0,),
        _MEDIUM=(0,),
        _FEW_ROWS=(0,),
        _MATRICES=(1,),
    ),
]

CHOICES: dict[str, Choices] = {
    "cumulative": [
        *each("library.scans", _CHUNK=(64, 192), _TASK=(1, 100), _VECTORS=(1, 2, 3), _CHAINS=(1, 3)),
        Choice("one by one", {"library.scans:_along_rows": _function("_sequentially")}),
        Choice("across", {"library.scans:_along_rows": _function("_across_columns")}),
        together("many tasks of one vector", library__scans={"_VECTORS": 1, "_TASK": 1}),
    ],
    "sort": [
        *each("library.sort", SHORT=(0, 300), _TASK=(1,), _TOGETHER=(1, 3)),
        together("ranked", _BY_RADIX, library__sort={"SHORT": 600}),
        Choice("radix", _BY_RADIX),
        together("radix of wide digits", _BY_RADIX, library__sort={"_WIDE": 0}),
        together("radix of narrow digits", _BY_RADIX, library__sort={"_WIDE": _BIG}),
        together("radix in chunks", _BY_RADIX, _IN_CHUNKS),
        together("radix in chunks of wide digits", _BY_RADIX, _IN_CHUNKS, library__sort={"_WIDE": 0}),
        together("radix in many tasks", _BY_RADIX, library__sort={"_TASK": 1}),
    ],
    "top_k": [
        *each("library.sort", _TOP_TASK=(1,), SHORT=(0, 600)),
        Choice("a list", _LIST),
        together("a list for each chunk", _LIST, library__sort={"_TOP_LONG": 1, "_ROWS": _BIG, "_TOP_CHUNK": 64}),
        together("ranked", library__sort={"_TOP_FEW": 0, "SHORT": 600}),
        Choice("sorted", _NO_LIST),
        together("sorted in chunks", _NO_LIST, _IN_CHUNKS),
        together("sorted by wide digits", _NO_LIST, library__sort={"_WIDE": 0}),
    ],
    "window": [
        *each("library.pooling", _TILE=(1, 40), _MOST_BYTES=(1, 256), _VECTORS=(1, 2), _TASK=(1,)),
        *each("library.pooling", _ARGMAX_TASK=(1,), _COTANGENT_TASK=(1,), _UNROLLED=(0, _BIG), _BLOCK=(1, 2)),
        *each("library.movement", _NEAR=(0, 1)),
    ],
    "gather": [
        *each("library.movement", _BLOCK=(1, 3), _UNROLLED=(2, 4), TASK_BYTES=(1, 64)),
        together("small blocks of small tasks", library__movement={"_BLOCK": 3, "TASK_BYTES": 1}),
    ],
    "scatter": [
        *each("library.movement", _FETCHED=(range(0), range(1, _BIG)), TASK_BYTES=(4,)),
        *[Choice(f"{count} tasks", {"library.movement:_task_count": constant(count)}) for count in (1, 2, 8)],
    ],
    "dynamic_slice": [*each("library.movement", TASK_BYTES=(1, 64))],
    "product": [
        Choice("tiles", _TILES_ONLY),
        together("dot products", matmul__gemv={"_SHORT": 1, "_FEW": 24}),
        together("dot products in splits", matmul__gemv={"_SHORT": 1, "_LONG": 64, "_TASK_STEPS": 1}),
        together("sums of rows", {"matmul:suits_dot_products": constant(False)}, matmul__gemv={"_NARROW": 1, "_FEW": 24, "_TOGETHER": 3}),
        together(
            "sums of rows in splits and runs", {"matmul:suits_dot_products": constant(False)},
            matmul__gemv={"_NARROW": 1, "_FEW": 24, "_STACK": 1, "_SPLIT_BYTES": 64},
        ),
        together(
            "sums of rows in pieces", {"matmul:suits_dot_products": constant(False)},
            matmul__gemv={"_NARROW": 1, "_FEW": 24, "_STACK": 1024, "_PIECE_COLUMNS": 32, "_PIECE_ROWS": 3},
        ),
        Choice("no groups", {"matmul:grouped_type": constant(None)}),
        Choice("tiles without groups", {"matmul:grouped_type": constant(None), **_TILES_ONLY}),
        Counted(_tile),
        *[_packing(number, in_place) for number in range(3) for in_place in (False, True)],
        _blocked("short blocks", _DEPTH=8, _UNBLOCKED_DEPTH=8),
        _blocked("blocks of one", _DEPTH=1, _UNBLOCKED_DEPTH=1),
        _blocked("split sums", _DEPTH=8, _UNBLOCKED_DEPTH=8, _splits=_three_splits),
        _blocked("many tasks", **_SMALL_TASKS),
        _blocked("many tasks of rows", **_SMALL_TASKS, **_MANY_ROWS),
        _blocked("small blocks", _BLOCK_BYTES=1, _STACK_BYTES=1),
        _blocked("rows packed one by one", _GROUP=1, _SET=4),
        _blocked("rows packed in groups", _GROUP=3, _GROUP_BYTES=_BIG, _SET=1),
        _blocked("large rows packed in groups", _LARGE=0, _LARGE_GROUP_BYTES=_BIG, _SET=1),
        together(
            "columns packed by many", _TILES_ONLY, matmul__packing={"_TASK_BYTES": 64},
            matmul__blocking={"_near": constant(False), **_SMALL_TASKS, **_MANY_ROWS},
        ),
        *each("matmul.gemm", _GROUP=(1, 3)),
        *each("matmul.epilogues", _STRIP_BYTES=(64,)),
    ],
    "convolution": [
        Counted(_algorithm),
        Counted(functools.partial(_algorithm, label="in small blocks algorithm", others=_SMALL_BLOCKS)),
        *each("convolution", ROOM=(1 << 12, 1 << 16), _VECTORS=(0,)),
        *each("convolution.blocking", TILE=(64, 1 << 10), SUMS=(64, 1 << 10), STEPS=(1, 16), _TASKS=(1, 1 << 20)),
        *each("convolution.igemm", _FEW=(1, 64), SUMS=(64,)),
        *each("convolution.winograd", _BLOCK=(1, 1 << 12), _RELOADED=(1,), _TILES=(1,), TILE=(64,)),
        *each("convolution.winograd", SPREAD=(0,), MANY=(0, 1 << 20), _TAPS=(0,)),
        *each("convolution.winograd_weight_gradient", _TERMS=(1, 7)),
        *each("convolution.emission", _NEAR=(1, 8), _UNROLLED=(1,)),
        *each("convolution.direct", _FEW_REGISTERS=(5, 32), TILE=(64, 1 << 10)),
    ],
    "attention": [
        *each("attention.blocks", _BLOCK_BYTES=(1, _BIG), _MOST_KEYS=(1,)),
        *each("attention.kernels", _PACKED_ROWS=(1, _BIG), _ENOUGH=(1, _BIG), _SUMMED_ROWS=(1, _BIG)),
        *each("attention", MOST_ROWS=(0, 16), FEWEST_KEYS=(1,)),
        *each("attention.few_queries", _TASK_BYTES=(1, _BIG), _STACK_BYTES=(1 << 14,), _BLOCK=(16,), _AHEAD=(64,)),
        *each("attention.few_queries", _TOGETHER=(1, 2), _WRITTEN_OUT=(1, 2), _SEVERAL=(2, 8)),
    ],
    "fourier": [
        *each("fourier", _LONGEST=(1, 64), _MOST_TASKS=(1, 1 << 20), _MOST_ROWS=(16, 64), _MOST_COLUMNS=(64, 1 << 20)),
        *each("fourier", _FACTORS=((2, 3, 5, 7, 11, 13), (4, 8, 2, 7, 5, 3)), _REGISTERS=(1, 2)),
    ],
    "linalg": [*_STACKS, *each("lapack", LARGE=(0,))],
    "condensed": _STACKS,
    "quantized": [
        Choice("by numbers", {"quantized:suits_pairs": constant(False)}),
        *each("quantized", _TASK_BYTES=(1,), _ROWS=(1, 3), _MOST_CHAINS=(1, 2), _UNROLLED=(1,), _SUMS=({32: 2, 16: 2},)),
        *each("quantized", _PAIR_TASK_BYTES=(1,), _PAIR_ROWS=(1, 3), _MOST_PERIOD=(1,), _FEW_ROWS=(0, _BIG)),
    ],
}  # fmt: skip

#: Numbers, or modules of such, that choose nothing: estimates of time, sizes that other code relies on, limits of what is computed
#: elsewhere.
NO_CHOICES = {
    *(f"attention.{name}" for name in ("blocks:_VECTORS", "blocks:_EXTRA")),
    *(f"attention.kernels:{name}" for name in ("PACKING", "STEP", "_STATISTICS", "_SUM")),
    *(f"attention.few_queries:{name}" for name in ("_BYTE", "_STEP", "_SCAN", "_RANGE_BYTES")),
    "attention:_WIDEST",
    *(f"attention:{name}" for name in ("FEWEST_LOGITS", "FEWEST_QUERIES")),  # routines are asked for directly
    *(f"convolution{name}" for name in (".blocking:NANOSECONDS", ":_CYCLE", ":_OVERHEAD")),
    *(f"fourier:{name}" for name in ("_LONGEST_PRIME", "_LONGEST_UNROLLED", "_PASS", "_NUMBER")),
    *(f"lapack:{name}" for name in ("_ALIGNMENT", "_CALL", "_SPEED", "_LANES_STEP")),
    *(
        f"library.scans:{name}" for name in ("_MOST_NODES", "_WHILE_LOOP_NS", "_CLOCK_INTERVAL")
    ),  # of loops, which are no routines of primitives
    "convolution.winograd_weight_gradient:_POSITIONS",
    "library.movement:_MOST_TASKS",  # the function that it is for is replaced
}


def routines(problem: Problem) -> Iterator[tuple[str, Any]]:
    """Yield the routines of a problem, each with the choice that first gives it.

    None stands for NumPy, an exception for a routine that could not be generated.
    """

    def routines_for(choice: Choice) -> list[tuple[str, Any]]:
        maker = ROUTINES.get(problem.name)
        with choice.applied("cpu"):
            return [(choice.label, None if maker is None else maker(problem.avals, problem.params))]

    return alternatives(CHOICES[FAMILY_OF[problem.name]], routines_for)
