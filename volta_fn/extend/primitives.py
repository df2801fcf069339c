"""The primitives of this package by JAX's names: `add_p`, `dot_general_p`, ….

A name is looked up when it is used: the primitive of that name without `_p`, or as `RENAMED` says.
"""

from __future__ import annotations

from typing import Any

from volta_fn.core.primitive import PRIMITIVES

#: JAX's names of primitives that are called otherwise here.
RENAMED = {
    "and": "bitwise_and",
    "call": "jit",
    "closed_call": "jit",
    "linear_solve": "custom_linear_solve",
    "not": "bitwise_not",
    "or": "bitwise_or",
    "pjit": "jit",
    "remat": "checkpoint",
    "select_n": "select",
    "while": "while_loop",
    "xor": "bitwise_xor",
    "add_jaxvals": "add",
}


def __getattr__(name: str) -> Any:
    key = name.removesuffix("_p")
    found = PRIMITIVES.get(RENAMED.get(key, key)) if name.endswith("_p") else None
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return sorted(f"{name}_p" for name in {*PRIMITIVES, *RENAMED})
