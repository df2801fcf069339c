"""Arrays split between several devices, how results are split, and their types.

Shards are views of one buffer where devices share a memory. Rules derive from the dimensions of operands how a result is split.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core import distribution
from volta_fn.core.array import Array, ConcreteArray, array_spec, as_value, wrap
from volta_fn.core.aval import ShapedArray
from volta_fn.core.device import Device
from volta_fn.core.distribution import (
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
    get_abstract_mesh,
    get_mesh,
)
from volta_fn.core.jaxpr import ClosedJaxpr, Literal
from volta_fn.core.memory import device_put
from volta_fn.core.primitive import Primitive
from volta_fn.core.staging import JaxprTracer
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, DeviceError, ShapeError

# Types that show how values are split between devices, for `typeof`.
#
# Programs do not have them: there a type is a shape and a dtype.


class PlacedAval(ShapedArray):
    """A type that also says how arrays are split, and along which axes values vary."""

    __slots__ = ("sharding", "vma")
    sharding: Any  # type: ignore[misc]  # a class variable of types without one
    vma: frozenset[Any]

    def __new__(cls, aval: ShapedArray, sharding: Any, vma: Sequence[Any]) -> PlacedAval:
        placed = object.__new__(cls)
        for name in ("shape", "dtype", "weak_type", "ndim", "size", "is_float"):
            setattr(placed, name, getattr(aval, name))
        placed.sharding, placed.vma = sharding, frozenset(vma)
        return placed

    @property
    def manual_axis_type(self) -> Any:
        """The axes along which the value varies, as ``.varying``."""
        return ManualAxisType(self.vma)

    def __repr__(self) -> str:
        spec = PartitionSpec() if self.sharding is None else self.sharding.spec
        names = ["".join(map(str, spec.axes_of(i))) if len(spec.axes_of(i)) < 2 else _listed(spec.axes_of(i)) for i in range(self.ndim)]
        sizes = [f"{size}@{name}" if name else str(size) for size, name in zip(self.shape, names, strict=True)]
        plain = ShapedArray.__repr__(self)
        vma = sorted(map(str, self.vma))
        varying = f"{{V:{vma[0] if len(vma) == 1 else _listed(vma)}}}" if vma else ""
        return f"{plain[: plain.index('[')]}[{','.join(sizes)}]{varying}"


@dataclass(frozen=True)
class ManualAxisType:
    """The axes of a mesh along which a value varies."""

    varying: frozenset[Any]


def _listed(names: Sequence[Any]) -> str:
    return f"({','.join(map(str, names))})"


def placed_aval(x: Any) -> ShapedArray | None:
    """Return the type of a value that is split, or varies along axes; None for others."""
    if isinstance(x, Array) and (sharding := known_sharding(x)) is not None:
        return PlacedAval(x.aval, explicit_axes_of(sharding), ())
    if isinstance(x, Tracer) and (names := _varying(x)):
        return PlacedAval(x.aval, None, names)
    return None


def explicit_axes_of(sharding: NamedSharding) -> NamedSharding:
    """Return the part of a sharding that types show: explicit axes."""
    mesh, spec = sharding.mesh, sharding.spec
    explicit = {n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit}
    explicit_names = [tuple([name for name in spec.axes_of(i) if name in explicit]) for i in range(len(spec))]
    return NamedSharding(mesh.abstract_mesh, PartitionSpec(*explicit_names))


def _varying(x: Any) -> list[Any]:
    """Return the named axes that a value is mapped over."""
    names = []
    while (axis := getattr(getattr(x, "_trace", None), "axis", None)) is not None and hasattr(x, "stacked"):
        names += [axis.name] if axis.name is not None else []
        x = x.stacked
    return names


# Arrays assembled from the shards of this process's devices.


def make_array_from_callback(
    shape: Sequence[int], sharding: Sharding, data_callback: Callable[[tuple[slice, ...]], Any], dtype: Any = None
) -> Array:
    """Make an array from a function of indices, which is called once for each device.

    >>> import numpy as np, volta_fn as vf
    >>> sharding = vf.sharding.SingleDeviceSharding("cpu")
    >>> vf.make_array_from_callback((3,), sharding, lambda index: np.arange(3.0, dtype="float32")[index])
    Array([0., 1., 2.], dtype=float32)
    """
    shards = {device: np.asarray(data_callback(index), dtype) for device, index in indices_of(sharding, tuple(shape)).items()}
    shard_shape = sharding.shard_shape(tuple(shape))
    for shard in shards.values():
        if shard.shape != shard_shape:
            raise ShapeError(f"the callback returned an array of shape {shard.shape}, not {shard_shape}")
    result: Array = device_put(joined(shape, sharding, shards), sharding)
    return result


def make_array_from_process_local_data(sharding: Sharding, local_data: Any, global_shape: Sequence[int] | None = None) -> Array:
    """Return this process's shard of an array, which is all that it holds.

    Raises `ShapeError` if `global_shape` is given, and its shard for one process has another shape.

    >>> import numpy as np, volta_fn as vf
    >>> sharding = vf.NamedSharding(vf.make_mesh({"data": vf.process_count()}), vf.P("data"))
    >>> vf.make_array_from_process_local_data(sharding, np.arange(2, dtype="int32"))
    Array([0, 1], dtype=int32)
    """
    array = as_value(local_data)
    if global_shape is not None and isinstance(sharding, NamedSharding):
        shard_shape = sharding.own_shard(np.broadcast_to(False, tuple(global_shape))).shape
        if array.shape != shard_shape:
            raise ShapeError(f"a process's shard of an array of shape {tuple(global_shape)} has shape {shard_shape}, not {array.shape}")
    return array


def make_array_from_single_device_arrays(shape: Sequence[int], sharding: Sharding, arrays: Sequence[Array], *, dtype: Any = None) -> Array:
    """Join arrays, one on each device of a sharding, to an array of this shape.

    Raises `DeviceError` if there is not one array on each device, and `ShapeError` if one has not a shard's shape.
    """
    shards = {array.device: array for array in arrays}
    if len(arrays) != len(shards) or shards.keys() != sharding.device_set:
        raise DeviceError(f"{sharding} needs one shard on each of its {sharding.num_devices} devices, got {len(arrays)} on {[*shards]}")
    shard_shape = sharding.shard_shape(tuple(shape))
    for array in arrays:
        if array.shape != shard_shape:
            raise ShapeError(f"the shard on {array.device} has shape {array.shape}, not {shard_shape}")
    if len(arrays) == 1:
        only: Array = device_put(arrays[0], sharding)
        return only
    result: Array = device_put(joined(shape, sharding, {d: np.asarray(a, dtype) for d, a in shards.items()}), sharding)
    return result


# Sharding propagation: from operands to results.
#
# Rules go by the names of dimensions: a dimension of a result is split as the dimensions of operands that it comes from are. Where
# nothing follows, it is not split. A program's own constraints (`with_sharding_constraint`) take precedence.

#: For each dimension, the names of the axes that split it.
Names = list[tuple[Any, ...]]
#: (parameters, types of the operands, type of the result, names of each operand) -> names of the result
Rule = Callable[[Mapping[str, Any], Sequence[ShapedArray], ShapedArray, Sequence[Names]], Names]


def program_shardings(closed: ClosedJaxpr, arguments: Sequence[NamedSharding | None]) -> list[NamedSharding | None]:
    """Return the shardings of a program's results."""
    jaxpr, constraints = closed.jaxpr, closed.shardings
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, [c.device.sharding for c in closed.consts], strict=True))
    env.update(zip(jaxpr.invars, arguments, strict=True))
    env.update(constraints)
    read = lambda atom: None if isinstance(atom, Literal) else env.get(atom)  # noqa: E731
    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        results = equation_shardings(eqn.primitive, eqn.params, [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars], operands)
        env.update((v, constraints.get(v, s)) for v, s in zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def tracer_sharding(tracer: JaxprTracer) -> NamedSharding | None:
    """Return the sharding of a value of a program that is being traced."""
    builder = tracer._trace.builder  # type: ignore[attr-defined]  # of all traces that make programs
    env: dict[Any, Any] = {}

    def find(atom: Any) -> Any:
        if isinstance(atom, Literal) or not builder.shardings:
            return None
        if atom not in env:
            env[atom] = builder.shardings.get(atom)
            eqn = builder.find(atom) if env[atom] is None else None
            if eqn is not None:
                operands = [find(v) for v in eqn.invars]
                results = equation_shardings(
                    eqn.primitive, eqn.params, [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars], operands
                )
                env.update(zip(eqn.outvars, results, strict=True))
        return env[atom]

    result: NamedSharding | None = find(tracer._var)
    return result


def equation_shardings(
    primitive: Primitive, params: Mapping[str, Any], avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], operands: Sequence[Any]
) -> list[NamedSharding | None]:
    """Return the shardings of a primitive's results; None for those on one device."""
    named = [s for s in operands if s is not None]
    inner = params.get("jaxpr")
    if isinstance(inner, ClosedJaxpr) and len(inner.in_avals) == len(operands):
        return program_shardings(inner, operands) if named or "shardings" in inner.derived else [None] * len(out_avals)
    if not named:
        return [None] * len(out_avals)
    mesh = named[0].mesh
    names = [_names(s if s is not None and s.mesh == mesh else None, a.ndim) for s, a in zip(operands, avals, strict=True)]
    rule = _RULES.get(primitive.name, _by_shape)
    return [NamedSharding(mesh, PartitionSpec(*_once(rule(params, avals, out, names), out, mesh.shape))) for out in out_avals]


