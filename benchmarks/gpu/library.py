"""Compare sorts, scans and the like: `python -m benchmarks.gpu.library`.

Sorts, scans, gathers, scatters and factorisations, in WGSL and on CUDA. Each result is first compared with the primitive's NumPy
evaluation. Times are the device's, without the host's. ``--dispatches`` also shows the time of every dispatch.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu import peers
from benchmarks.gpu.bench import WAKING, Bench
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, evaluation_rules
from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from volta_fn.targets.wgsl.library import ROUTINES
from volta_fn.targets.wgsl.routine import Routine

_ROWS = GatherDimensionNumbers((1,), (0,), (0,))

#: What begins PyTorch's counterpart, given the library and the operands on its device.
Peer = Callable[[Any, Sequence[Any]], Any]


class Case(NamedTuple):
    """A call of a primitive."""

    name: str
    primitive: str
    operands: tuple[np.ndarray, ...]
    params: dict[str, Any]
    peer: Peer


def cases(least: int) -> Iterator[Case]:
    """Return all calls; sizes are divided by `least`."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    for size in (2**20 // least, 2**24 // least):
        x = floats(size)
        plain = {"dimension": 0, "is_stable": True, "num_keys": 1}
        yield Case(f"sort {size}", "sort", (x,), plain, lambda t, x: t.sort(x[0], stable=True))
        numbers = np.arange(size, dtype=np.int32)
        yield Case(f"argsort {size}", "sort", (x, numbers), plain, lambda t, x: t.argsort(x[0], stable=True))
        yield Case(f"top_k 64 of {size}", "top_k", (x,), {"k": 64, "dimension": 0}, lambda t, x: t.topk(x[0], 64))
    rows = floats(4096 // least, 1024)
    yield Case(f"sort {rows.shape}", "sort", (rows,), {**plain, "dimension": 1}, lambda t, x: t.sort(x[0], 1))
    numbers = np.tile(np.arange(1024, dtype=np.int32), (len(rows), 1))
    yield Case(f"argsort {rows.shape}", "sort", (rows, numbers), {**plain, "dimension": 1}, lambda t, x: t.sort(x[0], dim=1, stable=True))
    wide = floats(1024 // least, 50_000)
    yield Case(f"top_k 50 of {wide.shape}", "top_k", (wide,), {"k": 50, "dimension": 1}, lambda t, x: t.topk(x[0], 50, 1))
    for size in (2**20 // least, 2**26 // least):
        yield Case(f"cumsum {size}", "cumsum", (floats(size),), {"axis": 0, "reverse": False}, lambda t, x: t.cumsum(x[0], 0))
    square = floats(8192 // least, 2048)
    for axis in (0, 1):
        params = {"axis": axis, "reverse": False}
        yield Case(f"cumsum {square.shape} axis {axis}", "cumsum", (square,), params, functools.partial(_cumsum, axis))
    yield from _tables(rng, floats, least)
    yield from _windows(floats, least)
    yield from _matrices(floats, least)


def _cumsum(axis: int, t: Any, x: Any) -> Any:
    return t.cumsum(x[0], axis)


def _tables(rng: np.random.Generator, floats: Callable[..., np.ndarray], least: int) -> Iterator[Case]:
    for vocabulary, width, tokens in ((32768 // least, 256, 16384 // least), (50304 // least, 768, 65536 // least)):
        table, new = floats(vocabulary, width), floats(tokens, width)
        # Words are as frequent as words are.
        drawn = np.minimum(rng.zipf(1.2, tokens) - 1, vocabulary - 1).astype(np.int32)[:, None]
        how = {"dimension_numbers": _ROWS, "slice_sizes": (1, width), "mode": GatherScatterMode.CLIP, "fill_value": None}
        name = f"{tokens} of ({vocabulary}, {width})"
        yield Case(f"gather {name}", "gather", (table, drawn), how, lambda t, x: x[0][x[1][:, 0]])
        into = {"dimension_numbers": ScatterDimensionNumbers(*_ROWS), "mode": GatherScatterMode.CLIP, "unique_indices": False}
        zeros = np.zeros_like(table)
        add: Peer = lambda t, x: t.zeros_like(x[0]).index_add_(0, x[1][:, 0], x[2])
        yield Case(f"scatter_add {name}", "scatter_add", (zeros, drawn, new), into, add)
        put: Peer = lambda t, x: x[0].clone().index_copy_(0, x[1][:, 0].long(), x[2])
        order = rng.permutation(vocabulary)[:tokens].astype(np.int32)[:, None]
        yield Case(f"scatter {name}", "scatter", (table, order, new[: len(order)]), into, put)
    bins, counts = np.zeros(1000, np.int32), rng.integers(0, 1000, (2**22 // least, 1)).astype(np.int32)
    ones = np.ones(len(counts), np.int32)
    scalars = {"dimension_numbers": ScatterDimensionNumbers((), (0,), (0,)), "mode": GatherScatterMode.CLIP, "unique_indices": False}
    yield Case("histogram of 4M", "scatter_add", (bins, counts, ones), scalars, lambda t, x: t.bincount(x[1][:, 0], minlength=1000))


def _windows(floats: Callable[..., np.ndarray], least: int) -> Iterator[Case]:
    x = floats(64 // least or 1, 64, 112, 112)
    one = (1, 1, 1, 1)
    params = {"window_dimensions": (1, 1, 3, 3), "window_strides": (1, 1, 2, 2), "padding": ((0, 0), (0, 0), (1, 1), (1, 1))}
    geometry = params | {"base_dilation": one, "window_dilation": one}
    pool: Peer = lambda t, x: t.nn.functional.max_pool2d(x[0], 3, 2, 1)
    yield Case(f"max pool 3×3 {x.shape}", "reduce_window_max", (x,), geometry, pool)
    y = floats(x.shape[0], 64, 56, 56)

    def back(t: Any, arguments: Sequence[Any]) -> Any:
        _, where = t.nn.functional.max_pool2d(arguments[1], 3, 2, 1, return_indices=True)
        return t.ops.aten.max_pool2d_with_indices_backward(arguments[0], arguments[1], [3, 3], [2, 2], [1, 1], [1, 1], False, where)

    yield Case(f"its gradient {x.shape}", "select_and_scatter_add", (y, x), geometry | {"select": "ge"}, back)


def _matrices(floats: Callable[..., np.ndarray], least: int) -> Iterator[Case]:
    for count, size in ((256 // least, 32), (1, 256 // least), (16, 256 // least)):
        a = floats(count, size, size)
        positive = a @ a.swapaxes(1, 2) + size * np.eye(size, dtype=np.float32)
        name = f"{count} of {size}×{size}"
        yield Case(f"lu {name}", "lu", (a,), {}, lambda t, x: t.linalg.lu_factor(x[0]))
        yield Case(f"qr {name}", "qr", (a,), {"full_matrices": False, "compute_q": True}, lambda t, x: t.linalg.qr(x[0]))
        symmetric = {"lower": True, "sort_eigenvalues": True}
        yield Case(f"eigh {name}", "eigh", (positive,), symmetric, lambda t, x: t.linalg.eigh(x[0]))
        both = {"full_matrices": False, "compute_uv": True}
        yield Case(f"svd {name}", "svd", (a,), both, lambda t, x: t.linalg.svd(x[0], full_matrices=False))


#: What is determined but for signs, or in the last digits: only the result with this number is compared.
_COMPARED = {"eigh": 1, "svd": 0}


def is_right(case: Case, bench: Bench, buffers: Sequence[Any]) -> bool:
    """Return True if the results are what the primitive means in NumPy."""
    actual = evaluation_rules[PRIMITIVES[case.primitive]](*case.operands, **case.params)
    expected = [np.asarray(x) for x in (actual if isinstance(actual, tuple) else (actual,))]
    if case.primitive in _COMPARED:
        chosen = _COMPARED[case.primitive]
        pairs = [(buffers[chosen], expected[chosen])]
    else:
        pairs = list(zip(buffers, expected, strict=False))
    for buffer, wanted in pairs:
        got = bench.get(buffer, wanted.dtype, wanted.shape)
        scale = np.abs(wanted.astype(np.float64)).max(initial=1.0)
        if not np.allclose(got, wanted, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
            return False
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.library", description=__doc__.split("\n")[0])
    parser.add_argument("--only", metavar="PATTERN", default="", help="a regular expression: only what has it in its name")
    parser.add_argument("--dispatches", action="store_true", help="also time each dispatch")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether everything runs")
    options = parser.parse_args(arguments)
    bench = Bench()
    print(f"{bench.name}; microseconds here, in PyTorch, and PyTorch / here", flush=True)
    for case in cases(64 if options.quick else 1):
        if re.search(options.only, case.name):
            print(_table_row(case, bench, options.dispatches), flush=True)


def _table_row(case: Case, bench: Bench, dispatches: bool) -> str:
    avals = tuple([ShapedArray(x.shape, x.dtype) for x in case.operands])
    routine = ROUTINES[case.primitive](avals, case.params, bench.capabilities)
    if routine is None:
        return f"{case.name:>40} none"
    sizes = _result_sizes(case, avals)
    operands = [bench.put(x) for x in case.operands]
    results = [bench.room(size) for size in sizes]
    buffers = [*operands, *results, *[bench.room(size) for size in routine.workspaces]]
    bench.run(routine, buffers)
    right = "" if is_right(case, bench, results) else "  NOT NUMPY'S RESULT"
    ours, theirs = bench.seconds(routine, buffers, wake=WAKING), _peer_seconds(case)
    row = f"{case.name:>40} {ours * 1e6:10.1f} {theirs * 1e6:10.1f} {theirs / ours:6.2f}  {len(routine.dispatches)} dispatches{right}"
    if dispatches:
        each = [bench.seconds(Routine((d,), routine.workspaces), buffers) for d in routine.dispatches]
        row += "\n" + " " * 42 + " ".join(f"{seconds * 1e6:.1f}" for seconds in each)
    return row


def _result_sizes(case: Case, avals: tuple[ShapedArray, ...]) -> list[int]:
    avals_out = PRIMITIVES[case.primitive].result_avals(avals, case.params)
    return [max(4, x.size * x.dtype.itemsize) for x in (avals_out if isinstance(avals_out, tuple) else (avals_out,))]


def _peer_seconds(case: Case) -> float:
    library = peers.torch()
    if library is None:
        return float("nan")
    operands = [library.from_numpy(np.ascontiguousarray(x)).cuda() for x in case.operands]
    try:
        return peers.seconds(lambda: case.peer(library, operands))
    except RuntimeError as error:  # cuSOLVER refuses to work on some systems
        print(f"{case.name:>40} PyTorch fails: {str(error).splitlines()[0][:80]}")
        return float("nan")


if __name__ == "__main__":
    main()
