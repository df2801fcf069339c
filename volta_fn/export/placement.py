"""How an exported function's arguments were split between devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volta_fn import tree
from volta_fn.core.distribution.sharding import NamedSharding, PartitionSpec
from volta_fn.errors import ArgumentError, CorruptFileError


def described_shardings(arguments: Any) -> dict[str, Any] | None:
    """Return the JSON of the arguments' shardings; None if they have none."""
    given = [getattr(leaf, "sharding", None) for leaf in tree.leaves(arguments)]
    named = [s for s in given if isinstance(s, NamedSharding)]
    if not named:
        return None
    axes = named[0].mesh.shape
    if any(s.mesh.shape != axes for s in named):
        raise ArgumentError("export: all arguments must be split along the axes of one mesh")
    specs = [[[str(n) for n in s.spec.axes_of(i)] for i in range(len(s.spec))] if isinstance(s, NamedSharding) else None for s in given]
    return {"axes": [[str(name), size] for name, size in axes.items()], "inputs": specs}


def check_shardings(described: Any, count: int) -> None:
    """Raise `CorruptFileError` unless this is the JSON of `count` shardings, or None."""
    if described is None:
        return
    axes, specs = described["axes"], described["inputs"]
    names = [name for name, _ in axes]
    right = all(type(name) is str and type(size) is int and size > 0 for name, size in axes) and len({*names}) == len(names)
    for spec in specs:
        right = right and (spec is None or all(isinstance(some, list) and {*some} <= {*names} for some in spec))
    if not right or len(specs) != count:
        raise CorruptFileError("the exported function is damaged: it has not one sharding for each argument")


def shardings_on(mesh: Any, described: Mapping[str, Any] | None, count: int) -> tuple[Any, ...]:
    """Return shardings on a mesh, given their JSON."""
    if described is None:
        return (None,) * count
    axes, specs = dict(described["axes"]), described["inputs"]
    if {str(name): size for name, size in mesh.shape.items()} != axes:
        raise ArgumentError(f"in_shardings_jax: the function was exported for axes {axes}, but the mesh has {dict(mesh.shape)}")
    return tuple([None if spec is None else NamedSharding(mesh, PartitionSpec(*map(tuple, spec))) for spec in specs])
