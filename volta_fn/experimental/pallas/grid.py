"""Running a kernel over a grid, as loops over blocks that the compiler sees.

A kernel is a program (`KernelProgram`) from the step's indices and the blocks of all arrays to the blocks after it. Its grid has two kinds
of axes:

- Along *parallel* axes each step writes another block of every output, and no step sees what another one wrote. There the kernel is mapped
  by `vmap` over the blocks, which are views of the arrays, so that an elementwise kernel is one loop nest, and one that multiplies blocks
  is one product of matrices.
- Along the others it runs step by step in a loop that carries the outputs and the scratch memory.

The second half of this file finds the axes of the first kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn.compiler.pipeline import simplify
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, called_program, sub_jaxprs
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.experimental.pallas.specs import BlockDim, Blocked, BoundedSlice, Element, Squeezed, size_of, uninitialized
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_slice, dynamic_update_slice
from volta_fn.primitives.data_movement.movement import iota, reshape
from volta_fn.primitives.data_movement.slicing import pad
from volta_fn.primitives.data_movement.slicing import slice as slice_
from volta_fn.primitives.elementwise.arithmetic import div, mul, rem
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.loops import cond_p, fori_loop, while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.transforms.vmap import vmap


@dataclass(frozen=True)
class Axis:
    """An index of a block that is the step's index along an axis of the grid."""

    number: int


@dataclass
class Blocks:
    """The blocks of one array."""

    #: The argument, as messages name it.
    origin: str
    aval: ShapedArray
    dims: tuple[BlockDim, ...]
    #: The program of the index map: from the step's indices and the prefetched scalars to the block's indices.
    index_map: ClosedJaxpr

    @property
    def shape(self) -> Shape:
        """The shape of a block, with squeezed dimensions."""
        return tuple([size_of(d) for d in self.dims])

    @property
    def ref_aval(self) -> ShapedArray:
        """The type of the reference that a kernel gets."""
        return self.aval.update(shape=tuple([size_of(d) for d in self.dims if not isinstance(d, Squeezed)]), weak_type=False)

    @property
    def components(self) -> list[Axis | int | None]:
        """The block's indices where they are an index of the step, or a number."""
        return [_component(atom, self.index_map) for atom in self.index_map.outvars]

    @property
    def padding(self) -> list[tuple[int, int, int]]:
        """The elements around the array, so that it consists of whole blocks."""
        result = []
        for dim, size in zip(self.dims, self.aval.shape, strict=True):
            low, high = dim.padding if isinstance(dim, Element) else (0, 0)
            block, length = size_of(dim), low + size + high
            behind = block if isinstance(dim, BoundedSlice) else -length % block if block else 0
            result.append((low, high + behind, 0))
        return result

    def padded(self, value: Array) -> Array:
        """Return the array with elements around it."""
        return pad(value, uninitialized(value.aval.update(shape=())), self.padding) if any(map(any, self.padding)) else value

    def unpadded(self, value: Array) -> Array:
        """Return the array without the elements around it."""
        lows = [low for low, _, _ in self.padding]
        return slice_(value, lows, [low + size for low, size in zip(lows, self.aval.shape, strict=True)])

    def starts(self, indices: Sequence[Any], scalars: Sequence[Array], whole: frozenset[int]) -> list[Any]:
        """Return where the block of a step begins: at 0 along the dimensions `whole`."""
        results = eval_jaxpr(self.index_map, *map(as_value, indices), *scalars)
        return [0 if d in whole else _scaled(x, self.dims[d]) for d, x in enumerate(results)]

    def read(self, value: Array, starts: Sequence[Any]) -> Array:
        """Return a block as the kernel sees it."""
        part = (
            value if value.shape == self.shape else dynamic_slice(value, starts, self.shape, allow_negative_indices=self._may_be_negative)
        )
        return reshape(part, self.ref_aval.shape)

    def write(self, value: Array, starts: Sequence[Any], block: Array) -> Array:
        """Return the array with another block."""
        part = reshape(block, self.shape)
        if value.shape == self.shape:
            return part
        return dynamic_update_slice(value, part, starts, allow_negative_indices=self._may_be_negative)

    @property
    def _may_be_negative(self) -> bool:
        return any(not isinstance(c, Axis) and (c is None or c < 0) for c in self.components)


