"""Tracing kernels and index maps, and checking what they are given and return."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.refs import Ref, bound, read_all
from volta_fn.core.staging import function_name, trace_to_jaxpr
from volta_fn.core.trace import StepAxis, bound_axis
from volta_fn.errors import ArgumentError, DTypeError, ShapeError, TreeError, UnsupportedError
from volta_fn.experimental.pallas.grid import Blocks, KernelProgram, forwarded
from volta_fn.experimental.pallas.kernels import running_step
from volta_fn.experimental.pallas.specs import BlockDim, Blocked, BlockSpec, BoundedSlice, GridSpec, Indirect, block_dim, no_block_spec
from volta_fn.primitives.array_operations.ref_views import Slice
from volta_fn.tree.structures import structural_difference

_INDEX = ShapedArray((), np.dtype(np.int32))


def described_type(aval: ShapedArray) -> str:
    """Return a type with its dtype in full: ``float32[8,128]``."""
    return f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"


def described(function: Callable[..., Any]) -> str:
    """Return a function's name and where it is defined."""
    inner = inspect.unwrap(function)
    while hasattr(inner, "func"):  # of functools.partial
        inner = inspect.unwrap(inner.func)
    code = getattr(inner, "__code__", None)
    return f"{function_name(inner)} at {code.co_filename}:{code.co_firstlineno}" if code is not None else function_name(inner)


def _check_no_constants(who: str, function: Callable[..., Any], program: ClosedJaxpr) -> None:
    """Raise `ArgumentError` if a program has an array of the function's closure.

    JAX refuses those, too.
    """
    inner = inspect.unwrap(function)
    while hasattr(inner, "func"):
        inner = inspect.unwrap(inner.func)
    types = {(x.shape, x.dtype) for x in program.consts if x.ndim}
    closure = inspect.getclosurevars(inner).nonlocals.values() if types and inspect.isfunction(inner) else ()
    for value in closure:
        if isinstance(value, (Array, np.ndarray)) and value.ndim and (value.shape, value.dtype) in types:
            raise ArgumentError(f"{who} constants: [{described_type(as_value(value).aval)}]. You should pass them as inputs.")


class IndexMaps:
    """The blocks of arrays by their specifications.

    `rank` is that of the grid; `scalars` are what index maps get after the step's indices, and `scalar_tree` the tuple of them.
    """

    def __init__(self, rank: int, scalars: Sequence[Array], scalar_tree: tree.TreeDef) -> None:
        self.rank, self.scalar_tree = rank, scalar_tree
        self.avals = [*[_INDEX] * rank, *[x.aval for x in scalars]]

    def blocks(
        self, specs: Any, structure: tree.TreeDef, of_specs: str, of_arrays: str, origins: Sequence[str], values: Sequence[Array]
    ) -> list[Blocks]:
        """Return the blocks of arrays of a structure; raise what `pallas_call` says."""
        leaves = [no_block_spec] * len(values) if specs is no_block_spec else tree.leaves(specs)
        if specs is not no_block_spec and tree.structure(specs) != structure:
            path, one, other = structural_difference(tree.structure(specs), structure)
            where = f"at {tree.keystr(path)}, " if path else ""
            raise TreeError(f"Pytree for {of_specs} and {of_arrays} do not match: {where}{of_specs} is {one} but {of_arrays} is {other}.")
        return [self._blocks(spec, origin, x.aval) for spec, origin, x in zip(leaves, origins, values, strict=True)]

    def _blocks(self, spec: Any, origin: str, aval: ShapedArray) -> Blocks:
        if spec is no_block_spec:
            spec = BlockSpec()
        if not isinstance(spec, BlockSpec):
            raise TreeError(f"the specification for {origin} must be a BlockSpec, got {spec!r:.80}")
        shape = aval.shape if spec.block_shape is None else spec.block_shape
        dims = tuple([block_dim(d) for d in shape])
        if len(dims) != aval.ndim:
            raise ShapeError(
                f"Block shape for {origin} (= {dims}) must have the same number of dimensions as the array shape {aval.shape}."
            )
        if any(isinstance(d, Indirect) for d in dims):
            raise UnsupportedError(
                f"the block shape for {origin} has an Indirect dimension, which no kernel here can have: gather it before"
            )
        if any(isinstance(d, Blocked) and d.block_size < 1 and size for d, size in zip(dims, aval.shape, strict=True)):
            raise ShapeError(f"the sizes in the block shape for {origin} must be positive, got {dims}")
        return Blocks(origin, aval, dims, self._program(spec.index_map, origin, dims))

    def _program(self, index_map: Callable[..., Any] | None, origin: str, dims: tuple[BlockDim, ...]) -> ClosedJaxpr:
        """Trace an index map."""

        def flat(*values: Array) -> list[Array]:
            if index_map is None:
                return [as_value(np.int32(0))] * len(dims)
            scalars = tree.unflatten(self.scalar_tree, [Ref(x) for x in values[self.rank :]])
            indices = index_map(*values[: self.rank], *scalars)
            return _checked_indices(indices, dims, f"Index map function {described(index_map)} for {origin}")

        program = trace_to_jaxpr(flat, self.avals, "index_map")
        if index_map is not None:
            _check_no_constants(f"Index map function {described(index_map)} for {origin} must not capture", index_map, program)
        return program


