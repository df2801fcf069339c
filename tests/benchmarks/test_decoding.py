"""The benchmark of decoding runs in both layouts, and both frameworks choose the same tokens."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.decoding import TINY, torch, volta, weights


def test_it_prints_a_row_for_each_number_of_sequences() -> None:
    command = [sys.executable, "-m", "benchmarks.decoding", "--quick", "--rows", "1", "2", "--layout", "linear"]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [row.partition(":")[0].split()[-2:] for row in rows[1:]] == [["1", "sequences"], ["2", "sequences"]]
    assert all("of the bandwidth" in row for row in rows[1:])


@pytest.mark.parametrize("layout", ["torch", "linear"])
def test_frameworks_choose_the_same_tokens(layout: str) -> None:
    pytest.importorskip("torch")
    arrays = weights(TINY, layout)
    mine, other = (make(TINY, layout, arrays, 3) for make in (volta, torch))
    assert other is not None
    for _ in range(3):
        assert (mine() == other()).all()
