"""The cost of programs by their size: small sizes run, and exponents are fitted to the largest ones."""

from __future__ import annotations

import pytest

from benchmarks.scaling import PROGRAMS, exponent, measure


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(name: str) -> None:
    assert measure(name, "volta_fn", 12) > 0


def test_exponents() -> None:
    assert exponent((1, 10, 100), [1.0, 5.0, 500.0]) == pytest.approx(2.0)
    assert exponent((1, 10, 100), [1.0, 10.0, None]) == pytest.approx(1.0)
    assert exponent((1, 10), [1.0, None]) is None