def _names(sharding: NamedSharding | None, ndim: int) -> Names:
    return [() if sharding is None else sharding.spec.axes_of(i) for i in range(ndim)]


def _once(names: Names, out: ShapedArray, sizes: Mapping[Any, int]) -> Names:
    """Drop axes that were used before, and those that do not divide the dimension."""
    used_axes: set[Any] = set()
    unique: Names = []
    for dimension, size in zip(names, out.shape, strict=True):
        split = 1
        axes = []
        for name in dimension:
            if name not in used_axes and size % (split * sizes[name]) == 0:
                axes.append(name)
                used_axes.add(name)
                split *= sizes[name]
        unique.append(tuple(axes))
    return unique


def _by_shape(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Propagate the names of operands that are broadcast to the result.

    Unless all are, as in elementwise primitives, take those of operands of its shape.
    """
    result: Names = [()] * out.ndim
    is_elementwise = all(_is_broadcast(aval.shape, out.shape) for aval in avals)
    for aval, operand_names in zip(avals, names, strict=True):
        if is_elementwise or aval.shape == out.shape:
            leading = out.ndim - aval.ndim
            for i, name in enumerate(operand_names):
                if aval.shape[i] == out.shape[leading + i]:
                    result[leading + i] = result[leading + i] or name
    return result


def _is_broadcast(shape: Sequence[int], to: Sequence[int]) -> bool:
    return len(shape) <= len(to) and all(size in (1, target_size) for size, target_size in zip(reversed(shape), reversed(to), strict=False))


def _transpose(params: Any, avals: Any, out: ShapedArray, names: Sequence[Names]) -> Names:
    return [names[0][i] for i in params["permutation"]]


def _broadcast(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    result: Names = [()] * out.ndim
    for i, position in enumerate(params["broadcast_dimensions"]):
        if avals[0].shape[i] == out.shape[position]:
            result[position] = names[0][i]
    return result


def _reduce(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    remaining = [n for i, n in enumerate(names[0]) if i not in params["axes"]]
    return remaining if len(remaining) == out.ndim else [()] * out.ndim


def _squeeze(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    dropped = [d % avals[0].ndim for d in params["dimensions"]]
    return [n for i, n in enumerate(names[0]) if i not in dropped]


def _reshape(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Keep the names of unchanged dimensions, and of the first in a split or merger."""
    result: Names = [()] * out.ndim
    old_dimensions: dict[int, int] = {}
    elements_before = 1
    for i, size in enumerate(avals[0].shape):
        if size != 1:
            old_dimensions[elements_before] = i
        elements_before *= size
    elements_before = 1
    for i, size in enumerate(out.shape):
        if size != 1 and elements_before in old_dimensions:
            result[i] = names[0][old_dimensions[elements_before]]
        elements_before *= size
    return result


def _dot(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    left = [names[0][i] for i in range(avals[0].ndim) if i not in (*left_sum, *left_batch)]
    right = [names[1][i] for i in range(avals[1].ndim) if i not in (*right_sum, *right_batch)]
    return [*[names[0][i] or names[1][j] for i, j in zip(left_batch, right_batch, strict=True)], *left, *right]


def _by_dimension(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Keep the names of the first operand's dimensions that keep their size."""
    if avals[0].ndim != out.ndim:
        return [()] * out.ndim
    return [n if a == b else () for n, a, b in zip(names[0], avals[0].shape, out.shape, strict=True)]


_RULES: dict[str, Rule] = {
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "dot_general": _dot,
    **dict.fromkeys(["slice", "dynamic_slice", "concatenate", "pad", "rev"], _by_dimension),
    **dict.fromkeys([f"reduce_{name}" for name in ("sum", "prod", "max", "min", "and", "or", "xor")], _reduce),
    **dict.fromkeys(["argmax", "argmin"], _reduce),
}


# Arrays that are split between several devices of one memory.
#
# These are the CPUs of `set_cpu_devices`.
#
# All elements are in one buffer, so that a shard is a view of it and no operation depends on where shards lie. What an array has in
# place of a device is the *group* of its devices, with the sharding, so that types, and programs found by types, differ where shardings
# do.


class DeviceGroup(Device):
    """The devices that hold an array's shards, with its sharding."""

    __slots__ = ("home", "sharding")
    sharding: NamedSharding  # type: ignore[misc]  # a class variable of single devices, which have none

    def __init__(self, sharding: NamedSharding, home: Device) -> None:
        super().__init__(home.platform, home.id, home.device_kind, home.backend)
        self.sharding = sharding
        #: The device that computes for the group.
        self.home = home

    def members(self) -> set[Device]:
        """Return the devices of the group."""
        return self.sharding.device_set

    def __str__(self) -> str:
        return f"{self.platform} devices of {self.sharding}"

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        return group_of, (self.sharding,)


_groups: dict[NamedSharding, DeviceGroup] = {}
_lock = threading.Lock()


def group_of(sharding: Sharding) -> Device:
    """Return the device of arrays with this sharding: a group, or the only device.

    Raises `DeviceError` if the devices have no common memory.
    """
    local = [d for d in _devices_of(sharding) if d.process_index == distribution.current().rank]
    distinct = list(dict.fromkeys(local))
    if not distinct:
        raise DeviceError(f"{sharding} has no device of this process")
    if len(distinct) == 1 or not isinstance(sharding, NamedSharding):
        return distinct[0]
    if any(d.backend is not distinct[0].backend for d in distinct):
        raise DeviceError(f"{sharding} has devices of several memories, but an array lies in one")
    with _lock:
        return _groups.setdefault(sharding, DeviceGroup(sharding, min(distinct, key=lambda d: d.id)))


def _devices_of(sharding: Sharding) -> list[Device]:
    mesh = getattr(sharding, "mesh", None)
    return [*sharding.device_set] if mesh is None else [*mesh.devices.flat]


def with_device(array: ConcreteArray, device: Device) -> ConcreteArray:
    """Return the same buffer as an array on another device of its memory."""
    return wrap(array.buffer(), array_spec(array.aval, device))


def with_named_sharding(array: ConcreteArray, sharding: Sharding) -> ConcreteArray:
    """Return an array on one device that tells the mesh that it was put on."""
    if not isinstance(sharding, NamedSharding) or isinstance(array.device, DeviceGroup):
        return array
    # Only the array itself remembers it: results of operations would need a group of one device, which computes more slowly.
    result = with_device(array, array.device)
    vars(result)["_named_sharding"] = sharding
    return result


def on_home_device(value: Any) -> Any:
    """Return a sharded array as one on a single device; pass other values through."""
    if isinstance(value, ConcreteArray) and isinstance(value.device, DeviceGroup):
        return with_device(value, value.device.home)
    return value


def split(value: Array, sharding: Sharding) -> Array:
    """Return a value with a sharding.

    Of a traced one, the results of its program show it. Raises `ShapeError` if the mesh's axes do not divide the dimensions.
    """
    sharding.shard_shape(value.shape)
    if isinstance(value, JaxprTracer) and isinstance(sharding, NamedSharding):
        value._trace.builder.shardings[value._var] = sharding  # type: ignore[attr-defined]  # of all traces that make programs
    if not isinstance(value, ConcreteArray):
        return value
    device = group_of(sharding)
    if device is value.device or device.backend is not value.device.backend:
        return value
    return with_device(value, device)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Return `x`, a pytree of arrays, split between devices as `shardings` says.

    `shardings` is a `Sharding`, or a `PartitionSpec` of the current mesh, or a pytree of them that is a prefix of `x`. An `AbstractMesh`
    stands for the current mesh with these axes. Values are not moved: where devices do not share a memory, this checks only that the
    array can be split so.

    Raises `ShapeError` if the mesh's axes do not divide an array's dimensions, and `ArgumentError` if there is no such axis.

    >>> import volta_fn as vf
    >>> with vf.make_mesh((1,), ("data",)):
    ...     vf.lax.with_sharding_constraint(vf.numpy.ones(2), vf.P("data"))
    Array([1., 1.], dtype=float32)
    """
    leaves, structure = tree.flatten(x)
    leaf_shardings = tree.broadcast_prefix(shardings, x, is_leaf=lambda s: s is None)
    values = [as_value(leaf) for leaf in leaves]
    return tree.unflatten(structure, [v if s is None else split(v, sharding_for(s)) for v, s in zip(values, leaf_shardings, strict=True)])


reshard = with_sharding_constraint


def constrained_function(
    function: Callable[..., Any], in_shardings: Any, out_shardings: Any, static: Collection[int] = ()
) -> Callable[..., Any]:
    """Return a function whose arguments and results are split so (None: as they are).

    Arguments at `static` positions have no shardings.
    """

    @functools.wraps(function)
    def constrained(*args: Any, **kwargs: Any) -> Any:
        sharded_args = list(args)
        if in_shardings is not None:
            numbers = [n for n in range(len(args)) if n not in static]
            shardings = tuple(in_shardings) if isinstance(in_shardings, list) else in_shardings
            placed = with_sharding_constraint(tuple([args[n] for n in numbers]), shardings)
            for n, x in zip(numbers, placed, strict=True):
                sharded_args[n] = x
        result = function(*sharded_args, **kwargs)
        return result if out_shardings is None else with_sharding_constraint(result, out_shardings)

    return constrained


def sharding_for(placement: Any) -> Sharding:
    """Resolve a placement to a sharding.

    That of a `PartitionSpec`, or of an `AbstractMesh` with its axes, is of the current mesh; a `Format` has its own.
    """
    placement = getattr(placement, "sharding", placement)
    if isinstance(placement, PartitionSpec):
        return NamedSharding(get_mesh(), placement)
    if isinstance(placement, NamedSharding) and isinstance(placement.mesh, AbstractMesh) and placement.mesh == get_abstract_mesh():
        return NamedSharding(get_mesh(), placement.spec)
    sharding: Sharding = placement
    return sharding


@dataclass(frozen=True)
class Shard:
    """A slice of an array: its device, its indices, its number, its elements."""

    device: Device
    index: tuple[slice, ...]
    replica_id: int
    data: ConcreteArray


def shards_of(array: ConcreteArray) -> list[Shard]:
    """Return the shards of an array, one for each of its devices."""
    group = array.device
    if not isinstance(group, DeviceGroup):
        return [Shard(group, (slice(None),) * array.ndim, 0, array)]
    joined_array = on_home_device(array)
    replicas: dict[Any, int] = {}
    shards = []
    for device, index in indices_of(group.sharding, array.shape).items():
        key = tuple([(s.start, s.stop) for s in index])
        replicas[key] = replicas.get(key, -1) + 1
        shards.append(Shard(device, index, replicas[key], with_device(joined_array[index] if index else joined_array, device)))
    return shards


def indices_of(sharding: Sharding, shape: Sequence[int]) -> dict[Device, tuple[slice, ...]]:
    """Return the indices of the elements that each device holds."""
    if not isinstance(sharding, NamedSharding):
        return {device: (slice(None),) * len(shape) for device in sharding.device_set}
    sizes, mesh = sharding.shard_shape(shape), sharding.mesh
    return {mesh.devices[at]: tuple(_slices(sharding, shape, sizes, at)) for at in np.ndindex(mesh.devices.shape)}


def _slices(sharding: NamedSharding, shape: Sequence[int], sizes: Sequence[int], at: Sequence[int]) -> Iterator[slice]:
    position = dict(zip(sharding.mesh.axis_names, at, strict=True))
    for dimension, size in enumerate(sizes):
        number = 0
        for name in sharding.spec.axes_of(dimension):
            number = number * sharding.mesh.shape[name] + position[name]
        yield slice(None) if size == shape[dimension] else slice(number * size, (number + 1) * size)


def joined(shape: Sequence[int], sharding: Sharding, by_device: Mapping[Device, np.ndarray]) -> np.ndarray:
    """Join the elements on each device to those of an array."""
    first = next(iter(by_device.values()))
    result = np.empty(tuple(shape), first.dtype)
    for device, index in indices_of(sharding, shape).items():
        if device not in by_device:
            raise ArgumentError(f"there is no shard for {device}")
        result[index] = by_device[device]
    return result


def sharding_of(array: Array) -> Sharding:
    """Return the sharding of an array."""
    device = array.device
    if isinstance(device, DeviceGroup):
        return device.sharding
    return vars(array).get("_named_sharding") or SingleDeviceSharding(device)


def sharding_spec(x: Any) -> PartitionSpec:
    """Return the spec of a value's sharding; empty if that is unknown."""
    sharding = known_sharding(x)
    return PartitionSpec() if sharding is None else sharding.spec


def known_sharding(x: Any) -> NamedSharding | None:
    """Return a value's sharding; None if it is not split, or unknown."""
    if isinstance(x, Tracer):
        x = getattr(x, "primal", x)
        sharding: NamedSharding | None = tracer_sharding(x) if isinstance(x, JaxprTracer) else None
        return sharding
    return x.device.sharding if isinstance(x, ConcreteArray) else None
