"""The namespace volta_fn.numpy with every function compiled.

    ARRAY_API_TESTS_MODULE=tools.array_api_jitted python tools/array_api_tests.py CHECKOUT

Eager calls on the CPU run in NumPy, so that the tests would look at no machine code. Here all arrays of a call are arguments of a jitted
function, and everything else is constant; what cannot be traced runs eagerly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.errors import ConcretizationError

#: Functions of dtypes, of memory and of devices.
_AS_THEY_ARE = ("result_type", "can_cast", "finfo", "iinfo", "isdtype", "asarray", "from_dlpack", "ndarray", "allow_assignment")


def of_arrays(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> tuple[Callable[..., Any], list[vf.Array]]:
    """Return a call as a function of the arrays among its arguments, and these."""
    leaves, structure = vf.tree.flatten((arguments, keywords))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, vf.Array)]

    def call(*arrays: Any) -> Any:
        filled = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            filled[i] = array
        positional, named = vf.tree.unflatten(structure, filled)
        return function(*positional, **named)

    return call, [leaves[i] for i in places]


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs as a program of its arrays."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        program, arrays = of_arrays(function, *arguments, **keywords)
        if not arrays:
            return function(*arguments, **keywords)
        try:
            return vf.jit(program)(*arrays)
        except ConcretizationError:
            return function(*arguments, **keywords)

    return call


def _wrapped(name: str) -> Any:
    value = getattr(jnp, name)
    if isinstance(value, type) or not callable(value) or name in _AS_THEY_ARE:
        return value
    return jitted(value)


def _extension(module: ModuleType) -> SimpleNamespace:
    return SimpleNamespace(**{name: jitted(value) for name, value in vars(module).items() if callable(value) and name[:1] != "_"})


globals().update({name: _wrapped(name) for name in dir(jnp) if name[:1] != "_"})
linalg, fft = _extension(jnp.linalg), _extension(jnp.fft)
__array_api_version__ = jnp.__array_api_version__
__array_namespace_info__ = jnp.__array_namespace_info__
