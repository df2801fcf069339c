"""Random problems for routines: a primitive, its operands, and its parameters.

A problem is text: its `repr` is an expression that `problem` evaluates, so that what was once wrong can be kept in a file. `FAMILIES` has
what draws problems of each kind, with at most about `room` elements in an operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.passes.expansions import attention_gradient_routine_p, attention_routine_p, cholesky_panel_p, result_avals
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.primitives.call import Axes, Form, Window
from volta_fn.primitives.convolution import window_counts
from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from volta_fn.primitives.quantized import BLOCK, CODES, QuantizedLayout
from volta_fn.targets.numpy import backend as _kernels  # noqa: F401  # declares all primitives

Rng = np.random.Generator
Shape = tuple[int, ...]

FLOATS, COMPLEX = ("float16", "bfloat16", "float32", "float64"), ("complex64", "complex128")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
REALS, ALL = (*INTEGERS, *FLOATS), ("bool", *INTEGERS, *FLOATS, *COMPLEX)
#: Dtypes that are only moved.
STORAGE = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int2", "int4", "uint4")

_MODES = list(GatherScatterMode)

#: Few elements, and numbers around those of vectors, blocks and tiles.
SIZES = (0, 1, 2, 3, 4, 5, *[n + d for n in (8, 16, 32, 64, 128, 256, 4096, 65536, 131072) for d in (-1, 0, 1)])


#: Primitives that only a target has.
_INTERNAL = {p.name: p for p in (attention_routine_p, attention_gradient_routine_p, cholesky_panel_p)}


class Operand(NamedTuple):
    """An operand: what `values` draws from a seed. `low` and `high` bound indices."""

    shape: Shape
    dtype: str
    kind: str = "small"
    seed: int = 0
    low: int = 0
    high: int = 1

    @property
    def aval(self) -> ShapedArray:
        """Its type."""
        return ShapedArray(self.shape, dtypes.as_dtype(self.dtype))


class Problem(NamedTuple):
    """A call of a primitive."""

    name: str
    operands: tuple[Operand, ...]
    params: dict[str, Any]

    @property
    def avals(self) -> tuple[ShapedArray, ...]:
        """The operands' types."""
        results = [operand.aval for operand in self.operands]
        if self.name == "attention_gradient_routine":  # the result and its statistics come before its cotangent
            results[-1:-1] = result_avals(self.params["form"], results[0], results[2])
        return tuple(results)

    @property
    def outputs(self) -> list[tuple[Shape, np.dtype]]:
        """The results' shapes and dtypes."""
        name = self.name.removeprefix("wrapped_")
        result = (_INTERNAL.get(name) or PRIMITIVES[name]).result_avals(self.avals, self.params)
        return [(r.shape, r.dtype) for r in (result if isinstance(result, tuple | list) else (result,))]

    def inputs(self) -> list[np.ndarray]:
        """Return the operands' elements."""
        results = [values(operand) for operand in self.operands]
        if self.name == "attention_gradient_routine":
            evaluate = attention_routine_p.evaluate
            assert evaluate is not None
            results[-1:-1] = evaluate(*results[:-1], form=self.params["form"])
        if self.name == "householder_product":
            results[1] = _reflecting(*results)
        return results

    @property
    def size(self) -> int:
        """All elements of operands and results."""
        return sum(math.prod(o.shape) for o in self.operands) + sum(math.prod(shape) for shape, _ in self.outputs)


def problem(text: str) -> Problem:
    """Return the problem of an expression."""
    names = {
        "Problem": Problem,
        "Operand": Operand,
        "GatherDimensionNumbers": GatherDimensionNumbers,
        "Form": Form,
        "Axes": Axes,
        "Window": Window,
        "QuantizedLayout": QuantizedLayout,
    }
    return eval(text, {**names, "ScatterDimensionNumbers": ScatterDimensionNumbers, "MODE": GatherScatterMode, "dtype": np.dtype})


def text_of(it: Problem) -> str:
    """Return the expression of a problem."""
    text = repr(it)
    for mode in GatherScatterMode:
        text = text.replace(repr(mode), f"MODE.{mode.name}")
    for name in dtypes_named(it.params):
        text = text.replace(repr(np.dtype(name)), f"dtype({name!r})")
    return text


def dtypes_named(params: dict[str, Any]) -> list[str]:
    """Return the names of the dtypes among parameters."""
    return [value.name for value in params.values() if isinstance(value, np.dtype)]


