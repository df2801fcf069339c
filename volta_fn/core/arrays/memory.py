"""The memory of arrays: donation and transfers.

Donated arguments give their memory to results. Trees of arrays move between the host and devices.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, ConcreteArray, alias, array_spec, as_value, from_host, unmasked, wrap
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.device import Device, MemorySpace, find_device
from volta_fn.core.trace import Tracer
from volta_fn.lazy_imports import deferred, load

_structures = deferred("volta_fn.tree.structures")  # which loads optree

# Donation: which arguments give their memory to which results.


class Donations(tuple[bool, ...]):
    """A flag for each argument, and pairs of results and donated arguments.

    The two have equal paths in their trees. A pair is (number of the result, number of the argument). It is a preference: a result that is
    computed while its argument is still needed takes other memory.
    """

    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def paired(cls, donated: Iterable[bool], pairs: Sequence[tuple[int, int]]) -> Donations:
        """Make flags with pairs.

        >>> Donations.paired([True, False], [(1, 0)]).pairs
        ((1, 0),)
        """
        donations = cls(donated)
        donations.pairs = tuple(pairs)
        return donations


def pairs_of(donated: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of results and arguments that flags come with, if any."""
    return donated.pairs if isinstance(donated, Donations) else ()


def pair_by_path(
    donated: Sequence[bool], in_tree: Any, in_avals: Sequence[ShapedArray], out_tree: Any, out_avals: Sequence[ShapedArray]
) -> list[tuple[int, int]]:
    """Pair results with donated arguments of the same shape, dtype and path."""
    # In a training step `(model, moments, batch) -> (loss, model, moments)` a parameter's paths in arguments and results differ in their
    # beginnings alone. Paths with the longest common suffix are therefore paired first, equally long ones in order.
    arguments = {i: path for i, path in enumerate(_structures.paths_of(in_tree)) if donated[i]}
    results = dict(enumerate(_structures.paths_of(out_tree)))
    pairs: list[tuple[int, int]] = []
    for length in range(max(map(len, arguments.values()), default=0), 0, -1):
        by_end: dict[Any, list[int]] = {}
        for number, path in arguments.items():
            if len(path) >= length:
                by_end.setdefault((path[-length:], *_type(in_avals[number])), []).append(number)
        for number, path in list(results.items()):
            fitting = by_end.get((path[-length:], *_type(out_avals[number]))) if len(path) >= length else None
            if fitting:
                pairs.append((number, fitting.pop(0)))
                del results[number], arguments[pairs[-1][1]]
    return pairs


def usable(donated: Sequence[bool], in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray]) -> tuple[bool, ...]:
    """Return the flags of the donated arguments whose memory some result can take.

    The other arguments are not donated, as in JAX.

    >>> f32 = lambda n: ShapedArray((n,), "float32")
    >>> usable([True, True], [f32(2), f32(3)], [f32(2)])
    (True, False)
    """
    free = collections.Counter([_type(aval) for aval in out_avals])
    flags = []
    for flag, aval in zip(donated, in_avals, strict=False):
        flags.append(flag and free[_type(aval)] > 0)
        free[_type(aval)] -= flags[-1]
    return tuple(flags)


def _type(aval: ShapedArray) -> tuple[Any, ...]:
    return aval.shape, aval.dtype


# Moving pytrees of arrays between host and devices.

T = TypeVar("T", bound=Any)


