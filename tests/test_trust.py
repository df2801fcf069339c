"""What SECURITY.md says: every variable is there, generated text has names alone, wheels are reproducible."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import tree
from volta_fn.jit.cache import generate_match

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "volta_fn").rglob("*.py")}

#: The modules that compile text, each with a test of what the text has.
GENERATORS = {"volta_fn/jit/cache.py", "volta_fn/targets/numpy/backend.py"}


def test_every_variable_is_listed() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    read = {name for text in SOURCES.values() for name in re.findall(r"\b(?:VOLTA|XDG)_[A-Z_]*[A-Z]\b", text)}
    assert read == set(re.findall(r"`((?:VOLTA|XDG)_[A-Z_]+)`", page))


def test_text_is_compiled_in_known_modules_alone() -> None:
    results = set()
    for name, text in SOURCES.items():
        calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        if any(isinstance(call, ast.Name) and call.id in ("exec", "eval", "compile") for call in calls):
            results.add(name)
    assert results == GENERATORS | {"volta_fn/debug.py"}  # which evaluates what the user types at its prompt


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the generators compile."""
    results: list[str] = []
    for name in GENERATORS:
        module = sys.modules[name.removesuffix(".py").replace("/", ".")]
        for function in ("exec", "eval", "compile"):
            original = getattr(__builtins__, function, None) or __builtins__[function]  # type: ignore[index]  # a dict in some modules

            def noting(text: object, *args: object, original: object = original) -> object:
                if isinstance(text, str):
                    results.append(text)
                return original(text, *args)  # type: ignore[operator]

            monkeypatch.setattr(module, function, noting, raising=False)
    return results


def test_no_value_is_part_of_the_text(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", False)
    hostile = "x'];__import__('os').system('true')#"
    example = {hostile: (jnp.ones(3), 4), "b\n": [1.5, {hostile: None}]}
    match = generate_match(tree.structure(example), example)
    assert match is not None and match(example) == tree.leaves(example)
    step = vf.jit(lambda t, number, kind: vf.tree.map(lambda x: x * number, t), static_argnums=2)
    for _ in range(3):
        result = step(example, 2, hostile)
    np.testing.assert_array_equal(result[hostile][0], np.full(3, 2.0))
    assert len(texts) >= 2
    assert not [text for text in texts if "import" in text or "b\\n" in text]


def test_fields_that_are_no_identifiers_are_not_generated() -> None:
    class Odd:
        pass

    tree.register_dataclass(Odd, data_fields=["a b"], meta_fields=[])
    odd = Odd()
    setattr(odd, "a b", jnp.ones(2))
    assert generate_match(tree.structure((odd, 1)), (odd, 1)) is None


def test_wheels_do_not_depend_on_dates_and_modes(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import build_wheel
    finally:
        sys.path.pop(0)
    contents = []
    for number in range(2):
        copy = tmp_path / f"tree{number}"
        (copy / "volta_fn").mkdir(parents=True)
        for name in ("__init__.py", "__init__.pyi", "dtypes.py", "py.typed"):
            shutil.copy(ROOT / "volta_fn" / name, copy / "volta_fn")
            os.utime(copy / "volta_fn" / name, (1e9 * (number + 1),) * 2)
            (copy / "volta_fn" / name).chmod(0o600 if number else 0o664)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        contents.append(build_wheel.build(copy, tmp_path / f"out{number}", 1_700_000_000).read_bytes())
    assert contents[0] == contents[1]


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", "import dependency_versions as d; print(*d.versions('oldest')); print(*d.versions('newest'))"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    assert re.search(r"\bnumpy==2\.\d", completed[0]) and "ml_dtypes==0.6" in completed[0]
    assert "numpy" in completed[1].split()
