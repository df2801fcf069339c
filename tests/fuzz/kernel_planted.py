"""Faults planted in the code generators, each with a kernel that shows it; `python -m tests.fuzz kernel_planted` looks for such kernels.

Each is a mistake of a kind that compilers make. A check of kernels that finds none of them is worth nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.fuzz.kernel_drawing import drawn
from tests.fuzz.kernels import attempted, machine_of
from volta_fn.compiler.contractions import accumulators, contraction_of
from volta_fn.compiler.ir.axes import overwritable
from volta_fn.compiler.ir.index import Range
from volta_fn.compiler.ir.kernel import Constant, Kernel
from volta_fn.lazy_imports import load
from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.cpu.loops import emit_values, rows, schedule
from volta_fn.targets.cpu.matmul import epilogues, gemm
from volta_fn.targets.cpu.scalars import number as memory
from volta_fn.targets.cpu.target import CpuTarget
from volta_fn.targets.wgsl import routine
from volta_fn.targets.wgsl.loops import emit_values as linear_index
from volta_fn.targets.wgsl.loops import rows as squares

#: Modules whose packages have functions of their names.
_MACHINE_CODE = load("volta_fn.targets.cpu.loops.routine")
_SHADERS = load("volta_fn.targets.wgsl.loops.routine")

#: Seeds among which a fault is looked for.
_SEEDS = 600

Planting = AbstractContextManager[Any]


def _dropped_axis() -> Planting:
    """Rows are numbered along all axes but the first."""
    real = _MACHINE_CODE.rows_in

    def rows_in(scope: Any, axes: tuple[int, ...], number: Value) -> Any:
        return real(scope, axes, number) if len(axes) < 2 else real(scope, axes, number).child({axes[0]: i64(0)})

    return patch.object(_MACHINE_CODE, "rows_in", rows_in)


def _early_overwrite() -> Planting:
    """Let a result lie in the memory of an operand that is read elsewhere, too."""

    def overwritable_inputs(target: Any, kernel: Any, output: int) -> list[int]:
        result = kernel.outputs[output]
        return [i for i, b in enumerate(kernel.inputs) if (b.size, b.dtype) == (result.size, result.dtype)]

    return patch.object(CpuTarget, "overwritable_inputs", overwritable_inputs)


def _placed_as_a_product() -> Planting:
    """Let a result lie where a product's routine could store it, in a kernel that is a product, whatever routine it gets."""

    def overwritable_inputs(target: Any, kernel: Any, output: int) -> tuple[int, ...]:
        return accumulators(kernel, output) if contraction_of(kernel) is not None else overwritable(kernel, output)

    return patch.object(CpuTarget, "overwritable_inputs", overwritable_inputs)


def _whole_last_vector() -> Planting:
    """Store the last vector of an axis in full."""
    real = emit_values.VectorAxis
    return patch.object(rows, "VectorAxis", lambda axis, lanes, valid=None: real(axis, lanes, None))


