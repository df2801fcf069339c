"""What packages load on demand: the table for run time and the imports for type checkers name the same things, which are there."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys

import pytest

from tests.test_layers import MODULES, ROOT, is_type_checking, name_of, parsed

PACKAGES = [name for name, path in MODULES.items() if "on_demand.exports(" in path.read_text() and name != "volta_fn.on_demand"]


def block(package: str) -> ast.If:
    """The statement `if TYPE_CHECKING: (imports) else: (the table)`."""
    return next(node for node in parsed(MODULES[package]).body if isinstance(node, ast.If) and is_type_checking(node))


def for_type_checkers(package: str) -> set[tuple[str, str]]:
    """The imports: pairs of a module and a name."""
    imports = [node for node in block(package).body if isinstance(node, ast.ImportFrom)]
    return {(node.module or "", alias.name) for node in imports for alias in node.names}


def for_run_time(package: str) -> set[tuple[str, str]]:
    """The table: the same pairs."""
    call = next(node for node in ast.walk(block(package)) if isinstance(node, ast.Call))
    modules, names = map(ast.literal_eval, call.args[1:])
    full = [importlib.util.resolve_name(module, package) for module in modules.split()]
    pairs = {(module.rpartition(".")[0], module.rpartition(".")[2]) for module in full}
    return pairs | {(importlib.util.resolve_name(module, package), name) for module, listed in names.items() for name in listed.split()}


def test_there_are_such_packages():
    assert {"volta_fn", "volta_fn.lax", "volta_fn.numpy", "volta_fn.tree"} <= set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_both_lists_agree_and_every_name_is_there(package):
    assert for_type_checkers(package) == for_run_time(package)
    face = importlib.import_module(package)
    for module, name in for_run_time(package):
        home = importlib.import_module(module)
        found = getattr(face, name)
        assert found is getattr(home, name)
        assert name in dir(face)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_that_of_a_submodule(package):
    """Importing a submodule makes it an attribute of its package, which would hide the name."""
    inside = {name_of(path).rpartition(".")[2] for path in MODULES[package].parent.iterdir() if path.suffix == ".py"}
    names = {name for module, name in for_run_time(package) if module != package}
    assert MODULES[package].name != "__init__.py" or not names & inside


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match=r"module 'volta_fn.numpy' has no attribute 'nothing'"):
        importlib.import_module("volta_fn.numpy").nothing  # asking is the test


def test_programs_need_not_load_the_rules_themselves():
    """Each in a fresh process: a transform is the first thing that is asked for, of a primitive that nothing has loaded."""
    scripts = (
        "print(vf.grad(lambda x: vf.lax.fori_loop(0, 3, lambda i, y: y * x, x))(2.0))",
        "print(vf.vmap(lambda x: vf.lax.cond(x > 0, lambda: x, lambda: -x))(vf.numpy.arange(2.0) - 1.0).sum())",
        "print(vf.jit(lambda x: vf.lax.while_loop(lambda y: y < 9, lambda y: y * y, x))(2.0))",
    )
    for script, expected in zip(scripts, ("32.0", "1.0", "16.0"), strict=True):
        out = subprocess.run(
            [sys.executable, "-c", f"import volta_fn as vf\n{script}"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert out.stdout.strip() == expected
