"""What `pip install .` brings: llvmlite and SciPy where they have wheels."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]

#: Systems, and whether llvmlite has wheels for them and machine code runs on them.
SYSTEMS = {
    ("linux", "x86_64", "cpython", "3.11"): True,
    ("linux", "aarch64", "cpython", "3.14"): True,
    ("darwin", "arm64", "cpython", "3.12"): True,
    ("darwin", "x86_64", "cpython", "3.12"): False,
    ("win32", "AMD64", "cpython", "3.12"): False,
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
