"""The command that runs array-api-tests: its skips, its command line, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import array_api_tests


def test_every_skip_has_a_reason_and_there_are_at_most_five() -> None:
    lines = [line for line in array_api_tests.SKIPS.read_text().splitlines() if line]
    skipped = [number for number, line in enumerate(lines) if line.startswith("array_api_tests/")]
    assert 0 < len(skipped) <= 5
    assert all(lines[number - 1].startswith("# ") for number in skipped)


def test_options_and_tests_replace_the_defaults() -> None:
    plain = array_api_tests.command([], assign=False)
    assert plain[-2:] == ["--max-examples=200", "array_api_tests"]
    assert f"--skips-file={array_api_tests.SKIPS}" in plain
    chosen = array_api_tests.command(["--max-examples=5", "array_api_tests/test_fft.py"], assign=True)
    assert chosen[-2:] == ["--max-examples=5", "array_api_tests/test_fft.py"]
    assert not any(argument.startswith("--skips-file") for argument in chosen)


def test_what_is_not_a_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        array_api_tests.main([str(tmp_path)])
    assert "git submodule update --init" in capsys.readouterr().err


@pytest.mark.parametrize("assign", [False, True])
def test_the_checkout_gets_the_module_and_the_version(assign: bool, tmp_path: Path) -> None:
    """A checkout of one test, which reads the environment as array-api-tests does."""
    (tmp_path / "array-api" / "src").mkdir(parents=True)
    (tmp_path / "array_api_tests").mkdir()
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    for name in ('--disable-deadline', '--derandomize'):\n        parser.addoption(name, action='store_true')\n"
        "    for name in ('--skips-file', '--max-examples'):\n        parser.addoption(name)\n"
    )
    reads = (
        "import os\nfrom importlib import import_module\nscope = {}\nmodule = os.environ['ARRAY_API_TESTS_MODULE']\n"
        "if module.startswith('exec('):\n    exec(module[6:-2], scope)\nxp = scope.get('xp') or import_module(module)\n"
    )
    assigns = "x = xp.zeros(2)\n    x[0] = 1.0\n    assert x.tolist() == [1.0, 0.0]"
    refuses = "import pytest\n    with pytest.raises(TypeError):\n        xp.zeros(2)[0] = 1.0"
    (tmp_path / "array_api_tests" / "test_it.py").write_text(
        f"{reads}\ndef test_it():\n    assert xp.__array_api_version__ == os.environ['ARRAY_API_TESTS_VERSION']\n"
        f"    {assigns if assign else refuses}\n"
    )
    done = subprocess.run(
        [sys.executable, array_api_tests.__file__, str(tmp_path), *["--assign"] * assign], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