def _component(atom: Atom, program: ClosedJaxpr) -> Axis | int | None:
    if isinstance(atom, Literal):
        return int(np.asarray(atom.val))
    for eqn in program.eqns:
        if eqn.outvars[0] is atom and eqn.primitive.name == "convert_element_type":
            return _component(eqn.invars[0], program)
    return Axis(program.invars.index(atom)) if atom in program.invars else None


def _scaled(index: Array, dim: BlockDim) -> Array:
    """Return the element at which a block begins, by its index."""
    number = convert_element_type(index, np.int32)
    return mul(number, as_value(np.int32(dim.block_size))) if isinstance(dim, Blocked) and dim.block_size != 1 else number


@dataclass
class KernelProgram:
    """A kernel as a program, with its grid and blocks.

    The program takes the step's indices, scalars, blocks of inputs and outputs, and scratch memory, and returns the last values of all but
    the indices.
    """

    program: ClosedJaxpr
    grid: tuple[Any, ...]
    scalars: int
    inputs: list[Blocks]
    outputs: list[Blocks]
    #: What scratch memory holds before the first step, and then the values of references from outside that the kernel uses.
    scratch: list[Array]
    #: The number of the latter.
    references: int
    #: For each of scalars, inputs, outputs and scratch memory, whether the kernel writes to it.
    writes: list[bool]

    @property
    def blocks(self) -> list[Blocks]:
        """The blocks of inputs and outputs."""
        return [*self.inputs, *self.outputs]

    def run(
        self, scalars: Sequence[Array], inputs: Sequence[Array], outputs: Sequence[Array], parallel: Sequence[int]
    ) -> tuple[list[Array], list[Array]]:
        """Return the outputs and the scratch memory after all steps.

        Along the axes `parallel` the kernel is mapped; then the scratch memory is not returned.
        """
        arrays = [b.padded(x) for b, x in zip(self.blocks, [*inputs, *outputs], strict=True)]
        count = len(inputs)
        if any(isinstance(n, int) and n == 0 for n in self.grid):
            results, scratch = arrays[count:], self.scratch
        elif parallel:
            results, scratch = self._mapped(scalars, arrays, parallel), []
        else:
            results, scratch = self._loop(scalars, arrays, {}, [frozenset()] * len(arrays))
        return [b.unpadded(x) for b, x in zip(self.outputs, results, strict=True)], scratch

    def _mapped(self, scalars: Sequence[Array], arrays: Sequence[Array], parallel: Sequence[int]) -> list[Array]:
        """Run the steps along some axes at once."""
        count = len(self.inputs)
        axes = [_mapped_dims(b, x.shape, parallel, self.grid) for b, x in zip(self.blocks, arrays, strict=True)]
        whole = [frozenset(dims.values()) for dims in axes]
        divided = [self._divided(x, b, dims) for x, b, dims in zip(arrays, self.blocks, axes, strict=True)]
        labels = [_labels(x.ndim, dims) for x, dims in zip(arrays, axes, strict=True)]

        def steps(*values: Array) -> list[Array]:
            indices = dict(zip(parallel, values, strict=False))
            return self._loop(scalars, values[len(parallel) :], indices, whole)[0]

        index_vectors = [iota(np.int32, self.grid[axis]) for axis in parallel]
        function = _vmapped(steps, parallel, [*[[axis] for axis in parallel], *labels], labels[count:])
        results = function(*index_vectors, *divided)
        return [reshape(x, a.shape) for x, a in zip(results, arrays[count:], strict=True)]

    def _divided(self, value: Array, blocks: Blocks, dims: dict[int, int]) -> Array:
        """Divide the dimensions along mapped axes in two: blocks, and their elements."""
        sizes: list[int] = []
        limits = [*value.shape]
        axis_of = {dim: axis for axis, dim in dims.items()}
        for d, size in enumerate(value.shape):
            if d in axis_of:
                block = size_of(blocks.dims[d])
                limits[d] = self.grid[axis_of[d]] * block
                sizes += [self.grid[axis_of[d]], block]
            else:
                sizes.append(size)
        return reshape(slice_(value, [0] * value.ndim, limits), sizes)

    def _loop(
        self, scalars: Sequence[Array], arrays: Sequence[Array], mapped: dict[int, Array], whole: Sequence[frozenset[int]]
    ) -> tuple[list[Array], list[Array]]:
        """Run the steps along the axes that are not mapped, one after the other.

        Returns the outputs and the scratch memory.
        """
        state = [*scalars, *arrays, *self.scratch]
        carried = [i for i, writes in enumerate(self.writes) if writes]
        first, last = len(scalars), len(scalars) + len(arrays)

        def step(indices: Sequence[Any], carry: Sequence[Array]) -> list[Array]:
            values = [*state]
            for i, value in zip(carried, carry, strict=True):
                values[i] = value
            starts = [b.starts(indices, values[:first], w) for b, w in zip(self.blocks, whole, strict=True)]
            parts = [b.read(x, s) for b, x, s in zip(self.blocks, values[first:last], starts, strict=True)]
            results = eval_jaxpr(self.program, *map(as_value, indices), *values[:first], *parts, *values[last:])
            for j, (b, s) in enumerate(zip(self.blocks, starts, strict=True)):
                if self.writes[first + j]:
                    values[first + j] = b.write(values[first + j], s, results[first + j])
            values[:first], values[last:] = results[:first], results[last:]
            return [values[i] for i in carried]

        loops = [axis for axis, n in enumerate(self.grid) if axis not in mapped and not (isinstance(n, int) and n == 1)]
        zero = np.int32(0)
        fixed = [mapped.get(axis, zero) for axis in range(len(self.grid))]
        carry = [state[i] for i in carried]
        if loops:
            sizes = [self.grid[axis] for axis in loops]
            total = math.prod(sizes) if all(isinstance(n, int) for n in sizes) else _product(sizes)

            def body(t: Array, carry: list[Array]) -> list[Array]:
                indices: list[Any] = [*fixed]
                for axis, index in zip(loops, _unravelled(t, sizes), strict=True):
                    indices[axis] = index
                return step(indices, carry)

            carry = fori_loop(np.int32(0), as_value(np.int32(total)) if isinstance(total, int) else total, body, carry)
        else:
            carry = step(fixed, carry)
        for i, value in zip(carried, carry, strict=True):
            state[i] = value
        return state[first + len(self.inputs) : last], state[last:]


