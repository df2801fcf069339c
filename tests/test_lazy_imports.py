"""Public names that packages load on first use."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib

import pytest

import volta_fn
from tests.test_layers import MODULES, ROOT
from volta_fn.lazy_imports import load, public_names

PACKAGES = [name for name, path in MODULES.items() if path.with_suffix(".pyi").exists()]


def test_there_are_such_packages():
    assert {"volta_fn", "volta_fn.lax", "volta_fn.numpy", "volta_fn.tree"} <= set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_there(package):
    face = importlib.import_module(package)
    assert public_names(package)
    for name, (home, original) in public_names(package).items():
        module = importlib.import_module(home)
        actual, wanted = getattr(face, name), getattr(module, original) if hasattr(module, original) else load(f"{home}.{original}")
        # A command, `python -m volta_fn.doctor`, is in the place of its function once it is imported: then it can be called like it.
        assert actual is wanted or (callable(actual) and actual is sys.modules.get(f"{package}.{name}"))
        assert name in vars(face)
        assert name in dir(face)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_patterns_read_every_name_of_a_stub(package):
    importlib.import_module(package)
    stub = ast.parse(MODULES[package].with_suffix(".pyi").read_text())
    imports = [(node.module, alias) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = {name for module, alias in imports for name in (load(module or "").__all__ if alias.name == "*" else [alias.asname])}
    names |= {ast.unparse(target) for node in stub.body if isinstance(node, ast.Assign) for target in node.targets}
    assert names == set(public_names(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_star_imports_take_every_name(package):
    names: dict[str, object] = {}
    exec(f"from {package} import *", names)
    assert set(public_names(package)) <= set(names)


def test_the_package_ships_its_stubs():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "*.pyi" in settings["*"]


def test_threads_find_one_object():
    script = """if True:
        import threading
        import volta_fn as vf
        found, barrier = [], threading.Barrier(8)
        def ask():
            barrier.wait()
            found.append((vf.numpy.histogram, vf.grad, vf.nn.Linear))
        threads = [threading.Thread(target=ask) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print(len(found), len(set(found)))
    """
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["8", "1"]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_that_of_a_submodule(package):
    """Importing such a submodule would hide the name."""
    importlib.import_module(package)
    folder = MODULES[package].parent
    inside = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    allowed = {"jit", "doctor"}  # the first is not lazy, and the module of the second can be called, too
    names = {name for name, (home, _) in public_names(package).items() if home != package and name not in allowed}
    assert MODULES[package].name != "__init__.py" or not names & inside


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match=r"module 'volta_fn.numpy' has no attribute 'nothing'"):
        importlib.import_module("volta_fn.numpy").nothing  # asking is the test


def test_programs_need_not_load_the_rules_themselves():
    """Check transforms of primitives that nothing else has loaded."""
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


@pytest.mark.parametrize("package", ["nn", "optim", "data", "io", "debug", "numpy", "lax", "random"])
def test_dir_lists_public_names_alone(package):
    module = getattr(volta_fn, package)
    names = {name for name in dir(module) if not name.startswith("__")}
    inside = {"layers", "module", "numerics", "tree_rules", "loader", "files", "printing", "TYPE_CHECKING", "creation"}
    assert names and not names & inside
    assert not any(name.startswith("_") for name in names)
    values = {name: getattr(module, name) for name in names}
    assert {"nn": "Linear", "optim": "adam", "data": "DataLoader", "io": "Checkpointer"}.get(package, next(iter(names))) in values


def test_dir_of_the_package_has_no_machinery():
    assert not {"TYPE_CHECKING", "on_demand", "source", "core", "lazy_imports", "primitives"} & set(dir(volta_fn))
    assert {"grad", "jit", "nn", "numpy", "__version__"} <= set(dir(volta_fn))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files to set")
def test_without_free_descriptors_errors_are_typed_and_pass():
    program = """
import os, resource
import numpy as np
import volta_fn as vf
from volta_fn.errors import SerializationError

resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
x = np.eye(4, dtype=np.float32)
calls = {
    "jit": lambda: vf.jit(lambda x: vf.lax.sin(x) @ x)(x),
    "package": lambda: vf.random.key(0),
    "submodule": lambda: vf.numpy.linalg.inv(vf.numpy.asarray(x)),
    "gradient": lambda: vf.grad(lambda x: vf.numpy.fft.fft(x).real.sum())(x),
}
for name, call in calls.items():
    files = []
    try:
        while True:
            files.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        call()
    except SerializationError as error:
        assert "too many files are open" in str(error)
        print(name)
    for file in files:
        os.close(file)
    call()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["jit", "package", "submodule", "gradient"]
