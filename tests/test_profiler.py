"""Traces of the profiler: events, files, and nothing left when they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import errors, profiler
from volta_fn.jit import compile as compilation


def test_a_trace_has_steps_programs_and_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", True)
    step = vf.jit(lambda x: vnp.tanh(x @ x).sum(axis=0))
    with profiler.trace(tmp_path) as result:
        for number in range(3):
            with profiler.StepTraceAnnotation("train", step_num=number):
                y = step(vnp.ones((8, 8)))
    assert y.shape == (8,)
    names = [event.name for event in result.events if event.kind == "step"]
    assert names == ["train 0", "train 1", "train 2"]
    programs = [event for event in result.events if event.kind == "program"]
    kernels = [event for event in result.events if event.kind == "kernel"]
    assert len(programs) == 3 and len(kernels) % 3 == 0 and kernels
    for program in programs:
        inside = [k for k in kernels if program.begin <= k.begin and k.end <= program.end]
        assert len(inside) == len(kernels) // 3
    assert "test_profiler.py" in kernels[0].details["lines"]
    events = json.loads((tmp_path / "volta_fn.trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert sum(event["ph"] == "X" for event in events) == len(result.events)
    assert "train 0" in str(result)


def test_nothing_is_left_when_a_trace_ends(tmp_path: Path) -> None:
    double = vf.jit(lambda x: 2 * x)
    with pytest.raises(RuntimeError), profiler.trace(tmp_path) as result:
        double(vnp.ones(3))
        raise RuntimeError
    before = len(result.events)
    assert compilation.compile_hook is None
    assert float(double(vnp.ones(3)).sum()) == 6
    assert len(result.events) == before


def test_functions_and_blocks_have_names(tmp_path: Path) -> None:
    named = profiler.annotate_function(lambda x: x + 1, name="increment")
    assert named(1) == 2
    with profiler.trace(tmp_path) as result:
        named(1)
        with profiler.TraceAnnotation("outer", epoch=3), profiler.TraceAnnotation("inner"):
            pass
    assert [(event.name, event.kind) for event in result.events] == [(n, "annotation") for n in ("increment", "inner", "outer")]
    assert result.events[2].details == {"epoch": 3}


def test_traces_do_not_nest(tmp_path: Path) -> None:
    with profiler.trace(tmp_path), pytest.raises(errors.ArgumentError, match="already"):
        profiler.start_trace(tmp_path)
    with pytest.raises(errors.ArgumentError, match="start_trace"):
        profiler.stop_trace()
    with pytest.raises(errors.UnsupportedError):
        profiler.start_server(9999)


def test_memory_of_devices(tmp_path: Path) -> None:
    profiler.save_device_memory_profile(tmp_path / "memory.txt", backend="cpu")
    head, row = (tmp_path / "memory.txt").read_text().splitlines()
    assert len(head.split("\t")) == len(row.split("\t")) == 5
    with pytest.raises(errors.DeviceError, match="Unknown backend 'cuda'"):
        profiler.device_memory_profile("cuda")