def _product(sizes: Sequence[Any]) -> Array:
    total = as_value(np.int32(1))
    for size in sizes:
        total = mul(total, convert_element_type(size, np.int32))
    return total


def _unravelled(step: Array, sizes: Sequence[Any]) -> list[Array]:
    """Return a step's indices along axes, the last of which changes fastest."""
    indices: list[Array] = []
    for size in reversed(sizes[1:]):
        count = convert_element_type(size, np.int32)
        indices.append(rem(step, count))
        step = div(step, count)
    return [step, *reversed(indices)]


def _mapped_dims(blocks: Blocks, shape: Shape, parallel: Sequence[int], grid: Sequence[Any]) -> dict[int, int]:
    """Return the dimension whose blocks each parallel axis numbers, by the axis."""
    dims: dict[int, int] = {}
    for d, component in enumerate(blocks.components):
        if isinstance(component, Axis) and component.number in parallel and component.number not in dims:
            is_blocked = isinstance(blocks.dims[d], (Blocked, Squeezed))
            if is_blocked and grid[component.number] * size_of(blocks.dims[d]) <= shape[d]:
                dims[component.number] = d
    return dims


def _labels(rank: int, dims: dict[int, int]) -> list[int | None]:
    """Return the axis along which each dimension of a divided array is mapped."""
    axis_of = {dim: axis for axis, dim in dims.items()}
    return [label for d in range(rank) for label in ([axis_of[d], None] if d in axis_of else [None])]


