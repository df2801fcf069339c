"""Commands whose output nobody reads end without a word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from volta_fn.commands import BROKEN_PIPE


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
    code = "from volta_fn.commands import run; run(lambda: print('read') or 3)"
    completed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert (completed.returncode, completed.stdout) == (3, "read\n")
