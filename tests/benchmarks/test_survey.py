"""The survey calls functions that exist, compares their numbers, and reports what exceeds the limits."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.survey import __main__ as program
from benchmarks.survey.contestants import MODULES
from benchmarks.survey.tables import TABLE


def test_the_table_names_each_call_once_and_enough_functions() -> None:
    names = [row.name for row in TABLE]
    assert len(names) == len(set(names))
    assert len({row.path() for row in TABLE}) >= 250


@pytest.mark.parametrize("module", MODULES["volta_fn"])
def test_functions_exist(module: str) -> None:
    home = importlib.import_module(MODULES["volta_fn"][module])
    assert [row.name for row in TABLE if row.path()[0] == module and not hasattr(home, row.path()[1])] == []


def test_ratios_and_agreement() -> None:
    seconds = {"volta_fn eager": 2.0, "volta_fn jit": 1.0, "numpy": 4.0, "jax eager": 1.0, "jax jit": 0.5}
    assert program.ratios(seconds) == {"volta_fn eager": 2.0, "volta_fn jit": 2.0}
    assert program.ratios({"volta_fn eager": 1.0}) == {"volta_fn eager": None, "volta_fn jit": None}
    x, nan = np.ones(3, complex), np.array([np.nan, 1, 1], complex)
    assert program.agree({"a": [x], "b": [x + 1e-3], "c": None}) and program.agree({"a": [x], "b": [nan]})
    assert not program.agree({"a": [x], "b": [x + 0.1]}) and not program.agree({"a": [x], "b": [x[:2]]})


def test_a_quick_survey_writes_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program, "MODULES", {name: MODULES[name] for name in ("volta_fn", "numpy")})
    monkeypatch.setattr(program, "limit_threads", lambda threads: None)
    monkeypatch.setenv("VOLTA_NATIVE", "0")
    path = tmp_path / "survey.json"
    wanted = r"^numpy\.(hypot|stack last axis)$"
    assert program.main(["--quick", "--threads", "1", "--sizes", "100", "--only", wanted, "--json", str(path)]) == 0
    actual = json.loads(path.read_text())
    assert [row["name"] for row in actual["rows"]] == ["numpy.hypot", "numpy.stack last axis"]
    assert all(row["agree"] and row["ratios"]["volta_fn eager"] > 0 and row["ratios"]["volta_fn jit"] is None for row in actual["rows"])
    assert actual["summary"]["volta_fn eager"]["compared"] == 2
    assert "geometric mean" in capsys.readouterr().out
