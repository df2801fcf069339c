"""The primitives of this package by JAX's names: `add_p`, `dot_general_p`, ….

A name is looked up when it is used. Where JAX has a primitive and this package a function made of others, such as `tanh`, the name is a
`Primitive` that stands for the function: it may be bound, and given rules; programs hold what the function is made of.
"""

from __future__ import annotations

from typing import Any

from volta_fn import lax
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.extend.core import Primitive
from volta_fn.lazy_imports import public_names

#: JAX's names of primitives that are called otherwise here.
RENAMED = {
    "add_jaxvals": "add",
    "call": "jit",
    "closed_call": "jit",
    "linear_solve": "custom_linear_solve",
    "pjit": "jit",
    "remat": "checkpoint",
    "while": "while_loop",
}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or not name.endswith("_p"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    key = name.removesuffix("_p")
    key = RENAMED.get(key, key)
    for public in public_names("volta_fn.lax"):  # whose modules declare the primitives
        getattr(lax, public)
    primitive = PRIMITIVES.get(key)
    if primitive is None and callable(getattr(lax, key, None)):
        # It is a function of arrays, staged as what it is made of.
        primitive = globals()[name] = _Function(key)
        primitive.def_impl(getattr(lax, key))
    if primitive is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return primitive


class _Function(Primitive):
    """A primitive that stands for a function made of others."""

    def bind(self, *args: Any, **params: Any) -> Any:
        return self.impl(*args, **params)  # type: ignore[misc]  # it is given


def __dir__() -> list[str]:
    return sorted(f"{name}_p" for name in {*PRIMITIVES, *RENAMED})
