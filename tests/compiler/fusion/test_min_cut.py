"""Smallest cuts against a search through all of them."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from volta_fn.compiler.fusion_groups import minimum_cut


def separates(cut: set[int], below: dict[int, list[int]], tops: list[int]) -> bool:
    """Return True if every path from the tops to a node with nothing below it crosses the cut."""
    stack = [t for t in tops if t not in cut]
    while stack:
        node = stack.pop()
        if not below[node]:
            return False
        stack += [n for n in below[node] if n not in cut]
    return True


@pytest.mark.parametrize("seed", range(60))
def test_no_cut_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    below = {n: rng.sample(range(n), rng.randint(0, min(n, 3))) for n in range(count)}
    cost = {n: rng.randint(0, 5) for n in range(count)}
    tops = rng.sample(range(count), rng.randint(1, min(count, 3)))
    result = minimum_cut(cost, below, tops)
    assert separates(result, below, tops)
    subsets = [set(c) for size in range(count + 1) for c in combinations(range(count), size)]
    assert sum(cost[n] for n in result) == min(sum(cost[n] for n in s) for s in subsets if separates(s, below, tops))


def test_of_equal_cuts_it_is_the_topmost() -> None:
    assert minimum_cut({"a": 2, "b": 2, "c": 2}, {"a": ["b"], "b": ["c"], "c": []}, ["a"]) == {"a"}
    assert minimum_cut({"a": 1, "b": 1, "c": 1}, {"a": ["c"], "b": ["c"], "c": []}, ["a", "b"]) == {"c"}


def test_long_chains_are_no_deep_recursion() -> None:
    size = 5000
    below = {n: [n - 1] if n else [] for n in range(size)}
    assert minimum_cut({n: 1 + n for n in range(size)}, below, [size - 1]) == {0}
