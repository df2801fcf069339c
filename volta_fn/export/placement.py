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


def shardings_on(mesh: Any, described: Mapping[str, Any] | None, count: int) -> tuple[Any, ...]:
    """Return shardings on a mesh, given their JSON."""
    if described is None:
        return (None,) * count
    axes, specs = dict(described["axes"]), described["inputs"]
    if len(specs) != count:
        raise CorruptFileError("the exported function is damaged: it has not one sharding for each argument")
    if {str(name): size for name, size in mesh.shape.items()} != axes:
        raise ArgumentError(f"in_shardings_jax: the function was exported for axes {axes}, but the mesh has {dict(mesh.shape)}")
    return tuple([None if spec is None else NamedSharding(mesh, PartitionSpec(*map(tuple, spec))) for spec in specs])
