"""Lowered programs as text: jaxprs with lines, kernels, LLVM IR and WGSL."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.errors import ArgumentError
from volta_fn.runtime.llvm.machine import compile_object

X = jnp.ones((8, 16))


def network(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w).sum(0)


def looped(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + row.sum(), jnp.exp(row)), jnp.float32(0), x)


def test_the_default_is_the_jaxpr() -> None:
    lowered = vf.jit(network).lower(X.T, X)
    assert lowered.as_text() == lowered.as_text("jaxpr") == str(lowered.jaxpr)


def test_jaxprs_have_the_users_positions_if_asked_for() -> None:
    number = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]  # CPython has frames
    lowered = vf.jit(lambda x: looped(x * 2.0)).lower(X)
    text = lowered.as_text(debug_info=True)
    assert f"{__file__}:{number} (" in text
    assert "(looped" in text
    assert "#" not in lowered.as_text()
    assert str(lowered.jaxpr) == lowered.jaxpr.pretty_print()


def test_kernels_are_those_that_fusion_makes() -> None:
    text = vf.jit(network).lower(X.T, X).as_text("kernels")
    assert text.count("for each row") >= 1
    assert "tanh" in text and "reduce_sum" in text
    assert "exp" in vf.jit(looped).lower(X).as_text("kernels")


@pytest.mark.parametrize("function, args", [(network, (X.T, X)), (looped, (X,))], ids=["network", "looped"])
def test_llvm_compiles(function: Any, args: Any) -> None:
    text = vf.jit(function).lower(*args).as_text("llvm")
    assert "define void" in text
    modules = re.split(r"^; \d+ of \d+$", text, flags=re.MULTILINE)[1:]
    assert modules and all(map(compile_object, modules))


def test_wgsl_needs_no_gpu() -> None:
    with vf.default_device("cpu"):
        text = vf.jit(network).lower(X.T, X).as_text("wgsl")
    assert "@compute @workgroup_size" in text and "tanh" in text


def test_steps_on_the_host_are_named() -> None:
    called = vf.jit(lambda x: vf.pure_callback(np.sort, x, x) + 1.0).lower(X)
    assert "pure_callback" in called.as_text("kernels")
    for dialect in ("llvm", "wgsl"):
        assert "pure_callback runs on the host (it calls a Python function)" in called.as_text(dialect)


def test_other_dialects_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'jaxpr', 'kernels', 'llvm' or 'wgsl', got 'ptx'"):
        vf.jit(network).lower(X.T, X).as_text("ptx")
