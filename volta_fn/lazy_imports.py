"""Imports on first use: public names of packages (PEP 562), and single modules.

A package's public names stand once, in the stub (`.pyi`) next to its source: type checkers read the stub as it is, and `attach` reads
it when the package is first asked for a name that it has not loaded. No other module imports by name at run time, so that
`tests/test_layers.py` sees every import.

A module that consists of names of others is a stub alone, and a public name that is a module can be imported by its public path,
wherever it is defined; modules of `compat` have paths without `compat`, too. `Aliases` finds all of them.
"""

from __future__ import annotations

import errno
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from volta_fn.errors import SerializationError
from volta_fn.signals import deferred_interrupts

_COMPAT = "volta_fn.compat"
#: The texts of stubs without source, by the modules' names.
_STUBS: dict[str, str] = {}


def load(module: str) -> Any:
    """Return the module with this full name; import it first if needed.

    Ctrl-C waits for the end of the import. Raises `SerializationError` if the process may open no more files; the next call tries again.
    """
    if module in sys.modules:
        return importlib.import_module(module)  # which waits for a thread that imports it
    with deferred_interrupts, _open_files(module):
        return importlib.import_module(module)


@contextmanager
def _open_files(module: str) -> Iterator[None]:
    """Raise `SerializationError` if too many files are open to load a module."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise SerializationError(
            f"{module} cannot be loaded, since too many files are open ({error}). Close some, or raise the limit of the process (ulimit -n)"
        ) from error


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


def version_text(package: str) -> str:
    """Return the text of a package's `version.py`, not imported; "" if there is none."""
    spec = importlib.util.find_spec(package)
    path = os.path.join(os.path.dirname(spec.origin), "version.py") if spec is not None and spec.origin is not None else ""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def installed_file(package: str, name: str) -> str | None:
    """Return the path of a file of an installed package, or None."""
    metadata = load("importlib.metadata")  # which takes long to import
    try:
        paths = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return None
    located = (os.path.realpath(str(path.locate())) for path in paths if path.name == name)
    return next(filter(os.path.exists, located), None)


@functools.cache
def public_names(package: str, suffix: str = ".pyi") -> dict[str, tuple[str, str]]:
    """Read a package's stub: each name's defining module, and its name there."""
    module: Any = sys.modules[package]
    names: dict[str, tuple[str, str]] = {}
    modules: dict[str, str] = {}
    with _open_files(package):
        stub = _STUBS.get(package) or module.__loader__.get_data(os.path.splitext(module.__file__)[0] + suffix).decode()
        for line in stub.splitlines():
            match [] if line.startswith(" ") else line.split():
                case ["from", home, "import", "*", *_]:
                    names |= {name: (home, name) for name in _exported(home)}
                case ["from", home, "import", name, "as", alias] if not alias.startswith("_") or alias.startswith("__"):
                    names[name] = home, name
                case ["from", home, "import", name]:
                    modules[name] = f"{home}.{name}"
                case [alias, "=", value]:  # `effects_barrier = synchronize`, or a member of a module, `add = tree_utils.tree_add`
                    home, _, name = value.rpartition(".")
                    if home in modules and name.isidentifier():
                        names[alias] = modules[home], name
                    elif value in names:
                        names[alias] = names[value]
    return names


def _text(package: Any, file: str) -> str | None:
    """Return the text of a file in a package, or None if there is none."""
    try:
        return str(package.__loader__.get_data(os.path.join(package.__path__[0], file)).decode())
    except OSError:
        return None


def _exported(home: str) -> list[str]:
    """Return a module's ``__all__``, without importing it."""
    loader: Any = sys.modules[__name__].__loader__  # which reads all files of the package
    path = os.path.join(os.path.dirname(__file__), *home.split(".")[1:]) + ".py"
    _, *lists = loader.get_data(path).decode().replace("\n__all__ += [", "\n__all__ = [").split("\n__all__ = [")
    return [name for text in lists for name in text.partition("]")[0].split('"')[1::2]]