def _vmapped(
    function: Callable[..., list[Array]], axes: Sequence[int], inputs: Sequence[list[Any]], outputs: Sequence[list[Any]]
) -> Callable[..., list[Array]]:
    """Map a function over the dimensions with these labels, the first one outermost."""
    if not axes:
        return function
    axis, *others = axes
    in_axes = tuple([labels.index(axis) if axis in labels else None for labels in inputs])
    out_axes = [labels.index(axis) for labels in outputs]
    without = [[[x for x in labels if x != axis] for labels in side] for side in (inputs, outputs)]
    return vmap(_vmapped(function, others, without[0], without[1]), in_axes=in_axes, out_axes=out_axes)


# Parallel axes, along which a kernel's steps do not depend on each other.

#: The most elements that the products in a kernel may have in all steps that run at once, where they are more than the outputs.
_MOST_ELEMENTS = 1 << 22


def forwarded(closed: ClosedJaxpr) -> list[int | None]:
    """Return, for each result of a program, the input that it is, if it is one."""
    source: dict[Atom, int] = {var: i for i, var in enumerate(closed.invars)}
    for eqn in closed.eqns:
        for out, position in zip(eqn.outvars, _forwarded_operands(eqn), strict=True):
            if position is not None and eqn.invars[position] in source:
                source[out] = source[eqn.invars[position]]
    return [source.get(atom) for atom in closed.outvars]


def _forwarded_operands(eqn: Equation) -> list[int | None]:
    """Return, for each result of an equation, the operand that it is, if it is one."""
    params = eqn.params
    if eqn.primitive is cond_p:
        results = zip(*[forwarded(branch) for branch in params["branches"]], strict=True)
        return [None if rows[0] is None or len({*rows}) > 1 else rows[0] + 1 for rows in results]
    if eqn.primitive is scan_p or eqn.primitive is while_p:
        is_scan = eqn.primitive is scan_p
        body = params["jaxpr"] if is_scan else params["body_jaxpr"]
        constants = params["num_consts"] if is_scan else params["body_nconsts"]
        before = constants if is_scan else params["cond_nconsts"] + constants
        return [before + i if source == constants + i else None for i, source in enumerate(forwarded(body))]
    program = called_program(eqn)
    return [None] * len(eqn.outvars) if program is None else forwarded(program)


def _axes_of_control(closed: ClosedJaxpr, masks: Sequence[int]) -> tuple[list[int], int]:
    """Return the axes that results depend on, and those that decide what runs.

    Axes are bits; `masks` are those of the inputs.
    """
    axes: dict[Atom, int] = dict(zip(closed.invars, masks, strict=True))
    control = 0
    for eqn in closed.eqns:
        operands = [axes.get(atom, 0) for atom in eqn.invars]
        results, decisive = _axes_of_equation(eqn, operands)
        control |= decisive
        axes.update(zip(eqn.outvars, results, strict=True))
    return [axes.get(atom, 0) for atom in closed.outvars], control


def _axes_of_equation(eqn: Equation, operands: list[int]) -> tuple[list[int], int]:
    params = eqn.params
    if eqn.primitive is cond_p:
        branches = [_axes_of_control(branch, operands[1:]) for branch in params["branches"]]
        results = [operands[0] | _union(rows) for rows in zip(*[outs for outs, _ in branches], strict=True)]
        return results, operands[0] | _union([control for _, control in branches])
    if eqn.primitive is while_p:
        n, m = params["cond_nconsts"], params["body_nconsts"]
        carry, decisive = operands[n + m :], 0
        while True:
            [test], control = _axes_of_control(params["cond_jaxpr"], [*operands[:n], *carry])
            outs, inner = _axes_of_control(params["body_jaxpr"], [*operands[n : n + m], *carry])
            decisive |= test | control | inner
            wider = [a | b | test for a, b in zip(carry, outs, strict=True)]
            if wider == carry:
                return carry, decisive
            carry = wider
    if eqn.primitive is scan_p:
        n, m = params["num_consts"], params["num_carry"]
        carry = operands[n : n + m]
        while True:
            outs, decisive = _axes_of_control(params["jaxpr"], [*operands[:n], *carry, *operands[n + m :]])
            wider = [a | b for a, b in zip(carry, outs[:m], strict=True)]
            if wider == carry:
                return [*carry, *outs[m:]], decisive
            carry = wider
    program = called_program(eqn)
    if program is not None:
        return _axes_of_control(program, operands)
    return [_union(operands)] * len(eqn.outvars), 0


