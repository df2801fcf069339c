"""The modules that a step crosses: functions count, on all threads; what runs during an import does not."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

import volta_fn as vf
from benchmarks.crossed import Crossed, main, report
from benchmarks.crossed import modules_crossed as crossed
from volta_fn import tree
from volta_fn.jax.namespace import Finder
from volta_fn.runtime.threads import on_own_thread


def test_modules_are_those_whose_functions_run() -> None:
    x = vf.numpy.ones(3)
    result = crossed(lambda: tree.leaves({"a": x}))
    assert "leaves" in result.here["volta_fn.tree.structures"]
    assert not any(module.startswith("volta_fn.nn") for module in result.everywhere)


def test_threads_count() -> None:
    x = vf.numpy.ones(3)
    result = crossed(lambda: on_own_thread(tree.leaves, {"a": x}).result())
    assert "volta_fn.tree.structures" in result.everywhere
    assert "volta_fn.tree.structures" not in result.here
    assert "volta_fn.runtime.threads" in result.here


def test_imports_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported.py").write_text("from volta_fn import tree\ntree.leaves([1.0])\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Finder({}), *sys.meta_path])
    assert not crossed(lambda: __import__("imported")).everywhere
    assert isinstance(sys.modules.pop("imported"), types.ModuleType)


def test_a_limit_that_is_exceeded_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    modules = {f"volta_fn.a.m{i}": ["f"] for i in range(200)}
    assert not report("numpy", Crossed(modules, modules), with_names=True)
    assert "200 modules (limit 70), 200 with all threads" in capsys.readouterr().out


def test_unknown_targets_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tpu"])
    assert "no target 'tpu'" in capsys.readouterr().err
