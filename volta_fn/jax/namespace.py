"""Modules under JAX's paths, whose names stand in the table `names.txt`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from volta_fn.jax.refused import MARKS, refused
from volta_fn.lazy_imports import load

# The table `names.txt`: JAX's modules, and where their names come from.
#
# A line without indentation begins a module of JAX. Below it, `home: names` says which module of volta_fn has these names;
# `name=original` gives a name that it calls otherwise, and `*` all public names of the home. Of homes with `*`, the first that has a
# name gives it; names that are listed come before them. `home:` without names makes the home itself a name of the module.
#
# Names that can mean nothing here stand in a table of their own: volta_fn/jax/refused.py. So do names that modules of JAX's have only
# because they import them, such as `jnp`, which programs import from there all the same: `imported_names.txt`, whose homes are JAX's
# modules or others.

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
        """Set a name, except a module in place of the refused function of its name."""
        if not isinstance(value, Namespace) or self._path in read_table() or name not in refused_names(self._path):
            super().__setattr__(name, value)

    def _look_up(self, name: str) -> Any:
        entry: Entry = self._entry
        path = f"{self._path}.{name}"
        if name in entry.names:
            home, original = entry.names[name]
            if (module := _loaded(home)) is not None and (not original or hasattr(module, original)):
                return getattr(module, original) if original else module
        if path in read_table():
            return load(f"{self._root}{path[len(path.partition('.')[0]) :]}")
        for home in entry.homes:
            if (value := _public(home, name, self)) is not self:
                return value
        if (value := refused(self._path, name, read_refused().get(self._path, {}))) is not None:
            return value
        if path in read_refused():
            return load(f"{self._root}{path[len(path.partition('.')[0]) :]}")
        if self._path in read_imported() and name in (imported := read_imported()[self._path].names):
            home, original = imported[name]
            first, dot, rest = home.partition(".")
            module = load(f"{self._root}{dot}{rest}" if first == self._path.partition(".")[0] else home)
            return getattr(module, original) if original else module
        raise AttributeError(
            f"module {self._path!r} has no attribute {name!r} in volta_fn, and none in JAX {VERSION} (docs/jax_names.md counts its names)"
        )

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
