"""The wheel and the source archive have what they need, and no more; the wheel works where it is installed."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.typing.test_typing import code_blocks, faults

ROOT = Path(__file__).parent.parent
ADDRESS = "https://example.org/volta_fn"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("archives")
    command = [sys.executable, str(ROOT / "tools" / "dist.py"), f"{ADDRESS}/", "--ref", "v1.2.3", "--output", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


@pytest.fixture(scope="module")
def environment(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a virtual environment with the wheel; dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(archives[0]) as wheel:
        wheel.extractall(packages)  # all that an installation of pure Python does
    installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(installed))
    return folder / "bin" / "python"


def test_the_wheel_has_the_package_and_its_data(archives: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(archives[0]).namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "volta_fn").rglob("*")
        if path.suffix in (".py", ".pyi", ".json", ".txt", ".typed", ".js", ".html", ".css", ".md")
    }
    assert {name for name in names if name.startswith("volta_fn/")} == sources | {"volta_fn/py.typed"}
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"volta_fn"}


def test_the_metadata_are_complete(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    for field in ("Name", "Version", "Summary", "Author", "Keywords", "License-Expression", "Requires-Python"):
        assert metadata[field], field
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().lstrip().startswith("# volta_fn")
    versions = [c.rpartition(" ")[2] for c in metadata.get_all("Classifier") if re.search(r":: 3\.\d+$", c)]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    systems = {c.split(" :: ")[-1] for c in metadata.get_all("Classifier") if c.startswith("Operating System")}
    assert systems == {"Linux", "MacOS", "Windows"}
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_metadata_lead_to_the_project(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as archive:
        (name,) = [name for name in archive.getnames() if name.count("/") == 1 and name.endswith("PKG-INFO")]
        metadata = email.message_from_bytes(archive.extractfile(name).read())
    pages = dict(entry.split(", ") for entry in metadata.get_all("Project-URL"))
    assert pages["Homepage"] == ADDRESS
    assert pages["Changelog"] == f"{ADDRESS}/blob/v1.2.3/CHANGELOG.md"
    assert {"Documentation", "Repository", "Issues"} <= pages.keys()


def test_the_long_description_has_absolute_links_and_pictures(archives: tuple[Path, Path]) -> None:
    """A package index resolves no relative link, and shows pictures from where the file itself is."""
    with zipfile.ZipFile(archives[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        text = email.message_from_bytes(wheel.read(name)).get_payload(decode=True).decode()
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    links = re.findall(r"\]\(([^)]*)\)", re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text))
    assert len(pictures) >= 3 and len(links) > 6
    for address in pictures:
        assert address.startswith(f"{ADDRESS}/raw/v1.2.3/"), address
        assert (ROOT / address.removeprefix(f"{ADDRESS}/raw/v1.2.3/")).is_file()
    for link in links:
        if not link.startswith((f"{ADDRESS}/blob/v1.2.3/", "#")):
            assert link.startswith("https://"), link
        elif link.startswith(ADDRESS):
            assert (ROOT / link.removeprefix(f"{ADDRESS}/blob/v1.2.3/").partition("#")[0]).exists()
    assert "<img" not in text or 'src="http' in text
    assert "](docs" not in text and "](examples" not in text


def test_an_address_with_a_password_is_refused() -> None:
    command = [sys.executable, str(ROOT / "tools" / "dist.py"), "https://name:secret@example.org/volta_fn"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and "no user or password" in run.stderr


def test_the_source_archive_has_all_that_the_repository_has(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    sources = {name for name in listed if name and not name.startswith(".") and (ROOT / name).is_file()}
    assert sources - names == set()
    assert {name.partition("/")[0] for name in names - sources} <= {"PKG-INFO", "setup.cfg", "volta_fn.egg-info"}


def test_the_installed_package_runs_its_examples(environment: Path, tmp_path: Path) -> None:
    program = "import doctest, volta_fn as vf; print(vf.__file__); print(doctest.testmod(vf).attempted, doctest.testmod(vf).failed)"
    run = subprocess.run([str(environment), "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    file, counts = run.stdout.split("\n")[:2]
    assert Path(file).is_relative_to(environment.parent.parent)
    assert counts == "3 0"


def test_pyright_finds_nothing_with_the_installed_package(environment: Path, tmp_path: Path) -> None:
    """Over the examples, the documents, and the small projects in strict mode."""
    assert faults(tmp_path, str(environment), package=None) == []


def test_mypy_finds_nothing_with_the_installed_package(environment: Path, tmp_path: Path) -> None:
    """Over the examples and the documents."""
    (tmp_path / "documents").mkdir()
    code_blocks(tmp_path / "documents")
    (tmp_path / "documents" / "__init__.py").touch()
    untyped = "IPython jax matplotlib miniature rich sklearn tensorboardX threadpoolctl torch".split()
    settings = [f"[mypy]\nmypy_path = {ROOT / 'examples'}\ncheck_untyped_defs = True"]
    settings += [f"[mypy-{name}.*]\nignore_missing_imports = True\nfollow_imports = skip" for name in untyped]
    (tmp_path / "mypy.ini").write_text("\n".join(settings))
    examples = [str(path) for path in (ROOT / "examples").glob("*.py") if path.name != "miniature.py"]  # which has no annotations
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--python-executable", str(environment), "documents"]
    run = subprocess.run([*command, *examples], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(re.findall(r"in (\d+) source files", run.stdout)[0]) > 15
