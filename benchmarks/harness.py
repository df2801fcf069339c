"""Check that a workload gives the same numbers everywhere, and time it.

Each framework is in its own process. A sample is some milliseconds of calls; the frameworks' samples are interleaved round by round, so
that a drift of the machine's clock or a neighbour's load hits all alike; the median sample counts. Before its sample a framework rests
and, where a call is short, does one call that is not timed: by then the threads of the one before it have stopped spinning (PyTorch's
take a core for 8 to 12 ms after their work, OpenBLAS's for 100), and the caches hold its own data.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.worker import Worker, ask_all
from benchmarks.workloads.case import Case, Workload, arrays_in


class Pace(NamedTuple):
    """How long to measure.

    Attributes:
        rounds: samples of each framework, if they fit into `budget`.
        sample: seconds that a sample takes at least.
        rest: seconds before each sample, of which there are more while threads of a framework still spin.
        budget: seconds for one workload; slow ones get fewer rounds, but at least `fewest`.
        fewest: rounds of the slowest workloads.
    """

    rounds: int
    sample: float = 0.02
    rest: float = 0.02
    budget: float = 15.0
    fewest: int = 5


QUICK = Pace(rounds=3, sample=1e-4, rest=0, fewest=3)


class WrongResultError(Exception):
    """A framework gave other numbers than the first one, so that times say nothing."""


def attempt(failures: list[dict[str, str]], name: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a measurement gives; record a failure and return None."""
    try:
        return work(*arguments)
    except (WrongResultError, RuntimeError, ValueError, TypeError, AssertionError) as error:
        failures.append({"name": name, "error": f"{type(error).__name__}: {error}"})
        print(f"{name} FAILED: {error}", flush=True)
        return None


def check(name: str, results: dict[str, list[Any]], case: Case) -> None:
    """Compare what the frameworks computed, relative to each array's largest number.

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


def _calls_of_a_sample(worker: Worker, sample: float) -> tuple[int, float]:
    """Return how many calls take so many seconds, and the seconds of one.

    Tiny calls take 2 µs one after another, and 50 µs by themselves.
    """
    seconds = min(worker.ask("time_calls", 1, False) for _ in range(2))
    count = max(1, round(sample / seconds))
    while count > 1:
        seconds = worker.ask("time_calls", count, True)
        if seconds * count >= 0.8 * sample:
            break
        count = max(2 * count, round(sample / seconds))
    return count, seconds


def _take_samples(workers: Mapping[str, Worker], pace: Pace) -> dict[str, list[float]]:
    """Return the seconds of a call in each of a framework's samples."""
    counts, seconds = {}, {}
    for name, worker in workers.items():
        counts[name], seconds[name] = _calls_of_a_sample(worker, pace.sample)
    round_takes = sum(seconds[name] * counts[name] + pace.rest for name in workers)
    rounds = max(min(pace.rounds, int(pace.budget / round_takes)), pace.fewest)
    samples: dict[str, list[float]] = {name: [] for name in workers}
    order = list(workers)
    for _ in range(rounds):
        for name in order:
            ask_all(workers, "rest", pace.rest)
            samples[name].append(workers[name].ask("time_calls", counts[name], counts[name] > 1))
        order = order[1:] + order[:1]
    return samples


def measure(
    workload: Workload, workers: Mapping[str, Worker], pace: Pace, quick: bool = False, *, together: bool = False
) -> dict[str, Any]:
    """Time a workload in every framework.

    They prepare it one after another, for the times of first calls, or `together`.

    Returns:
        by framework, the median seconds of a call, the least, and those of the first call with its compilation; the faster peer and
        our time over its time, None without a peer.

    Raises:
        WrongResultError: the frameworks do not compute the same.
        RuntimeError: a framework failed.
    """
    if together:
        prepared = ask_all(workers, "prepare", workload.name, quick)
    else:
        prepared = {name: worker.ask("prepare", workload.name, quick) for name, worker in workers.items()}
    prepared = {name: result for name, result in prepared.items() if result is not None}
    check(workload.name, {name: results for name, (_, results) in prepared.items()}, workload.case(quick=True))
    first = {name: seconds for name, (seconds, _) in prepared.items()}
    samples = _take_samples({name: workers[name] for name in prepared}, pace)
    seconds = {name: statistics.median(times) for name, times in samples.items()}
    peers = [name for name in seconds if name != "volta_fn"]
    peer = min(peers, key=seconds.__getitem__) if peers else None
    return {
        "name": workload.name,
        "seconds": seconds,
        "least": {name: min(times) for name, times in samples.items()},
        "first_call": first,
        "rounds": len(samples["volta_fn"]),
        "peer": peer,
        "ratio": seconds["volta_fn"] / seconds[peer] if peer else None,
    }
