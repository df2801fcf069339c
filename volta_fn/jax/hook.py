"""`import jax` answered by volta_fn: a finder and a loader of its modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from volta_fn.compat.config import config
from volta_fn.core.arrays.array import Array, ConcreteArray
from volta_fn.errors import AlreadyImportedError
from volta_fn.jax.namespace import VERSION, Entry, Namespace, read_refused, read_table
from volta_fn.lazy_imports import load

#: Packages that the finder stands for, and their names in the table.
PACKAGES = {"jax": "jax", "jaxlib": "jaxlib"}
_SPARSE_ARRAYS = ["JAXSparse", "BCOO", "BCSR", "COO", "CSC", "CSR"]
_FREQUENT = ["creation", "elementwise.arithmetic", "indexing", "products", "reductions"]


class _Loader(Loader):
    """Loads the module at a path of the table."""

    def __init__(self, root: str, path: str) -> None:
        self.root, self.path = root, path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Namespace(spec.name, self.root, self.path, read_table().get(self.path) or Entry())

    def exec_module(self, module: ModuleType) -> None:
        """Load the compiler with `jax` itself, and frequent functions with `jax.numpy`."""
        # JAX does so, too. Other names are looked up when they are used. This thread waits meanwhile: two that import and compile at once
        # wait for Python's lock, and take longer.
        if module.__name__ == "jax" and (os.environ.get("VOLTA_DEVICE") or "cpu") == "cpu":
            load("volta_fn.targets.cpu_device").load_compiler()
        for name in _FREQUENT if module.__name__ == "jax.numpy" else ():
            load(f"volta_fn.numpy.{name}")
        for name in _SPARSE_ARRAYS if module.__name__ == "jax.experimental.sparse" else ():
            getattr(module, name).__module__ = module.__name__  # by which libraries know them, that do not import JAX


class _Metadata(Distribution):
    """The metadata of a package that the finder stands for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path


class Finder(DistributionFinder):
    """Finds the modules of `packages`, which maps packages to names in the table."""

    def __init__(self, packages: dict[str, str]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module of JAX's."""
        for root, stands_for in self.packages.items():
            if fullname == root or fullname.startswith(f"{root}."):
                module_path = stands_for + fullname[len(root) :]
                if module_path not in read_table() and module_path not in read_refused():
                    return None
                return ModuleSpec(fullname, _Loader(root, module_path), is_package=True)
        return None

    def find_distributions(self, context: DistributionFinder.Context = DistributionFinder.Context()) -> Iterator[Distribution]:  # noqa: B008  # as in the base
        """Return the metadata of the packages asked for."""
        return iter([_Metadata(name) for name in self.packages if context.name in (None, name)])


#: Finds JAX's modules below `volta_fn.jax`, and those of `jax` itself once installed.
OWN = Finder({"volta_fn.jax": "jax"})
_FINDER = Finder(PACKAGES)


def install() -> None:
    """Let `import jax` mean volta_fn in this process, with JAX's semantics.

    Indices out of range are moved inside or dropped, and dtypes are of 32 bits unless `jax_enable_x64` is set; docs/jax_differences.md
    has a table. The class of arrays is named ArrayImpl, and its base `jax.Array`, as in JAX. Calling it again does nothing.

    Raises `AlreadyImportedError` if the real JAX is loaded: install before anything imports it.
    """
    if _FINDER in sys.meta_path:
        return
    for name in PACKAGES:
        if name in sys.modules:
            raise AlreadyImportedError(
                f"{name} is already imported, from {getattr(sys.modules[name], '__file__', 'an unknown place')}: "
                "call volta_fn.jax.install() before the first import of jax, or run `python -m volta_fn.jax program.py`"
            )
    sys.meta_path.insert(0, _FINDER)
    ConcreteArray.__name__, Array.__module__ = "ArrayImpl", "jax"
    config.follow_jax()
