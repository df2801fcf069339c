"""Every module's tests are found: in the file of the same path, or by the table in tests/README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "volta_fn"


def table(text: str) -> dict[str, list[str]]:
    """Return the table of tests/README.md: by folder of the package, the tests of modules without a file of their own."""
    rows = re.findall(r"^\| `([\w/.]+)` \| ((?:`[\w/]+\.py`(?:, )?)+) \|$", text, re.MULTILINE)
    return {folder: re.findall(r"`([\w/]+\.py)`", tests) for folder, tests in rows}


TABLE = table((HERE / "README.md").read_text())


def files_testing(module: Path) -> list[Path]:
    """Return the files that test a module, given its path in the package."""
    own = HERE / module.parent / f"test_{module.name}"
    return [own] if own.exists() else [HERE / name for name in TABLE.get(module.parent.as_posix(), ())]


def test_every_module_has_tests() -> None:
    without = [path for path in sorted(PACKAGE.rglob("*.py")) if not files_testing(path.relative_to(PACKAGE))]
    assert not without, f"tests/README.md says nothing of these modules' tests: {without}"


@pytest.mark.parametrize("folder", TABLE)
def test_the_table_names_what_exists(folder: str) -> None:
    assert (PACKAGE / folder).is_dir()
    assert all((HERE / name).is_file() for name in TABLE[folder])


def test_every_test_file_is_collected() -> None:
    """A file with tests under another name would never run."""
    helpers = [path for path in HERE.rglob("*.py") if not path.name.startswith("test_") and path.name != "conftest.py"]
    assert not [path for path in helpers if re.search(r"^def test_", path.read_text(), re.MULTILINE)]


def test_a_module_without_tests_is_found() -> None:
    assert files_testing(Path("optim/base.py"))
    assert not files_testing(Path("a_new_package/module.py"))
    assert table("| `a/b` | `a/test_b.py`, `test_c.py` |\n| `samples/` | a *sample* |") == {"a/b": ["a/test_b.py", "test_c.py"]}
