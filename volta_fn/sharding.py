"""Meshes, shardings and maps over devices; JAX's `jax.sharding`.

A mesh names axes to map over. Where its devices have memories of their own, as GPUs have, each has its shard of an array and computes
with that. One device may stand at several positions, so that a program for many devices can be tried on one:

>>> import numpy as np, volta_fn as vf
>>> mesh = vf.sharding.Mesh(np.full(4, vf.devices("cpu")[0]), "data")
>>> mean = vf.shard_map(lambda x: vf.lax.pmean(x, "data"), mesh=mesh, in_specs=vf.P("data"), out_specs=vf.P())
>>> mean(vf.numpy.arange(8.0))
Array([3., 4.], dtype=float32)
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from volta_fn import advice, tree
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.core.devices.device import Device, local_devices, process_count
from volta_fn.core.devices.device import devices as all_devices
from volta_fn.core.devices.placement import known_sharding, on_home_device, sharding_spec, split, with_sharding_constraint
from volta_fn.core.devices.placement import reshard as reshard
from volta_fn.core.devices.sharding import AbstractMesh as AbstractMesh
from volta_fn.core.devices.sharding import AxisType as AxisType
from volta_fn.core.devices.sharding import Mesh as Mesh
from volta_fn.core.devices.sharding import NamedSharding as NamedSharding
from volta_fn.core.devices.sharding import PartitionSpec as PartitionSpec
from volta_fn.core.devices.sharding import Sharding as Sharding
from volta_fn.core.devices.sharding import SingleDeviceSharding as SingleDeviceSharding
from volta_fn.core.devices.sharding import get_abstract_mesh as get_abstract_mesh
from volta_fn.core.devices.sharding import get_mesh as get_mesh
from volta_fn.core.devices.sharding import make_mesh as make_mesh
from volta_fn.core.devices.sharding import set_mesh as set_mesh
from volta_fn.core.devices.sharding import use_mesh as use_mesh
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, interpret_jaxpr, sub_jaxprs
from volta_fn.core.primitive import AxisData
from volta_fn.core.staging import check_callable, eval_jaxpr, output_arrays, trace_to_jaxpr
from volta_fn.core.trace import ProcessAxis, ProcessGrid, Tracer, bound_axis
from volta_fn.errors import ArgumentError, ArgumentTypeError, DeviceError, ShapeError
from volta_fn.jit import jit
from volta_fn.primitives.collectives import axis_index, axis_index_p, pcast_p, psum, shard_of, whole_of
from volta_fn.primitives.collectives import border_cast as pcast
from volta_fn.primitives.data_movement.movement import broadcast, moveaxis, reshape, to_front, transpose
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.selection import eq, select
from volta_fn.settings import current as settings
from volta_fn.transforms.vmap import vmap, vmap_flat

__all__ = [
    "AbstractMesh", "AxisType", "Mesh", "NamedSharding", "PartitionSpec", "Sharding", "SingleDeviceSharding", "auto_axes", "explicit_axes",
    "get_abstract_mesh", "get_mesh", "make_mesh", "pmap", "reshard", "set_mesh", "shard_map", "smap",
    "use_abstract_mesh", "use_mesh",
]  # fmt: skip


# Values of a program that may differ between processes.
#
# A result whose spec is replicated must not, nor may a condition that decides whether a collective runs.

#: The axes along which a value varies.
Variance = frozenset[Any]
_NOWHERE: Variance = frozenset()
#: Collectives whose results are the same for all members.
_COMBINING = frozenset(["psum", "pmax", "pmin", "all_gather"])


def variance_of(closed: ClosedJaxpr, inputs: Sequence[Variance]) -> list[Variance]:
    """Return the axes along which each output varies, from those of its inputs.

    Raises `ArgumentError` if a condition that varies along an axis decides about a collective over it.
    """
    return interpret_jaxpr(closed, inputs, _variance_of_equation, lambda _: _NOWHERE)


def _variance_of_equation(eqn: Equation, operands: list[Variance]) -> Sequence[Variance]:
    params, name = eqn.params, eqn.primitive.name
    if name == "cond":
        return _variance_of_cond(eqn, operands)
    if name == "scan":
        return _variance_of_scan(params, operands)
    if name == "while":
        return _variance_of_while(eqn, operands)
    inner = sub_jaxprs(params)
    if len(inner) == 1 and len(inner[0].jaxpr.invars) == len(operands) and len(inner[0].jaxpr.outvars) == len(eqn.outvars):
        return variance_of(inner[0], operands)
    axes = frozenset([axis for axis in params.get("axis_names", ()) if isinstance(axis, ProcessAxis)])
    together = name in _COMBINING and params["axis_index_groups"] is None
    if eqn.primitive.multiple_results and axes:  # reductions, whose operands are independent
        return [v - axes if together else v | axes for v in operands]
    varies = _union(operands)
    if axes and name != "pcast":
        varies = varies - axes if together else varies | axes
    return [varies] * len(eqn.outvars)


def _variance_of_cond(eqn: Equation, operands: list[Variance]) -> list[Variance]:
    index, *arguments = operands
    branches = eqn.params["branches"]
    for branch in branches:
        _check_condition(eqn, index, branch)
    return [_union([index, *outs]) for outs in zip(*[variance_of(b, arguments) for b in branches], strict=True)]


def _variance_of_scan(params: dict[str, Any], operands: list[Variance]) -> list[Variance]:
    consts, count = params["num_consts"], params["num_carry"]
    carry, rows = operands[consts : consts + count], operands[consts + count :]
    while True:
        outs = variance_of(params["jaxpr"], [*operands[:consts], *carry, *rows])
        grown = [a | b for a, b in zip(carry, outs[:count], strict=True)]
        if grown == carry:
            return [*carry, *outs[count:]]
        carry = grown


def _variance_of_while(eqn: Equation, operands: list[Variance]) -> list[Variance]:
    params = eqn.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    carry = operands[first + second :]
    while True:
        (condition,) = variance_of(params["cond_jaxpr"], [*operands[:first], *carry])
        outs = variance_of(params["body_jaxpr"], [*operands[first : first + second], *carry])
        grown = [a | b | condition for a, b in zip(carry, outs, strict=True)]
        if grown == carry:
            break
        carry = grown
    for program in (params["cond_jaxpr"], params["body_jaxpr"]):
        _check_condition(eqn, condition, program)
    return carry


def _check_condition(eqn: Equation, condition: Variance, program: ClosedJaxpr) -> None:
    if both := condition & _axes_in(program):
        names = sorted([repr(axis.name) for axis in both])
        where = f" at {eqn.source}" if eqn.source is not None else ""
        raise ArgumentError(
            f"a {eqn.primitive}{where} runs a collective over {', '.join(names)} by a condition that differs between the processes along "
            "that axis: some would wait forever. Let all decide alike, as by lax.pmax of the condition"
        )


def _axes_in(closed: ClosedJaxpr) -> Variance:
    """Return the axes of the collectives in a program that wait for others."""
    axis_names = [axis for eqn in closed.eqns if eqn.primitive not in (axis_index_p, pcast_p) for axis in eqn.params.get("axis_names", ())]
    return _union([frozenset(axis_names), *[_axes_in(inner) for eqn in closed.eqns for inner in sub_jaxprs(eqn.params)]])


def _union(variances: Sequence[Variance]) -> Variance:
    return frozenset().union(*variances)


# Meshes whose axes have another type for a while: `auto_axes`, `explicit_axes`.
#
# They change only which axes belong to an array's type: `typeof` shows explicit axes.


def auto_axes(f: Callable[..., Any] | None = None, /, *, axes: str | Sequence[str] | None = None, out_sharding: Any = None) -> Any:
    """Return a function that runs with automatic axes of the current mesh.

    Args:
        f: the function; without it, a decorator is returned.
        axes: the axes that become automatic (default: all).
        out_sharding: how the results are split; the call may say it instead, by a keyword of this name.

    >>> with vf.make_mesh((1,), ("x",)):
    ...     vf.sharding.auto_axes(lambda x: x + 1)(vf.numpy.ones(2), out_sharding=vf.P("x"))
    Array([2., 2.], dtype=float32)
    """
    return _with_types(f, axes, AxisType.Auto, "out_sharding", out_sharding)


def explicit_axes(f: Callable[..., Any] | None = None, /, *, axes: str | Sequence[str] | None = None, in_sharding: Any = None) -> Any:
    """Return a function that runs with explicit axes of the current mesh.

    Args:
        f: the function; without it, a decorator is returned.
        axes: the axes that become explicit (default: all).
        in_sharding: how the arguments are split; the call may say it instead, by a keyword of this name.

    >>> with vf.make_mesh((1,), ("x",)):
    ...     vf.sharding.explicit_axes(lambda x: x + 1)(vf.numpy.ones(2), in_sharding=vf.P("x"))
    Array([2., 2.], dtype=float32)
    """
    return _with_types(f, axes, AxisType.Explicit, "in_sharding", in_sharding)


def _with_types(f: Callable[..., Any] | None, axes: Any, kind: AxisType, keyword: str, default: Any) -> Any:
    if f is None:
        return functools.partial(_with_types, axes=axes, kind=kind, keyword=keyword, default=default)
    function = f

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        split = kwargs.pop(keyword, default)
        mesh = get_mesh()
        chosen = mesh.axis_names if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        types = [kind if n in chosen else old for n, old in zip(mesh.axis_names, mesh.axis_types, strict=True)]
        with set_mesh(Mesh(mesh.devices, mesh.axis_names, types)):
            if keyword == "in_sharding" and split is not None:
                args = with_sharding_constraint(args, split)
            result = function(*args, **kwargs)
        return with_sharding_constraint(result, split) if keyword == "out_sharding" and split is not None else result

    return run


@contextmanager
def use_abstract_mesh(mesh: AbstractMesh) -> Iterator[AbstractMesh]:
    """Replace the axes of the current mesh in a block, with the same devices.

    Raises `ArgumentError` if the current mesh has another number of devices.

    >>> with vf.make_mesh((1,), ("x",)), vf.sharding.use_abstract_mesh(vf.sharding.AbstractMesh((1, 1), ("a", "b"))):
    ...     vf.sharding.get_mesh()
    Mesh('a': 1, 'b': 1)
    """
    devices = get_mesh().devices
    if devices.size != mesh.size:
        raise ArgumentError(f"use_abstract_mesh: {mesh} has {mesh.size} positions, but the current mesh {devices.size} devices")
    with set_mesh(Mesh(np.reshape(devices, mesh.axis_sizes), mesh.axis_names, mesh.axis_types)):
        yield mesh


# Functions mapped over the processes of a mesh.

Flat = Callable[..., Sequence[Array]]


def without(spec: PartitionSpec, grid: ProcessGrid) -> PartitionSpec:
    """Return a spec without the axes of processes."""
    return PartitionSpec(*[[name for name in spec.axes_of(i) if name not in grid.names] for i in range(len(spec))])


class OverProcesses:
    """Runs a function of arrays in every process of a grid."""

    def __init__(self, grid: ProcessGrid, names: Sequence[Any]) -> None:
        self.axes = {name: ProcessAxis(name, grid) for name in names if name in grid.names}
        #: Whether values outside are whole, not this process's shards.
        self._is_whole = bool(grid.devices)

    def run(
        self, function: Flat, values: Sequence[Array], in_specs: Sequence[PartitionSpec], out_specs: Callable[[], Sequence[PartitionSpec]],
        check: bool,
    ) -> list[Array]:  # fmt: skip
        """Return the results: `out_specs` gives their specs, once the function has run."""
        varying = [self._named(spec) for spec in in_specs]
        inner = [pcast(x, self._others(axes), "varying") for x, axes in zip(values, varying, strict=True)]
        if self._is_whole:
            inner = [shard_of(x, self._split(spec, x.ndim)) for x, spec in zip(inner, in_specs, strict=True)]
        with contextlib.ExitStack() as stack:
            for name, axis in self.axes.items():
                stack.enter_context(bound_axis(name, axis))
            closed = trace_to_jaxpr(function, [x.aval for x in inner], "shard_map")
            outs = eval_jaxpr(closed, *inner)
            differs = variance_of(closed, varying)
            specs = [self._named(spec) for spec in out_specs()]
            results = [self._to_outside(o, d, s, check) for o, d, s in zip(outs, differs, specs, strict=True)]
        if self._is_whole:
            results = [whole_of(x, self._split(spec, x.ndim)) for x, spec in zip(results, out_specs(), strict=True)]
        return results

    def _split(self, spec: PartitionSpec, ndim: int) -> tuple[tuple[ProcessAxis, ...], ...]:
        """Return the axes that split each dimension."""
        return tuple([tuple([self.axes[name] for name in spec.axes_of(i) if name in self.axes]) for i in range(ndim)])

    def _named(self, spec: PartitionSpec) -> Variance:
        return frozenset([self.axes[name] for name in spec.names() if name in self.axes])

    def _others(self, named: Variance) -> tuple[ProcessAxis, ...]:
        return tuple([axis for axis in self.axes.values() if axis not in named])

    def _to_outside(self, out: Array, differs: Variance, named: Variance, check: bool) -> Array:
        """Return a result for the program outside."""
        wrong = tuple([axis for axis in self.axes.values() if axis in differs - named])
        if wrong and check:
            raise ArgumentError(
                f"shard_map: a result differs between the shards along {wrong[0].name!r}, which its spec does not name. Combine them, as "
                "by lax.psum, name the axis in out_specs, or pass check_vma=False for the first shard's"
            )
        return pcast(_from_first_process(out, wrong) if wrong else out, self._others(named), "replicated")


def _from_first_process(out: Array, axes: tuple[ProcessAxis, ...]) -> Array:
    """Return the value of the first process along some axes in all of them."""
    is_first = broadcast(eq(axis_index(axes), as_value(np.int32(0))), out.shape)
    total = psum(select(is_first, out, broadcast(as_value(np.zeros((), out.dtype)), out.shape)), axes)
    return convert_element_type(total, out.dtype)


# `shard_map` and `pmap`: maps over axes of devices and of processes.

#: In place of specs: those of the arguments' shardings.
INFERRED: Any = type("Inferred", (), {"__repr__": lambda self: "INFERRED"})()


@advice.explained
def shard_map(
    f: Callable[..., Any] | None = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = INFERRED,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: Any = frozenset(),
    check_vma: bool = True,
) -> Callable[..., Any]:
    """Map a function over the shards of its arguments.

    The function gets one shard of each argument, and may use collectives over the axes of the mesh. Each of several GPUs computes with its
    shards. Devices of one memory are one: all shards are computed together, as by `vmap`.

    With several processes, each holds only its shard of an array: it passes its shard of an argument that `in_specs` splits over
    processes, and gets its shard of such a result. Arguments that are not split must be equal in all processes.

    Args:
        f: the function; without it, a decorator is returned.
        out_specs: pytree prefix of the results: a `PartitionSpec` for each, by which shards are joined.
        in_specs: the same for the positional arguments, by which these are split; by default the specs of the arguments' shardings.
        mesh: the mesh; by default the current one (`set_mesh`). An `AbstractMesh` stands for the current mesh, or the mesh of an argument's
            sharding, that has its axes; while tracing neither is needed.
        axis_names: the axes to map over (default: all of them).
        check_vma: raise `ArgumentError` if a result that `out_specs` does not split differs between shards; else take the first one.

    Raises:
        ShapeError: an axis does not divide the dimension that it splits.
        ArgumentError: a spec names an axis that the mesh lacks, no mesh has devices, or processes would not all come to a collective.
        ProgramMismatchError: the processes compile different programs.

    >>> import numpy as np
    >>> mesh = vf.sharding.Mesh(np.full(2, vf.devices("cpu")[0]), "rows")
    >>> @vf.shard_map(mesh=mesh, in_specs=vf.P("rows"), out_specs=(vf.P("rows"), vf.P()))
    ... def shares(x):
    ...     total = vf.lax.psum(x.sum(), "rows")
    ...     return x / total, total
    >>> shares(vf.numpy.array([1.0, 2.0, 3.0, 4.0]))
    (Array([0.1, 0.2, 0.3, 0.4], dtype=float32), Array(10., dtype=float32))
    """
    if f is None:
        options = {"out_specs": out_specs, "in_specs": in_specs, "mesh": mesh, "axis_names": axis_names, "check_vma": check_vma}
        return functools.partial(shard_map, **options)
    check_callable(f, "shard_map")
    shards = _OverShards(f, in_specs, out_specs, axis_names, check_vma)
    jitted: dict[Mesh, Callable[..., Any]] = {}

    @functools.wraps(f)
    def mapped(*args: Any) -> Any:
        over = mesh if isinstance(mesh, Mesh) else _mesh_with_devices(mesh, tree.leaves(args))
        if over.grid is None or (over.grid.devices and (settings.disable_jit or settings.sees_results)):
            return shards.map(over, None, *args)
        if over not in jitted:
            jitted[over] = jit(functools.wraps(f)(functools.partial(shards.map, over, over.grid)))
        return jitted[over](*args)

    return mapped


def _mesh_with_devices(mesh: AbstractMesh | None, leaves: Sequence[Any]) -> Mesh:
    """Return the mesh that a map of `leaves` over these, or the current, axes uses."""
    current = get_mesh()
    axes = current.abstract_mesh if mesh is None or mesh.empty else mesh
    if axes.empty:
        raise ArgumentError("shard_map needs a mesh: pass one, or make one the current one by set_mesh(mesh)")
    if not current.empty:
        if axes.shape_tuple != current.shape_tuple:
            raise ArgumentError(f"shard_map: got {axes}, but the current mesh is {current}: pass that, or set_mesh one with these axes")
        return current
    shardings = [x.sharding if isinstance(x, ConcreteArray) else known_sharding(x) for x in leaves]
    meshes = [s.mesh for s in shardings if isinstance(s, NamedSharding) and isinstance(s.mesh, Mesh)]
    if (mesh_of_argument := next((m for m in meshes if m.shape_tuple == axes.shape_tuple), None)) is not None:
        return mesh_of_argument
    if process_count() > 1 or not any(isinstance(x, Tracer) for x in leaves):
        raise ArgumentError(f"shard_map: {axes} has no devices: set_mesh a Mesh with its axes, or put an argument on it (device_put)")
    return Mesh(np.full(axes.axis_sizes, local_devices()[0]), axes.axis_names, axes.axis_types)


def smap(f: Callable[..., Any] | None = None, /, *, in_axes: Any = INFERRED, out_axes: Any, axis_name: Any) -> Callable[..., Any]:
    """Map a function over shards along one axis of the current mesh.

    `in_axes` and `out_axes` are the dimensions that the axis `axis_name` splits: a number, None for values that it does not split, or a
    pytree of these that is a prefix of the arguments, or of the result. `shard_map` takes specs instead, and several axes. Raises
    `ArgumentTypeError` for other axes, and what `shard_map` raises.

    >>> import numpy as np
    >>> with vf.sharding.Mesh(np.full(2, vf.devices("cpu")[0]), "rows"):
    ...     vf.sharding.smap(lambda x: vf.lax.psum(x, "rows"), in_axes=0, out_axes=None, axis_name="rows")(vf.numpy.arange(4.0))
    Array([2., 4.], dtype=float32)
    """
    if isinstance(axis_name, (list, tuple)):
        raise ArgumentTypeError(f"smap maps over one axis, got {axis_name!r}; shard_map takes several")
    if f is None:
        return functools.partial(smap, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name)

    def spec_of(axis: Any) -> PartitionSpec:
        if axis is None:
            return PartitionSpec()
        if not isinstance(axis, int) or axis < 0:
            raise ArgumentTypeError(f"smap: an axis is a dimension from 0 on, or None, got {axis!r}")
        return PartitionSpec(*(None,) * axis, axis_name)

    def specs_of(axes: Any) -> Any:
        return tree.map(spec_of, axes, is_leaf=lambda axis: axis is None)

    in_specs = in_axes if in_axes is INFERRED else specs_of(in_axes)
    return shard_map(f, in_specs=in_specs, out_specs=specs_of(out_axes), axis_names=frozenset([axis_name]))


class _OverShards(NamedTuple):
    """A function of shards, and how to split arguments and join results."""

    function: Callable[..., Any]
    in_specs: Any
    out_specs: Any
    axis_names: Any
    check: bool

    def map(self, mesh: Mesh, grid: ProcessGrid | None, *args: Any) -> Any:
        """Return the results of the function over all shards of this process.

        Each device of the `grid`, or each of its processes, computes its own; without a grid one device computes all.
        """
        names = [n for n in mesh.axis_names if not self.axis_names or n in self.axis_names]
        leaves, structure = tree.flatten(args)
        inferred = self.in_specs is INFERRED
        specs = _specs([sharding_spec(x) for x in leaves], leaves, mesh) if inferred else _specs(self.in_specs, args, mesh)
        values = [on_home_device(as_value(x)) for x in leaves]
        flat = _FlatShards(self, mesh, structure)
        local = functools.partial(self._local, mesh, names, flat, specs)
        if grid is None:
            outs = local(None, *values)
            results = [split(r, NamedSharding(mesh, s)) for r, s in zip(outs, flat.out_specs, strict=True)]
        else:
            processes = OverProcesses(grid, names)
            results = processes.run(functools.partial(local, grid), values, specs, lambda: flat.out_specs, self.check)
            if grid.devices:
                results = [split(r, NamedSharding(mesh, s)) for r, s in zip(results, flat.out_specs, strict=True)]
        return tree.unflatten(flat.out_tree, results)

    def _local(
        self, mesh: Mesh, names: Sequence[Any], flat: _FlatShards, specs: Sequence[PartitionSpec], grid: ProcessGrid | None, *values: Array
    ) -> list[Array]:
        local_names = [n for n in names if grid is None or n not in grid.names]
        local_specs = [_local_spec(s, grid) for s in specs]
        shards = [_split_shards(x, s, mesh) for x, s in zip(values, local_specs, strict=True)]
        outs = _mapped_over(local_names, flat, shards, local_specs, mesh)
        out_local_specs = [_local_spec(s, grid) for s in flat.out_specs]
        return [_join_shards(o, varying, s, mesh, self.check) for (o, varying), s in zip(outs, out_local_specs, strict=True)]


class _FlatShards:
    """The function of flat shards.

    A call sets the structure and the specs of its flat results.
    """

    out_tree: Any
    out_specs: list[PartitionSpec]

    def __init__(self, shards: _OverShards, mesh: Mesh, structure: Any) -> None:
        self._shards = shards
        self._mesh = mesh
        self._structure = structure

    def __call__(self, *shards: Array) -> list[Array]:
        result = self._shards.function(*tree.unflatten(self._structure, shards))
        outs, self.out_tree = tree.flatten(result)
        self.out_specs = _specs(self._shards.out_specs, result, self._mesh)
        return output_arrays(outs, self._shards.function)


def _local_spec(spec: PartitionSpec, grid: ProcessGrid | None) -> PartitionSpec:
    """Return a spec without the axes of processes."""
    return spec if grid is None else without(spec, grid)


def _specs(prefix: Any, values: Any, mesh: Mesh) -> list[PartitionSpec]:
    """Return a checked spec for each leaf."""
    specs = tree.broadcast_prefix(prefix, values, is_leaf=lambda s: s is None)
    return [NamedSharding(mesh, PartitionSpec() if s is None else s).spec for s in specs]


def _split_shards(x: Array, spec: PartitionSpec, mesh: Mesh) -> Array:
    """Split dimensions, and move the mesh's axes to the front, in their order."""
    shard = NamedSharding(mesh, spec).shard_shape(x.shape)
    shape: list[int] = []
    at: dict[Any, int] = {}
    for dimension, size in enumerate(shard):
        for name in spec.axes_of(dimension):
            at[name] = len(shape)
            shape.append(mesh.shape[name])
        shape.append(size)
    leading = [at[n] for n in mesh.axis_names if n in at]
    return transpose(reshape(x, shape), [*leading, *[i for i in range(len(shape)) if i not in leading]])


