"""`crosscheck` finds planted wrong kernels, and nothing on targets as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.inspection.check_samples import crosschecked
from tests.samples import samples_of_code
from tests.samples.sample import Sample
from volta_fn import lax
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.inspection import crosscheck
from volta_fn.jit.eager import forget_kernels
from volta_fn.targets.cpu.runtime import artifact
from volta_fn.targets.cpu.runtime.compile import CODE_CACHE, CodeCache

#: One sample in so many; `check_samples` takes all.
SAMPLES = list(samples_of_code())[::24]

#: A wrong formula by the primitive whose machine code gets it, and a function that uses it.
WRONG: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "tanh": (lambda x: x * 0.999, vnp.tanh),
    "exp": (lambda x: x + 1.0, vnp.exp),
    "log": (lambda x: x - 1.0, vnp.log),
    "sin": (lambda x: x - x * x * x * 0.16, vnp.sin),
    "cos": (lambda x: x * 0.0 + 1.0, vnp.cos),
    "erf": (lambda x: x * 1.128, lax.erf),
    "logistic": (lambda x: x * 0.25 + 0.5, lax.logistic),
    "expm1": (lambda x: x + x * x * 0.5, vnp.expm1),
    "log1p": (lambda x: x - x * x * 0.5, vnp.log1p),
    "sinh": (lambda x: x + 0.0, vnp.sinh),
}


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", True)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    formula, function = WRONG[name]
    fresh = CodeCache()
    monkeypatch.setattr(artifact, "cache_dir", lambda: None)
    monkeypatch.setattr(CODE_CACHE, "_recent", fresh._recent)
    monkeypatch.setattr(CODE_CACHE, "_shared", fresh._shared)
    correct = PRIMITIVES[name].formula
    object.__setattr__(PRIMITIVES[name], "formula", formula)  # since primitives are frozen
    forget_kernels()

    def program(x: Any) -> Any:
        y = x * 1.5
        z = function(y)  # the wrong one
        return (z * z).sum()

    try:
        result = vf.crosscheck(program)(vnp.linspace(0.1, 1.0, 37))
    finally:
        object.__setattr__(PRIMITIVES[name], "formula", correct)
        forget_kernels()
    assert result.first is not None, result
    assert result.first.primitive == name and result.first.excess > 1
    assert result.first.location is not None
    assert result.first.location.lineno == program.__code__.co_firstlineno + 2
    assert len(result.differences) == 1  # what follows is right for its own operands
    assert name in str(result)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_nothing_is_found_on_the_cpu(sample: Sample) -> None:
    for name, result in crosschecked(sample):
        assert result, (name, result)


def test_it_sees_into_loops_and_calls() -> None:
    def program(x: Any) -> Any:
        carry, ys = lax.scan(lambda c, v: (vnp.sin(c) + v, c), x[0], x)
        return vf.jit(vnp.exp)(carry) + lax.while_loop(lambda c: c < 3, lambda c: c + 1, ys[0])

    result = vf.crosscheck(program)(vnp.ones(4))
    assert result and result.equations > 10


def test_grads_and_float16_are_within_rounding() -> None:
    x = vnp.asarray(np.linspace(-1, 1, 48, dtype=np.float16).reshape(6, 8))
    assert vf.crosscheck(vf.grad(lambda x: (vnp.tanh(x @ x.T) ** 2).mean()))(x)


@pytest.mark.parametrize("name, function", [("eigh", lax.linalg.eigh), ("svd", lax.linalg.svd)])
def test_of_decompositions_only_values_are_compared(name: str, function: Callable[..., Any]) -> None:
    (eqn,) = [e for e in vf.make_jaxpr(function)(vnp.eye(3)).eqns if e.primitive.name == name]
    assert [eqn.outvars[number].aval.shape for number in crosscheck.UNIQUE[name]] == [(3,)]
