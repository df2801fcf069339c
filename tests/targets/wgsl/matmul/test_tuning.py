"""Tuning: what is wrong cannot win, the fastest is remembered, and files are read and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.targets.products import MATRICES
from tests.targets.wgsl.running import run_routine
from volta_fn.compiler.contractions import IndexedContraction, of_problem, problem_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul import contract
from volta_fn.targets.wgsl.matmul import tiles as tuned_schedules
from volta_fn.targets.wgsl.matmul.contract import candidates, choose
from volta_fn.targets.wgsl.matmul.results import working
from volta_fn.targets.wgsl.matmul.tiles import Schedule
from volta_fn.targets.wgsl.routine import Routine

FLOAT = np.dtype(np.float32)
FACTS = TargetCapabilities(adapter="a device of tests")


@pytest.fixture(autouse=True)
def nothing_learnt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tuned_schedules, "_learnt", {})
    yield


def product(m: int, n: int, k: int) -> IndexedContraction:
    return of_problem(problem_of((m, k), (k, n), MATRICES, (FLOAT,) * 3))


class Machine:
    """Runs routines, and says of those in a list that they took so long; others take a second."""

    def __init__(self, seconds: dict[int, float], wrong: int = -1) -> None:
        self.seconds, self.wrong, self.count = seconds, wrong, 0

    def trial(self, routine: Routine, operands: Sequence[np.ndarray], size: int, dtype: np.dtype) -> tuple[np.ndarray, float]:
        (result,) = run_routine(routine, operands, [((size,), dtype)])
        number, self.count = self.count, self.count + 1
        return result + (number == self.wrong), self.seconds.get(number, 1.0)


def test_the_fastest_of_those_that_are_right_is_remembered(tmp_path: Path) -> None:
    c, work, path = product(40, 36, 50), working(FLOAT), tmp_path / "tuned.json"
    tried = candidates(c, work, FACTS, 3)
    result = contract.tune(c, work, FACTS, Machine({1: 0.3, 2: 0.1, 3: 0.2}, wrong=2).trial, path=path, count=3)
    assert [timing.schedule for timing in result] == [tried[2], tried[0], contract.SIMPLE]
    assert choose(c, work, FACTS) == tried[2]
    assert choose(c, work, FACTS._replace(adapter="another")) == tried[0]
    assert choose(product(44, 36, 50), work, FACTS) == candidates(product(44, 36, 50), work, FACTS, 1)[0]
    assert tuned_schedules.read_schedules(path) == {FACTS.adapter: {tuned_schedules.class_of(c): tried[2]}}
    other = product(8, 12, 50)
    contract.tune(other, work, FACTS, Machine({}).trial, path=path, count=1)
    assert set(tuned_schedules.read_schedules(path)[FACTS.adapter]) == {tuned_schedules.class_of(c), tuned_schedules.class_of(other)}


def test_what_does_not_fit_a_device_is_not_taken_from_memory() -> None:
    c, work = product(40, 36, 50), working(FLOAT)
    tuned_schedules.record_schedules({FACTS.adapter: {tuned_schedules.class_of(c): Schedule(256, 256, 32, 8, 8)}})
    assert choose(c, work, FACTS) == candidates(c, work, FACTS, 1)[0]


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"b": {"size": 3}}}'])
def test_files_that_are_none_of_ours(tmp_path: Path, text: str) -> None:
    path: Any = tmp_path / "tuned.json"
    path.write_text(text)
    assert tuned_schedules.read_schedules(path) == {}
    assert tuned_schedules.read_schedules(tmp_path / "missing.json") == {}


def test_the_file_that_comes_with_the_package_is_one_of_ours() -> None:
    assert tuned_schedules.SHIPPED.exists()
    assert tuned_schedules.shipped()
    assert all(schedule.invocations <= 1024 for by_problem in tuned_schedules.shipped().values() for schedule in by_problem.values())


BAD = [
    {"thread_rows": 3},
    {"rows": "x"},
    {"rows": 0},
    {"rows": -4},
    {"rows": 32.0},
    {"rows": True},
    {"splits": 0},
    {"depth": 1},
    {"depth": 1 << 40},
    {"thread_columns": 128},
    {"lane_rows": 0},
    {"band": 0},
    {"pad": -1},
    {"unroll": -1},
    {"unroll": 3},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_schedules_that_no_code_can_be_generated_for_are_left_out(tmp_path: Path, bad: dict[str, Any]) -> None:
    good = Schedule().as_dict()
    path = tmp_path / "schedules.json"
    path.write_text(json.dumps({"a": {"good": good, "bad": good | bad}}))
    assert tuned_schedules.read_schedules(path) == {"a": {"good": Schedule()}}


def test_a_deep_file_has_no_schedules(tmp_path: Path) -> None:
    path = tmp_path / "schedules.json"
    path.write_text("[" * 100_000)
    assert tuned_schedules.read_schedules(path) == {}


def test_all_schedules_that_are_tried_or_shipped_are_valid() -> None:
    for m, n, k in ((40, 36, 50), (1000, 1000, 1000), (1, 4096, 4096), (8, 12, 50)):
        assert all(map(tuned_schedules.is_valid, candidates(product(m, n, k), working(FLOAT), FACTS, 50)))
    shipped = json.loads(tuned_schedules.SHIPPED.read_text())
    assert {name: set(by_problem) for name, by_problem in tuned_schedules.shipped().items()} == {
        name: set(by_problem) for name, by_problem in shipped.items()
    }
