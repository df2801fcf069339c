"""Modules under JAX's paths, by the table `names.txt`; imports of `jax` find them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from volta_fn.compat.config import config
from volta_fn.core.arrays.array import Array, ConcreteArray
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive
from volta_fn.errors import AlreadyImportedError, UnsupportedError
from volta_fn.lazy_imports import load

# Refused names.
#
# Some parts of JAX cannot mean anything without XLA: kernels for TPUs, MLIR, compiled executables. Libraries import these names at their
# top and call them on such hardware alone, so the names exist. The table `refused_names.txt` lists them below their modules, each under a
# key of `ADVICE`. A name's spelling says what it is: `Mask` is a class, `launch` a function, `launch_p` a primitive; `name@` is a constant,
# and `name+` and `Name-` are a class and a function in spite of their spelling.

#: What to do instead, by the keys of the table.
ADVICE = {
    "kernels": "kernels of Pallas and Mosaic have no compiler here: write the function in jax.numpy, which jit compiles for every target",
    "mlir": "programs are not built as MLIR: lower a primitive by a function of other primitives (jax.interpreters.mlir.lower_fun)",
    "xla": "there is no XLA whose programs or options could be had: inspect jax.make_jaxpr(f)(...), and store functions by jax.export",
    "tensorflow": "this part of jax2tf has no counterpart: use jax2tf.convert or call_tf, or store functions as ONNX by volta_fn.onnx",
    "tensorstore": "checkpoints are not written by TensorStore: use volta_fn.io.save and volta_fn.io.load",
    "cudnn": "cuDNN's cells are not called: write the cell in jax.numpy under jax.lax.scan",
    "sparse": "this operation has no sparse form here: use BCOO's methods, or m.todense() and jax.numpy",
    "hijax": "high-level types are not supported: make the class a pytree instead (jax.tree_util.register_pytree_node)",
    "transfer": "arrays do not move between processes in this way: use jax.experimental.multihost_utils, or collectives in jax.shard_map",
    "tracing": "this step of JAX's tracing has no counterpart: use jax.make_jaxpr, jax.jvp, jax.linearize or jax.vjp on the function",
    "taylor": "rules of jet are not registered: jet differentiates every primitive by its derivative",
    "profiler": "profiles are JSON for Perfetto here, not XSpace: open the file that jax.profiler.trace writes",
    "internals": "this part of JAX's implementation has no counterpart: use the public functions, or those of jax.extend",
    "devices": "devices and their memories are not described in this way: use jax.devices() and the attributes of its devices",
}


MARKS = "@+-"


def refused(path: str, name: str, names: dict[str, str]) -> Any:
    """Return what stands for a refused name; None if `names` lacks it."""
    mark = next((mark for mark in ("", *MARKS) if name + mark in names), None)
    if mark is None:
        return None
    advice, full = ADVICE[names[name + mark]], f"{path}.{name}"
    if mark == "@":
        return RefusedValue(full, advice)
    if mark == "+" or (not mark and name[0].isupper() and not name.isupper()):
        return _RefusedClass(
            name, (Refused,), {"__module__": path, "__doc__": f"A class of JAX's without instances: {advice}.", "_advice": advice}
        )
    if name.endswith("_p"):
        return _RefusedPrimitive(full, advice)
    return _function(full, advice)


def _raise(name: str, advice: str) -> NoReturn:
    raise UnsupportedError(f"{name} cannot be used: {advice}")


class _RefusedClass(type):
    """The type of `Refused`: members of enumerations are constants."""

    _advice: str

    def __getattr__(cls, name: str) -> RefusedValue:
        if not name.isupper():
            raise AttributeError(f"{cls.__module__}.{cls.__qualname__} has no attribute {name!r}")
        return RefusedValue(f"{cls.__module__}.{cls.__qualname__}.{name}", cls._advice)


class Refused(metaclass=_RefusedClass):
    """The base of classes without instances, which libraries may name and derive from."""

    _advice = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        _raise(f"{type(self).__module__}.{type(self).__qualname__}", self._advice)


class RefusedValue:
    """A constant that no function takes, or a module of such.

    Calls raise, and attributes are such constants, too.
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        _raise(self._name, self._advice)

    def __getattr__(self, name: str) -> RefusedValue:
        if name.startswith("_"):
            raise AttributeError(f"{self._name} has no attribute {name!r}")
        return RefusedValue(f"{self._name}.{name}", self._advice)

    def __repr__(self) -> str:
        return f"<{self._name}>"


class _RefusedPrimitive(Primitive):
    """A primitive that no program has, as a key of tables of rules."""

    _refusal: tuple[str, str]

    def __init__(self, name: str, advice: str) -> None:
        object.__setattr__(self, "name", name.rpartition(".")[2].removesuffix("_p"))
        object.__setattr__(self, "_refusal", (name, advice))

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        """Raise `UnsupportedError`."""
        _raise(*self._refusal)


