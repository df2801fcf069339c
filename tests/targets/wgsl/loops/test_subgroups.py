"""Reductions over subgroups, whose width is known or not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compiler.ir.cases import inputs_of, kernels_of, shaped
from tests.targets.wgsl.library.checking import results, routine_of
from tests.targets.wgsl.loops.kernels import run_kernel
from tests.targets.wgsl.running import capabilities, known_width
from volta_fn.compiler.ir.kernel import interpret
from volta_fn.targets.wgsl.loops import routine, schedule

#: WGSL's functions that reduce: a driver sums up too few with them (see `volta_fn.targets.wgsl.loops.reductions`).
UNRELIABLE = re.compile(r"subgroup(Add|Mul|Max|Min|And|Or|Xor)\(")


REDUCTIONS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("int32", "sums", lambda x: (x.sum(1), x - x.sum(1, keepdims=True))),
    ("uint32", "extrema", lambda x: (x.max(1), x.min(1))),
    ("bool", "any-and-all", lambda x: (x.any(1), x.all(1))),
    ("float32", "extrema-and-nan", lambda x: (x.max(1), x.min(1), x / x.max(1, keepdims=True))),
    ("int32", "products", lambda x: x.prod(1)),
]


@pytest.mark.parametrize("size", ["of a part", "of one", "of several"])
@pytest.mark.parametrize(("dtype", "function"), [(d, f) for d, _, f in REDUCTIONS], ids=[n for _, n, _ in REDUCTIONS])
def test_rows(dtype: str, function: Callable[[Any], Any], size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a part of a subgroup does, a whole one, and several."""
    monkeypatch.setattr(schedule, "BUSY", 8)  # many rows: a few invocations do each, if it is short
    count = {"of a part": 24, "of one": 4 * known_width().subgroup_most, "of several": 5000}[size]
    for kernel in kernels_of(function, shaped(9, count, dtype=dtype)):
        inputs = inputs_of(kernel)
        if dtype == "float32":
            inputs[0].reshape(9, -1)[3, count // 2] = np.nan
        for device in (capabilities(), known_width()):
            sources = "".join(dispatch.source for dispatch in routine(kernel, device).dispatches)
            assert "subgroupShuffleXor" in sources or (size != "of several" and device == capabilities())
            assert not UNRELIABLE.search(sources)
            for actual, wanted in zip(run_kernel(kernel, inputs, device), interpret(kernel, *inputs), strict=True):
                np.testing.assert_array_equal(actual.reshape(-1), wanted.reshape(-1))


@pytest.mark.parametrize("shape", [(5000, 4), (700, 64), (20000, 64)], ids=str)
def test_columns(shape: tuple[int, int]) -> None:
    """By a workgroup that has a number for each of four columns to put together, by several, and by many in two steps."""
    for kernel in kernels_of(lambda x: (x.sum(0), x.max(0)), shaped(*shape, dtype="int32")):
        inputs = inputs_of(kernel)
        for device in (capabilities(), known_width()):
            for actual, wanted in zip(run_kernel(kernel, inputs, device), interpret(kernel, *inputs), strict=True):
                np.testing.assert_array_equal(actual.reshape(-1), wanted.reshape(-1))


def test_everyone_has_the_same_bits() -> None:
    (kernel,) = kernels_of(lambda x: x * 0 + x.sum(1, keepdims=True), shaped(3, 1000))
    for device in (capabilities(), known_width()):
        (result,) = run_kernel(kernel, [np.random.default_rng(0).random((3, 1000), np.float32)], device)
        assert [len(np.unique(row)) for row in result.reshape(3, 1000)] == [1, 1, 1]


def test_sorting() -> None:
    params = {"dimension": 0, "is_stable": True, "num_keys": 1}
    keys, places = np.random.default_rng(0).integers(0, 1000, 400) / 1000, np.arange(400, dtype=np.int32)
    _, result = results("sort", [keys, places], params, known_width(), [keys, places])
    np.testing.assert_array_equal(result, np.argsort(keys, kind="stable"))
    for times in (1, 20):
        sources = "".join(d.source for d in routine_of("sort", [np.tile(keys, times)], params, known_width()).dispatches)
        assert "subgroupExclusiveAdd" in sources
        assert not UNRELIABLE.search(sources)
