"""Each name of the table exists."""

from __future__ import annotations

import pytest

import volta_fn.jax as ours
from tests.jax.programs import output_of
from tools.jax_surface import NEWER, read
from volta_fn.jax.namespace import Entry, read_imported, read_private, read_refused, read_table
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


def test_each_module_of_jax_has_an_entry() -> None:
    # `import jax.x` finds no module without one, though `volta_fn.jax.x` may be an attribute.
    assert not [path for path in {**read(), **read(NEWER.read_text())} if path not in TABLE and path not in read_refused()]


def test_names_come_from_the_first_home_that_has_them() -> None:
    assert ours.numpy.int_ is ours.numpy.int64
    assert ours.tree.map is not load("volta_fn.tree").map  # in which keys are nodes
    assert ours.Array is ours.numpy.ndarray


def test_comments_renames_and_stars_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "names.txt").write_text("# a comment\na.b  # more\n    m.n: x, y=z *\n    m.o:\n")
    monkeypatch.setattr("volta_fn.jax.namespace.__file__", str(tmp_path / "table.py"))
    table = read_table.__wrapped__()
    assert table == {"a.b": Entry({"x": ("m.n", "x"), "y": ("m.n", "z"), "o": ("m.o", "")}, ["m.n"])}


def test_names_that_modules_import_are_names_of_theirs() -> None:
    table = {path: entry.names for path, entry in read_imported().items()}
    assert sum(map(len, table.values())) > 300 and table["jax.experimental.ode"]["jnp"] == ("jax.numpy", "")
    checks = f"""
import importlib, sys
for path, names in {table!r}.items():
    for name, (home, original) in names.items():
        try:
            value = getattr(importlib.import_module(path), name)
        except ModuleNotFoundError as error:
            assert error.name == "tensorstore" and "array_serialization" in path + home
            continue
        assert value is (getattr(sys.modules[home], original) if original else sys.modules[home]), (path, name)
from jax.experimental.ode import api_util, jnp, partial
import functools, jax
assert jnp is jax.numpy and api_util is jax.api_util and partial is functools.partial
assert not hasattr(jax.experimental.ode, "lu_factor")
"""
    assert output_of("import jax\n" + checks) == ""


def test_private_modules_have_the_public_objects_that_they_define() -> None:
    assert sum(len(entry.names) for entry in read_private().values()) > 700
    checks = """
import importlib
from volta_fn.jax.namespace import read_private
for path, entry in read_private().items():
    module = importlib.import_module(path)
    for name, (home, original) in entry.names.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), original), (path, name)
from jax._src.numpy import reductions  # a module of this name is one of volta_fn's, too
from jax._src.numpy.linalg import inv
import jax
assert inv is jax.numpy.linalg.inv and reductions.median is jax.numpy.median
"""
    assert output_of("import jax\n" + checks) == ""


def test_arguments_are_bound_by_private_names() -> None:
    functions = load("volta_fn.extend.functions")
    call, dynamic = functions.argnums_partial2(lambda *args, k: (*args, k), (-1, 0), (1, 2, 3), {"k": 4})
    assert dynamic == (3, 1) and call(30, 10) == (10, 2, 30, 4)
    assert functions._ensure_inbounds(True, 2, (0, -1, 5)) == (0, 1) and functions._ensure_index_tuple(3) == (3,)
    with pytest.raises(ValueError, match="at least -2 and less than 2, got 2"):
        functions._ensure_inbounds(False, 2, (2,))
    context = load("volta_fn.compat.internals").trace_ctx
    assert context.trace is load("volta_fn.core.trace").EVAL
    outer = load("volta_fn").jit(lambda x: (context.set_trace(context.trace), x)[1])
    assert outer(1) == 1