def _function(name: str, advice: str) -> Any:
    def refuse(*args: Any, **options: Any) -> NoReturn:
        _raise(name, advice)

    refuse.__module__, _, refuse.__name__ = name.rpartition(".")
    refuse.__qualname__ = refuse.__name__
    refuse.__doc__ = f"Raise `UnsupportedError`: {advice}."
    return refuse


# The table `names.txt`: JAX's modules, and where their names come from.
#
# A line without indentation begins a module of JAX. Below it, `home: names` says which module of volta_fn has these names;
# `name=original` gives a name that it calls otherwise, and `*` all public names of the home. Of homes with `*`, the first that has a
# name gives it; names that are listed come before them. `home:` without names makes the home itself a name of the module.
#
# Names that can mean nothing here stand in a table of their own: `refused_names.txt`. So do names that modules of JAX's have only
# because they import them, such as `jnp`, which programs import from there all the same: `imported_names.txt`, whose homes are JAX's
# modules or others. `private_names.txt` has what JAX defines in private modules and offers in public ones, which are its homes.

#: The release of JAX whose names these are.
VERSION = "0.10.2"
VERSION_INFO = tuple(map(int, VERSION.split(".")))
#: The version by which libraries ask for features of jaxlib, which does not exist here.
JAXLIB_EXTENSION_VERSION = 0


@dataclass
class Entry:
    """A module: listed names by their home and name there, and homes of other names."""

    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    homes: list[str] = field(default_factory=list)


@cache
def read_table() -> dict[str, Entry]:
    """Return the entry of each module by its path, such as `jax.numpy`."""
    return parse_table(Path(__file__).with_name("names.txt").read_text(encoding="utf-8"))


@cache
def read_refused() -> dict[str, dict[str, str]]:
    """Return the refused names of each module, and the keys of the advice."""
    table = parse_table(Path(__file__).with_name("refused_names.txt").read_text(encoding="utf-8"))
    return {path: {name: home for name, (home, _) in entry.names.items()} for path, entry in table.items()}


@cache
def read_imported() -> dict[str, Entry]:
    """Return the entries of names that modules have because they import them."""
    return parse_table(Path(__file__).with_name("imported_names.txt").read_text(encoding="utf-8"))


@cache
def read_private() -> dict[str, Entry]:
    """Return the entries of private modules, whose names public modules have, too."""
    return parse_table(Path(__file__).with_name("private_names.txt").read_text(encoding="utf-8"))


def is_module(path: str) -> bool:
    """Return True if a table has the module of this path."""
    return path in read_table() or path in read_refused() or (path.startswith("jax._src.") and path in read_private())


def refused_names(path: str) -> list[str]:
    """Return the refused names of a module of JAX's."""
    return [name.rstrip(MARKS) for name in read_refused().get(path, ())]


def parse_table(text: str) -> dict[str, Entry]:
    """Return the entries of a table's text, by the paths of modules."""
    table: dict[str, Entry] = {}
    entry = Entry()
    for row in text.splitlines():
        row = row.partition("#")[0].rstrip()
        if row and not row[0].isspace():
            entry = table[row] = Entry()
        elif row:
            _add(entry, *row.split(":"))
    return table


def _add(entry: Entry, home: str, names: str) -> None:
    home = home.strip()
    for item in names.replace(",", " ").split() or [f"{home.rpartition('.')[2]}="]:
        name, equals, original = item.partition("=")
        if name == "*":
            entry.homes.append(home)
        else:
            entry.names[name] = (home, original if equals else name)


# Modules under JAX's paths, made of the rows of the table.
#
# A name is looked up when it is first used, and kept. So nothing is loaded that a program does not use.


#: Returns the dictionary of a module's values: those that are loaded.
_CONTENTS: Any = vars(ModuleType)["__dict__"].__get__


