"""Machine code of every kernel that the registry's samples give, against the interpreter."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from tests.backends.native.loops.kernels import agrees
from tests.compiler.kernels.test_lower import equations_with_operands, program_of
from tests.samples import all_samples
from tests.samples.sample import Sample
from volta_fn.compiler.kernels.index import NotAffine
from volta_fn.compiler.kernels.lower import is_lowered, lower_equation

SAMPLES = list(all_samples())


def chosen(sample: Sample) -> list[str]:
    """Two of a sample's dtypes: the first, and any other."""
    first, *others = sample.dtypes
    return [first, *others[zlib.crc32(str(sample).encode()) % max(len(others), 1) :][:1]]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_equations(sample: Sample) -> None:
    for name in chosen(sample):
        closed, inputs = program_of(sample, name)
        for eqn, operands, _ in equations_with_operands(closed, inputs):
            if not is_lowered(eqn):
                continue
            try:
                kernel, variables = lower_equation(eqn)
            except NotAffine:
                continue
            by_variable: Any = dict(zip(eqn.invars, operands, strict=True))
            agrees(kernel, [by_variable[v] for v in variables], f"{sample} in {name}: {eqn}")
