"""JAX's public names, as tools/jax_surface.py recorded them: none is missing, and those that can mean nothing here say so when called."""

from __future__ import annotations

import importlib
import inspect
import types

import pytest

import volta_fn.jax as ours
from tools.jax_surface import (
    NEWER,
    PAGE,
    Name,
    accepts,
    beyond,
    compare,
    describe,
    here,
    kind_of,
    page,
    read,
    signature_of,
    source_names,
    write,
)  # fmt: skip
from tools.jax_uses import USED
from volta_fn.core.primitive import Primitive
from volta_fn.errors import UnsupportedError
from volta_fn.jax.namespace import ADVICE, Refused, RefusedValue, read_refused, refused, refused_names

SURFACE = read()
DIFFERENCES = list(compare(SURFACE, here))
NEWER_SURFACE = read(NEWER.read_text())
NEWER_DIFFERENCES = list(compare(NEWER_SURFACE, here))


def of_kind(*kinds: str) -> list[str]:
    return [f"{d.module}.{d.name}: {d.theirs}, here {d.ours}" for d in (*DIFFERENCES, *NEWER_DIFFERENCES) if d.what in kinds]


def test_no_module_and_no_name_is_missing() -> None:
    assert len(SURFACE) > 200 and sum(map(len, SURFACE.values())) > 8000
    assert sum(map(len, NEWER_SURFACE.values())) > 300
    assert not of_kind("module", "name")


def test_the_page_of_names_is_up_to_date() -> None:
    assert PAGE.read_text() == page(SURFACE, DIFFERENCES, NEWER_SURFACE, NEWER_DIFFERENCES), "run python tools/jax_surface.py"


def test_refused_names_are_names_of_jax_and_have_advice() -> None:
    public = {f"{path}.{name.path}" for surface in (SURFACE, NEWER_SURFACE) for path, names in surface.items() for name in names}
    listed = {f"{path}.{name}" for path in read_refused() for name in refused_names(path)}
    assert not listed - public - set(USED.read_text().split())
    assert {key for names in read_refused().values() for key in names.values()} == set(ADVICE)


@pytest.mark.parametrize("path", read_refused())
def test_refused_names_import_and_raise_when_they_are_called(path: str) -> None:
    module = importlib.import_module(f"volta_fn.{path}")
    for name in refused_names(path):
        value = refused(path, name, read_refused()[path])
        assert type(getattr(module, name)) is type(value) and name in dir(module)
        call = value.bind if isinstance(value, Primitive) else value
        with pytest.raises(UnsupportedError, match=rf"{name} cannot be used: \w+"):
            call(1, option=2)


def test_refused_names_are_of_the_kind_that_jax_has() -> None:
    jax = ours
    fuser, pallas = jax.experimental.pallas.fuser, jax.experimental.pallas
    assert isinstance(fuser.BlockIndexTransform, type) and issubclass(fuser.BlockIndexTransform, Refused)
    assert inspect.isfunction(pallas.core_map) and isinstance(pallas.pallas_call_p, Primitive)
    assert isinstance(pallas.semaphore, type) and isinstance(pallas.mosaic_gpu.SMEM, RefusedValue)
    assert {pallas.pallas_call_p: 1}  # a key of a table of rules

    class Config(jax.experimental.pallas.ops.gpu.attention_mgpu.TuningConfig):
        pass

    with pytest.raises(UnsupportedError, match="Config cannot be used: kernels"):
        Config()
    assert not hasattr(jax.experimental.pallas, "nonsense")


# The tool itself.


def test_a_surface_is_read_as_it_was_written() -> None:
    surface = {"jax.a": [Name("f", "function", "(x, *, y=None)"), Name("C", "class"), Name("C.m", "method", "(self)")], "jax.b": []}
    assert read(write(surface)) == surface


def test_what_a_newer_surface_has_beyond_an_older_one() -> None:
    older = read("m\n    f function (x)\n    g function (x)\n    C class (x)\n    C.sort method (self)\n")
    newer = read("m\n    f function (x, y=1)\n    g function (x)\n    h function\n    C class (y)\n    C.sort method (self, axis=0)\nn\n")
    assert beyond(newer, older) == {"m": [Name("f", "function", "(x, y=1)"), Name("h", "function")], "n": []}


def test_public_names_of_a_source(tmp_path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\nimport json as json\nfrom re import (match as match, search as find)\nfrom os import _exit as exit\n"
        "if TYPE_CHECKING:\n    import secret as secret\nelse:\n    x = 1\n_y = 2\nclass C: ...\ndef f(): ...\n"
    )
    assert source_names("package", [str(package)]) == {
        "json": "?", "match": "?", "exit": "?", "x": "instance", "C": "class", "f": "function",
    }  # fmt: skip


def test_rows_of_a_class() -> None:
    class C:
        attribute = 1

        def method(self, x, /, y=2, *rest, z=..., **options) -> None: ...

    assert list(describe("C", C))[1:] == [
        Name("C.attribute", "attribute"),
        Name("C.method", "method", "(self, x, /, y=2, *rest, z=..., **options)"),
    ]
    assert [kind_of(v) for v in (C, len, types, 3)] == ["class", "function", "module", "instance"]
    assert signature_of(3) == ""


def test_what_is_missing_or_differs_is_told() -> None:
    module = types.SimpleNamespace(f=lambda x, y=1: x, C=type("C", (), {"m": lambda self: 1}), k=3)

    def load(path: str) -> types.SimpleNamespace:
        if path == "absent":
            raise ImportError(path)
        return module

    rows = "m\n    f function (x, y=2)\n    g function\n    C class\n    C.m method (self)\n    C.n method\n    k class\nabsent\n"
    assert [(d.name, d.what) for d in compare(read(rows), load)] == [
        ("f", "signature"), ("g", "name"), ("C.n", "attribute"), ("k", "kind"), ("", "module"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("theirs", "function", "accepted"),
    [
        ("(x, y)", lambda x, y: 0, True),
        ("(x, y)", lambda y, x: 0, False),
        ("(x, /)", lambda a: 0, True),
        ("(x)", lambda x, /: 0, False),
        ("(x, y=1)", lambda x, y=1, z=2: 0, True),
        ("(x, y=1)", lambda x, y=2: 0, False),
        ("(x, y=1)", lambda x, *, y=1: 0, False),
        ("(*, y=1)", lambda y=1: 0, True),
        ("(x, **options)", lambda x: 0, False),
        ("(x, *rest)", lambda *all_of_them: 0, True),
        ("(x, y=...)", lambda x, y=3: 0, True),
    ],
)
def test_a_function_accepts_the_calls_of_a_signature(theirs: str, function, accepted: bool) -> None:
    assert accepts(function, theirs) is accepted
