"""The same values four ways: operation by operation, planned on NumPy, as machine code, and by the kernels' interpreter."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

pytest.importorskip("llvmlite")

import volta_fn as vf
from tests.compiler.ir import oracle
from tests.laws.common import ROUNDING, arrays, assert_close, assert_same_bits, draw, host
from tests.laws.staging import in_the_middle
from tests.samples import samples_of_code
from tests.samples.sample import Sample
from tests.test_random_programs import Step, drawn, programs, run
from volta_fn import dtypes
from volta_fn.compiler import pipeline, plans
from volta_fn.targets.cpu.runtime.program import Program
from volta_fn.targets.cpu.target import TARGET
from volta_fn.targets.numpy.backend import NumpyBackend

SAMPLES = list(samples_of_code())


@pytest.fixture(autouse=True)
def _numpy_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy, on which even the smallest values get places in a block of memory."""
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", False)
    monkeypatch.setattr(plans, "_LARGE", 0)


def agree(function: Callable[..., Any], inputs: list[np.ndarray], error: float, what: str) -> None:
    """Check that all four ways agree, machine code twice: the second time to the bit, with the arguments as they were."""
    given_, copies = arrays(inputs), [x.copy() for x in inputs]
    expected = host(function(*given_))
    closed = vf.make_jaxpr(function)(*given_)
    program = Program.of(closed, (), pipeline)
    first = program(False, *inputs)
    ways = {
        "on NumPy": NumpyBackend().compile(closed, (), pipeline).run(False, *inputs),
        "as machine code": first,
        "by the interpreter": oracle.run(pipeline.fused(closed, TARGET), *inputs),
    }
    for way, actual in ways.items():
        for result, wanted in zip(actual, expected, strict=True):
            assert_close(np.asarray(result), wanted, error, f"{what} {way}")
    for one, other in zip(first, program(False, *inputs), strict=True):
        assert_same_bits(one, other, f"{what}, called again")
    for array, before in zip(inputs, copies, strict=True):
        assert_same_bits(array, before, f"an argument of {what} after the calls")


def chosen(sample: Sample) -> list[str]:
    """Return two of a sample's dtypes: the first, and any other."""
    first, *others = sample.dtypes
    return [first, *others[zlib.crc32(str(sample).encode()) % max(len(others), 1) :][:1]]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_samples(sample: Sample) -> None:
    for name in chosen(sample):
        error = 16 * ROUNDING.get(name, 0.0)  # sums in other orders, functions within two units of the last place
        agree(in_the_middle(sample.function), draw(sample, dtypes.as_dtype(name)), error, f"{sample} in {name}")


@given(steps=programs, seed=st.integers(0, 1000), dtype=st.sampled_from([np.float32, np.float64]))
@settings(max_examples=20)
def test_random_programs_and_their_gradients(steps: list[Step], seed: int, dtype: type) -> None:
    def program(x: Any, y: Any) -> Any:
        return run(steps, (x, y), True)

    def gradient(x: Any, y: Any) -> Any:
        return vf.grad(lambda x, y: program(x, y).sum(), (0, 1))(x, y)

    inputs = drawn(seed, 2, dtype)
    error = 1e-4 if dtype is np.float32 else 1e-11  # a chain of up to forty operations
    agree(program, inputs, error, "a random program")
    agree(gradient, inputs, error, "a random gradient")
