"""Measurements in fresh processes: imports, first steps, peak memory.

Each process runs one of the small programs `import_time`, `first_call`, `peak` and `memory` of this package, which print JSON. First steps
are timed with an empty and with a filled cache of compiled objects.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.machine import ROOT, search_path

FIRST_STEP = "train/gpt"


def run_fresh(program: str, *arguments: str, timeout: float | None = None, **environment: str) -> Any:
    """Run a program of this package with some environment variables; return its JSON.

    Raises:
        RuntimeError: it failed; the message ends with its stderr. subprocess.TimeoutExpired: it took more than `timeout` seconds.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{program}", *arguments],
        env=inherited | {"PYTHONPATH": search_path()} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode:
        raise RuntimeError(f"benchmarks.{program} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def imports(frameworks: tuple[str, ...], rounds: int) -> dict[str, float]:
    """Return the median seconds of each `import` with cached byte code, NumPy's too.

    Raises:
        RuntimeError: volta_fn loads something heavy that it need not.
    """
    samples: dict[str, list[float]] = {name: [] for name in ("numpy", *frameworks)}
    with tempfile.TemporaryDirectory() as cache:
        for _, (name, times) in itertools.product(range(rounds + 1), samples.items()):
            result = run_fresh("import_time", name, PYTHONPYCACHEPREFIX=cache)
            if name == "volta_fn" and result["heavy"]:
                raise RuntimeError(f"import volta_fn loads {', '.join(result['heavy'])}, which it must not")
            times.append(result["seconds"])
    return {name: statistics.median(times[1:]) for name, times in samples.items()}  # the first round fills the cache


def first_steps(frameworks: tuple[str, ...], rounds: int, quick: bool) -> dict[str, float]:
    """Return the median seconds of the first training step.

    volta_fn starts with an empty folder for compiled objects, then with what the first process left there.
    """
    samples: dict[str, list[float]] = {}
    for _, framework in itertools.product(range(rounds), frameworks):
        with tempfile.TemporaryDirectory() as cache:
            for column in (framework, "warm cache") if framework == "volta_fn" else (framework,):
                result = run_fresh("first_call", FIRST_STEP, framework, *_flags(quick), VOLTA_CACHE_DIR=cache)
                samples.setdefault(column, []).append(result["first"])
    return {name: statistics.median(times) for name, times in samples.items()}


def peak_memory(workload: str, frameworks: tuple[str, ...], quick: bool) -> dict[str, Any]:
    """Return the peak bytes of some training steps, without and with compilation.

    The framework itself is not counted. Each process has an empty folder for compiled programs: else the compiler would be loaded only
    after the framework's share is measured.
    """
    results = {}
    for framework in frameworks:
        with tempfile.TemporaryDirectory() as cache:
            results[framework] = run_fresh("peak", workload, framework, *_flags(quick), VOLTA_CACHE_DIR=cache)
    peaks: dict[str, Any] = {key: {name: row[key] for name, row in results.items()} for key in ("steps", "with_compilation")}
    ours, theirs = peaks["steps"]["volta_fn"], peaks["steps"].get("jax")
    return {"name": workload, **peaks, "ratio": ours / theirs if theirs else None}


def convolution_memory() -> dict[str, Any]:
    """Return the results of the program `memory`."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/memory.json"
        subprocess.run([sys.executable, "-m", "benchmarks.memory", "--json", path], cwd=ROOT, check=True, capture_output=True)
        with open(path) as file:
            result: dict[str, Any] = json.load(file)
    return result


def _flags(quick: bool) -> list[str]:
    return ["--quick"] if quick else []
