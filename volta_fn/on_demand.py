"""Names that a package loads when they are first asked for (PEP 562), so that programs that do without them start sooner.

A package lists them twice: as imports under ``if TYPE_CHECKING:``, for type checkers and editors, and as a table for run time.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def exports(package: str, modules: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, or of a module that shows the names of others.

    Args:
        package: its name.
        modules: modules that are names themselves, with blanks between them.
        names: for each module that has further names, those names, with blanks between them.

    A module's name that starts with a dot is within the package.
    """
    found = {module.rpartition(".")[2]: (module, "") for module in modules.split()}
    found |= {name: (module, name) for module, listed in names.items() for name in listed.split()}

    def get(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = found[name]
        value: Any = importlib.import_module(module, package)
        if attribute:
            value = getattr(value, attribute)
        setattr(sys.modules[package], name, value)  # the next time it is there
        return value

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[package]), *found})

    return get, directory
