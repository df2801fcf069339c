"""Each name of the table exists."""

from __future__ import annotations

import pytest

import volta_fn.jax as ours
from volta_fn.jax.namespace import Entry, read_table
from volta_fn.lazy_imports import load

TABLE = read_table()
#: Modules of volta_fn that the table names, and that are not there yet.
PLANNED = {"volta_fn.experimental.loops"}


def homes(entry: Entry) -> set[str]:
    return {*entry.homes, *[home for home, _ in entry.names.values()]}


@pytest.mark.parametrize("path", TABLE)
def test_the_names_of_an_entry_exist(path: str) -> None:
    entry = TABLE[path]
    for home in homes(entry) - PLANNED:
        load(home)
    missing = [
        name for name, (home, original) in entry.names.items() if home not in PLANNED and original and not hasattr(load(home), original)
    ]
    assert not missing
    assert path.partition(".")[0] in ("jax", "jaxlib") and (path.count(".") == 0 or path.rpartition(".")[0] in TABLE)


def test_names_come_from_the_first_home_that_has_them() -> None:
    assert ours.numpy.int_ is ours.numpy.int64
    assert ours.tree.map is not load("volta_fn.tree").map  # in which keys are nodes
    assert ours.Array is ours.numpy.ndarray


def test_comments_renames_and_stars_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "names.txt").write_text("# a comment\na.b  # more\n    m.n: x, y=z *\n    m.o:\n")
    monkeypatch.setattr("volta_fn.jax.namespace.__file__", str(tmp_path / "table.py"))
    table = read_table.__wrapped__()
    assert table == {"a.b": Entry({"x": ("m.n", "x"), "y": ("m.n", "z"), "o": ("m.o", "")}, ["m.n"])}