class Namespace(ModuleType):
    """A module whose names are those of a table's entry.

    `root` is the name of the package that stands for `jax` (or `jaxlib`); `path` is the module's path below it.
    """

    def __init__(self, name: str, root: str, path: str, entry: Entry) -> None:
        super().__init__(name, f"`{path}` of JAX; its names are volta_fn's.")
        _CONTENTS(self).update(_root=root, _path=path, _entry=entry, __path__=[])

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]  # ModuleType has an attribute
        """All names and their values, for `vars`.

        This loads what defines them, but no module below that is not loaded.
        """
        contents: dict[str, Any] = _CONTENTS(self)
        below = {path.rpartition(".")[2] for path in (*read_table(), *read_refused()) if path.rpartition(".")[0] == contents["_path"]}
        for name in dir(self):
            if name not in contents and name not in below:
                getattr(self, name)
        return contents

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [n for n in dir(self) if not n.startswith("_")]
        value = self._look_up(name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a name, except a module in place of the function of its name.

        Such functions are those that the table lists or refuses.
        """
        _, original = self._entry.names.get(name, ("", ""))
        listed = original or (self._path not in read_table() and name in refused_names(self._path))
        if not isinstance(value, Namespace) or not listed:
            super().__setattr__(name, value)

    def _look_up(self, name: str) -> Any:
        entry: Entry = self._entry
        path = f"{self._path}.{name}"
        if name in entry.names:
            home, original = entry.names[name]
            if (module := _loaded(home)) is not None and (not original or hasattr(module, original)):
                return getattr(module, original) if original else module
        if path in read_table() or (is_module(path) and path not in read_refused()):
            return load(f"{self._root}{path[len(path.partition('.')[0]) :]}")
        for home in entry.homes:
            if (value := _public(home, name, self)) is not self:
                return value
        if (value := refused(self._path, name, read_refused().get(self._path, {}))) is not None:
            return value
        if is_module(path):
            return load(f"{self._root}{path[len(path.partition('.')[0]) :]}")
        table = read_private() if self._path.startswith("jax._src.") else read_imported()
        if self._path in table and name in (names := table[self._path].names):
            home, original = names[name]
            first, dot, rest = home.partition(".")
            module = load(f"{self._root}{dot}{rest}" if first == self._path.partition(".")[0] else home)
            return getattr(module, original) if original else module
        is_private = any(part.startswith("_") for part in path.split("."))
        in_jax = f"and none in JAX {VERSION} (docs/jax_names.md counts its names)"
        if is_private:
            in_jax = "whose private modules have only those names of JAX's that libraries read"
        raise AttributeError(f"module {self._path!r} has no attribute {name!r} in volta_fn, {in_jax}")

    def __dir__(self) -> list[str]:
        entry: Entry = self._entry
        below = [path.removeprefix(f"{self._path}.") for path in (*read_table(), *read_refused()) if path.startswith(f"{self._path}.")]
        names = {*_CONTENTS(self), *entry.names, *refused_names(self._path), *[n for n in below if "." not in n]}
        names.update(n for home in entry.homes for n in dir(_loaded(home)) if not n.startswith("_") and _public(home, n, self) is not self)
        return sorted(names - {"_root", "_path", "_entry"})


def _loaded(home: str) -> Any:
    """Return a module of volta_fn, or None if there is none of that name."""
    try:
        return load(home)
    except ModuleNotFoundError as error:
        if error.name != home and not home.startswith(f"{error.name}."):
            raise
        return None


def _public(home: str, name: str, missing: Any) -> Any:
    """Return a public name of a module, or `missing`.

    Modules that a module has imported are not its names, unless they belong to it.
    """
    value = getattr(_loaded(home), name, missing)
    if isinstance(value, ModuleType) and value is not missing and value.__name__ not in (f"{home}.{name}", f"volta_fn.{name}"):
        return sys.modules.get(f"{home}.{name}", missing)
    return value


# Imports of `jax`.

#: Packages that the finder stands for, and their names in the table.
PACKAGES = {"jax": "jax", "jaxlib": "jaxlib"}
_SPARSE_ARRAYS = ["JAXSparse", "BCOO", "BCSR", "COO", "CSC", "CSR"]
_FREQUENT = ["creation", "arithmetic", "indexing", "products", "reductions"]


class _Loader(Loader):
    """Loads the module at a path of the table."""

    def __init__(self, root: str, path: str) -> None:
        self.root, self.path = root, path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Namespace(spec.name, self.root, self.path, read_table().get(self.path) or Entry())

    def exec_module(self, module: ModuleType) -> None:
        """Load the compiler with `jax` itself, and frequent functions with `jax.numpy`."""
        if module.__name__ == "jax":  # a program may set variables after `install`, before it imports JAX
            config.read_variables()
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
                if not is_module(module_path):
                    return None
                return ModuleSpec(fullname, _Loader(root, module_path), is_package=True)
        return None

    def find_distributions(self, context: DistributionFinder.Context = DistributionFinder.Context()) -> Iterator[Distribution]:  # noqa: B008  # as in the base
        """Return the metadata of the packages asked for."""
        return iter([_Metadata(name) for name in self.packages if context.name in (None, name)])


#: Finds JAX's modules below `volta_fn.jax` and `volta_fn.jaxlib`, and those of `jax` itself once installed.
OWN = Finder({"volta_fn.jax": "jax", "volta_fn.jaxlib": "jaxlib"})
_FINDER = Finder(PACKAGES)


def install() -> None:
    """Let `import jax` mean volta_fn in this process, with JAX's semantics.

    Indices out of range are moved inside or dropped, and dtypes are of 32 bits unless `jax_enable_x64` is set; docs/jax_differences.md
    has a table. The class of arrays is named ArrayImpl, its base `jax.Array`, and types are written as float32[2,3], as in JAX. Calling it
    again does nothing.

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
    ShapedArray.__str__ = ShapedArray.str_long  # type: ignore[method-assign,assignment]  # "float32[2]", as JAX writes types
    config.follow_jax()
