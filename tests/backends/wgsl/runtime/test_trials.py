"""Schedules are tried on the device when somebody asks for them, and kept for later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import volta_fn as vf
from tests.backends.products import MATRICES
from volta_fn.backends.wgsl.matmul import remembered
from volta_fn.backends.wgsl.matmul.choice import candidates, choose
from volta_fn.backends.wgsl.matmul.tuning import SIMPLE
from volta_fn.backends.wgsl.matmul.working import working
from volta_fn.backends.wgsl.runtime.trials import Trials
from volta_fn.compiler.contractions.maps import of_problem
from volta_fn.compiler.contractions.problem import problem_of

FLOAT = np.dtype(np.float32)


def test_what_is_not_known_is_found_out_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = vf.devices("gpu")[0].backend.gpu
    facts, work = gpu.facts._replace(adapter="a device of tests"), working(FLOAT)
    monkeypatch.setattr(remembered, "_learnt", {})
    monkeypatch.setattr(remembered, "_finders", {facts.adapter: Trials(gpu)})
    monkeypatch.setattr("volta_fn.backends.wgsl.runtime.trials.users_file", lambda: tmp_path / "new" / "schedules.json")
    c = of_problem(problem_of((40, 70), (70, 36), MATRICES, (FLOAT,) * 3))
    chosen = choose(c, work, facts)
    assert chosen in [SIMPLE, *candidates(c, work, facts)]
    assert remembered.read(tmp_path / "new" / "schedules.json") == {facts.adapter: {remembered.class_of(c): chosen}}
    monkeypatch.setattr(remembered, "_finders", {})
    assert choose(c, work, facts) == chosen