def _mapped_over(
    names: Sequence[Any], flat: Callable[..., list[Array]], values: Sequence[Array], specs: Sequence[PartitionSpec], mesh: Mesh
) -> list[tuple[Array, list[Any]]]:
    """Map over the axes, of which the first is the outermost.

    Returns each result with the axes along which it varies; these are its leading dimensions.
    """
    varying: dict[Any, list[bool]] = {}

    def level(rest: Sequence[Any], xs: Sequence[Array]) -> list[Array]:
        if not rest:
            return flat(*xs)
        name, size = rest[0], mesh.shape[rest[0]]
        dims = [0 if name in s.names() else None for s in specs]
        outs, out_dims = vmap_flat(lambda *inner: level(rest[1:], inner), AxisData(name, size, of_shards=True), xs, dims)
        varying[name] = [d is not None for d in out_dims]
        return to_front(outs, out_dims)

    outs = level(names, values)
    return [(o, [n for n in names if varying[n][i]]) for i, o in enumerate(outs)]


def _join_shards(out: Array, varying: Sequence[Any], spec: PartitionSpec, mesh: Mesh, check: bool) -> Array:
    """Join the shards of a result.

    Its leading dimensions are the axes along which it varies.
    """
    order = list(varying)
    for name in varying:
        if name not in spec.names():
            if check:
                raise ArgumentError(
                    f"shard_map: a result differs between the shards along {name!r}, which its spec {spec} does not name. Combine them, as "
                    "by lax.psum, name the axis in out_specs, or pass check_vma=False for the first shard's"
                )
            out = out[(slice(None),) * order.index(name) + (0,)]
            order.remove(name)
    for name in [n for n in spec.names() if n not in order]:
        out = broadcast(out, (mesh.shape[name],))
        order.insert(0, name)
    mapped, shape = len(order), out.shape[len(order) :]
    if len(spec) > len(shape):
        raise ShapeError(f"shard_map: the spec {spec} has more dimensions than a result of shape {shape}")
    permutation = [p for i in range(len(shape)) for p in (*map(order.index, spec.axes_of(i)), mapped + i)]
    counts = [math.prod([mesh.shape[n] for n in spec.axes_of(i)]) for i in range(len(shape))]
    return reshape(transpose(out, permutation), [count * size for count, size in zip(counts, shape, strict=True)])


