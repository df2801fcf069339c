"""Special functions in machine code beside SciPy in float64 and mpmath: a sample of docs/reference/special_accuracy.md."""

from __future__ import annotations

import pytest

import volta_fn as vf
from tools.special_accuracy import CASES, measured


@pytest.mark.parametrize("name", CASES)
def test_worst_errors(name: str) -> None:
    report = measured(CASES[name], vf.jit(CASES[name].function), 20_000, 0, decisions=20)
    assert report.worst <= 4, report
