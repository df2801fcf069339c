"""What kernels for TPUs are written with: memory, copies, pipelines.

There is one memory here, so that copies are done when they start, and pipelines are loops.
"""

from __future__ import annotations

import contextlib
import enum
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.refs import Ref, discharged, write_all
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.experimental.pallas.call import IndexMaps, trace_kernel
from volta_fn.experimental.pallas.call import TensorCoreMesh as TensorCoreMesh
from volta_fn.experimental.pallas.call import create_tensorcore_mesh as create_tensorcore_mesh
from volta_fn.experimental.pallas.grid import parallel_axes
from volta_fn.experimental.pallas.kernels import masked_read, masked_write, program_id
from volta_fn.experimental.pallas.kernels import semaphore_read as semaphore_read
from volta_fn.experimental.pallas.kernels import semaphore_signal as semaphore_signal
from volta_fn.experimental.pallas.kernels import semaphore_wait as semaphore_wait
from volta_fn.experimental.pallas.specs import CompilerParams as CompilerParamsBase
from volta_fn.experimental.pallas.specs import GridSpec
from volta_fn.experimental.pallas.specs import PrefetchScalarGridSpec as PrefetchScalarGridSpec
from volta_fn.experimental.pallas.specs import SemaphoreType as SemaphoreType
from volta_fn.experimental.pallas.specs import TpuMemorySpace as MemorySpace
from volta_fn.numpy.joining import concatenate as _concatenate
from volta_fn.numpy.shapes import roll as _roll
from volta_fn.primitives.array_operations.ref_views import RefView
from volta_fn.primitives.data_movement.movement import reshape, transpose

CMEM, SMEM, VMEM, VMEM_SHARED = MemorySpace.CMEM, MemorySpace.SMEM, MemorySpace.VMEM, MemorySpace.VMEM_SHARED
HBM, SEMAPHORE = MemorySpace.HBM, MemorySpace.SEMAPHORE


class GridDimensionSemantics(enum.Enum):
    """How steps along an axis of a grid depend on each other: found out here."""

    PARALLEL = "parallel"
    CORE_PARALLEL = "core_parallel"
    SUBCORE_PARALLEL = "subcore_parallel"
    ARBITRARY = "arbitrary"


PARALLEL, CORE_PARALLEL = GridDimensionSemantics.PARALLEL, GridDimensionSemantics.CORE_PARALLEL
SUBCORE_PARALLEL, ARBITRARY = GridDimensionSemantics.SUBCORE_PARALLEL, GridDimensionSemantics.ARBITRARY


class SideEffectType(enum.Enum):
    """Whether a kernel has effects, which is found out here."""

    PURE = "pure"
    DATAFLOW_SIDE_EFFECTING = "dataflow_side_effecting"
    SIDE_EFFECTING = "side_effecting"


@dataclass(frozen=True)
class TpuCompilerParams(CompilerParamsBase):
    """Parameters of the compiler for TPUs, which have no effect here."""

    dimension_semantics: Sequence[Any] | None = None
    allow_input_fusion: Sequence[bool] | None = None
    vmem_limit_bytes: int | None = None
    collective_id: int | None = None
    has_side_effects: Any = False
    flags: Mapping[str, Any] | None = None
    internal_scratch_in_bytes: int | None = None
    serialization_format: int = 1
    disable_bounds_checks: bool = False
    disable_semaphore_checks: bool = False
    skip_device_barrier: bool = False
    allow_collective_id_without_custom_barrier: bool = False
    shape_invariant_numerics: bool = True
    use_tc_tiling_on_sc: bool | None = None
    needs_layout_passes: bool = True
    fuse_transposed_lhs_in_matmul: bool = False


CompilerParams = TpuCompilerParams


@dataclass(frozen=True, kw_only=True)
class InterpretParams:
    """How JAX imitates a TPU, ``interpret=InterpretParams()``: no effect here."""

    detect_races: bool = False
    out_of_bounds_reads: Literal["raise", "uninitialized"] = "raise"
    skip_floating_point_ops: bool = False
    uninitialized_memory: Literal["nan", "zero"] = "nan"
    num_cores_or_threads: int = 1
    vector_clock_size: int | None = None
    logging_mode: Any = None
    dma_execution_mode: Literal["eager", "on_wait"] = "on_wait"
    random_seed: int | None = None
    grid_point_recorder: Callable[..., Any] | None = None
    allow_hbm_allocation_in_run_scoped: bool = False
    buffer_bounds: Literal["logical", "padded"] = "logical"


