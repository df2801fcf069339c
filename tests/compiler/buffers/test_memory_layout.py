"""Places in one block of memory: values that live together never overlap, and memory that is free is used again."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from volta_fn.compiler.buffers import ALIGNMENT, Lifetime, arrange

LIFETIMES = st.lists(
    st.builds(
        lambda begin, length, size: Lifetime(begin, begin + length, size), st.integers(0, 30), st.integers(0, 10), st.integers(0, 1000)
    ),
    max_size=40,
)


@given(LIFETIMES)
def test_values_that_live_together_do_not_overlap(values: list[Lifetime]) -> None:
    offsets, size = arrange(values)
    for i, (a, start) in enumerate(zip(values, offsets, strict=True)):
        assert start % ALIGNMENT == 0
        assert start + a.bytes <= size
        for b, other in zip(values[:i], offsets, strict=False):
            if a.begin <= b.end and b.begin <= a.end:
                assert start + max(a.bytes, 1) <= other or other + max(b.bytes, 1) <= start


def test_a_chain_needs_two_places() -> None:
    offsets, size = arrange([Lifetime(t, t + 1, 1024) for t in range(100)])
    assert size == 2 * 1024
    assert set(offsets) == {0, 1024}


def test_freed_neighbours_make_one_place() -> None:
    _, size = arrange([Lifetime(0, 1, 64), Lifetime(0, 1, 64), Lifetime(2, 3, 128), Lifetime(4, 5, 192)])
    assert size == 192


def test_nothing_needs_nothing() -> None:
    assert arrange([]) == ([], 0)
