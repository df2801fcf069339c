"""Kernels as functions of arrays, over grids and meshes of cores, and their costs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs
from volta_fn.core.refs import Ref, bound, discharged, new_ref, read_all, write_all
from volta_fn.core.staging import function_name, make_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import StepAxis, bound_axis
from volta_fn.errors import ArgumentError, DTypeError, ShapeError, TreeError, UnsupportedError
from volta_fn.experimental.pallas.grid import Blocks, KernelProgram, forwarded, parallel_axes
from volta_fn.experimental.pallas.kernels import run_scoped, running_step
from volta_fn.experimental.pallas.specs import (
    BlockDim,
    Blocked,
    BlockSpec,
    BoundedSlice,
    CompilerParams,
    CostEstimate,
    GridSpec,
    Indirect,
    allocated,
    block_dim,
    memory_aval,
    no_block_spec,
    uninitialized,
)
from volta_fn.jit.compile import operations_of
from volta_fn.jit.function import jit
from volta_fn.primitives.array_operations.ref_views import Slice
from volta_fn.primitives.elementwise.arithmetic import div, rem
from volta_fn.primitives.loops import fori_loop
from volta_fn.tree.structures import structural_difference

# Tracing kernels and index maps, and checking what they are called with and return.

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

    `grid` has the sizes of the grid; `scalars` are what index maps get after the step's indices, and `scalar_tree` the tuple of them.
    """

    def __init__(self, grid: Sequence[Any], scalars: Sequence[Array], scalar_tree: tree.TreeDef) -> None:
        self.grid, self.scalar_tree = grid, scalar_tree
        self.avals = [*[_INDEX] * len(grid), *[x.aval for x in scalars]]

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
            steps = values[: len(self.grid)]
            scalars = tree.unflatten(self.scalar_tree, [Ref(x) for x in values[len(steps) :]])
            with running_step(steps, self.grid):
                indices = index_map(*steps, *scalars)
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


# Calls.


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

    >>> from volta_fn.experimental import pallas as pl
    >>> def add(x_ref, y_ref, o_ref):
    ...     o_ref[...] = x_ref[...] + y_ref[...]
    >>> block = pl.BlockSpec((2,), lambda i: (i,))
    >>> x = vf.numpy.arange(6.0)
    >>> pl.pallas_call(add, x, grid=3, in_specs=[block, block], out_specs=block)(x, x)
    Array([ 0.,  2.,  4.,  6.,  8., 10.], dtype=float32)
    """
    spec = _specification(grid_spec, grid, in_specs, out_specs, scratch_shapes)
    if isinstance(out_shape, list):
        out_shape = tuple(out_shape)

    def run(*args: Any) -> Any:
        values = [as_value(x) for x in tree.leaves(args)]
        outputs = _initial_outputs(args, values, out_shape, input_output_aliases)
        results = _run(kernel, spec, args, values, out_shape, outputs, debug, name)
        return tree.unflatten(tree.structure(out_shape), results)

    run.__name__ = run.__qualname__ = name or function_name(kernel)
    return jit(run)


def _specification(grid_spec: GridSpec | None, grid: Any, in_specs: Any, out_specs: Any, scratch_shapes: Any) -> GridSpec:
    """Return the specification of a call, which is one argument or several others."""
    if grid_spec is None:
        return GridSpec(grid, in_specs, out_specs, scratch_shapes)
    for option, value, default in (("grid", grid, ()), ("in_specs", in_specs, no_block_spec), ("out_specs", out_specs, no_block_spec)):
        if value is not default and value != default:
            raise ArgumentError(f"If `grid_spec` is specified, then `{option}` must be `{default}`. It is {value}")
    if scratch_shapes:
        raise ArgumentError(f"If `grid_spec` is specified, then `scratch_shapes` must be `()`. It is {scratch_shapes}")
    return grid_spec


def _initial_outputs(args: Any, values: Sequence[Array], out_shape: Any, aliases: Mapping[int, int]) -> list[Array]:
    """Return what outputs hold before the first step: inputs where `aliases` says so."""
    leaves = tree.leaves_with_path(out_shape)
    outputs = [uninitialized(memory_aval(leaf)) for _, leaf in leaves]
    for i, o in aliases.items():
        who = f"input_output_aliases contains the mapping '{i}:{o}'"
        if i not in range(len(values)):
            raise ArgumentError(f"{who} with input index {i} outside the range [0, {len(values)})")
        if o not in range(len(outputs)):
            raise ArgumentError(f"{who} with output index {o} outside the range [0, {len(outputs)})")
        out_path, leaf = leaves[o]
        one, other = values[i].aval, memory_aval(leaf)
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            in_path, _ = tree.leaves_with_path(args)[i]
            raise ArgumentError(
                f"{who} referring to input{tree.keystr(in_path)} with abstract value {described_type(one)} and to "
                f"output{tree.keystr(out_path)} with a different abstract value {described_type(other)}."
            )
        outputs[o] = values[i]
    return outputs


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
    index_maps = IndexMaps(spec.grid, scalars, scalar_tree)
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


# Meshes.
#
# There is one core here, which does the work of all of them, one after another.


@dataclass(frozen=True)
class TensorCoreMesh:
    """Cores at the positions of named axes, row-major."""

    sizes: tuple[int, ...]
    axis_names: tuple[str, ...]

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the axes by name."""
        return dict(zip(self.axis_names, self.sizes, strict=True))


