"""Schedules are tried on the device when somebody asks for them, and kept for later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import volta_fn as vf
from tests.targets.products import MATRICES
from volta_fn.compiler.contractions import of_problem, problem_of
from volta_fn.targets.gpu.device import Trials
from volta_fn.targets.wgsl.matmul import tiles
from volta_fn.targets.wgsl.matmul.contract import SIMPLE, candidates, choose
from volta_fn.targets.wgsl.matmul.results import working

FLOAT = np.dtype(np.float32)


def test_what_is_not_known_is_found_out_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = vf.devices("gpu")[0].backend.gpu
    capabilities, work = gpu.capabilities._replace(adapter="a device of tests"), working(FLOAT)
    monkeypatch.setattr(tiles, "_learnt", {})
    monkeypatch.setattr(tiles, "_finders", {capabilities.adapter: Trials(gpu)})
    monkeypatch.setattr("volta_fn.targets.gpu.device.users_file", lambda: tmp_path / "new" / "schedules.json")
    c = of_problem(problem_of((40, 70), (70, 36), MATRICES, (FLOAT,) * 3))
    chosen = choose(c, work, capabilities)
    assert chosen in [SIMPLE, *candidates(c, work, capabilities)]
    assert tiles.read_schedules(tmp_path / "new" / "schedules.json") == {capabilities.adapter: {tiles.class_of(c): chosen}}
    monkeypatch.setattr(tiles, "_finders", {})
    assert choose(c, work, capabilities) == chosen
