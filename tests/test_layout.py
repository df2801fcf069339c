"""The folders of tests are those of the package, so that a module's tests are found by its path."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "volta_fn"

#: Folders of the package without a folder of tests of their own, by the file that tests them.
TESTED_ABOVE = {
    "onnx/operators": "onnx/test_loading.py",  # operators run in models
    "optim/contrib": "optim/test_optimizers.py",  # one table has a row for every optimizer
}

#: Modules directly below `volta_fn` without a `test_<module>….py` next to this file, by a file that tests them.
TESTED_ELSEWHERE = {
    "__main__": "test_commands.py",  # the list of commands
    "dlpack": "core/arrays/test_dlpack.py",  # functions of `core.arrays.memory`, by JAX's names
    "lax": "catalogue/test_catalogue.py",  # a call of each of its functions
}

#: Folders of tests across subjects, which tests/README.md describes.
ACROSS = {"benchmarks", "catalogue", "docs", "examples", "fuzz", "laws", "models", "programs", "samples", "stress", "typing"}


def folders_of(root: Path) -> set[str]:
    """Return the folders below a folder that Python files are in, as paths from it, with those around them."""
    parents = [path.relative_to(root).parents for path in root.rglob("*.py") if "__pycache__" not in path.parts]
    return {folder.as_posix() for folders in parents for folder in folders} - {"."}


def untested_folders(package: Path, tests: Path) -> set[str]:
    """Return the folders of the package that no folder of tests has the path of."""
    return folders_of(package) - folders_of(tests) - set(TESTED_ABOVE)


def untested_modules(package: Path, tests: Path) -> set[str]:
    """Return the modules directly below the package without tests of their name."""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"} - set(TESTED_ELSEWHERE)
    return {name for name in modules if not (tests / name).is_dir() and not [*tests.glob(f"test_{name}*.py")]}


def stray_folders(package: Path, tests: Path) -> set[str]:
    """Return the folders of tests that are neither those of a folder or a module of the package, nor across subjects."""
    folders = {folder for folder in folders_of(tests) if folder.split("/")[0] not in ACROSS}
    return {folder for folder in folders if not any((package / f"{folder}{ending}").exists() for ending in ("", ".py", ".pyi"))}


def test_every_folder_and_module_has_tests() -> None:
    assert not untested_folders(PACKAGE, HERE)
    assert not untested_modules(PACKAGE, HERE)


def test_every_folder_of_tests_is_that_of_a_subject() -> None:
    assert not stray_folders(PACKAGE, HERE)


def test_exceptions_name_what_exists() -> None:
    assert all((PACKAGE / folder).is_dir() for folder in TESTED_ABOVE)
    assert all((PACKAGE / f"{module}.py").is_file() for module in TESTED_ELSEWHERE)
    assert all((HERE / file).is_file() for file in [*TESTED_ABOVE.values(), *TESTED_ELSEWHERE.values()])
    assert all((HERE / folder).is_dir() for folder in ACROSS)


def test_every_test_file_is_collected() -> None:
    """A file with tests under another name would never run."""
    helpers = [path for path in HERE.rglob("*.py") if not path.name.startswith("test_") and path.name != "conftest.py"]
    assert not [path for path in helpers if re.search(r"^def test_", path.read_text(), re.MULTILINE)]


def test_planted_faults_are_found(tmp_path: Path) -> None:
    package, tests = tmp_path / "package", tmp_path / "tests"
    for path in ("package/a/b/c.py", "package/d.py", "package/e.py", "tests/a/test_a.py", "tests/a/x/test_x.py", "tests/test_e_again.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert untested_folders(package, tests) == {"a/b"}
    assert untested_modules(package, tests) == {"d"}
    assert stray_folders(package, tests) == {"a/x"}