def create_tensorcore_mesh(axis_name: str, devices: Sequence[Any] | None = None, num_cores: int | None = None) -> TensorCoreMesh:
    """Return a mesh of cores along one axis; a device has one core here.

    Raises `ArgumentError` if both the devices and the number of cores are given.

    >>> from volta_fn.experimental import pallas as pl
    >>> pl.tpu.create_tensorcore_mesh("core", num_cores=2).shape
    {'core': 2}
    """
    if devices is not None and num_cores is not None:
        raise ArgumentError("create_tensorcore_mesh: cannot specify both devices and num_cores; leave one of them out")
    return TensorCoreMesh((1 if num_cores is None else num_cores,), (axis_name,))


def core_map(
    mesh: Any,
    *,
    compiler_params: Any = None,
    interpret: Any = False,
    debug: bool = False,
    cost_estimate: Any = None,
    name: str | None = None,
    metadata: dict[str, str] | None = None,
    scratch_shapes: Any = (),
) -> Callable[[Callable[..., None]], None]:
    """Run the decorated function for each core of a mesh.

    It reads and writes references from outside; ``lax.axis_index`` and `program_id` are the core's position. Cores run one after another,
    so that none can wait for a later one. `mesh` has the sizes of its axes by name as its `shape`; `scratch_shapes` are types of memory,
    to which the function gets references (by keyword if that is a dictionary). The other options are accepted.

    Raises `ArgumentError` if the function returns something.

    >>> from volta_fn.experimental import pallas as pl
    >>> def fill(ref):
    ...     @pl.core_map(pl.tpu.create_tensorcore_mesh("core", num_cores=3))
    ...     def _():
    ...         ref[vf.lax.axis_index("core")] = 10 * pl.program_id(0)
    >>> pl.run_state(fill)(vf.numpy.zeros(3, "int32"))
    Array([ 0, 10, 20], dtype=int32)
    """
    names, sizes = tuple(mesh.shape), tuple(mesh.shape.values())
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]

    def decorate(function: Callable[..., None]) -> None:
        positional, named = ((), scratch_shapes) if isinstance(scratch_shapes, dict) else (tuple(scratch_shapes), {})

        def on_core(number: Array, carry: None) -> None:
            indices = [rem(div(number, np.int32(stride)), np.int32(size)) for stride, size in zip(strides, sizes, strict=True)]
            with named_axes(names, sizes, indices), running_step(indices, sizes):
                result = run_scoped(function, *positional, **named)
            if result is not None:
                raise ArgumentError(
                    f"The kernel function in core_map {described(function)} should return None, but returned {result!r:.80}"
                )

        fori_loop(np.int32(0), np.int32(math.prod(sizes)), on_core, None)

    return decorate


