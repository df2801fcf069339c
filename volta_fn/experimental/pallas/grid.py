"""Running a kernel over a grid, as loops over blocks that the compiler sees.

A kernel is a program (`KernelProgram`) from the step's indices and the blocks of all arrays to the blocks after it. Its grid has two kinds
of axes:

- Along *parallel* axes each step writes another block of every output, and no step sees what another one wrote. There the kernel is mapped
  by `vmap` over the blocks, which are views of the arrays, so that an elementwise kernel is one loop nest, and one that multiplies blocks
  is one product of matrices.
- Along the others it runs step by step in a loop that carries the outputs and the scratch memory.

`parallel.py` finds the axes of the first kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Literal
from volta_fn.core.staging import eval_jaxpr
from volta_fn.experimental.pallas.specs import BlockDim, Blocked, BoundedSlice, Element, Squeezed, size_of, uninitialized
from volta_fn.primitives.control_flow.loops import fori_loop
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_slice, dynamic_update_slice
from volta_fn.primitives.data_movement.movement import iota, reshape
from volta_fn.primitives.data_movement.slicing import pad
from volta_fn.primitives.data_movement.slicing import slice as slice_
from volta_fn.primitives.elementwise.arithmetic import div, mul, rem
from volta_fn.primitives.elementwise.cast import convert_element_type
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
