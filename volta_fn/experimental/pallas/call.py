"""`pallas_call`: a kernel as a function of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.refs import Ref, discharged, write_all
from volta_fn.core.staging import function_name
from volta_fn.errors import ArgumentError
from volta_fn.experimental.pallas.parallel import parallel_axes
from volta_fn.experimental.pallas.specs import CompilerParams, CostEstimate, GridSpec, allocated, memory_aval, no_block_spec, uninitialized
from volta_fn.experimental.pallas.tracing import IndexMaps, described, described_type, trace_kernel
from volta_fn.jit.function import jit


def pallas_call(
    kernel: Callable[..., None],
    out_shape: Any,
    *,
    grid_spec: GridSpec | None = None,
    grid: Any = (),
    in_specs: Any = no_block_spec,
    out_specs: Any = no_block_spec,
    scratch_shapes: Any = (),
    input_output_aliases: Mapping[int, int] = {},
    debug: bool = False,
    interpret: Any = False,
    name: str | None = None,
    compiler_params: CompilerParams | None = None,
    cost_estimate: CostEstimate | None = None,
    metadata: dict[str, str] | None = None,
) -> Callable[..., Any]:
    """Make a function of arrays that runs a kernel for each step of a grid.

    The kernel gets a reference to a block of each input and output, and to scratch memory, and returns None. It becomes loops that are
    compiled with the program around it, on every target; along axes of the grid that number the blocks of every output these are loops over
    whole arrays (`grid.py`). Where a block reaches beyond its array, the kernel reads NaN, the smallest integer or False, and what it
    writes there is dropped; the same are the elements of outputs before they are written.

    Args:
        kernel: a function of references: prefetched scalars, inputs, outputs, scratch memory (by keyword if that is a dictionary).
        out_shape: a pytree of `ShapeDtypeStruct`; a list of outputs returns a tuple.
        grid: the number of steps along each axis, a tuple of integers, arrays, or pairs of a name and an integer; the last axis changes
            fastest.
        in_specs, out_specs: pytrees of `BlockSpec` with the structures of the arguments and of `out_shape`; without them, blocks are whole
            arrays.
        scratch_shapes: a pytree of types of memory, such as ``pltpu.VMEM((8, 128), jnp.float32)``. What one step writes the next one
            finds.
        grid_spec: all of these together.
        input_output_aliases: which outputs begin with the elements of which input, both by their number among the leaves.
        name: names the program.
        debug: prints the kernel's program.
        interpret, compiler_params, cost_estimate, metadata: accepted; kernels run in the same way with any of them.

    Raises:
        ArgumentError: `grid_spec` with what it has; a kernel that returns something or uses arrays from outside, which must be arguments;
            wrong aliases.
        TreeError, ShapeError, DTypeError: specifications whose structure is not that of the arrays, blocks of another rank, an index map
            that does not return an integer for each dimension.

    >>> import volta_fn as vf
    >>> from volta_fn.experimental import pallas as pl
    >>> def add(x_ref, y_ref, o_ref):
    ...     o_ref[...] = x_ref[...] + y_ref[...]
    >>> block = pl.BlockSpec((2,), lambda i: (i,))
    >>> x = vf.numpy.arange(6.0)
    >>> pl.pallas_call(add, x, grid=3, in_specs=[block, block], out_specs=block)(x, x)
    Array([ 0.,  2.,  4.,  6.,  8., 10.], dtype=float32)
    """
    if grid_spec is None:
        grid_spec = GridSpec(grid, in_specs, out_specs, scratch_shapes)
    else:
        for option, value, default in (("grid", grid, ()), ("in_specs", in_specs, no_block_spec), ("out_specs", out_specs, no_block_spec)):
            if value is not default and value != default:
                raise ArgumentError(f"If `grid_spec` is specified, then `{option}` must be `{default}`. It is {value}")
        if scratch_shapes:
            raise ArgumentError(f"If `grid_spec` is specified, then `scratch_shapes` must be `()`. It is {scratch_shapes}")
    spec = grid_spec
    if isinstance(out_shape, list):
        out_shape = tuple(out_shape)

    def run(*args: Any) -> Any:
        arguments = tree.leaves_with_path(args)
        values = [as_value(x) for _, x in arguments]
        out_leaves = tree.leaves_with_path(out_shape)
        avals = [memory_aval(leaf) for _, leaf in out_leaves]
        outputs = [uninitialized(aval) for aval in avals]
        for i, o in input_output_aliases.items():
            _check_alias(i, o, [path for path, _ in arguments], values, [path for path, _ in out_leaves], avals)
            outputs[o] = values[i]
        results = _run(kernel, spec, args, values, out_shape, outputs, debug, name)
        return tree.unflatten(tree.structure(out_shape), results)

    run.__name__ = run.__qualname__ = name or function_name(kernel)
    return jit(run)


def _check_alias(i: int, o: int, in_paths: Sequence[Any], values: Sequence[Array], out_paths: Sequence[Any], avals: Sequence[Any]) -> None:
    who = f"input_output_aliases contains the mapping '{i}:{o}'"
    if i not in range(len(values)):
        raise ArgumentError(f"{who} with input index {i} outside the range [0, {len(values)})")
    if o not in range(len(avals)):
        raise ArgumentError(f"{who} with output index {o} outside the range [0, {len(avals)})")
    one, other = values[i].aval, avals[o]
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        raise ArgumentError(
            f"{who} referring to input{tree.keystr(in_paths[i])} with abstract value {described_type(one)} and to "
            f"output{tree.keystr(out_paths[o])} with a different abstract value {described_type(other)}."
        )


def _run(
    kernel: Callable[..., None],
    spec: GridSpec,
    args: tuple[Any, ...],
    values: Sequence[Array],
    out_shape: Any,
    outputs: Sequence[Array],
    debug: bool,
    name: str | None,
) -> list[Array]:
    """Return the leaves of the outputs."""
    count = getattr(spec, "num_scalar_prefetch", 0)
    scalars = [as_value(x) for x in tree.leaves(args[:count])]
    first = len(scalars)
    scalar_tree, in_tree, out_tree = (tree.structure(x) for x in (args[:count], tuple(args[count:]), out_shape))
    paths = [f"args{tree.keystr(path)}" for path, _ in tree.leaves_with_path(args)]
    out_paths = [f"outputs{tree.keystr(path)}" for path, _ in tree.leaves_with_path(out_shape)]
    index_maps = IndexMaps(len(spec.grid), scalars, scalar_tree)
    in_blocks = index_maps.blocks(spec.in_specs, in_tree, "`in_specs`", "`inputs`", paths[first:], values[first:])
    out_blocks = index_maps.blocks(spec.out_specs, out_tree, "`out_specs`", "`out_shape`", out_paths, outputs)
    scratch = [allocated(type) for type in tree.leaves(spec.scratch_shapes)]
    scratch_tree = tree.structure(spec.scratch_shapes)

    def call(*refs: Ref) -> Any:
        ends = np.cumsum([first, len(in_blocks), len(out_blocks)]).tolist()
        parts = [refs[a:b] for a, b in zip([0, *ends], [*ends, len(refs)], strict=True)]
        ins = (*tree.unflatten(scalar_tree, parts[0]), *tree.unflatten(in_tree, parts[1]))
        outs = tree.unflatten(out_tree, parts[2])
        memory = tree.unflatten(scratch_tree, parts[3])
        outs = tuple(outs) if isinstance(outs, (tuple, list)) else (outs,)
        named = memory if isinstance(memory, dict) else {}
        return kernel(*ins, *outs, *([] if named else memory), **named)

    def run(outer: list[Ref]) -> list[Array]:
        program = trace_kernel(kernel, call, spec, scalars, in_blocks, out_blocks, scratch, outer, name)
        if debug:
            print(f"The kernel {described(kernel)}:\n{program.program}")
        results, last = program.run(scalars, values[first:], outputs, parallel_axes(program))
        if outer:
            write_all(outer, last[len(scratch) :])
        return results

    return discharged(run)
