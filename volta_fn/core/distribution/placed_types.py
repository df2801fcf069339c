"""Types that show how values are split between devices, for `typeof`.

Programs do not have them: there a type is a shape and a dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.distribution.placement import known_sharding
from volta_fn.core.distribution.sharding import AxisType, NamedSharding, PartitionSpec
from volta_fn.core.trace import Tracer


class PlacedAval(ShapedArray):
    """A type that also says how arrays are split, and along which axes values vary."""

    __slots__ = ("sharding", "vma")
    sharding: Any  # type: ignore[misc]  # a class variable of types without one
    vma: frozenset[Any]

    def __new__(cls, aval: ShapedArray, sharding: Any, vma: Sequence[Any]) -> PlacedAval:
        """Make the type of one value."""
        made = object.__new__(cls)
        for name in ("shape", "dtype", "weak_type", "ndim", "size", "is_float"):
            setattr(made, name, getattr(aval, name))
        made.sharding, made.vma = sharding, frozenset(vma)
        return made

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
    """Return what a type has of a sharding: the axes of the mesh that are explicit."""
    mesh, spec = sharding.mesh, sharding.spec
    explicit = {n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit}
    shown = [tuple([name for name in spec.axes_of(i) if name in explicit]) for i in range(len(spec))]
    return NamedSharding(mesh.abstract_mesh, PartitionSpec(*shown))


def _varying(x: Any) -> list[Any]:
    """Return the named axes that a value is mapped over."""
    names = []
    while (axis := getattr(getattr(x, "_trace", None), "axis", None)) is not None and hasattr(x, "stacked"):
        names += [axis.name] if axis.name is not None else []
        x = x.stacked
    return names
