"""Compare WGSL with JAX and PyTorch on CUDA: `python -m benchmarks.gpu`.

All frameworks compute in true float32 on one GPU, each in its own process; samples of all of them are interleaved. A sample is many
calls, begun one after another and awaited together, as in a training loop. First the ceilings are measured: the bytes that a copy moves
in a second and the operations that a large product does, by the fastest framework. ``--all`` adds the tables of single kernels on the
device, without the host's time; they have commands of their own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import fresh, report
from benchmarks.cost import Ceilings, Cost
from benchmarks.cost import rate as cost_rate
from benchmarks.harness import QUICK, Pace, attempt, measure
from benchmarks.machine import ROOT, describe, installed, use_gpu
from benchmarks.targets import GPU, geometric_mean, judge
from benchmarks.worker import FrameworkError, Worker
from benchmarks.workloads.case import Workload
from benchmarks.workloads.large import COPY, SQUARE, TRAINING, WORKLOADS

#: The tables that have commands of their own.
TABLES = ("gemm", "kernels", "attention", "library")

OUTPUT = ROOT / "build" / "benchmarks" / "gpu.json"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="volta_fn beside JAX and PyTorch on a GPU.")
    parser.add_argument("--only", metavar="PATTERN", default="", help="a regular expression: only what has it in its name")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each framework (default %(default)s)")
    parser.add_argument("--json", type=Path, default=OUTPUT, metavar="FILE", help="where the numbers go (%(default)s)")
    parser.add_argument("--first", action="store_true", help="also time first training steps, each in a fresh process")
    parser.add_argument("--all", action="store_true", help="also the tables of products, kernels, attention and the library by themselves")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and few rounds, to see whether everything runs")
    return parser.parse_args(arguments)


def workers_with_gpu() -> dict[str, Worker]:
    """Start a process for each framework that computes on a GPU here."""
    workers = {framework: Worker(framework) for framework in installed()}
    for framework in [name for name, worker in workers.items() if not worker.ask("finds_gpu")]:
        print(f"{framework} finds no GPU: its column is empty")
        workers.pop(framework).stop()
    return workers


def times(options: argparse.Namespace, workers: dict[str, Worker], results: dict[str, Any]) -> None:
    """Time every workload, in rounds of all frameworks."""
    pace = QUICK if options.quick else Pace(options.rounds, sample=0.05, budget=4.0)

    def timed(workload: Workload) -> Any:
        return attempt(results["failures"], workload.name, costed, workload, workers, pace, options.quick)

    result = {workload.name: timed(workload) for workload in (COPY, SQUARE)}
    ceilings = at_most(result[COPY.name], result[SQUARE.name]) if all(result.values()) else None
    if ceilings is not None:
        results["ceilings"] = ceilings._asdict()
        print(f"ceilings, measured: {ceilings.operations / 1e12:.3g} TFLOP/s, {ceilings.moved / 1e9:.3g} GB/s")
    print(report.gpu_heading(), flush=True)
    for workload in WORKLOADS:
        if re.search(options.only, workload.name):
            both = result[workload.name] if workload.name in result else timed(workload)
            if both is not None:
                row, cost = both
                rate, share = cost_rate(cost, row["seconds"]["volta_fn"], ceilings)
                results["times"].append(row | cost._asdict() | {"rate": rate, "of_ceiling": share})
                print(report.gpu_row(results["times"][-1]), flush=True)
                write(options.json, results)


def write(file: Path, results: dict[str, Any]) -> None:
    """Write what there is so far, which stays if the run is cut short."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def at_most(copied: tuple[dict[str, Any], Cost], multiplied: tuple[dict[str, Any], Cost]) -> Ceilings:
    """Return the rates of the fastest framework in a copy and in a product."""
    seconds = [min(row["seconds"].values()) for row, _ in (copied, multiplied)]
    return Ceilings(multiplied[1].operations / seconds[1], copied[1].moved / seconds[0])


def costed(workload: Workload, workers: dict[str, Worker], pace: Pace, quick: bool) -> tuple[dict[str, Any], Cost]:
    """Measure a workload, and return its cost with it.

    A peer that fails is left out, and has a new process afterwards.
    """
    able = dict(workers)
    while True:
        try:
            row = measure(workload, able, pace, quick, together=workload not in TRAINING)
        except FrameworkError as error:
            if error.framework == "volta_fn":
                raise
            print(f"{workload.name}: without {error.framework}: {str(error).splitlines()[-1]}", flush=True)
            able.pop(error.framework).stop()
        else:
            return row, workers["volta_fn"].ask("cost")


def first_steps(options: argparse.Namespace, frameworks: Sequence[str], results: dict[str, Any]) -> None:
    """Time first training steps, each in a fresh process with nothing compiled before."""
    flags = ["--quick"] if options.quick else []
    for workload in TRAINING:
        if not re.search(options.only, workload.name):
            continue
        title = f"first step of {workload.name}"
        result = attempt(results["failures"], title, first_seconds, workload.name, frameworks, flags)
        if result is not None:
            results["first_steps"][workload.name] = result
            print(report.durations_row(title, result), flush=True)


def first_seconds(workload: str, frameworks: Sequence[str], flags: Sequence[str]) -> dict[str, float]:
    """Return the seconds of each framework's first step."""
    with tempfile.TemporaryDirectory() as cache:
        return {f: fresh.run_fresh("first_call", workload, f, *flags, VOLTA_CACHE_DIR=cache)["first"] for f in frameworks}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurements asked for; return 1 if one failed or gave wrong numbers."""
    options = parse(arguments)
    use_gpu()
    results: dict[str, Any] = {"machine": describe(0), "ceilings": None, "times": [], "first_steps": {}, "failures": []}
    workers = workers_with_gpu()
    times(options, workers, results)
    for worker in workers.values():
        worker.stop()
    if options.first:
        first_steps(options, list(workers), results)
    results["geometric_mean"] = geometric_mean(results)
    print(f"geometric mean over the faster peer: {report.ratio(results['geometric_mean'])}")
    for judged in judge(results, GPU):
        print(report.target_row(judged), flush=True)
    for name in TABLES if options.all else ():
        print(f"\npython -m benchmarks.gpu.{name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.gpu.{name}"], check=False)
    write(options.json, results)
    return 1 if results["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
