"""What the README says is true: its program runs and learns, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_program_runs(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    loss, shape = capsys.readouterr().out.splitlines()
    assert float(loss) < 0.5  # a fifth of the variance of y, which is 2
    assert shape == "(64, 3)"


def test_the_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert commands == {"demo", "test", "bench"}
    for command in commands:
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


def test_the_files_it_names_exist():
    for path in re.findall(r"`((?:examples|\.ci)/[\w./]+)`", README):
        assert (ROOT / path).exists(), path
