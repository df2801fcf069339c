"""Every sample of every primitive on the GPU, in the middle of a program, against NumPy; and who still needs the host for it."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np
import pytest

import volta_fn as vf
from tests.laws.common import ROUNDING, arrays, assert_close, assert_same_bits, draw, host
from tests.laws.staging import programs_of
from tests.narrow_devices import where_the_device_has_the_dtypes
from tests.samples import samples_of_code
from tests.samples.sample import Sample
from volta_fn import dtypes

GPU = vf.devices("gpu")[0]

#: Primitives that call Python by definition.
CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback"})

#: Primitives without shaders so far.
WITHOUT = frozenset({"eig", "hessenberg", "householder_product", "schur", "tridiagonal", "tridiagonal_solve"})


def dtype_of(sample: Sample) -> str:
    """Return one of the sample's dtypes, the same in every run."""
    return sample.dtypes[zlib.crc32(str(sample).encode()) % len(sample.dtypes)]


@pytest.mark.parametrize("sample", list(samples_of_code()), ids=str)
def test_samples(sample: Sample) -> None:
    with where_the_device_has_the_dtypes():
        check_sample(sample)


def check_sample(sample: Sample) -> None:
    """Run a sample in a program on the GPU, and compare with NumPy."""
    name = dtype_of(sample)
    inputs = draw(sample, dtypes.as_dtype(name))
    with vf.default_device(GPU):
        function = programs_of(sample)[-1]
    expected = host(function(*arrays(inputs)))
    before = Counter(GPU.backend.counters.host_steps)
    with vf.default_device(GPU):
        operands = vf.device_put(tuple(inputs), GPU)
        program = vf.jit(function)
        actual = host(program(*operands))
    for result, wanted in zip(actual, expected, strict=True):
        assert_close(result, wanted, 16 * ROUNDING.get(name, 0.0), f"{sample} in {name}")
    for number, values in enumerate(inputs):
        assert_same_bits(np.asarray(operands[number]), values, f"an argument of {sample} after the call")
    needed = Counter(GPU.backend.counters.host_steps) - before
    assert {*needed} <= WITHOUT | CALLBACKS