def attach(package: str, unlisted: Callable[[str], Any] | None = None) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package with a stub of public names.

    Every name is stored in the package once it has been loaded, so that only its first use passes through `__getattr__`.
    `__all__` consists of all names in the stub. `unlisted` returns the value of a name that is not in the stub, or None if there is none.
    """

    def get(name: str) -> Any:
        names = public_names(package)
        if name == "__all__":
            return sorted(names)
        if name not in names:
            value = None if unlisted is None else unlisted(name)
            if value is None:
                _unknown(package, name, lambda: names)
            return value
        home, original = names[name]
        loaded = len(sys.modules)
        is_attribute = home != package and hasattr(load(home), original)
        value = getattr(load(home), original) if is_attribute else load(f"{home}.{original}")
        setattr(sys.modules[package], name, value)
        if len(sys.modules) > loaded or isinstance(value, ModuleType):  # which something else may have loaded
            hide_private_names(package)
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


def _spec(name: str, loader: Any, state: str | None = None) -> ModuleSpec:
    """Return a module's spec, with what its loader has to know."""
    return ModuleSpec(name, loader, loader_state=state)


class Aliases:
    """Finds modules without a source file of the same path.

    `volta_fn.stages` is a stub alone, whose names are loaded on first use; `volta_fn.scipy.stats.norm` is a name of the package
    `volta_fn.scipy.stats`, whose stub says which module defines it; and `volta_fn.config` is `volta_fn.compat.config`.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of such a module of this package, or None."""
        package, _, last = name.rpartition(".")
        if package.partition(".")[0] != __package__ or package not in sys.modules:
            return None
        parent: Any = sys.modules[package]
        if not getattr(parent, "__path__", None):  # a single module, or one of `volta_fn.jax`, which has no files
            return None
        if package == __package__ and last != "compat" and importlib.util.find_spec(f"{_COMPAT}.{last}") is not None:
            return _spec(name, self)  # its stub here, if it has one, is for type checkers
        if (stub := _text(parent, last + ".pyi")) is not None:
            return _spec(name, self, stub)
        is_alias = package != __package__ and isinstance(getattr(parent, last, None), ModuleType)
        return _spec(name, self) if is_alias else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system create a module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with the names of its stub, or replace it by its original."""
        spec: Any = module.__spec__
        package, _, last = spec.name.rpartition(".")
        if spec.loader_state is None:
            sys.modules[spec.name] = load(f"{_COMPAT}.{last}") if package == __package__ else getattr(sys.modules[package], last)
            return
        syntax = load("ast")  # which takes long to import
        module.__doc__ = syntax.get_docstring(syntax.parse(spec.loader_state))
        _STUBS[spec.name] = spec.loader_state
        contents = vars(module)
        contents["__getattr__"], contents["__dir__"] = attach(spec.name)


sys.meta_path.append(Aliases())


def hide_private_names(package: str) -> None:
    """Let a package's loaded public modules list and explain their public names alone."""
    for name, value in list(vars(sys.modules[package]).items()):
        if isinstance(value, ModuleType) and not name.startswith("_") and value.__name__.startswith("volta_fn."):
            contents = vars(value)
            contents.setdefault("__dir__", functools.partial(_listed, value))
            contents.setdefault("__getattr__", functools.partial(refuse, value))


def own_names(module: ModuleType) -> set[str]:
    """Return the public names of a module without a stub.

    They are its `__all__`, or what it defines and what it imports ``as`` the same name.
    """
    contents = vars(module)
    if "__all__" in contents:
        return set(contents["__all__"])
    defined = {name for name, value in contents.items() if getattr(value, "__module__", None) == module.__name__}
    return {name for name in defined if not name.startswith("_")} | (public_names(module.__name__, ".py").keys() & contents.keys())


def _listed(module: ModuleType) -> list[str]:
    return sorted({*own_names(module), *(name for name in vars(module) if name.startswith("__"))})


def refuse(module: ModuleType, name: str) -> NoReturn:
    """Raise `AttributeError` for a name that a module does not have, with advice."""
    _unknown(module.__name__, name, functools.partial(own_names, module))


def _unknown(package: str, name: str, names: Callable[[], Iterable[str]]) -> NoReturn:
    """Raise `AttributeError`, with advice if the name may be a public one."""
    # Tools ask for others, such as `__wrapped__`.
    if name.startswith("_"):
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
    raise load("volta_fn.advice").unknown_name(package, name, names)  # which raises it
