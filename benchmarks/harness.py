"""How a workload is timed: checked to give the same numbers everywhere, then measured in turns of a few milliseconds each.

The turns of the frameworks are interleaved round by round, so that a drift of the machine's clock or a neighbour's load hits all
alike; the median turn counts. Before its turn a framework rests and, where a call is short, does one call that is not timed: by then
the threads of the one before it have stopped spinning, and the caches hold its own data.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.workloads.case import Case, Workload, arrays_in, competes, contestant

STEPS = 3  # calls whose results are compared: of a training step, the losses before, after one and after two updates


class Pace(NamedTuple):
    """How long to measure.

    Attributes:
        rounds: turns of each framework, if they fit into `budget`.
        turn: seconds that a turn takes at least.
        rest: seconds before each turn.
        budget: seconds for one workload; slow ones get fewer rounds, but at least `fewest`.
        fewest: rounds of the slowest workloads.
    """

    rounds: int
    turn: float = 0.02
    rest: float = 0.005
    budget: float = 15.0
    fewest: int = 5


QUICK = Pace(rounds=3, turn=1e-4, rest=0, fewest=3)


class WrongResultError(Exception):
    """A framework gave other numbers than the first one, so that their times cannot be compared."""


def check(name: str, results: dict[str, list[Any]], case: Case) -> None:
    """Compare what the frameworks computed, each array by its largest difference beside its largest number.

    Raises:
        WrongResultError: results differ.
    """
    first, *others = results
    for other in others:
        compared = case.same_numbers or other != "torch"
        for ours, theirs in zip(arrays_in(results[first]), arrays_in(results[other]), strict=True):
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                raise WrongResultError(f"{name}: {first} gives {ours.dtype}{ours.shape}, {other} {theirs.dtype}{theirs.shape}")
            difference = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30) if compared else 0.0
            if not difference <= case.tolerance:
                raise WrongResultError(f"{name}: {first} and {other} differ by {difference:.1e}, more than {case.tolerance:.0e}")


def _seconds(call: Callable[[], Any], count: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _take_turns(calls: dict[str, Callable[[], Any]], pace: Pace) -> dict[str, list[float]]:
    """The seconds of a call in each of a framework's turns."""
    once = {name: min(_seconds(call) for _ in range(2)) for name, call in calls.items()}
    counts = {name: max(1, round(pace.turn / seconds)) for name, seconds in once.items()}
    round_takes = sum(once[name] * counts[name] + pace.rest for name in calls)
    rounds = max(min(pace.rounds, int(pace.budget / round_takes)), pace.fewest)
    turns: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        for name in order:
            time.sleep(pace.rest)
            if counts[name] > 1:
                calls[name]()
            turns[name].append(_seconds(calls[name], counts[name]))
        order = order[1:] + order[:1]
    return turns


def measure(workload: Workload, frameworks: tuple[str, ...], pace: Pace, quick: bool = False) -> dict[str, Any]:
    """Time a workload in every framework.

    Returns:
        by framework, the median seconds of a call, the least, and those of the first call with its compilation; the faster peer and
        our time over its time, None without a peer.

    Raises:
        WrongResultError: the frameworks do not compute the same.
    """
    case = workload.case(quick)
    calls, first, results = {}, {}, {}
    for name in frameworks:
        if not competes(name, case):
            continue
        calls[name] = contestant(name, case)
        start = time.perf_counter()
        results[name] = [calls[name]()]
        first[name] = time.perf_counter() - start
        results[name] += [calls[name]() for _ in range(STEPS - 1)]
    check(workload.name, results, case)
    del results
    gc.collect()
    gc.disable()
    try:
        turns = _take_turns(calls, pace)
    finally:
        gc.enable()
    seconds = {name: statistics.median(times) for name, times in turns.items()}
    peers = [name for name in seconds if name != "volta_fn"]
    peer = min(peers, key=seconds.__getitem__) if peers else None
    return {
        "name": workload.name,
        "seconds": seconds,
        "least": {name: min(times) for name, times in turns.items()},
        "first_call": first,
        "rounds": len(turns[frameworks[0]]),
        "peer": peer,
        "ratio": seconds["volta_fn"] / seconds[peer] if peer else None,
    }