@contextlib.contextmanager
def force_tpu_interpret_mode(params: InterpretParams = InterpretParams()) -> Iterator[None]:
    """Do nothing: kernels run in the same way everywhere."""
    yield


def set_tpu_interpret_mode(params: InterpretParams = InterpretParams()) -> None:
    """Do nothing: kernels run in the same way everywhere."""


def reset_tpu_interpret_mode_state() -> None:
    """Do nothing: there is no state."""


def is_tpu_device() -> bool:
    """Return False."""
    return False


# Memory.


def load(ref: Ref | RefView, *, mask: Any = None) -> Array:
    """Return the elements of a reference or view; where not `mask`, any number."""
    return masked_read(ref)


def store(ref: Ref | RefView, val: Any, *, mask: Any = None) -> None:
    """Write elements where `mask` is True."""
    masked_write(ref, val, mask)


def with_memory_space_constraint(x: Any, memory_space: Any) -> Any:
    """Return `x`: there is one memory."""
    return x


def touch(ref: Ref | RefView) -> None:
    """Do nothing: what a kernel does not use is no error."""


def trace_value(label: str, value: Any) -> None:
    """Do nothing: there is no trace of a TPU."""


@dataclass(frozen=True)
class AsyncCopyDescriptor:
    """A copy from one reference to another, which is done when it starts."""

    src_ref: Any
    dst_ref: Any

    def start(self, priority: int = 0, *, add: bool = False) -> None:
        """Copy; with `add`, add to what is there."""
        value = self.src_ref[...]
        self.dst_ref[...] = self.dst_ref[...] + value if add else value

    def wait(self) -> None:
        """Do nothing: the copy is done."""

    wait_send = wait_recv = wait


def make_async_copy(src_ref: Any, dst_ref: Any, sem: Any) -> AsyncCopyDescriptor:
    """Return a copy that has not started.

    >>> from volta_fn.experimental.pallas import tpu as pltpu
    >>> one, other = vf.new_ref(vf.numpy.ones(2)), vf.new_ref(vf.numpy.zeros(2))
    >>> copy = pltpu.make_async_copy(one, other, None)
    >>> copy.start()
    >>> copy.wait()
    >>> other
    Ref([1., 1.], dtype=float32)
    """
    return AsyncCopyDescriptor(src_ref, dst_ref)


def async_copy(src_ref: Any, dst_ref: Any, sem: Any, *, priority: int = 0, add: bool = False) -> AsyncCopyDescriptor:
    """Copy from one reference to another, and return the copy."""
    copy = AsyncCopyDescriptor(src_ref, dst_ref)
    copy.start(priority, add=add)
    return copy


def sync_copy(src_ref: Any, dst_ref: Any, *, add: bool = False) -> None:
    """Copy from one reference or array to another reference."""
    AsyncCopyDescriptor(src_ref, dst_ref).start(add=add)


# Operations on arrays.


def bitcast(x: Any, ty: Any) -> Array:
    """Return the bits as elements of another dtype.

    Another width scales the last dimension but one.
    """
    return RefView(Ref(as_value(x)), ()).bitcast(ty)[...]


