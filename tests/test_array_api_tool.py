"""The command that runs array-api-tests: its skips, its command line, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import array_api_tests


def test_options_and_tests_replace_the_defaults() -> None:
    assert array_api_tests.command([])[-2:] == ["--max-examples=200", "array_api_tests"]
    chosen = array_api_tests.command(["--max-examples=5", "array_api_tests/test_fft.py"])
    assert chosen[-2:] == ["--max-examples=5", "array_api_tests/test_fft.py"]


def test_a_seed_replaces_the_same_examples_in_every_run() -> None:
    assert "--derandomize" in array_api_tests.command([])
    assert "--derandomize" not in array_api_tests.command(["--hypothesis-seed=3"])


def test_what_is_not_a_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        array_api_tests.main([str(tmp_path)])
    assert "git submodule update --init" in capsys.readouterr().err


def test_the_checkout_gets_the_module_and_the_version(tmp_path: Path) -> None:
    """A checkout of two tests, of which one assigns and is on the list of those that do."""
    (tmp_path / "array-api" / "src").mkdir(parents=True)
    (tmp_path / "array_api_tests").mkdir()
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    for name in ('--disable-deadline', '--derandomize'):\n        parser.addoption(name, action='store_true')\n"
        "    parser.addoption('--max-examples')\n"
    )
    (tmp_path / "array_api_tests" / "test_array_object.py").write_text(
        "import os\nfrom importlib import import_module\nimport pytest\nxp = import_module(os.environ['ARRAY_API_TESTS_MODULE'])\n\n"
        "def test_getitem():\n    assert xp.__array_api_version__ == os.environ['ARRAY_API_TESTS_VERSION']\n"
        "    with pytest.raises(TypeError):\n        xp.zeros(2)[0] = 1.0\n\n"
        "@pytest.mark.parametrize('i', [0])\ndef test_setitem(i):\n"
        "    x = xp.zeros(2)\n    x[i] = 1.0\n    assert x.tolist() == [1.0, 0.0]\n"
    )
    done = subprocess.run([sys.executable, array_api_tests.__file__, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
