"""Commands whose output nobody reads end without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from volta_fn.__main__ import COMMANDS
from volta_fn.signals import BROKEN_PIPE


@pytest.mark.skipif(os.name != "posix", reason="pipes are those of POSIX")
@pytest.mark.parametrize("command", ["doctor", "cache", "info", "errors ShapeError"])
def test_commands_end_quietly_when_nobody_reads(command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", *f"volta_fn.{command}".split()]
    try:
        completed = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    finally:
        os.close(writer)
    assert (completed.returncode, completed.stderr) == (BROKEN_PIPE, "")


def test_the_status_is_that_of_the_command() -> None:
    code = "from volta_fn.signals import run; run(lambda: print('read') or 3)"
    completed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert (completed.returncode, completed.stdout) == (3, "read\n")


def output(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "volta_fn", *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_the_package_lists_its_commands_and_runs_them() -> None:
    listed = output().stdout
    for name in COMMANDS:
        command = name.partition(" ")[0]
        assert f"python -m volta_fn {name}" in listed
        assert find_spec(f"volta_fn.{command}") is not None
    assert output("errors", "ShapeError").stdout.startswith("ShapeError\n")


def test_an_unknown_command_is_answered_by_the_closest() -> None:
    completed = output("doctr")
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr == "volta_fn has no command 'doctr'; did you mean doctor?\n"


def test_the_status_of_a_command_of_the_package_is_its_own() -> None:
    assert output("errors", "NoSuchError").returncode == 2
