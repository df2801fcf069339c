"""Compare volta_fn with JAX and PyTorch: `python -m benchmarks`.

Prints a table and which targets are met; writes a JSON file and a chart.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import fresh, report
from benchmarks.harness import QUICK, Pace, attempt, measure
from benchmarks.machine import FRAMEWORKS, ROOT, cores, describe, has_onnxruntime, installed, limit_threads
from benchmarks.targets import geometric_mean, judge
from benchmarks.worker import Worker, ask_all
from benchmarks.workloads import WORKLOADS, language

OUTPUT = ROOT / "build" / "benchmarks"
PEAKS = [workload.name for workload in WORKLOADS if workload.name.startswith("train/")]
IMPORT, FIRST_STEP, LAYER = "start/import", "start/first GPT step", "peak/convolution layer"
PLANS = {name.replace("llm/", "llm/memory of "): name for name in language.PLANS}
NAMES = [*(workload.name for workload in WORKLOADS), *PLANS, IMPORT, FIRST_STEP, *(f"peak/{name}" for name in PEAKS), LAYER]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="volta_fn beside JAX and PyTorch, in one run.")
    parser.add_argument("--only", metavar="PATTERN", default="", help="a regular expression: only what has it in its name")
    parser.add_argument("--threads", type=int, default=min(2, cores()), help="threads and cores for every framework (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=21, help="turns of each framework (default %(default)s); slow workloads get fewer")
    parser.add_argument("--json", type=Path, default=OUTPUT / "results.json", metavar="FILE", help="where the numbers go (%(default)s)")
    parser.add_argument("--chart", type=Path, default=OUTPUT / "ratios.png", metavar="FILE", help="where the chart goes (%(default)s)")
    parser.add_argument("--list", action="store_true", help="print the names of all there is to measure")
    parser.add_argument("--large", action="store_true", help="also what takes minutes or gigabytes: language models of 0.5 billion weights")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and few rounds, to see whether everything runs")
    return parser.parse_args(arguments)


class Run:
    """A run: its options, and the results so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.frameworks = options, installed()
        self.results: dict[str, Any] = {"machine": describe(options.threads), "quick": options.quick}
        self.results |= {"times": [], "plans": [], "peaks": [], "failures": []}
        self.results |= {"imports": None, "first_steps": None, "convolution_memory": None}

    def wants(self, name: str) -> bool:
        """Return True if `--only` includes a name."""
        return re.search(self.options.only, name) is not None

    def attempt(self, name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a measurement gives, or None if it fails."""
        return attempt(self.results["failures"], name, work, *arguments)

    def times(self) -> None:
        """Time every workload, in rounds of all frameworks."""
        options, pace = self.options, QUICK if self.options.quick else Pace(self.options.rounds)
        included = lambda workload: options.large or options.quick or not workload.large
        wanted = [workload for workload in WORKLOADS if self.wants(workload.name) and included(workload)]
        if not wanted:
            return
        print(report.time_heading())
        workers = {framework: Worker(framework) for framework in self.frameworks}
        if has_onnxruntime() and any(workload.case(quick=True).onnxruntime for workload in wanted):
            workers["onnxruntime"] = Worker("onnxruntime")
        for workload in wanted:
            row = self.attempt(workload.name, measure, workload, workers, pace, options.quick)
            if row:
                self.results["times"].append(row)
                print(report.time_row(row), flush=True)
        for worker in workers.values():
            worker.stop()

    def plans(self) -> None:
        """Read how much memory compiled programs need; they do not run."""
        wanted = {name: workload for name, workload in PLANS.items() if self.wants(name)}
        if not wanted:
            return
        print(report.plan_heading())
        workers = {framework: Worker(framework) for framework in self.frameworks if framework != "torch"}
        for name, workload in wanted.items():
            plans = self.attempt(name, ask_all, workers, "plan", workload, self.options.quick)
            if plans:
                self.results["plans"].append({"name": name, "bytes": plans})
                print(report.plan_row(self.results["plans"][-1]), flush=True)
        for worker in workers.values():
            worker.stop()

    def starts(self) -> None:
        """Time imports and first steps, in fresh processes."""
        if self.wants(IMPORT):
            result = self.attempt(IMPORT, fresh.imports, self.frameworks, 1 if self.options.quick else 7)
            self.results["imports"] = result
            print(report.durations_row(IMPORT, result or {}), flush=True)
        if self.wants(FIRST_STEP):
            rounds = 1 if self.options.quick else 3
            result = self.attempt(FIRST_STEP, fresh.first_steps, self.frameworks, rounds, self.options.quick)
            self.results["first_steps"] = result
            print(report.durations_row(FIRST_STEP, result or {}), flush=True)

    def peaks(self) -> None:
        """Measure peak memory, each framework in its own process."""
        wanted = [name for name in PEAKS if self.wants(f"peak/{name}")]
        if wanted:
            print(report.peak_heading())
        for name in wanted:
            row = self.attempt(f"peak/{name}", fresh.peak_memory, name, self.frameworks, self.options.quick)
            if row:
                self.results["peaks"].append(row)
                print(report.peak_row(row), flush=True)
        if self.wants(LAYER) and not self.options.quick:
            self.results["convolution_memory"] = actual = self.attempt(LAYER, fresh.convolution_memory)
            peak = max(row["bytes_beyond"] for row in actual["results"]) if actual else None
            print(report.table_row(LAYER, [report.size(peak)]), flush=True)

    def conclude(self) -> None:
        """Print the mean and the targets, and write the files."""
        results, options = self.results, self.options
        results["geometric_mean"] = geometric_mean(results)
        results["targets"] = [] if options.quick else judge(results)
        for judged in results["targets"]:
            print(report.target_row(judged))
        slow = sorted((row for row in results["times"] if (row["ratio"] or 0) > 1.05), key=lambda row: -row["ratio"])
        print(f"{len(slow)} of {len(results['times'])} workloads slower than the faster peer by more than 5 %")
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        print(f"numbers in {options.json}")
        if results["geometric_mean"] is not None:
            drawn = report.draw(results, options.chart)
            print(f"chart in {options.chart}" if drawn else "no chart: matplotlib is not installed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurements asked for; return 1 if one failed or gave wrong numbers."""
    options = parse(arguments)
    if options.list:
        print(*NAMES, sep="\n")
        return 0
    limit_threads(options.threads)
    run = Run(options)
    for missing in set(FRAMEWORKS) - set(run.frameworks):
        print(f"{missing} is not installed: its column is empty (pip install '.[benchmarks]')")
    with tempfile.TemporaryDirectory(prefix="volta-cache-") as cache:
        os.environ["VOLTA_CACHE_DIR"] = cache  # so that first calls compile
        run.times()
        run.plans()
        run.starts()
        run.peaks()
    run.conclude()
    return 1 if run.results["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
