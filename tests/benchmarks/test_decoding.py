"""The benchmark of decoding: its rows, and the same numbers by both frameworks for batches."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.decoding import KINDS
from benchmarks.workloads.case import arrays_in, contestant
from benchmarks.workloads.language import TINY, decode


def test_it_prints_a_row_for_each_number_of_sequences_and_kind() -> None:
    command = [sys.executable, "-m", "benchmarks.decoding", "--quick", "--rows", "1", "2"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert ["a sum reads" in line for line in lines] == 2 * [True, *[False] * len(KINDS)]
    rows = [line for line in lines if "a sum reads" not in line]
    assert [row.split(", ")[1:3] for row in rows] == [[f"{n} sequences", kind] for n in (1, 2) for kind in KINDS]
    assert all("of the bandwidth" in row and "times as fast" in row for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_frameworks_compute_the_same_logits(kind: str) -> None:
    pytest.importorskip("torch")
    case = decode(np.random.default_rng(0), TINY, kind, 3)
    mine, other = (contestant(framework, case) for framework in ("volta_fn", "torch"))
    for _ in range(3):
        (ours,), (theirs,) = arrays_in(mine.call()), arrays_in(other.call())
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=case.tolerance * abs(theirs).max())
