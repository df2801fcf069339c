"""Reads `names.txt`: JAX's modules, and where their names come from.

A line without indentation begins a module of JAX. Below it, `home: names` says which module of volta_fn has these names; `name=original`
gives a name that it calls otherwise, and `*` all public names of the home. Of homes with `*`, the first that has a name gives it; names
that are listed come before them. `home:` without names makes the home itself a name of the module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

#: The release of JAX whose names these are.
VERSION = "0.10.2"
VERSION_INFO = tuple(map(int, VERSION.split(".")))


@dataclass
class Entry:
    """A module: listed names by their home and name there, and homes of other names."""

    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    homes: list[str] = field(default_factory=list)


@cache
def read_table() -> dict[str, Entry]:
    """Return the entry of each module by its path, such as `jax.numpy`."""
    text = Path(__file__).with_name("names.txt").read_text()
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