def _lost_remainder() -> Planting:
    """Give the last chunk of an axis no task if it is smaller than the others."""
    return patch.object(schedule.Grid, "chunks", property(lambda grid: max(1, grid.size // grid.chunk)))


def _wrong_mask() -> Planting:
    """Let a constant mask have a lane too few."""
    real = memory.first_of
    return patch.object(memory, "first_of", lambda count, lanes: real(max(count - 1, 1), lanes))


def _wrong_segment() -> Planting:
    """Let a condition hold for one index more than it should."""
    real = Range.interval

    def interval(condition: Range, size: int) -> tuple[int, int]:
        low, high = real(condition, size)
        return low, min(high + 1, size)

    return patch.object(Range, "interval", interval)


def _wrong_identity() -> Planting:
    """Minima begin at zero."""
    real = rows.Accumulator.start

    def start(self: Any, lanes: int) -> Any:
        if self.node.op != "reduce_min":
            return real(self, lanes)
        return rows.constant(self.f, Constant.of(0, self.dtype).value, lanes).components

    return patch.object(rows.Accumulator, "start", start)


def _unordered_extremes() -> Planting:
    """Take the last of equal extremes where rows are transposed."""
    real = rows.Accumulator
    return patch.object(rows, "Accumulator", lambda node, dtype, f, ordered: real(node, dtype, f))


def _not_reversed() -> Planting:
    """Leave a vector that is read backwards as it is."""
    real = memory.shuffled

    def shuffled(f: Any, x: Any, order: Sequence[int], other: Any = None) -> Any:
        return x if other is None and x.lanes > 1 and [*order] == [*range(x.lanes)][::-1] else real(f, x, order, other)

    return patch.object(memory, "shuffled", shuffled)


def _vector_for_one() -> Planting:
    """Let all lanes store what they share."""
    real = emit_values.shuffled
    return patch.object(emit_values, "shuffled", lambda f, x, order: x if [*order] == [0] else real(f, x, order))


def _wrong_strip() -> Planting:
    """Let an epilogue read the sums of the next column."""
    real = epilogues.FusedEpilogue._base

    def base(self: Any, f: Any, strip: Any) -> Value:
        return real(self, f, strip._replace(column=f.plus(strip.column, i64(-1))))

    return patch.object(epilogues.FusedEpilogue, "_base", base)


def _short_block() -> Planting:
    """Drop the last term of a block of a sum that has several."""
    real = gemm.Gemm._block

    def block(self: Any, f: Any, number: Value) -> tuple[Value, Value]:
        first, depth = real(self, f, number)
        return first, f.binary("sub", depth, i64(int(self.blocking.blocks > 1)))

    return patch.object(gemm.Gemm, "_block", block)


def _first_partial_result() -> Planting:
    """Add up the first chunk's partial results only."""
    real = _MACHINE_CODE.SplitReduction.chunk_result

    def chunk_result(self: Any, dtype: Any, number: int) -> Any:
        load = real(self, dtype, number)
        return type(load)(load.dtype, load.input, load.shape, (load.index[0].times(0), load.index[1]), (), load.fill)

    return patch.object(_MACHINE_CODE.SplitReduction, "chunk_result", chunk_result)


def _turned_interleaving() -> Planting:
    """Interleaved results begin with the second."""
    real = _MACHINE_CODE._interleaved
    return patch.object(_MACHINE_CODE, "_interleaved", lambda f, vectors: real(f, [*vectors[1:], vectors[0]]))


def _short_tile() -> Planting:
    """Tiles of a transpose are taken for full."""
    return patch.object(_MACHINE_CODE.TransposeTiles, "is_full", lambda self, area: True)


def _rows_in_parts() -> Planting:
    """Take the elements of a row, each of which is computed from all of it, for rows of their own."""
    real = schedule.written_out

    def written_out(kernel: Kernel) -> Kernel | None:
        result = real(kernel)
        return None if result is None else replace(result, parallel=len(result.sizes))

    return patch.object(_MACHINE_CODE, "written_out", written_out)


def _missing_barrier() -> Planting:
    real = routine.Shader.emit
    return patch.object(routine.Shader, "emit", lambda self, text: None if text == "workgroupBarrier();" else real(self, text))


def _lost_lanes() -> Planting:
    """Lose the last group of lanes if it is not full."""
    real = linear_index.AxisSpan.lane_groups.fget  # type: ignore[attr-defined]
    return patch.object(linear_index.AxisSpan, "lane_groups", property(lambda span: max(1, real(span) - (span.total % span.lanes != 0))))


def _clamped_square() -> Planting:
    """Take the last but one row of a square for its last."""
    real = squares._Squares.within
    return patch.object(squares._Squares, "within", lambda self, number, count, axis: real(self, number, max(count - 1, 1), axis))


def _lost_stores() -> Planting:
    """Forget the last of several stores that are steps of their own."""
    real = _SHADERS.elementwise_steps
    return patch.object(_SHADERS, "elementwise_steps", lambda *args: real(*args)[:-1] or real(*args))


class Fault(NamedTuple):
    """A planted fault, and the seed of a kernel that shows it."""

    plant: Callable[[], Planting]
    seed: int
    gpu: bool = False


FAULTS = (
    Fault(_dropped_axis, 1),
    Fault(_early_overwrite, 21),
    Fault(_placed_as_a_product, 1071),
    Fault(_whole_last_vector, 0),
    Fault(_lost_remainder, 1),
    Fault(_wrong_mask, 0),
    Fault(_wrong_segment, 3),
    Fault(_wrong_identity, 0),
    Fault(_unordered_extremes, 52),
    Fault(_not_reversed, 37),
    Fault(_vector_for_one, 16),
    Fault(_wrong_strip, 14),
    Fault(_short_block, 499),
    Fault(_first_partial_result, 10),
    Fault(_turned_interleaving, 6),
    Fault(_short_tile, 60),
    Fault(_rows_in_parts, 12),
    Fault(_missing_barrier, 0, gpu=True),
    Fault(_lost_lanes, 2, gpu=True),
    Fault(_clamped_square, 35, gpu=True),
    Fault(_lost_stores, 2, gpu=True),
)


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Plant a fault; what was derived of kernels before is forgotten."""
    contraction_of.cache_clear()
    with fault.plant():
        yield
    contraction_of.cache_clear()


def shown(fault: Fault, seed: int) -> str:
    """Return what is wrong with a seed's kernel while a fault is planted, in a process of its own: it may crash."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        machine = machine_of(fault.gpu)
        kernel = drawn(seed, machine.supports)
        with planted(fault):
            os.write(writer, str(attempted(kernel, seed, machine) or "").encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as text:
        report = text.read()
    _, status = os.waitpid(process, 0)
    return f"ended by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--search", action="store_true", help="look for other kernels where those here show nothing")
    options = parser.parse_args(argv)
    missing = 0
    for fault in FAULTS:
        seeds = (fault.seed, *(range(_SEEDS) if options.search else ()))
        seed, report = next(((seed, text) for seed in seeds if (text := shown(fault, seed))), (None, "not found"))
        missing += seed is None
        print(f"{fault.plant.__name__.strip('_')}, seed {seed}: {report.partition(chr(10))[0].removeprefix('# ')}", flush=True)
    print(f"{len(FAULTS) - missing} of {len(FAULTS)} planted faults found")
    return bool(missing)
