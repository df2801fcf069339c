"""Programs written for JAX run with only their imports changed, are right, and give JAX's numbers.

Each program here is a module with `run(...)`, which returns its results by name, `check(results)`, which asserts facts known
independently (a closed form, NumPy in float64, a statistic), and AGREEMENT, the tolerance within which JAX must agree. Nothing
in a program tells the two libraries apart: for JAX the very same source is executed with `volta_fn` replaced in its imports.
"""

from __future__ import annotations

import inspect
import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import optree
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("test_"))


@cache
def load(path: Path, library: str) -> ModuleType:
    """Load the module at `path` with its imports of volta_fn turned to `library` (as it stands for volta_fn itself)."""
    source = path.read_text()
    if library == "jax":
        source = source.replace("import volta_fn as jax", "import jax").replace("import volta_fn", "import jax")
        source = source.replace("from volta_fn", "from jax")
    module = ModuleType(path.stem)
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


@cache
def digits() -> tuple[np.ndarray, ...]:
    """Flattened images and labels: 2,000 of MNIST's with 500 of its test set where the files are, else scikit-learn's digits."""
    demo = load(ROOT / "examples" / "digits.py", "volta_fn")
    folder = Path(os.environ.get("VOLTA_TEST_DATA", ROOT.parent / "shared" / "data")) / "mnist"
    parts = []
    for dataset, count in zip(demo.read_mnist(folder) if folder.is_dir() else demo.read_digits(), (2000, 500), strict=True):
        images, labels = map(np.asarray, dataset.gather(np.arange(min(count, len(dataset)))))
        parts += [images.reshape(len(images), -1), labels]
    return tuple(parts)


@cache
def results(program: str, library: str) -> dict[str, Any]:
    """Return the results of the program under the library, as NumPy arrays."""
    module = load(HERE / f"{program}.py", library)
    inputs = {"digits": digits}
    result = module.run(**{name: inputs[name]() for name in inspect.signature(module.run).parameters})
    return optree.tree_map(np.asarray, result)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_facts_hold(program: str) -> None:
    load(HERE / f"{program}.py", "volta_fn").check(results(program, "volta_fn"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_jax_runs_the_same_source_to_the_same_results(program: str) -> None:
    pytest.importorskip("jax")
    ours, theirs = results(program, "volta_fn"), results(program, "jax")
    module = load(HERE / f"{program}.py", "jax")
    module.check(theirs)
    paths, our_leaves, our_structure = optree.tree_flatten_with_path(ours)
    their_leaves, their_structure = optree.tree_flatten(theirs)
    assert our_structure == their_structure
    for path, our, their in zip(paths, our_leaves, their_leaves, strict=True):
        assert (our.shape, our.dtype) == (their.shape, their.dtype), path
        np.testing.assert_allclose(our, their, **module.AGREEMENT, err_msg=f"{program}: {path}")
