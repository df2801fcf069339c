"""Large concatenations, whose parts are computed by workgroups of their own, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import volta_fn.numpy as jnp
from tests.compiler.ir.cases import inputs_of, kernels_of, shaped
from tests.targets.wgsl.loops.kernels import DEVICES, agrees
from volta_fn.lazy_imports import load
from volta_fn.targets.wgsl.loops import routine

loops: Any = load("volta_fn.targets.wgsl.loops.routine")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arrays of any size count as large ones, and three as many."""
    monkeypatch.setattr(loops, "_PARTS", 3)
    monkeypatch.setattr(loops, "_CONCATENATED", 0)


def stacked(*arrays: Any) -> Any:
    return jnp.stack(arrays)


def along_rows(*arrays: Any) -> Any:
    return jnp.concatenate(arrays)


def along_columns(*arrays: Any) -> Any:
    return jnp.concatenate([arrays[-1], *arrays[:-1]], 1) == arrays[0][:, :1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
@pytest.mark.parametrize("function", [stacked, along_rows, along_columns])
def test_parts(function: Callable[..., Any], dtype: str) -> None:
    (kernel,) = kernels_of(function, *[shaped(5, 16, dtype=dtype) for _ in range(7)])
    assert len(loops.parts_of(kernel)) == 7
    for device in DEVICES:
        assert len(routine(kernel, device).dispatches) == 1
    agrees(kernel, inputs_of(kernel), dtype, 8.0)


def test_parts_of_different_sizes() -> None:
    (kernel,) = kernels_of(along_rows, *[shaped(rows, 8) for rows in (1, 4, 7, 2, 30, 3)])
    assert [part.sizes for part in loops.parts_of(kernel)] == [(8 * rows,) for rows in (3, 30, 2, 7, 4, 1)][::-1]
    agrees(kernel, inputs_of(kernel), "different sizes", 8.0)


def test_what_has_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    (odd,) = kernels_of(along_rows, *[shaped(5, 7, dtype="bfloat16") for _ in range(7)])
    assert not loops.parts_of(odd)  # words would belong to two parts
    (few,) = kernels_of(along_rows, *[shaped(4, 8) for _ in range(2)])
    assert not loops.parts_of(few)
    (kernel,) = kernels_of(along_rows, *[shaped(4, 8) for _ in range(7)])
    monkeypatch.setattr(loops, "_CONCATENATED", 1 << 20)
    assert not loops.parts_of(kernel)  # a small one
