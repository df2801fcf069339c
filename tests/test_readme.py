"""What the README says is true: its programs run and learn, its commands, files and parts exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(program: str) -> None:
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})


def test_the_first_program_learns(capsys):
    run(PROGRAMS[0])
    first, last, shape = capsys.readouterr().out.splitlines()
    assert abs(float(first) - 19.56) < 0.01 and abs(float(last) - 0.32) < 0.01  # as the comments say
    assert shape == "(64, 3)"


def test_the_second_program_trains_saves_and_loads(capsys):
    run(PROGRAMS[1])
    *model, accuracy = capsys.readouterr().out.splitlines()
    assert model[0] == "Sequential(  # 226 parameters"
    assert float(accuracy) > 0.97  # as its last comment says
    assert len(PROGRAMS) == 2


def test_the_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE))
    assert commands == {"check", "demo", "examples", "test", "test-gpu", "bench", "docs"}
    for command in commands:
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


def test_the_files_it_names_exist():
    for path in re.findall(r"`((?:examples|\.ci)/[\w./]+)`|\]\(([\w./]+)\)", README):
        assert (ROOT / "".join(path)).exists(), path


def test_the_house_has_its_parts():
    rows = [row.split("|")[1] for row in README.splitlines() if row.startswith("| `")]
    named = {part.rstrip("/") for row in rows for part in re.findall(r"`([\w/]+)`", row)}
    names = {path.stem for path in (ROOT / "volta_fn").iterdir() if not path.name.startswith("_") and path.suffix in ("", ".py")}
    assert len(named) > 15
    assert named <= names
