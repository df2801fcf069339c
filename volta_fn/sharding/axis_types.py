"""Meshes whose axes have another type for a while: `auto_axes`, `explicit_axes`.

What a type has of a sharding, and what it has not, is all that they change: `typeof` shows explicit axes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from volta_fn.core.distribution.placement import with_sharding_constraint
from volta_fn.core.distribution.sharding import AbstractMesh, AxisType, Mesh, get_mesh, set_mesh
from volta_fn.errors import ArgumentError


def auto_axes(f: Callable[..., Any] | None = None, /, *, axes: str | Sequence[str] | None = None, out_sharding: Any = None) -> Any:
    """Return a function that runs with automatic axes of the current mesh.

    Args:
        f: the function; without it, a decorator is returned.
        axes: the axes that become automatic (default: all).
        out_sharding: how the results are split; the call may say it instead, by a keyword of this name.

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
    >>> with vf.make_mesh((1,), ("x",)):
    ...     vf.sharding.explicit_axes(lambda x: x + 1)(vf.numpy.ones(2), in_sharding=vf.P("x"))
    Array([2., 2.], dtype=float32)
    """
    return _with_types(f, axes, AxisType.Explicit, "in_sharding", in_sharding)


def _with_types(f: Callable[..., Any] | None, axes: Any, kind: AxisType, keyword: str, given: Any) -> Any:
    if f is None:
        return functools.partial(_with_types, axes=axes, kind=kind, keyword=keyword, given=given)
    function = f

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.pop(keyword, given)
        mesh = get_mesh()
        chosen = mesh.axis_names if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        types = [kind if n in chosen else old for n, old in zip(mesh.axis_names, mesh.axis_types, strict=True)]
        with set_mesh(Mesh(mesh.devices, mesh.axis_names, types)):
            if keyword == "in_sharding" and wanted is not None:
                args = with_sharding_constraint(args, wanted)
            result = function(*args, **kwargs)
        return with_sharding_constraint(result, wanted) if keyword == "out_sharding" and wanted is not None else result

    return run


@contextmanager
def use_abstract_mesh(mesh: AbstractMesh) -> Iterator[AbstractMesh]:
    """Make these axes those of the current mesh, of the same devices, in a block.

    Raises `ArgumentError` if the current mesh has another number of devices.

    >>> import volta_fn as vf
    >>> with vf.make_mesh((1,), ("x",)), vf.sharding.use_abstract_mesh(vf.sharding.AbstractMesh((1, 1), ("a", "b"))):
    ...     vf.sharding.get_mesh()
    Mesh('a': 1, 'b': 1)
    """
    devices = get_mesh().devices
    if devices.size != mesh.size:
        raise ArgumentError(f"use_abstract_mesh: {mesh} has {mesh.size} positions, but the current mesh {devices.size} devices")
    with set_mesh(Mesh(np.reshape(devices, mesh.axis_sizes), mesh.axis_names, mesh.axis_types)):
        yield mesh
