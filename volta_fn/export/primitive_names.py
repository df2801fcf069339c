"""The modules that declare primitives, which load on demand."""

from __future__ import annotations

import functools
import pkgutil

from volta_fn import primitives
from volta_fn.lazy_imports import load

#: Outside of `volta_fn.primitives`.
_MODULES = ("volta_fn.random", "volta_fn.scipy.special", "volta_fn.transforms.attention_rules")


@functools.cache
def declare_all() -> None:
    """Load every module that declares primitives which files may have."""
    for module in pkgutil.walk_packages(primitives.__path__, "volta_fn.primitives."):
        load(module.name)
    for name in _MODULES:
        load(name)
