"""What `pip install .` brings: llvmlite and SciPy where they have wheels."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")

#: Systems, and whether llvmlite has wheels for them and machine code runs on them.
SYSTEMS = {
    ("linux", "x86_64", "cpython", "3.11"): True,
    ("linux", "aarch64", "cpython", "3.14"): True,
    ("darwin", "arm64", "cpython", "3.12"): True,
    ("darwin", "x86_64", "cpython", "3.12"): False,
    ("win32", "AMD64", "cpython", "3.12"): True,
    ("win32", "ARM64", "cpython", "3.12"): False,
    ("linux", "ppc64le", "cpython", "3.12"): False,
    ("linux", "x86_64", "pypy", "3.11"): False,
    ("linux", "x86_64", "cpython", "3.15"): False,
}


@pytest.mark.parametrize("system", SYSTEMS, ids="-".join)
def test_the_compiler_is_installed_where_it_has_wheels(system: tuple[str, ...]) -> None:
    environment = dict(zip(("sys_platform", "platform_machine", "implementation_name", "python_version"), system, strict=True))
    needed = [Requirement(text) for text in PROJECT["dependencies"]]
    names = {r.name for r in needed if r.marker is None or r.marker.evaluate(environment)}
    assert {"llvmlite", "scipy"} & names == ({"llvmlite", "scipy"} if SYSTEMS[system] else set())
    assert {"numpy", "optree"} <= names


def test_an_extra_has_them_for_other_machines() -> None:
    assert {Requirement(text).name for text in PROJECT["optional-dependencies"]["native"]} == {"llvmlite", "scipy"}
    assert all(Requirement(text).marker is None for text in PROJECT["optional-dependencies"]["native"])


def test_a_version_has_one_number() -> None:
    """Of the project, of its citation, at the top of the changelog, and in the recipe."""
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0] in (version, "Unreleased")
    assert f'\n  version: "{version}"\n' in RECIPE


def test_the_recipe_needs_what_the_project_needs() -> None:
    """conda knows wgpu by another name, and has llvmlite everywhere."""
    run = RECIPE.partition("\n  run:\n")[2].partition("\n\n")[0]
    recipe = {name.replace("wgpu-py", "wgpu"): bound for name, bound in re.findall(r"- (\S+) >=(.+)", run)}
    assert recipe.pop("python") == "${{ python_min }}" and f'python_min: "{PROJECT["requires-python"][2:]}"' in RECIPE
    linux = {"sys_platform": "linux", "platform_machine": "x86_64", "implementation_name": "cpython", "python_version": "3.12"}
    needed = [Requirement(text) for text in PROJECT["dependencies"]]
    assert recipe == {r.name: str(r.specifier)[2:] for r in needed if r.marker is None or r.marker.evaluate(linux)}


def test_the_recipes_commands_are_texts() -> None:
    """A colon and a space within a command that is not quoted make YAML read a table."""
    commands = re.findall(r"^ +- (python .*|'.*')$", RECIPE, re.MULTILINE)
    assert any("grad" in command for command in commands)
    assert all(": " not in command or command.startswith("'") for command in commands)
