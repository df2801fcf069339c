"""The modules that declare primitives, which load on demand."""

from __future__ import annotations

import functools
from pathlib import Path

from volta_fn import primitives
from volta_fn.lazy_imports import load

#: Outside of `volta_fn.primitives`.
_MODULES = ("volta_fn.random", "volta_fn.scipy.special", "volta_fn.transforms.rules.attention_rules")


@functools.cache
def declare_all() -> None:
    """Load every module that declares primitives which files may have."""
    folder = Path(primitives.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        names = file.relative_to(folder).with_suffix("").parts
        load(".".join(["volta_fn.primitives", *[name for name in names if name != "__init__"]]))
    for name in _MODULES:
        load(name)
