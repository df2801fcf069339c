"""Imports on first use: public names of packages (PEP 562), and single modules.

A package's public names stand once, in the stub (`.pyi`) next to its source: type checkers read the stub as it is, and `attach` reads
it when the package is first asked for a name that it has not loaded. No other module imports by name at run time, so that
`tests/test_layers.py` sees every import.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^from (\S+) import (\w+) as (?!_[a-z])\w+$", re.MULTILINE)
_STAR = re.compile(r"^from (\S+) import \*", re.MULTILINE)
_ALIAS = re.compile(r"^(\w+) = (\w+)$", re.MULTILINE)


def load(module: str) -> Any:
    """Return the module with this full name; import it first if needed."""
    return importlib.import_module(module)


class _Deferred:
    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(load(self._module), name)


@functools.cache
def deferred(module: str) -> Any:
    """Return a stand-in that imports a module when an attribute of it is first used."""
    return _Deferred(module)


def is_installed(package: str) -> bool:
    """Return True if a top-level package can be imported."""
    return importlib.util.find_spec(package) is not None


@functools.cache
def public_names(package: str, suffix: str = ".pyi") -> dict[str, tuple[str, str]]:
    """Read a package's stub: each name's defining module, and its name there."""
    module: Any = sys.modules[package]
    stub = module.__loader__.get_data(str(Path(module.__file__).with_suffix(suffix))).decode()
    names = {name: (home, name) for home, name in _IMPORT.findall(stub)}
    names |= {name: (home, name) for home in _STAR.findall(stub) for name in load(home).__all__}
    return names | {alias: names[name] for alias, name in _ALIAS.findall(stub)}


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package with a stub of public names.

    Every name is stored in the package once it has been loaded, so that only its first use passes through `__getattr__`.
    `__all__` consists of all names in the stub.
    """

    def get(name: str) -> Any:
        names = public_names(package)
        if name == "__all__":
            return sorted(names)
        if name not in names:
            load("volta_fn.advice").unknown_name(package, name, names)
        home, original = names[name]
        is_attribute = home != package and hasattr(load(home), original)
        value = getattr(load(home), original) if is_attribute else load(f"{home}.{original}")
        setattr(sys.modules[package], name, value)
        return value

    return get, directory(package)


def directory(package: str, suffix: str = ".pyi") -> Callable[[], list[str]]:
    """Return `__dir__` for a package: its public names, without the modules inside.

    They stand in its stub, or in the file with another suffix.
    """

    def names() -> list[str]:
        special = [name for name in vars(sys.modules[package]) if name.startswith("__")]
        return sorted({*special, *public_names(package, suffix)})

    return names
