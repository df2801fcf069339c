"""Dependences among recorded dispatches."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest

from volta_fn.targets.gpu.driver import BoundDispatch, BoundRange
from volta_fn.targets.nvidia import stream
from volta_fn.targets.nvidia.kernel import KernelHeader
from volta_fn.targets.nvidia.stream import Accesses, Range, chain, dependences


def spans(*ranges: tuple[int, int, int]) -> tuple[Range, ...]:
    return tuple([Range(block, block + start, block + end) for block, start, end in ranges])


def accesses(reads: list[tuple[int, int, int]], writes: list[tuple[int, int, int]]) -> Accesses:
    return Accesses(spans(*reads), spans(*writes))


A, B, C, D = [(block, 0, 16) for block in (1000, 2000, 3000, 4000)]


@pytest.mark.parametrize(
    ("dispatches", "edges"),
    [
        ([([A], [B]), ([B], [C])], [[], [0]]),  # reads what another wrote
        ([([A], [B]), ([C], [A])], [[], [0]]),  # overwrites what another reads
        ([([], [A]), ([], [A])], [[], [0]]),  # overwrites what another wrote
        ([([A], [B]), ([A], [C]), ([B, C], [D])], [[], [], [1, 0]]),  # a diamond
        ([([], [A]), ([A], [B]), ([A, B], [C])], [[], [0], [1]]),  # the first is waited for already
        ([([], [(1000, 0, 8)]), ([(1000, 8, 16)], [B]), ([(1000, 4, 12)], [C])], [[], [], [0]]),  # parts of a block
        ([([], [(1000, 0, 8)]), ([], [(1000, 8, 16)]), ([], [A]), ([A], [B])], [[], [], [1, 0], [2]]),
        ([([A], []), ([A], []), ([], [A]), ([], [A])], [[], [], [1, 0], [2]]),  # all readers, once
        ([([A], [A]), ([A], [A])], [[], [0]]),  # in place, by two bindings
        ([], []),
    ],
)
def test_dependences(dispatches: list[tuple[list, list]], edges: list[list[int]]) -> None:
    assert dependences([accesses(*dispatch) for dispatch in dispatches]) == edges


def test_kernels_whose_blocks_wait_for_each_other_run_one_after_another() -> None:
    """The blocks of two at once might each have room for some alone."""
    kernel = stream.LoadedKernel(1, 1, (128, 1, 1), frozenset([0]))

    def step(block: int, cooperative: bool) -> BoundDispatch:
        header = KernelHeader(128, 0, cooperative=cooperative)
        group = stream.bind_group(header, [BoundRange(SimpleNamespace(handle=block), 0, 16)], lambda *_: b"", lambda _: 0)
        return BoundDispatch(kernel, group, (1, 1, 1))

    steps = [step(1000 * number, cooperative) for number, cooperative in enumerate([True, False, True, True], 1)]
    assert dependences([stream.accesses_of(each) for each in steps]) == [[], [], [0], [2]]


def closure(edges: list[list[int]]) -> list[set[int]]:
    """Return what each dispatch waits for, directly or not."""
    reached: list[set[int]] = []
    for predecessors in edges:
        reached.append(set(predecessors).union(*[reached[p] for p in predecessors]))
    return reached


@pytest.mark.parametrize("seed", range(20))
def test_every_dependence_and_no_other_is_kept(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def some() -> list[tuple[int, int, int]]:
        starts = rng.integers(0, 6, rng.integers(0, 3))
        return [(1000 * int(rng.integers(1, 4)), 4 * int(s), 4 * int(s + rng.integers(1, 4))) for s in starts]

    dispatches = [accesses(some(), some()) for _ in range(30)]
    needed = []
    for number, later in enumerate(dispatches):
        conflicts = set()
        for other, earlier in enumerate(dispatches[:number]):
            pairs = [
                *itertools.product(earlier.writes, (*later.reads, *later.writes)),
                *itertools.product(earlier.reads, later.writes),
            ]
            if any(a.block == b.block and a.overlaps(b) for a, b in pairs):
                conflicts.add(other)
        needed.append(sorted(conflicts))
    assert closure(dependences(dispatches)) == closure(needed)


def test_what_is_expensive_to_find_is_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [accesses([(5000, 4 * i, 4 * i + 4)], [(1000, 4 * i, 4 * i + 4)]) for i in range(400)]
    assert dependences(slices) == [[]] * 400
    monkeypatch.setattr(stream, "_COMPARISONS_EACH", 8)
    assert dependences(slices) == chain(400)


def test_shared_operands_are_compared_once() -> None:
    dispatches = [accesses([A, (5000, 4 * i, 4 * i + 4)], [(6000, 0, 4)]) for i in range(2000)]
    dispatches.append(accesses([], [A]))
    assert dependences(dispatches) == chain(2001)  # each writes where the one before did
    start = time.perf_counter()
    dependences(dispatches)
    assert time.perf_counter() - start < 5


def test_what_collectives_wait_for_begins_first() -> None:
    """Of a gradient, its sum, an update by that, and another update: the first two."""
    parameters = stream.Parameters(b"\0" * 8)
    nodes = [stream.KernelNode(number, (1, 1, 1), (1, 1, 1), 0, parameters) for number in range(4)]
    edges = [[], [0], [1], [0]]

    def urgent(collectives: list[bool]) -> list[stream.Node]:
        count = len(collectives)
        changed = stream.with_priorities(nodes[:count], edges[:count], collectives)
        assert all(node == nodes[k] or node == nodes[k]._replace(priority=-1) for k, node in enumerate(changed))
        return [nodes[k] for k, node in enumerate(changed) if node != nodes[k]]

    assert urgent([False, True, False, False]) == nodes[:2]
    assert urgent([False] * 4) == urgent([True] * 2) == []