def device_put(x: Any, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None) -> Any:
    """Move a pytree of arrays and scalars to a device.

    `device` is a device, its name, a sharding, a `PartitionSpec` of the current mesh, or a `MemorySpace`, by which arrays stay where they
    are; or a pytree of these that is a prefix of `x`. By a sharding over a mesh of several processes, each keeps its shard of the arrays.

    By default arrays stay where they are, and other values go to the default device. `src`, `donate` and `may_alias` are accepted for
    compatibility.

    Dtypes stay as they are: NumPy's float64 arrays become float64 arrays, which the result's repr shows. Convert data for a float32
    network before, by ``x.astype("float32")``.

    Values that are being traced pass through: the program runs where its arguments are.
    Raises `DeviceError` for an unknown device.

    >>> import numpy as np, volta_fn as vf
    >>> vf.device_put({"w": np.ones(2, np.float32)}, "cpu")
    {'w': Array([1., 1.], dtype=float32)}
    """
    if device is None or isinstance(device, (str, Device, MemorySpace)):
        target = None if device is None or isinstance(device, MemorySpace) else find_device(device)
        return tree.map(lambda leaf: _put(leaf, target), x)
    placement = load("volta_fn.core.devices.placement")
    leaves, structure = tree.flatten(x)
    destinations = tree.broadcast_prefix(device, x, is_leaf=lambda s: s is None)
    return tree.unflatten(structure, [_put_split(leaf, d, placement) for leaf, d in zip(leaves, destinations, strict=True)])


def _put_split(leaf: Any, destination: Any, placement: Any) -> Array:
    """Move a value to a device, or split it by a sharding."""
    if destination is None or isinstance(destination, (str, Device, MemorySpace)):
        return _put(leaf, None if destination is None or isinstance(destination, MemorySpace) else find_device(destination))
    sharding = placement.sharding_for(destination)
    if isinstance(leaf, Tracer):
        traced: Array = placement.split(leaf, sharding)
        return traced
    local_shard = getattr(sharding, "own_shard", None)
    if local_shard is None or sharding.mesh.processes is None:
        sharding.shard_shape(np.shape(leaf))
    array = _put(leaf if local_shard is None else local_shard(as_value(leaf)), placement.group_of(sharding))
    result: Array = placement.with_named_sharding(array, sharding)
    return result


def _put(leaf: Any, target: Device | None) -> Array:
    if isinstance(leaf, Tracer) or (isinstance(leaf, ConcreteArray) and target in (None, leaf.device)):
        return leaf
    if isinstance(leaf, ConcreteArray):
        if target is not None and target.backend is leaf.device.backend:
            return wrap(leaf.buffer(), array_spec(leaf.aval, target))
        return alias(leaf, target)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return from_host(np.asarray(unmasked(leaf)), device=target)
    return _put(as_value(leaf), target)


def constrained(x: T, sharding: Any) -> T:
    """Return a result, constrained to `out_sharding` unless that is None.

    The sharding may be a `PartitionSpec` of the current mesh; see `lax.with_sharding_constraint`.
    """
    if sharding is None:
        return x
    result: T = load("volta_fn.core.devices.placement").with_sharding_constraint(x, sharding)
    return result


def device_get(x: Any) -> Any:
    """Return `x` with every array replaced by a NumPy array of its elements.

    Traced arrays have no elements yet, and stay as they are.

    >>> import volta_fn as vf
    >>> vf.device_get([vf.numpy.arange(2), 1.5])
    [array([0, 1], dtype=int32), 1.5]
    """
    return tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, Array) and not isinstance(leaf, Tracer) else leaf, x)


def copy_to_host_async(x: T) -> T:
    """Return `x` as it is: arrays are copied to the host when they are read.

    Calls the method `copy_to_host_async` of other leaves that have one.

    >>> import volta_fn as vf
    >>> vf.copy_to_host_async({"x": vf.numpy.ones(2)})
    {'x': Array([1., 1.], dtype=float32)}
    """
    for leaf in tree.leaves(x):
        if not isinstance(leaf, Array) and hasattr(leaf, "copy_to_host_async"):
            leaf.copy_to_host_async()
    return x


def block_until_ready(x: T) -> T:
    """Return `x` once all of its arrays are computed.

    >>> import volta_fn as vf
    >>> vf.block_until_ready({"x": vf.numpy.ones(2) + 1})
    {'x': Array([2., 2.], dtype=float32)}
    """
    for leaf in (x,) if type(x) is ConcreteArray else tree.leaves(x):
        if isinstance(leaf, ConcreteArray):
            leaf.block_until_ready()
    return x
