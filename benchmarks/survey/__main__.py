"""Survey functions, compared with NumPy and JAX: `python -m benchmarks.survey`.

Prints our time over that of the faster peer, geometric means and the slowest; writes a JSON file.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import ROOT, cores, describe, limit_threads
from benchmarks.report import duration, ratio
from benchmarks.survey.contestants import MODULES, Contestant
from benchmarks.survey.rows import Row
from benchmarks.survey.tables import TABLE

SIZES = (1_000, 100_000, 1_000_000)
#: Whom each of our forms is compared with: the fastest of these.
PEERS = {"volta_fn eager": ("numpy", "jax eager"), "volta_fn jit": ("jax jit",)}
#: The most that a ratio and the geometric mean of all may be, and the number of elements from which on a ratio is limited: smaller eager
#: calls are compared with PyTorch's, whose calls take as long as ours outside of the computation.
LIMITS = {"volta_fn eager": (1.3, 0.6, 100_000), "volta_fn jit": (1.1, 0.35, 0)}
#: Results differ if they differ by more than this fraction of the largest number.
TOLERANCE = 2e-2


class Pace(NamedTuple):
    """Samples of each contestant, the seconds of one, and the most seconds for a row."""

    rounds: int
    sample: float
    budget: float


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.survey", description="Functions compared with NumPy and JAX, in one run.")
    parser.add_argument("--only", metavar="PATTERN", default="", help="a regular expression: only functions with it in their names")
    parser.add_argument("--threads", type=int, nargs="+", default=[min(2, cores()), 1], help="numbers of threads, falling (%(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of elements (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each contestant (%(default)s)")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "benchmarks" / "survey.json", metavar="FILE", help="(%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few and short samples: to find what is slow")
    parser.add_argument("--slowest", type=int, default=40, help="how many of the slowest to print (%(default)s)")
    return parser.parse_args(arguments)


def agree(results: dict[str, list[np.ndarray] | None]) -> bool:
    """Return True if all forms computed about the same, where they have numbers."""
    first, *others = [result for result in results.values() if result is not None]
    return all(
        a.shape == b.shape and np.nanmax(np.abs(a - b), initial=0) <= TOLERANCE * max(np.nanmax(np.abs(b), initial=0), 1e-30)
        for other in others
        for a, b in zip(first, other, strict=False)
        if np.isfinite(a).all() and np.isfinite(b).all()
    )


def survey(row: Row, elements: int, workers: dict[str, Contestant], pace: Pace) -> dict[str, Any]:
    """Time a function: the least and the median seconds of each form, in rotation."""
    owner: dict[str, Contestant] = {}
    results: dict[str, list[np.ndarray] | None] = {}
    for worker in workers.values():
        output = worker.ask("prepare", row.name, elements)
        owner |= dict.fromkeys([form for form, result in output.items() if result is not None], worker)
        results |= output
    counts = {}
    for form, worker in owner.items():
        seconds = min(worker.ask("time_calls", form, 1) for _ in range(2))
        counts[form] = max(1, round(pace.sample / max(worker.ask("time_calls", form, max(1, min(10, int(pace.sample / seconds)))), 1e-7)))
        counts[form] = min(counts[form], 10_000)
    samples: dict[str, list[float]] = {form: [] for form in owner}
    spent, order = 0.0, list(owner)
    for number in range(pace.rounds):
        for form in order:
            samples[form].append(owner[form].ask("time_calls", form, counts[form]))
            spent += samples[form][-1] * counts[form]
        order = order[1:] + order[:1]
        if spent > pace.budget and number >= 2:
            break
    least = {form: min(times) for form, times in samples.items()}
    medians = {form: statistics.median(times) for form, times in samples.items()}
    return {
        "name": row.name,
        "elements": elements,
        "seconds": least,
        "median": medians,
        "agree": not row.defined or agree(results),
        "ratios": ratios(least),
    }


def ratios(seconds: dict[str, float]) -> dict[str, float | None]:
    """Return the time of each of our forms over that of its fastest peer."""
    results: dict[str, float | None] = {}
    for form, peers in PEERS.items():
        peer_seconds = [seconds[peer] for peer in peers if peer in seconds]
        results[form] = seconds[form] / min(peer_seconds) if peer_seconds and form in seconds else None
    return results


def describe_row(result: dict[str, Any]) -> str:
    """Format a row: the ratios, and the times that they come from."""
    ours = " ".join(f"{ratio(result['ratios'][form]):>7s}" for form in PEERS)
    times = " ".join(f"{form} {duration(seconds)}," for form, seconds in result["seconds"].items())
    return f"{result['name']:34s}{result['elements']:9d} {ours}  {times}{'' if result['agree'] else ' DIFFERENT NUMBERS'}"


def conclude(result: Sequence[dict[str, Any]], slowest: int) -> dict[str, Any]:
    """Print and return the geometric means and how many exceed the limits."""
    summary: dict[str, Any] = {}
    for form, (limit, mean_limit, smallest) in LIMITS.items():
        compared = [row for row in result if row["ratios"][form] is not None]
        if not compared:
            continue
        compared.sort(key=lambda row: -row["ratios"][form])
        mean = math.exp(statistics.fmean(math.log(row["ratios"][form]) for row in compared))
        over = sum(row["ratios"][form] > limit for row in compared if row["elements"] >= smallest)
        summary[form] = {"mean": mean, "over": over, "compared": len(compared)}
        print(f"\n{form}: geometric mean {mean:.2f} (at most {mean_limit}); {over} of {len(compared)} slower than {limit} × {PEERS[form]}")
        for row in compared[:slowest]:
            print(f"{row['threads']} threads {describe_row(row)}")
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Survey what is asked for; return 1 if a function failed or gave other numbers."""
    options = parse(arguments)
    pace = Pace(3, 1e-3, 0.1) if options.quick else Pace(options.rounds, 5e-3, 1.0)
    results: list[dict[str, Any]] = []
    wanted = [row for row in TABLE if re.search(options.only, row.name)]
    for threads in options.threads:
        limit_threads(threads)
        workers = {framework: Contestant(framework) for framework in MODULES}
        for row in wanted:
            for elements in [size for size in options.sizes if size <= row.largest]:
                results.append({"threads": threads} | survey(row, elements, workers, pace))
                print(threads, describe_row(results[-1]), flush=True)
        for worker in workers.values():
            worker.stop()
    summary = conclude(results, options.slowest)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": describe(options.threads[0]), "summary": summary, "rows": results}, indent=1)
    options.json.write_text(text + "\n")
    print(f"numbers in {options.json}")
    return int(any(not row["agree"] or any(row["seconds"].get(form) is None for form in PEERS) for row in results))


if __name__ == "__main__":
    sys.exit(main())