def einshape(equation: str, x: Any, assert_is_tile_preserving: bool = False, **sizes: int) -> Array:
    """Split, reorder and merge the axes of an array, as an equation says.

    Letters in parentheses are one axis of the array on the left of ``->``, and one of the result on the right. `sizes` are those of the
    letters: of each axis that is split, one may be missing. Raises `ArgumentError` for wrong equations, `ShapeError` for wrong sizes.

    >>> from volta_fn.experimental import pallas as pl
    >>> pl.tpu.einshape("a(bc)->(ba)c", vf.numpy.arange(4).reshape(1, 4), c=2)
    Array([[0, 1],
           [2, 3]], dtype=int32)
    """
    value, text, pattern = as_value(x), equation.replace(" ", ""), r"[a-zA-Z]|\([a-zA-Z]+\)"
    sides = [[axis.strip("()") for axis in re.findall(pattern, side)] for side in text.split("->")]
    letters, order = "".join(sides[0]), "".join(sides[-1])
    if re.sub(pattern, "", text) != "->" or len(sides) != 2 or sorted({*letters}) != sorted(letters) or sorted(letters) != sorted(order):
        raise ArgumentError(f"einshape: an equation such as 'a(bc)->(ba)c' has each letter once on each side, got {equation!r}")
    if len(sides[0]) != value.ndim:
        raise ShapeError(f"einshape: {equation!r} is for arrays of {len(sides[0])} axes, got the shape {value.shape}")
    for axis, size in zip(sides[0], value.shape, strict=True):
        missing = [a for a in axis if a not in sizes or len(axis) == 1]
        if len(missing) > 1:
            # Both messages begin as JAX's do.
            raise ShapeError(f"einshape: Ambiguous split of ({axis}), of size {size}: pass all sizes of {', '.join(missing)} but one")
        sizes |= dict.fromkeys(missing, size // max(1, math.prod([sizes[a] for a in axis if a not in missing])))
        if math.prod([sizes[a] for a in axis]) != size:
            raise ShapeError(f"einshape: Cannot split size {size} into ({axis}) with the sizes {sizes}")
    result = transpose(reshape(value, [sizes[a] for a in letters]), [letters.index(a) for a in order])
    return reshape(result, [math.prod([sizes[a] for a in axis]) for axis in sides[1]])


def roll(x: Any, shift: Any, axis: int, *, stride: int | None = None, stride_axis: int | None = None) -> Array:
    """Return `x` with its elements moved by `shift` along an axis.

    Those at the end move to the front. With `stride`, rows along `stride_axis` move by `stride` elements more than the row before. Raises
    `ArgumentError` if only one of both is given, or a known shift is negative.
    """
    value = as_value(x)
    if (stride is None) != (stride_axis is None):
        raise ArgumentError("roll: stride and stride_axis must be both specified or both not specified.")
    if isinstance(shift, int) and shift < 0:
        raise ArgumentError("roll: shift must be non-negative.")
    if stride is None or stride_axis is None:
        return _roll(value, shift, axis)
    rows = [_roll(value.take(np.asarray([i]), stride_axis), shift + i * stride, axis) for i in range(value.shape[stride_axis])]
    return _concatenate(rows, stride_axis)


def emit_pipeline(
    body: Callable[..., None],
    *,
    grid: tuple[Any, ...],
    in_specs: Any = (),
    out_specs: Any = (),
    tiling: Any = None,
    core_axis: Any = None,
    core_axis_name: Any = None,
    dimension_semantics: Any = None,
    trace_scopes: bool = True,
    no_pipelining: bool = False,
    _explicit_indices: bool = False,
) -> Callable[..., None]:
    """Make a function of references that runs `body` on blocks of them.

    It does so for each step of a grid. It is what `pallas_call` is for arrays, in a kernel: `body` gets references to blocks of the inputs
    and outputs. The options that follow the specifications are accepted for compatibility.
    """
    spec = GridSpec(grid, in_specs if isinstance(in_specs, (tuple, list)) else (in_specs,), out_specs)

    def run(*refs: Any, scratches: Any = (), **options: Any) -> None:
        count = len(spec.in_specs)
        ins, outs = refs[:count], refs[count:]
        out_specs = spec.out_specs if isinstance(spec.out_specs, tuple) else (spec.out_specs,)
        inputs, outputs = ([x[...] for x in tree.leaves(part)] for part in (ins, outs))
        index_maps = IndexMaps(spec.grid, [], tree.structure(()))
        in_blocks = index_maps.blocks(spec.in_specs, tree.structure(ins), "`in_specs`", "inputs", [*map(str, range(len(inputs)))], inputs)
        out_blocks = index_maps.blocks(out_specs, tree.structure(outs), "`out_specs`", "outputs", [*map(str, range(len(outputs)))], outputs)

        def call(*blocks: Ref) -> None:
            parts = tree.unflatten(tree.structure(ins), blocks[: len(inputs)]), tree.unflatten(tree.structure(outs), blocks[len(inputs) :])
            indices = [tuple([program_id(axis) for axis in range(len(grid))])] if _explicit_indices else []
            body(*indices, *parts[0], *parts[1], *scratches)

        def pipeline(outer: list[Ref]) -> None:
            program = trace_kernel(body, call, spec, [], in_blocks, out_blocks, [], outer, None)
            results, last = program.run([], inputs, outputs, parallel_axes(program))
            for ref, value in zip(tree.leaves(outs), results, strict=True):
                ref[...] = value
            if outer:
                write_all(outer, last)

        discharged(pipeline)

    return run
