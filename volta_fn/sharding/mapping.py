"""`shard_map` and `pmap`: maps over axes of devices and of processes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.axes import ProcessGrid
from volta_fn.core.device import Device, local_devices, process_count
from volta_fn.core.device import devices as all_devices
from volta_fn.core.distribution.sharding import Mesh, NamedSharding, PartitionSpec, get_mesh
from volta_fn.core.flatten import check_callable, output_arrays
from volta_fn.core.primitive import AxisData
from volta_fn.errors import ArgumentError, DeviceError, ShapeError
from volta_fn.jit import jit
from volta_fn.primitives.data_movement.movement import broadcast, reshape, transpose
from volta_fn.sharding.processes import OverProcesses, without
from volta_fn.transforms.vmap import to_front, vmap, vmap_flat


def shard_map(
    f: Callable[..., Any] | None = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any,
    mesh: Mesh | None = None,
    axis_names: Any = frozenset(),
    check_vma: bool = True,
) -> Callable[..., Any]:
    """Map a function over the shards of its arguments.

    The function gets one shard of each argument, and may use collectives over the axes of the mesh. All shards of a process are computed
    together, as by `vmap`, on the device of the arguments.

    With several processes, each has its own part of an array, and nothing else of it: it gives its shard of an argument that `in_specs`
    split over processes, and gets its shard of such a result. Arguments that are not split must be equal in all processes.

    Args:
        f: the function; without it, a decorator is returned.
        out_specs: pytree prefix of the results: a `PartitionSpec` for each, by which shards are joined.
        in_specs: the same for the positional arguments, by which these are split.
        mesh: the mesh; by default the current one (`set_mesh`).
        axis_names: the axes to map over (default: all of them).
        check_vma: raise `ArgumentError` if a result that `out_specs` does not split differs between shards; else take the first one.

    Raises:
        ShapeError: an axis does not divide the dimension that it splits.
        ArgumentError: a spec names an axis that the mesh lacks, or processes would not all come to a collective.
        ProgramMismatchError: the processes compile different programs.

    >>> import numpy as np, volta_fn as vf
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
    function = f
    jitted: dict[Mesh, Callable[..., Any]] = {}

    @functools.wraps(function)
    def mapped(*args: Any) -> Any:
        over = get_mesh() if mesh is None else mesh
        if over.processes is None:
            return on(over, *args)
        if over not in jitted:
            jitted[over] = jit(functools.wraps(function)(functools.partial(on, over)))
        return jitted[over](*args)

    def on(over: Mesh, *args: Any) -> Any:
        names = [n for n in over.axis_names if not axis_names or n in axis_names]
        leaves, structure = tree.flatten(args)
        specs = _specs(in_specs, args, over)
        found: list[Any] = []

        def flat(*shards: Array) -> list[Array]:
            result = function(*tree.unflatten(structure, shards))
            outs, out_tree = tree.flatten(result)
            found[:] = [out_tree, _specs(out_specs, result, over)]
            return output_arrays(outs, function)

        def local(grid: ProcessGrid | None, *values: Array) -> list[Array]:
            """Map over the axes of this process."""
            own = [n for n in names if grid is None or n not in grid.names]
            local_specs = specs if grid is None else [without(s, grid) for s in specs]
            split = [_split(x, s, over) for x, s in zip(values, local_specs, strict=True)]
            outs = _mapped_over(own, flat, split, local_specs, over)
            wanted = found[1] if grid is None else [without(s, grid) for s in found[1]]
            return [_joined(o, varying, s, over, check_vma) for (o, varying), s in zip(outs, wanted, strict=True)]

        values, grid = [as_value(x) for x in leaves], over.processes
        if grid is None:
            results = local(None, *values)
        else:
            processes = OverProcesses(grid, names)
            results = processes.run(functools.partial(local, grid), values, specs, lambda: found[1], check_vma)
        return tree.unflatten(found[0], results)

    return mapped


def _specs(given: Any, values: Any, mesh: Mesh) -> list[PartitionSpec]:
    """Return a checked spec for each leaf."""
    specs = tree.broadcast_prefix(given, values, is_leaf=lambda s: s is None)
    return [NamedSharding(mesh, PartitionSpec() if s is None else s).spec for s in specs]


def _split(x: Array, spec: PartitionSpec, mesh: Mesh) -> Array:
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
        outs, out_dims = vmap_flat(lambda *inner: level(rest[1:], inner), AxisData(name, size), xs, dims)
        varying[name] = [d is not None for d in out_dims]
        return to_front(outs, out_dims)

    outs = level(names, values)
    return [(o, [n for n in names if varying[n][i]]) for i, o in enumerate(outs)]


def _joined(out: Array, varying: Sequence[Any], spec: PartitionSpec, mesh: Mesh, check: bool) -> Array:
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
    """Map a function over the devices there are: `jit` of `vmap`.

    Args:
        fun: the function of one device's share.
        axis_name, in_axes, out_axes, axis_size: as for `vmap`.
        static_broadcasted_argnums, donate_argnums: as for `jit`.
        devices: the devices; by default those of the platform `backend`.

    Raises:
        DeviceError: the mapped axis is longer than there are devices.

    >>> import volta_fn as vf
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
        there = len(local_devices(backend=backend) if devices is None else devices)
        _check_size(args, kwargs, axes, axis_size, there)
        if process_count() == 1:
            return vmap(fun, axes, out_axes, axis_name, axis_size)(*args, **kwargs)
        return _pmap_over_processes(fun, axis_name, axes, out_axes)(args, kwargs)

    return mapped


def _pmap_over_processes(fun: Callable[..., Any], axis_name: Any, axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Map over one device of each process: axes have size 1 in each."""
    name = _UNNAMED if axis_name is None else axis_name
    spec = lambda axis: PartitionSpec() if axis is None else PartitionSpec(name)  # noqa: E731  # of the processes' axis, only whether it is there counts
    is_none = lambda x: x is None  # noqa: E731

    def one(args: Any, kwargs: Any) -> Any:
        return vmap(fun, axes, out_axes)(*args, **kwargs)

    return shard_map(
        one,
        mesh=Mesh(np.array(all_devices(), object), (name,)),
        in_specs=(tree.map(spec, axes, is_leaf=is_none), PartitionSpec(name)),
        out_specs=tree.map(spec, out_axes, is_leaf=is_none),
    )


_UNNAMED = "the processes"


def _check_size(args: Sequence[Any], kwargs: dict[str, Any], axes: Any, given: int | None, there: int) -> None:
    """Raise `DeviceError` if the mapped axis is longer than there are devices."""
    leaves = tree.leaves((tuple(args), kwargs))
    dims = tree.broadcast_prefix((axes, dict.fromkeys(kwargs, 0)), (tuple(args), kwargs), is_leaf=lambda x: x is None)
    sizes = [np.shape(leaf)[d] for leaf, d in zip(leaves, dims, strict=True) if d is not None and np.ndim(leaf)]
    size = max(sizes, default=given or 0)
    if size > there:
        raise DeviceError(
            f"pmap over an axis of size {size} needs as many devices, but there are {there}. Use vmap, or shard_map over a mesh "
            "in which one device stands at all positions"
        )