def kernel(
    body: Any = None,
    out_type: Any = (),
    *,
    mesh: Any,
    scratch_types: Any = (),
    compiler_params: Any = None,
    interpret: Any = False,
    cost_estimate: Any = None,
    debug: bool = False,
    name: str | None = None,
    metadata: dict[str, str] | None = None,
) -> Callable[..., Any]:
    """Make a function of arrays that runs a kernel for each core of a mesh.

    Without `body` it decorates one.

    Args:
        body: a function of references to the inputs, the outputs and scratch memory, which are whole arrays. References among the arguments
            are passed on, and the kernel changes them. A list of functions runs one after another, each on its mesh.
        out_type: a pytree of `ShapeDtypeStruct`.
        mesh: as of `core_map`; one for each function of a list.
        scratch_types: types of memory, one after another or by name.
        compiler_params, interpret, cost_estimate, debug, name, metadata: accepted.

    Raises `ArgumentError` if functions and meshes do not correspond, or a function returns something.

    >>> from volta_fn.experimental import pallas as pl
    >>> @pl.kernel(out_type=vf.ShapeDtypeStruct((4,), "float32"), mesh=pl.tpu.create_tensorcore_mesh("core", num_cores=2))
    ... def double(x_ref, y_ref):
    ...     half = pl.ds(2 * vf.lax.axis_index("core"), 2)
    ...     y_ref[half] = 2 * x_ref[half]
    >>> double(vf.numpy.arange(4.0))
    Array([0., 2., 4., 6.], dtype=float32)
    """
    if body is None:
        return functools.partial(kernel, out_type=out_type, mesh=mesh, scratch_types=scratch_types)
    bodies = list(body) if isinstance(body, Sequence) else [body]
    meshes = list(mesh) if isinstance(mesh, Sequence) else [mesh]
    if isinstance(body, Sequence) != isinstance(mesh, Sequence) or len(bodies) != len(meshes):
        raise ArgumentError(
            f"kernel: body and mesh must be one of each, or sequences of equal lengths, got {len(bodies)} and {len(meshes)}"
        )

    def run(*args: Any) -> Any:
        inputs = tree.map(lambda x: x if isinstance(x, Ref) else new_ref(x), args)
        outputs = tree.map(lambda type: new_ref(uninitialized(memory_aval(type))), out_type)
        results = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
        for function, cores in zip(bodies, meshes, strict=True):
            core_map(cores, scratch_shapes=scratch_types)(functools.partial(function, *inputs, *results))
        return tree.map(lambda ref: ref[...], outputs)

    return run


# Costs.

_ARITHMETIC = frozenset("add mul sub div min max or and xor neg floor ceil round not dot_general".split())
_TRANSCENDENTAL = frozenset("cos sin tan sinh cosh tanh acos asin atan exp log logistic sqrt".split())


def estimate_cost(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> CostEstimate:
    """Return the operations of ``fun(*args, **kwargs)``, and the bytes it moves.

    These are those of arguments and results. Arguments may be `ShapeDtypeStruct`. Only arithmetic, products of matrices and elementary
    functions count, as in JAX, and a loop counts all of its iterations.

    >>> from volta_fn.experimental import pallas as pl
    >>> x = vf.ShapeDtypeStruct((8, 8), "float32")
    >>> pl.estimate_cost(lambda x, y: vf.numpy.exp(x @ y), x, x)
    CostEstimate(flops=1024, transcendentals=64, bytes_accessed=768, remote_bytes_transferred=0)
    """
    program = make_jaxpr(lambda *arguments: fun(*arguments, **kwargs))(*args)
    flops, transcendentals = _cost_of(program)
    moved = sum(aval.nbytes for aval in [*program.in_avals, *program.out_avals])
    return CostEstimate(flops, transcendentals, moved)


def _cost_of(program: ClosedJaxpr) -> tuple[int, int]:
    costs = [_cost_of_equation(eqn) for eqn in program.eqns]
    return sum(flops for flops, _ in costs), sum(number for _, number in costs)


def _cost_of_equation(eqn: Equation) -> tuple[int, int]:
    """Return an equation's operations of arithmetic, and elementary functions."""
    name, params = eqn.primitive.name, eqn.params
    inside = [_cost_of(program) for program in sub_jaxprs(params)]
    if name == "cond":
        return max(inside, default=(0, 0))
    if inside:
        count = int(params.get("length", 1))
        return count * sum(flops for flops, _ in inside), count * sum(number for _, number in inside)
    if name == "integer_pow":
        power = abs(params["y"])
        steps = power.bit_length() - 1 + power.bit_count() if power > 1 else 0
        return eqn.outvars[0].aval.size * steps, 0
    operations = operations_of(eqn)
    return (operations if name in _ARITHMETIC else 0), (operations if name in _TRANSCENDENTAL else 0)