def _union(masks: Sequence[int]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result


def parallel_axes(kernel: KernelProgram) -> list[int]:
    """Return the axes of the grid along which steps may run at once.

    These are axes that number the blocks of every output, and that decide neither branches nor the lengths of loops, since a mapped
    conditional runs both branches. There are none if the kernel writes to an input or a reference from outside, has effects, or finds in
    scratch memory what a step before left. Axes whose products would take much memory are left out, the outermost first.
    """
    reads_only = not any(kernel.writes[: kernel.scalars + len(kernel.inputs)])
    if not reads_only or kernel.references or kernel.program.effects or not kernel.outputs:
        return []
    axes = [axis for axis, size in enumerate(kernel.grid) if isinstance(size, int) and size > 1 and _numbers_outputs(kernel, axis)]
    control = _control(kernel, axes) if axes else 0
    axes = _within_memory(kernel, [axis for axis in axes if not control >> axis & 1])
    return axes if axes and _resets_scratch(kernel, axes) else []


def _numbers_outputs(kernel: KernelProgram, axis: int) -> bool:
    """Return True if an axis numbers blocks of every output, and all of them."""
    for blocks in kernel.outputs:
        shape = [low + size + high for size, (low, high, _) in zip(blocks.aval.shape, blocks.padding, strict=True)]
        if not any(
            component == Axis(axis) and isinstance(dim, (Blocked, Squeezed)) and kernel.grid[axis] * size_of(dim) == size
            for component, dim, size in zip(blocks.components, blocks.dims, shape, strict=True)
        ):
            return False
    return True


def _control(kernel: KernelProgram, axes: Sequence[int]) -> int:
    """Return the axes that decide which equations of a kernel run."""
    indices = [1 << axis for axis in range(len(kernel.grid))]
    scalars = [0] * kernel.scalars
    inputs = [_union(_axes_of_control(b.index_map, [*indices, *scalars])[0]) for b in kernel.inputs]
    rest = [_union([1 << axis for axis in axes])] * (len(kernel.outputs) + len(kernel.scratch))
    return _axes_of_control(kernel.program, [*indices, *scalars, *inputs, *rest])[1]


def _within_memory(kernel: KernelProgram, axes: list[int]) -> list[int]:
    largest = _largest_product(kernel.program)
    if largest <= sum(math.prod(b.shape) for b in kernel.outputs):
        return axes
    while axes and largest * math.prod([kernel.grid[axis] for axis in axes]) > _MOST_ELEMENTS:
        axes = axes[1:]
    return axes


def _largest_product(closed: ClosedJaxpr) -> int:
    sizes = [eqn.outvars[0].aval.size for eqn in closed.eqns if eqn.primitive is dot_general_p]
    return max([0, *sizes, *[_largest_product(program) for eqn in closed.eqns for program in sub_jaxprs(eqn.params)]])


def _resets_scratch(kernel: KernelProgram, axes: Sequence[int]) -> bool:
    """Return True if scratch memory is written before it is read.

    That is asked of the first step along all other axes.
    """
    if not kernel.scratch:
        return True
    avals = kernel.program.in_avals
    rank, last = len(kernel.grid), len(avals) - len(kernel.scratch)

    def first_step(*values: Array) -> list[Array]:
        indices = [values[i] if i in axes else as_value(np.int32(0)) for i in range(rank)]
        return eval_jaxpr(kernel.program, *indices, *values[rank:])

    closed = simplify(trace_to_jaxpr(first_step, avals))
    used: set[Atom] = {atom for eqn in closed.eqns for atom in eqn.invars if isinstance(atom, Var)}
    used.update(closed.outvars)
    return not used.intersection(closed.invars[last:])