def pmap(
    fun: Callable[..., Any],
    axis_name: Any = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Sequence[int] = (),
    devices: Sequence[Device] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """Map a function over the devices there are: `jit` of `vmap`, on all GPUs.

    Args:
        fun: the function of one device's share.
        axis_name, in_axes, out_axes, axis_size: as for `vmap`.
        static_broadcasted_argnums, donate_argnums: as for `jit`.
        devices: the devices; by default those of the platform `backend`.

    Raises:
        DeviceError: the mapped axis is longer than there are devices.

    >>> vf.pmap(lambda x: vf.lax.psum(x, "i"), axis_name="i")(vf.numpy.ones((1, 3)))
    Array([[1., 1., 1.]], dtype=float32)
    """
    check_callable(fun, "pmap")
    static = (static_broadcasted_argnums,) if isinstance(static_broadcasted_argnums, int) else tuple(static_broadcasted_argnums)

    @functools.partial(jit, static_argnums=static, donate_argnums=donate_argnums)
    @functools.wraps(fun)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = (in_axes,) * len(args) if isinstance(in_axes, int) else tuple(in_axes)
        axes = tuple([None if i in static else axis for i, axis in enumerate(axes)])
        device_count = len(local_devices(backend=backend) if devices is None else devices)
        size = _checked_size(args, kwargs, axes, axis_size, device_count)
        if process_count() == 1:
            mesh = _mesh_over((devices or local_devices(backend=backend))[:size], axis_name)
            if mesh.grid is not None and not (settings.disable_jit or settings.sees_results):
                return _pmap_over_devices(fun, mesh, axes, out_axes)(args, kwargs)
            args, kwargs = tree.map(on_home_device, (tuple(args), kwargs))
            result = vmap(fun, axes, out_axes, axis_name, axis_size)(*args, **kwargs)
            return _over_devices(result, out_axes, devices or local_devices(backend=backend), axis_name)
        return _pmap_over_processes(fun, axis_name, axes, out_axes)(args, kwargs)

    return mapped


def _over_devices(result: Any, out_axes: Any, devices: Sequence[Device], name: Any) -> Any:
    """Split results along their mapped axes, one example on each device."""
    leaves, structure = tree.flatten(result)
    axes = tree.broadcast_prefix(out_axes, result, is_leaf=lambda x: x is None)
    if len(devices) == 1 or None in axes or not leaves:
        return result
    mesh = _mesh_over(devices[: leaves[0].shape[axes[0]]], name)
    specs = [PartitionSpec(*[None] * (axis % leaf.ndim), mesh.axis_names[0]) for leaf, axis in zip(leaves, axes, strict=True)]
    return tree.unflatten(structure, [split(leaf, NamedSharding(mesh, s)) for leaf, s in zip(leaves, specs, strict=True)])


def _mesh_over(devices: Sequence[Device], name: Any) -> Mesh:
    return Mesh(np.array(devices, object), (_UNNAMED if name is None else name,))


def _pmap_over_devices(fun: Callable[..., Any], mesh: Mesh, axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Map over the devices of a mesh, one example on each."""
    (name,) = mesh.axis_names

    def each(prefix: Any, unmapped: Any, mapped: Any) -> Any:
        """Replace each axis of a prefix by one value, and None by another."""
        return tree.map(lambda axis: unmapped if axis is None else mapped, prefix, is_leaf=lambda axis: axis is None)

    def along(values: Any, prefix: Any, move: Callable[[Any, int], Any]) -> Any:
        """Move the mapped axis of each array."""
        leaves, structure = tree.flatten(values)
        axes_of_leaves = tree.broadcast_prefix(prefix, values, is_leaf=lambda axis: axis is None)
        return tree.unflatten(
            structure, [x if axis is None else move(x, axis % np.ndim(x)) for x, axis in zip(leaves, axes_of_leaves, strict=True)]
        )

    def run(args: Any, kwargs: Any) -> Any:
        over_shards = shard_map(
            lambda args, kwargs: vmap(fun, each(axes, None, 0), each(out_axes, None, 0))(*args, **kwargs),
            mesh=mesh,
            in_specs=(each(axes, PartitionSpec(), PartitionSpec(name)), PartitionSpec(name)),
            out_specs=each(out_axes, PartitionSpec(), PartitionSpec(name)),
        )
        result = over_shards(along(tuple(args), axes, lambda x, axis: moveaxis(x, axis, 0)), kwargs)
        return along(result, out_axes, lambda x, axis: moveaxis(x, 0, axis))

    return run


def _pmap_over_processes(fun: Callable[..., Any], axis_name: Any, axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Map over one device of each process: axes have size 1 in each."""
    name = _UNNAMED if axis_name is None else axis_name
    spec = lambda axis: PartitionSpec() if axis is None else PartitionSpec(name)  # noqa: E731  # of the processes' axis, only whether it is there counts
    is_none = lambda x: x is None  # noqa: E731

    def run_shard(args: Any, kwargs: Any) -> Any:
        return vmap(fun, axes, out_axes)(*args, **kwargs)

    return shard_map(
        run_shard,
        mesh=Mesh(np.array(all_devices(), object), (name,)),
        in_specs=(tree.map(spec, axes, is_leaf=is_none), PartitionSpec(name)),
        out_specs=tree.map(spec, out_axes, is_leaf=is_none),
    )


_UNNAMED = "the processes"


def _checked_size(args: Sequence[Any], kwargs: dict[str, Any], axes: Any, axis_size: int | None, device_count: int) -> int:
    """Return the size of the mapped axis.

    Raises `DeviceError` if it is longer than there are devices.
    """
    leaves = tree.leaves((tuple(args), kwargs))
    dims = tree.broadcast_prefix((axes, dict.fromkeys(kwargs, 0)), (tuple(args), kwargs), is_leaf=lambda x: x is None)
    sizes = [np.shape(leaf)[d] for leaf, d in zip(leaves, dims, strict=True) if d is not None and np.ndim(leaf)]
    size = max(sizes, default=axis_size or 0)
    if size > device_count:
        raise DeviceError(
            f"pmap over an axis of size {size} needs as many devices, but there are {device_count}. Use vmap, or shard_map over a mesh "
            "in which one device stands at all positions"
        )
    return size
