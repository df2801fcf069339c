"""What type checkers and editors see: `Array` wherever an array is, in strict mode, without a suppression."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import volta_fn as vf
from volta_fn import advice
from volta_fn.core.arrays.array import ConcreteArray

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
STUB = ROOT / "volta_fn" / "core" / "arrays" / "array_methods.pyi"
DOCUMENTS = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)]
#: A program of a document, or a cell: its tags and its code.
BLOCK = re.compile(r"```(?:python|\{code-cell\} python)\n(:tags: [^\n]*\n)?(.*?)```", re.DOTALL)


def declared() -> dict[str, ast.FunctionDef]:
    """Return the methods of the stub, by name."""
    (methods,) = [node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)]
    return {node.name: node for node in methods.body if isinstance(node, ast.FunctionDef)}


def test_the_stub_declares_what_is_attached() -> None:
    attached = {name for cls in (vf.Array, ConcreteArray) for name in vars(cls) if not name.startswith("_")}
    attributes = {"aval", "shape", "dtype", "ndim", "size", "weak_type", "itemsize", "nbytes", "buffer"}  # in core/arrays/array.py
    assert {name for name in declared() if not name.startswith("_")} == attached - attributes - set(advice.ARRAYS)


@pytest.mark.parametrize("name", [name for name, node in declared().items() if not node.decorator_list and not name.startswith("__")])
def test_the_stub_has_the_parameters_of_the_method(name: str) -> None:
    arguments = declared()[name].args
    names = [a.arg for a in [*arguments.posonlyargs, *arguments.args, *filter(None, [arguments.vararg]), *arguments.kwonlyargs]][1:]
    assert names == list(inspect.signature(getattr(ConcreteArray, name)).parameters)[1:]


def code_blocks(folder: Path) -> None:
    """Write the Python programs and cells of each document as a module; the blocks of one document belong together.

    Cells that say that they raise show mistakes, of which types are some.
    """
    for document in DOCUMENTS:
        blocks = [code for tags, code in BLOCK.findall(document.read_text())]
        if blocks:
            name = "_".join(document.relative_to(ROOT).with_suffix("").parts)
            (folder / f"{name}.py").write_text("\n".join(blocks))


def stub_of_notebooks(folder: Path) -> None:
    """Write a stub of IPython, which only the environment of the documentation has."""
    folder.mkdir(parents=True)
    for name in ("__init__", "display"):
        (folder / f"{name}.pyi").write_text("from typing import Any\ndef __getattr__(name: str) -> Any: ...\n")


def faults(folder: Path, python: str = sys.executable, package: Path | None = ROOT) -> list[str]:
    """Return what Pyright finds in examples, samples (strictly) and documents; `package` is where volta_fn is, unless installed."""
    (folder / "documents").mkdir()
    code_blocks(folder / "documents")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "samples").symlink_to(HERE)
    settings = {
        "include": ["examples", "samples", "documents"],
        "exclude": ["samples/test_*.py"],
        "strict": ["samples"],
        "extraPaths": ["examples", *([str(package)] if package else [])],
        "pythonVersion": "3.11",
        "stubPath": "stubs",
        "reportMissingModuleSource": False,  # of that stub
        "reportUnusedExpression": False,  # with which cells end
    }
    stub_of_notebooks(folder / "stubs" / "IPython")
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, "--project", str(folder)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=folder).stdout)
    assert result["summary"]["filesAnalyzed"] > 25
    return [f"{Path(d['file']).name}:{d['range']['start']['line'] + 1}: {d['message']}" for d in result["generalDiagnostics"]]


def test_nothing_is_suppressed() -> None:
    for path in [*HERE.glob("*.py"), *(ROOT / "examples").glob("*.py")]:
        if path != Path(__file__):
            assert not re.search(r"#\s*(type: *ignore|pyright: *ignore)", path.read_text()), path


def test_pyright_sees_mistakes(tmp_path: Path) -> None:
    """So that silence means something: unknown methods, wrong arguments of jitted functions, and wrong types are found."""
    program = """
import volta_fn as vf
x = vf.numpy.ones(2)
x.backward()
def f(x: vf.Array, n: int) -> vf.Array:
    return x * n
vf.jit(f)(x, "many")
text: str = x + 1
"""
    (tmp_path / "mistakes.py").write_text(program)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"include": ["."], "extraPaths": [str(ROOT)]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout)
    assert [d["range"]["start"]["line"] for d in result["generalDiagnostics"]] == [3, 6, 7]


@pytest.mark.parametrize(
    "name", ["hamiltonian_monte_carlo", "neural_ode", "physics_informed", "policy_gradient", "character_transformer", "meta_learning"]
)
def test_the_samples_learn(name: str) -> None:
    before, *_, after = importlib.import_module(f"tests.typing.{name}").main()
    if name == "hamiltonian_monte_carlo":  # the mean and the variance of a normal distribution
        assert abs(before).max() < 0.2
        assert abs(after - 1).max() < 0.2
    elif name == "policy_gradient":  # rewards, which are distances with a minus
        assert before < after < 0
    else:
        assert after < 0.8 * before


def test_the_other_samples_run(tmp_path: Path) -> None:
    from tests.typing import classifier, diffusion, gaussian_process, plotting, variational_autoencoder

    assert classifier.main(tmp_path) > 0.9
    assert gaussian_process.main()[1] < 0.3
    assert bool(vf.numpy.isfinite(diffusion.main()).all())
    first, last = variational_autoencoder.main()
    assert float(last) < float(first)
    assert plotting.main() == 1