# elements


def _reflecting(vectors: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Factors, by some numbers, with which the products of reflections by vectors are unitary: others grow beyond a dtype's range."""
    lengths = 1 + np.square(np.abs(np.tril(vectors[..., : numbers.shape[-1]], -1))).sum(-2)
    angles = np.abs(numbers) if numbers.dtype.kind == "c" else np.pi * (numbers != 0)
    factors = (1 - np.exp(1j * angles)) / lengths
    return (factors if numbers.dtype.kind == "c" else factors.real).astype(numbers.dtype)


def values(operand: Operand) -> np.ndarray:
    """Return the elements of an operand.

    Kinds: `small` integers, whose sums are exact in every dtype of sums; `normal` numbers; `special` ones, with NaN, infinities and zeros
    of both signs; `ends`, special ones with the greatest, the least and subnormal numbers; `few` different ones; `signs`; `near` one, and
    `large` beside it; `indices` from `low` up to `high`, or all `different`; matrices that are `definite`, or `regular`.
    """
    rng, dtype, shape = np.random.default_rng([operand.seed, 35]), dtypes.as_dtype(operand.dtype), operand.shape
    if operand.kind == "different":
        return rng.permutation(operand.high)[: math.prod(shape)].reshape(shape).astype(dtype)
    if operand.kind == "indices":
        info = np.iinfo(dtype)
        return rng.integers(max(operand.low, info.min), min(operand.high, info.max), shape, endpoint=True).astype(dtype)
    if dtype in dtypes.COMPLEX:
        half = operand._replace(dtype=dtypes.real_dtype(dtype).name)
        if operand.kind == "definite":
            return _definite(rng, shape, dtype)
        with np.errstate(invalid="ignore"):
            result = np.empty(shape, dtype)
            result.real, result.imag = values(half), values(half._replace(seed=operand.seed + 1))
            return result
    if operand.kind == "definite":
        return _definite(rng, shape, dtype)
    if operand.kind == "regular":
        return (0.3 * rng.standard_normal(shape) + 2 * np.eye(*shape[-2:])).astype(dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.4
    if dtype.kind in "iu":
        return _integers(rng, operand.kind, shape, dtype)
    if dtype in dtypes.STORAGE:
        return rng.integers(0 if operand.dtype.startswith("uint") else -2, 2, shape).astype(np.float32).astype(dtype)
    if operand.kind == "normal":
        return rng.standard_normal(shape).astype(dtype)
    if operand.kind == "large":
        return (4 + rng.random(shape)).astype(dtype)
    if operand.kind == "near":
        return (1 + 0.02 * rng.standard_normal(shape)).astype(dtype)
    if operand.kind == "signs":
        return rng.choice([1.0, -1.0], shape).astype(dtype)
    result = rng.integers(-2, 3, shape).astype(dtype)
    if operand.kind in ("special", "ends"):
        pool = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0]
        if operand.kind == "ends":
            info = ml_dtypes.finfo(dtype)
            pool += [float(info.max), float(info.min), float(info.tiny), float(info.smallest_subnormal), -float(info.smallest_subnormal)]
        some = rng.random(shape) < rng.choice([0.02, 0.5])
        result = np.where(some, rng.choice(np.array(pool), shape).astype(dtype), result)
    return result


def _integers(rng: Rng, kind: str, shape: Shape, dtype: np.dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    low, high = (max(info.min, -2), 2) if kind in ("small", "few", "signs", "near") else (info.min, info.max)
    return rng.integers(low, high, shape, dtype, endpoint=True)


def _definite(rng: Rng, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Positive definite matrices; the triangle above the diagonal holds what no routine may read."""
    a = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype.kind == "c" else 0)
    n = shape[-1]
    return (a @ a.conj().swapaxes(-1, -2) / max(n, 1) + np.eye(n)).astype(dtype)


# drawing


def pick(rng: Rng, options: Sequence[Any]) -> Any:
    """Return one of some options."""
    return options[int(rng.integers(len(options)))]


def size_of(rng: Rng, most: int) -> int:
    """Draw a size, at most `most`: as often one of the few as one of the many."""
    fitting = [n for n in SIZES if n <= most]
    few = [n for n in fitting if 0 < n <= 5]
    if rng.random() < 0.03:
        return 0
    return pick(rng, few if few and rng.random() < 0.45 else fitting[1:] or [1])


def shape_of(rng: Rng, rank: int, room: int) -> Shape:
    """Return a shape of at most `room` elements: axes in any order, the largest one first drawn."""
    sizes: list[int] = []
    for _ in range(rank):
        sizes.append(size_of(rng, max(1, room // max(1, math.prod(sizes)))))
    return tuple([sizes[i] for i in rng.permutation(rank)])


def operand(rng: Rng, shape: Shape, dtype: str, kinds: Sequence[str] = ("small", "normal")) -> Operand:
    """Return an operand of one of some kinds."""
    return Operand(tuple(int(n) for n in shape), dtype, pick(rng, kinds), int(rng.integers(1 << 16)))


def cumulative(rng: Rng, room: int) -> Problem:
    """Return a cumulative operation."""
    name = pick(rng, ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
    dtype = pick(rng, {"cumsum": ALL[1:], "cumprod": ALL[1:], "cumlogsumexp": FLOATS}.get(name, REALS))
    kinds = {"cumsum": ("small", "normal", "special"), "cumprod": ("signs", "near", "special"), "cumlogsumexp": ("normal", "special")}
    shape = shape_of(rng, int(rng.integers(1, 4)), room)
    axis = int(rng.integers(len(shape)))
    return Problem(
        name, (operand(rng, shape, dtype, kinds.get(name, ("small", "special", "ends"))),), {"axis": axis, "reverse": bool(rng.integers(2))}
    )


def sorts(rng: Rng, room: int) -> Problem:
    """Return a sort of one to three operands."""
    shape = shape_of(rng, int(rng.integers(1, 4)), room)
    count = pick(rng, [1, 1, 2, 2, 3])
    some = tuple([operand(rng, shape, pick(rng, ALL), ("few", "special", "ends", "normal")) for _ in range(count)])
    return Problem(
        "sort",
        some,
        {"dimension": int(rng.integers(len(shape))), "is_stable": bool(rng.integers(2)), "num_keys": int(rng.integers(1, count + 1))},
    )


def top_k(rng: Rng, room: int) -> Problem:
    """Return the greatest k."""
    shape = shape_of(rng, int(rng.integers(1, 4)), room)
    axis = int(rng.integers(len(shape)))
    k = pick(rng, [n for n in (0, 1, 2, 3, 5, 8, 16, 17, 127, 128, 129, 1024, shape[axis] // 2, shape[axis]) if n <= shape[axis]])
    return Problem(
        "top_k", (operand(rng, shape, pick(rng, ("bool", *REALS)), ("few", "special", "ends", "normal")),), {"k": int(k), "axis": axis}
    )


def window_geometry(rng: Rng, room: int) -> tuple[Shape, dict[str, Any]]:
    """Return a shape, and windows on it."""
    while True:
        rank = int(rng.integers(1, 5))
        shape = shape_of(rng, rank, room)
        rare = [1, 1, 1, 2, 3]
        params = {
            "window_dimensions": tuple(pick(rng, [1, 1, 2, 3, 4, 7]) for _ in shape),
            "window_strides": tuple(pick(rng, [*rare, 6]) for _ in shape),
            "padding": tuple((int(rng.integers(-1, 4)), int(rng.integers(-1, 4))) for _ in shape) if rng.integers(3) else ((0, 0),) * rank,
            "base_dilation": tuple(pick(rng, rare) if rng.integers(2) else 1 for _ in shape),
            "window_dilation": tuple(pick(rng, rare) if rng.integers(2) else 1 for _ in shape),
        }
        cut = [
            (n - 1) * b + 1 + min(lo, 0) + min(hi, 0)
            for n, b, (lo, hi) in zip(shape, params["base_dilation"], params["padding"], strict=True)
        ]
        if min(cut) >= 0 and math.prod(params["window_dimensions"]) <= 128:
            return shape, params


def windows(rng: Rng, room: int) -> Problem:
    """Return a reduction of windows, or a tangent or cotangent of pooling."""
    shape, params = window_geometry(rng, room // 4 if rng.integers(4) else room)
    name = pick(rng, ["reduce_window_sum", "reduce_window_max", "reduce_window_min", "select_and_gather_add", "select_and_scatter_add"])
    if name == "reduce_window_sum":
        return Problem(name, (operand(rng, shape, pick(rng, ALL[1:]), ("small", "normal", "special")),), params)
    if name.startswith("reduce"):
        return Problem(name, (operand(rng, shape, pick(rng, ("bool", *REALS)), ("few", "special", "ends", "normal")),), params)
    dtype = pick(rng, FLOATS)
    deciding = operand(rng, shape, dtype if rng.integers(3) else pick(rng, REALS), ("few", "special", "normal"))
    counts = window_counts(
        shape, *(params[k] for k in ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation"))
    )
    moved = operand(rng, shape if name == "select_and_gather_add" else counts, dtype)
    return Problem(name, (moved, deciding), {**params, "select": pick(rng, ["ge", "le"])})


def _indexing(rng: Rng, room: int) -> tuple[Shape, Shape, GatherDimensionNumbers, Shape, Shape]:
    """Return the shapes of an operand and of indices, dimension numbers, window sizes, and the windows' shape among the batch."""
    rank, batch_rank = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    shape = shape_of(rng, rank, room)
    dims = rng.permutation(rank).tolist()
    addressed = tuple(dims[: int(rng.integers(0, rank + 1))])
    stepping = [d for d in sorted(set(range(rank)) - set(addressed)) if batch_rank and not rng.integers(3)][:batch_rank]
    sizes = tuple(
        1 if d in stepping or (d in addressed and rng.integers(3)) else pick(rng, [n, n, max(n - 1, 0), n // 2, min(n, 2)])
        for d, n in enumerate(shape)
    )
    sizes = tuple(min(s, n) if d not in stepping else 1 for d, (s, n) in enumerate(zip(sizes, shape, strict=True)))
    collapsed = tuple(d for d in range(rank) if d not in stepping and sizes[d] == 1 and (rng.integers(4) or d in addressed))
    windows = rank - len(stepping) - len(collapsed)
    each = max(1, math.prod(sizes))
    batch = list(shape_of(rng, batch_rank, max(1, room // each)))
    for partner, d in enumerate(stepping):
        batch[partner] = shape[d]
    offsets = tuple(sorted(rng.permutation(windows + batch_rank).tolist()[:windows]))
    numbers = GatherDimensionNumbers(offsets, collapsed, addressed, tuple(stepping), tuple(range(len(stepping))))
    inner = [s for d, s in enumerate(sizes) if d not in collapsed and d not in stepping]
    rest, result = iter(batch), [0] * (windows + batch_rank)
    for position in range(len(result)):
        result[position] = inner[offsets.index(position)] if position in offsets else next(rest)
    return shape, (*batch, len(addressed)), numbers, sizes, tuple(result)


def _indices(rng: Rng, shape: Shape, addressed: Sequence[int], of: Shape) -> Operand:
    """Indices inside, around the ends, or anywhere."""
    longest = max([of[d] for d in addressed], default=1)
    low, high = pick(rng, [(0, max(0, longest - 1)), (-3, longest + 2), (-2 * longest - 1, 2 * longest + 1), (-(1 << 62), 1 << 62), (0, 1)])
    return Operand(shape, pick(rng, ["int32", "int32", *INTEGERS]), "indices", int(rng.integers(1 << 16)), low, high)


def gathers(rng: Rng, room: int) -> Problem:
    """Return a gather, in every mode."""
    shape, indices, numbers, sizes, _ = _indexing(rng, room)
    dtype = pick(rng, (*ALL, *STORAGE))
    fill = pick(rng, [None, None, 0, 1])
    some = operand(rng, shape, dtype, ("ends", "normal")), _indices(rng, indices, numbers.start_index_map, shape)
    mode = pick(rng, _MODES)
    name = "gather"
    if len(numbers.start_index_map) == 1 and rng.integers(2):  # negative indices count from the end
        name, some = "wrapped_gather", (some[0], some[1]._replace(dtype="int32"))
    return Problem(name, some, {"dimension_numbers": numbers, "slice_sizes": sizes, "mode": mode, "fill_value": fill})


def scatters(rng: Rng, room: int) -> Problem:
    """Return a scatter of any kind, with indices that are equal, negative and out of range."""
    shape, indices, n, _, updates = _indexing(rng, room)
    name = pick(rng, ["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"])
    dtype = pick(rng, {"scatter": (*ALL, *STORAGE), "scatter_add": ALL[1:], "scatter_mul": ALL[1:]}.get(name, REALS))
    kinds = {"scatter": ("ends", "normal"), "scatter_add": ("small", "normal", "special"), "scatter_mul": ("signs", "near")}
    numbers = ScatterDimensionNumbers(
        n.offset_dims, n.collapsed_slice_dims, n.start_index_map, n.operand_batching_dims, n.start_indices_batching_dims
    )
    some = (
        operand(rng, shape, dtype, kinds.get(name, ("few", "special", "ends"))),
        _indices(rng, indices, n.start_index_map, shape),
        operand(rng, updates, dtype, kinds.get(name, ("few", "special", "ends"))),
    )
    unique = False
    if len(n.start_index_map) == 1 and not n.operand_batching_dims and _is_row(shape, n, updates, indices) and rng.integers(2):
        unique, count = True, math.prod(indices[:-1])  # different ones, of which some may be out of range
        some = (some[0], Operand(indices, "int32", "different", some[1].seed, 0, max(count, shape[n.start_index_map[0]])), some[2])
    elif name == "scatter_add" and len(n.start_index_map) == 1 and rng.integers(2):
        name, some = "wrapped_scatter_add", (some[0], some[1]._replace(dtype="int32"), some[2])
    return Problem(
        name, some, {"dimension_numbers": numbers, "mode": pick(rng, _MODES if not unique else _MODES[1:]), "unique_indices": unique}
    )


def _is_row(shape: Shape, n: GatherDimensionNumbers, updates: Shape, indices: Shape) -> bool:
    """Return True if windows are one element long along the dimension that indices address."""
    return n.start_index_map[0] in n.collapsed_slice_dims and len(indices) > 1


def dynamic_slices(rng: Rng, room: int) -> Problem:
    """Return a problem that reads or replaces a block."""
    shape = shape_of(rng, int(rng.integers(1, 5)), room)
    sizes = tuple(pick(rng, [n, n // 2, min(n, 1), max(n - 1, 0), min(n, 17)]) for n in shape)
    dtype, index = pick(rng, (*ALL, *STORAGE)), pick(rng, INTEGERS)
    starts = tuple(
        [
            Operand((), index, "indices", int(rng.integers(1 << 16)), *pick(rng, [(0, n), (-n - 2, 2 * n + 2), (-(1 << 62), 1 << 62)]))
            for n in shape
        ]
    )
    first = operand(rng, shape, dtype, ("ends", "normal"))
    if rng.integers(2):
        return Problem("dynamic_slice", (first, *starts), {"slice_sizes": sizes})
    return Problem("dynamic_update_slice", (first, operand(rng, sizes, dtype, ("ends", "normal")), *starts), {})


def products(rng: Rng, room: int) -> Problem:
    """Return a product: axes of both operands in any order, batch axes of any size, several contracted and free ones."""
    dtype = pick(rng, ("bool", *ALL))
    counts = [pick(rng, options) for options in ([0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 1, 2], [0, 1, 1, 1, 2])]
    batch, left, right = ([size_of(rng, 9) for _ in range(c)] for c in counts[:3])
    work = max(1, min(room, 1 << 18))
    inner = list(shape_of(rng, counts[3], max(1, work // 16)))
    if left and rng.integers(2):
        left[0] = size_of(rng, 257)
    if right and rng.integers(2):
        right[0] = size_of(rng, 257 if math.prod(inner) < 512 else 17)
    while math.prod(batch) * math.prod(inner) * max(math.prod(left), 1) * max(math.prod(right), 1) > 1 << 23:
        largest = max((left, right, inner), key=lambda x: max(x, default=0))
        largest[largest.index(max(largest))] //= 2

    def laid(free: Sequence[int]) -> tuple[Shape, list[int]]:
        sizes = [*batch, *free, *inner]
        order = rng.permutation(len(sizes)).tolist() if rng.integers(2) else list(range(len(sizes)))
        place = [order.index(i) for i in range(len(sizes))]
        return tuple(sizes[i] for i in order), place

    (lhs, at), (rhs, to) = laid(left), laid(right)
    b, k = len(batch), len(inner)
    dims = (tuple(at[b + len(left) :]), tuple(to[b + len(right) :])), (tuple(at[:b]), tuple(to[:b]))
    assert len(dims[0][0]) == k
    wider = {"int8": "int32", "uint8": "int32", "float16": "float32", "bfloat16": "float32", "int16": "int32", "float32": "float64"}
    # Sums of bytes are mostly in int32, for which there are instructions.
    preferred = np.dtype(wider[dtype]) if dtype in wider and (not rng.integers(4) or "int8" in dtype) else None
    kinds = ("small", "normal") if rng.integers(8) else ("special",)
    return Problem(
        "dot_general",
        (operand(rng, lhs, dtype, kinds), operand(rng, rhs, dtype, kinds)),
        {"dimension_numbers": dims, "preferred_element_type": preferred},
    )


def quantized_products(rng: Rng, room: int) -> Problem:
    """Return a product of few rows with a quantised matrix: groups of all sizes that layers have, and one for a whole row."""
    scheme, lead = pick(rng, list(CODES)), pick(rng, [(), (), (), (2,)])
    size = pick(rng, [1, 5, 31, 32, 33, 64, 70, 96, 100, 127, 128, 160, 256, 300, 576, 1000])
    group = pick(rng, [size, *[n for n in (16, BLOCK, 64, 96, 128, 256) if n < size and (scheme in ("int8", "fp8") or n % BLOCK == 0)]])
    layout = QuantizedLayout(scheme, size, group)
    rows = pick(rng, [1, 1, 1, 2, 3, 4, 5, 8, 9, 17, 32])
    outputs = int(rng.integers(1, 1 + max(1, min(room, 1 << 16) // (size * rows))))
    floats = ("float16", "bfloat16", "float32")
    by_group = (*lead, outputs, layout.groups)
    return Problem(
        "quantized_dot",
        (
            operand(rng, (*lead, rows, size), pick(rng, floats)),
            operand(rng, (*lead, outputs, layout.width), CODES[scheme].name, ("normal",)),
            *[operand(rng, by_group, pick(rng, floats)) for _ in range(1 + int(rng.integers(2)))],
        ),
        {"layout": layout, "transposed": False},
    )


def convolutions(rng: Rng, room: int) -> Problem:
    """Return a convolution of any form, of which some are those of layers and of their gradients."""
    while True:
        rank = pick(rng, [0, 1, 2, 2, 2, 2, 3])
        rare, side = [1, 1, 1, 2, 3], pick(rng, [5, 9, 17, 33])
        square = rank == 2 and rng.integers(2)
        sizes = tuple(int(rng.integers(1, side + 1)) for _ in range(rank))
        taps = (int(rng.integers(1, 8)),) * rank if square else tuple(int(rng.integers(1, 5)) for _ in range(rank))
        if rng.integers(8) == 0:  # as in a gradient by the weights
            taps = tuple(max(1, n - int(rng.integers(0, 3))) for n in sizes)
        plain = square and rng.integers(2)
        strides, bases, dilations = (tuple(1 if plain else pick(rng, rare) for _ in range(rank)) for _ in range(3))
        padding = tuple((int(rng.integers(-1, 4)), int(rng.integers(-1, 4))) for _ in range(rank))
        grouped = pick(rng, ["feature_group_count", "batch_group_count", None, None])
        groups = int(rng.integers(2, 5)) if grouped else 1
        channels, outputs = pick(rng, [1, 2, 3, 4, 8, 16, 17, 33]), pick(rng, [1, 2, 3, 4, 8, 15, 16, 17, 33])
        if grouped == "feature_group_count" and not rng.integers(3):  # depthwise
            channels, outputs, groups = 1, pick(rng, [1, 1, 2]), pick(rng, [3, 8, 16, 17])
        cut = [(n - 1) * b + 1 + min(lo, 0) + min(hi, 0) for n, b, (lo, hi) in zip(sizes, bases, padding, strict=True)]
        if any(n < 0 for n in cut):
            continue
        positions = window_counts(sizes, taps, strides, padding, bases, dilations)
        images = pick(rng, [1, 2, 3, 8])
        if 0 in positions or math.prod(positions) * math.prod(taps) * channels * outputs * images * groups > 1 << 22:
            continue
        orders = [tuple(range(rank + 2)), (0, rank + 1, *range(1, rank + 1)), tuple(rng.permutation(rank + 2).tolist())]
        numbers = (pick(rng, orders), pick(rng, orders), pick(rng, orders))
        batch = images * (groups if grouped == "batch_group_count" else 1)
        inputs = channels * (groups if grouped == "feature_group_count" else 1)
        lhs, rhs = _placed((batch, inputs, *sizes), numbers[0]), _placed((outputs * groups, channels, *taps), numbers[1])
        dtype = pick(rng, ("float32", "float32", *FLOATS, "int32", "int8", "complex64"))
        params = {
            "window_strides": strides, "padding": padding, "lhs_dilation": bases, "rhs_dilation": dilations,
            "feature_group_count": 1, "batch_group_count": 1, "preferred_element_type": None, "dimension_numbers": numbers,
            **({grouped: groups} if grouped else {}),
        }  # fmt: skip
        return Problem("conv_general_dilated", (operand(rng, lhs, dtype), operand(rng, rhs, dtype)), params)


def _placed(sizes: Shape, spec: Shape) -> Shape:
    return tuple([size for _, size in sorted(zip(spec, sizes, strict=True))])


def transforms(rng: Rng, room: int) -> Problem:
    """Return a Fourier transform along an axis."""
    kind = pick(rng, ["FFT", "IFFT", "RFFT", "IRFFT"])
    length = pick(
        rng, [n for n in (*SIZES[1:], 6, 12, 30, 35, 60, 97, 120, 211, 360, 1000, 1155, 2048, 8192, 34 * 127) if n <= max(2, room)]
    )
    shape = list(shape_of(rng, int(rng.integers(1, 4)), max(1, room // length)))
    axis = int(rng.integers(len(shape)))
    shape[axis] = length // 2 + 1 if kind == "IRFFT" else length
    wide = bool(rng.integers(2))
    dtype = ("float64" if wide else "float32") if kind == "RFFT" else ("complex128" if wide else "complex64")
    return Problem("fft", (operand(rng, tuple(shape), dtype, ("normal",)),), {"kind": kind, "length": int(length), "axis": axis})


def factorisations(rng: Rng, room: int) -> Problem:
    """Return a factorisation, or a triangular solve."""
    name = pick(rng, ["cholesky", "cholesky_panel", "triangular_solve", "lu", "qr", "eigh", "svd"])
    most = min(room, 1 << 14)
    n = pick(rng, [k for k in (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100) if k * k <= most])
    m = pick(rng, [n, n, max(1, n // 2), n + 1, min(2 * n + 1, 129)])
    stack = shape_of(rng, int(rng.integers(0, 3)), max(1, most // max(1, m * n)))
    dtype = pick(rng, ["float32", "float64", "complex64", "complex128"])
    seed = int(rng.integers(1 << 16))
    if name == "cholesky_panel":
        return Problem(name, (Operand((*stack, n, n), dtype, "definite", seed),), {"width": int(rng.integers(min(n, 64) + 1))})
    if name in ("cholesky", "eigh"):
        params: dict[str, Any] = {} if name == "cholesky" else {"lower": bool(rng.integers(2)), "sort_eigenvalues": True}
        return Problem(name, (Operand((*stack, n, n), dtype, "definite", seed),), params)
    if name == "triangular_solve":
        flags = {key: bool(rng.integers(2)) for key in ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")}
        right = (n, m) if flags["left_side"] else (m, n)
        return Problem(name, (Operand((*stack, n, n), dtype, "regular", seed), operand(rng, (*stack, *right), dtype)), flags)
    flags = {"full_matrices": bool(rng.integers(2)), "compute_q" if name == "qr" else "compute_uv": bool(rng.integers(2))}
    params = {} if name == "lu" else flags
    return Problem(name, (operand(rng, (*stack, m, n), dtype, ("normal",)),), params)


def paddings(rng: Rng, room: int) -> Problem:
    """Return a padding, between elements, too, and by less than nothing."""
    while True:
        shape = shape_of(rng, int(rng.integers(1, 5)), room // 4)
        config = tuple([(int(rng.integers(-2, 4)), int(rng.integers(-2, 4)), pick(rng, [0, 0, 1, 2])) for _ in shape])
        if all(lo + hi + max(n + (n - 1) * between, 0) >= 0 for n, (lo, hi, between) in zip(shape, config, strict=True)):
            dtype = pick(rng, (*ALL, *STORAGE))
            return Problem("pad", (operand(rng, shape, dtype, ("ends", "normal")), operand(rng, (), dtype)), {"padding_config": config})


#: Arrays of attention: (batch, heads, rows, features), and (batch, rows, heads, features).
_LAYOUTS = Axes((0, 1), 2, 3), Axes((0, 2), 1, 3)


def attention(rng: Rng, room: int) -> Problem:
    """Attention, or its gradient."""
    batch, groups, shared = int(rng.integers(1, 3)), int(rng.integers(1, 3)), pick(rng, [1, 1, 2, 3])
    t, s = (pick(rng, [1, 2, 5, 15, 16, 17, 31, 33, 64, 65, 100, 129]) for _ in range(2))
    width, v_width = pick(rng, [1, 3, 4, 8, 16, 17, 33, 64, 100, 128]), pick(rng, [1, 2, 4, 16, 20, 64, 72, 128])
    dtype = pick(rng, ["float32", "float32", "float16", "bfloat16"])
    form = Form(
        *(pick(rng, _LAYOUTS) for _ in range(4)),
        width**-0.5,
        -0.7 * float(np.finfo(np.float32).max),
        Window(*(pick(rng, [None, None, 0, 1, 7, 40]) for _ in range(2))),
        pick(rng, [0.0, 0.0, 2.0]),
        bool(rng.integers(2)),
        int(rng.integers(3)),
    )

    def rows(axes: Axes, heads: int, count: int, features: int) -> Operand:
        sizes = (batch, heads, count, features)
        return operand(rng, tuple([sizes[i] for i in axes.inverse]), dtype, ("normal",))

    some = [rows(form.q, groups * shared, t, width), rows(form.k, groups, s, width), rows(form.v, groups, s, v_width)]
    for kind in ["float32"] * form.biased + ["bool"] * form.masks:
        shape = (pick(rng, [1, batch]), pick(rng, [1, groups * shared]), pick(rng, [1, t]), pick(rng, [1, s, s]))
        some.append(operand(rng, shape, kind, ("normal",)) if kind == "float32" else operand(rng, shape, kind))
    if rng.integers(2):
        return Problem("attention_routine", tuple(some), {"form": form._replace(cotangent=None)})
    assert form.cotangent is not None
    return Problem(
        "attention_gradient_routine",
        (*some, rows(form.cotangent, groups * shared, t, v_width)),
        {"form": form._replace(to_bias=form.biased and bool(rng.integers(2)))},
    )


def condensed(rng: Rng, room: int) -> Problem:
    """Return a reduction to a condensed form, general eigenvalues, or what goes with them."""
    name = pick(rng, ["eig", "hessenberg", "schur", "tridiagonal", "householder_product", "tridiagonal_solve"])
    n = pick(rng, [k for k in (0, 1, 2, 3, 4, 5, 8, 17, 33, 65, 100) if k * k <= room])
    stack = shape_of(rng, int(rng.integers(0, 3)), max(1, min(room, 1 << 13) // max(1, n * n)))
    dtype, seed = pick(rng, ["float32", "float64", "complex64", "complex128"]), int(rng.integers(1 << 16))
    square = Operand((*stack, n, n), dtype, "normal", seed)
    if name == "tridiagonal_solve":
        lower, upper = (Operand((*stack, n), dtype, "near", seed + k) for k in (1, 2))
        diagonal = Operand((*stack, n), dtype, "large", seed)
        return Problem(name, (lower, diagonal, upper, operand(rng, (*stack, n, size_of(rng, 9)), dtype)), {})
    if name == "householder_product":
        m = n + int(rng.integers(0, 4))
        return Problem(
            name, (Operand((*stack, m, n), dtype, "normal", seed), Operand((*stack, int(rng.integers(0, n + 1))), dtype, "small", seed)), {}
        )
    if name == "tridiagonal":
        return Problem(name, (square._replace(kind="definite"),), {"lower": bool(rng.integers(2))})
    return Problem(name, (square,), {} if name == "hessenberg" else {"compute_vectors": bool(rng.integers(2))})


#: What draws the problems of a kind.
FAMILIES: dict[str, Callable[[Rng, int], Problem]] = {
    "cumulative": cumulative, "sort": sorts, "top_k": top_k, "window": windows, "gather": gathers, "scatter": scatters,
    "dynamic_slice": dynamic_slices, "product": products, "convolution": convolutions, "fourier": transforms, "linalg": factorisations,
    "condensed": condensed, "attention": attention, "pad": paddings, "quantized": quantized_products,
}  # fmt: skip
#: Those of a target: the others are kernels there, or products.
FAMILIES_OF = {
    "cpu": tuple(f for f in FAMILIES if f != "pad"),
    "wgsl": tuple(f for f in FAMILIES if f not in ("fourier", "condensed", "quantized")),
}
