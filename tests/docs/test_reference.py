"""The reference has every public name, and an example of each function or a reason why there is none."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import types
from pathlib import Path

import pytest

import volta_fn
from volta_fn import compat

EXTENSIONS = Path(__file__).resolve().parents[2] / "docs" / "_extensions"
sys.path.insert(0, str(EXTENSIONS))
pages = importlib.import_module("reference_pages")
examples = importlib.import_module("reference_examples")
sys.path.remove(str(EXTENSIONS))

#: Packages of internals, and those whose names are JAX's for what the reference has elsewhere.
INNER = {"core", "primitives", "transforms", "compiler", "codegen", "runtime", "targets", "jit", "inspection"}
#: Modules of `compat` whose names the reference has elsewhere.
JAX_NAMES = {"foreign_functions", "internals", "private_functions", "process", "refused"}
OTHER_NAMES = {"compat", "example_libraries", "extend", "jax", "dlpack"}
OWN_PAGES = {"__main__", "errors", "info", "cache", "doctor", "launch"}  # the page of errors; commands
PRIVATE = {"settings", "source", "signals", "lazy_imports", "tracebacks", "advice"}


def test_every_public_module_has_a_page() -> None:
    listed = {page.module.split(".")[1] for page in pages.PAGES if "." in page.module}
    modules = {info.name for info in pkgutil.iter_modules(volta_fn.__path__)}
    assert modules - listed == INNER | OTHER_NAMES | OWN_PAGES | PRIVATE
    stubs = {path.stem for path in Path(volta_fn.__path__[0]).glob("*.pyi")} - {"__init__"} - modules  # modules of names alone
    assert stubs - listed == {"ad", "ffi", "monitoring", "process", "ref", "tree_util", "typing"}
    assert {info.name for info in pkgutil.iter_modules(compat.__path__)} - listed == JAX_NAMES


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.module)
def test_every_public_name_is_on_its_page(page: pages.Page) -> None:
    text = pages.page_text(page, {})
    module = pages.find_module(page.module)
    names = pages.public_names(module)
    assert names or page.module == "volta_fn.scipy.stats"
    assert not [name for name in names if f":: {page.module}.{name}\n" not in f"{text}\n"]


def undocumented(module: types.ModuleType) -> list[str]:
    """Return a module's public functions and classes without a docstring."""
    values = {name: getattr(module, name) for name in pages.public_names(module)}
    return [name for name, value in values.items() if (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value)]


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.module)
def test_every_function_is_documented(page: pages.Page) -> None:
    assert not undocumented(pages.find_module(page.module))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """The pages in their order, whose examples are run as they are written; what an earlier page shows is left out."""
    documented: dict[int, str] = {}
    return [pages.page_text(page, documented) for page in pages.PAGES]


def test_every_name_has_an_example_or_a_reason(texts: list[str]) -> None:
    entries = [entry for text in texts for entry in re.split(r"^\.\. auto\w+:: ", text, flags=re.MULTILINE)[1:]]
    assert len(entries) > 1900
    assert not [entry.partition("\n")[0] for entry in entries if re.search(r"No example: *$", entry, re.MULTILINE)]


def test_reasons_are_given_where_there_is_nothing_to_call(texts: list[str]) -> None:
    """Most names have an example: reasons are for records, annotations, and what needs other files."""
    reasons = sum(text.count("No example: ") for text in texts)
    assert 0 < reasons < 160


def test_the_table_of_examples_names_what_exists_and_has_none() -> None:
    for module, name in examples.table():
        value = getattr(pages.find_module(module), name)
        assert ">>>" not in (inspect.getdoc(value) or ""), f"the docstring of {module}.{name} has an example"


def test_examples_show_what_they_print_and_the_last_value() -> None:
    code = "with vf.default_device('cpu'): print('a') ;; x = 2 ;; x + 1"
    assert examples.shown(code, "volta_fn") == [">>> with vf.default_device('cpu'): print('a')", "a", ">>> x = 2", ">>> x + 1", "3"]


def test_elementwise_functions_and_optimizers_get_an_example() -> None:
    call, result = examples.example("volta_fn.numpy", "sqrt", volta_fn.numpy.sqrt)
    assert call == ">>> jnp.sqrt(jnp.array([0.25, 0.5]))"
    assert result.startswith("Array([0.5")
    assert not examples.example("volta_fn.numpy", "concatenate", volta_fn.numpy.concatenate)
    *_, update = examples.example("volta_fn.optim", "sign_sgd", volta_fn.optim.sign_sgd)
    assert update == "Array([-0.1,  0.1], dtype=float32)"