def _checked_indices(indices: tuple[Any, ...], dims: tuple[BlockDim, ...], who: str) -> list[Array]:
    """Return the results of an index map as arrays."""
    if len(indices) != len(dims):
        raise ShapeError(f"{who} must return {len(dims)} values to match block_shape={dims}. Currently returning {len(indices)} values.")
    results = []
    for i, (index, dim) in enumerate(zip(indices, dims, strict=True)):
        if isinstance(dim, BoundedSlice) != isinstance(index, Slice):
            expected = "pl.Slice" if isinstance(dim, BoundedSlice) else "a scalar"
            raise DTypeError(f"{who}: index_map returned {index!r:.60} at position {i} with block dimension {dim}, expected {expected}")
        value = as_value(index.start if isinstance(index, Slice) else index)
        if value.ndim or value.dtype not in dtypes.INTEGERS:
            raise DTypeError(f"{who} must return integer scalars. Output[{i}] has type {described_type(value.aval)}.")
        results.append(value)
    return results


@contextlib.contextmanager
def named_axes(names: Sequence[Any], grid: Sequence[Any], indices: Sequence[Array]) -> Iterator[None]:
    """Bind the names of a grid's axes to a step's indices."""
    with contextlib.ExitStack() as axes:
        for name, size, index in zip(names, grid, indices, strict=False):
            axes.enter_context(bound_axis(name, StepAxis(name, size, index)))
        yield


def trace_kernel(
    kernel: Callable[..., Any],
    call: Callable[..., Any],
    spec: GridSpec,
    scalars: Sequence[Array],
    inputs: list[Blocks],
    outputs: list[Blocks],
    scratch: Sequence[Array],
    outer: Sequence[Ref],
    name: str | None,
) -> KernelProgram:
    """Return the program of a kernel.

    `call` calls the kernel with references to blocks and memory; `outer` are references that it uses from outside.
    """
    memory = [*scratch, *read_all(outer)]
    blocks = [*inputs, *outputs]
    avals = [*[x.aval for x in scalars], *[b.ref_aval for b in blocks], *[x.aval for x in memory]]
    rank, last = len(spec.grid), len(avals) - len(outer)

    def step(*values: Array) -> list[Array]:
        refs = [Ref(x) for x in values[rank : rank + last]]
        with (
            named_axes(spec.grid_names or (), spec.grid, values[:rank]),
            running_step(values[:rank], spec.grid),
            bound(outer, values[rank + last :]),
        ):
            result = call(*refs)
            if result is not None:
                raise ArgumentError(
                    f"The kernel function in the pallas_call {described(kernel)} should return None, but returned {result!r:.80}"
                )
            return read_all([*refs, *outer])

    program = trace_to_jaxpr(step, [*[_INDEX] * rank, *avals], name or function_name(kernel))
    _check_no_constants(f"The kernel function in the pallas_call {described(kernel)} captures", kernel, program)
    writes = [source != rank + i for i, source in enumerate(forwarded(program))]
    return KernelProgram(program, spec.grid, len(scalars), inputs, outputs, memory, len(outer), writes)
