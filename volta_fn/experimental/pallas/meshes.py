"""Kernels over meshes of cores: `kernel`, `core_map`, and meshes.

There is one core here, which does the work of all of them, one after another.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array
from volta_fn.core.refs import Ref, new_ref
from volta_fn.errors import ArgumentError
from volta_fn.experimental.pallas.kernels import run_scoped, running_step
from volta_fn.experimental.pallas.specs import memory_aval, uninitialized
from volta_fn.experimental.pallas.tracing import described, named_axes
from volta_fn.primitives.control_flow.loops import fori_loop
from volta_fn.primitives.elementwise.arithmetic import div, rem


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

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
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
