"""Checks and times of routines, as a program with options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from benchmarks.gpu.device import forget_routines, opened_gpu

Problem = TypeVar("Problem", bound=Any)


class Suite(NamedTuple, Generic[Problem]):
    """Problems, which have names, and what is done with them."""

    checks: Sequence[Problem]
    timed: Sequence[Problem]
    #: Run a problem, print its errors, and return whether they are small.
    run_check: Callable[[Problem], bool]
    #: Time a problem by the usual schedule, and by others of the kernels whose names match a pattern.
    run_timed: Callable[[Problem], None]
    run_schedules: Callable[[Problem, str], None]


def check_and_time(module: str, description: str | None, suite: Suite[Any], arguments: Sequence[str] | None = None) -> int:
    """Run a suite as the command line says; return 1 if a result is wrong."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.gpu.{module}", description=description)
    parser.add_argument("--only", default="", metavar="PATTERN", help="problems whose names match")
    parser.add_argument("--no-checks", action="store_true", help="only times")
    parser.add_argument("--no-times", action="store_true", help="only checks")
    parser.add_argument("--mma", action="store_true", help="the matrix units that all GPUs have, rather than wgmma")
    parser.add_argument(
        "--schedules", nargs="?", const="", metavar="PATTERN", help="times of other schedules, too, of the kernels whose names match"
    )
    options = parser.parse_args(arguments)
    gpu = opened_gpu()
    if options.mma:
        gpu.target = gpu.driver.target(gpu.capabilities._replace(matrix_units="mma"))
        gpu.capabilities = gpu.target.capabilities
        forget_routines()
    print(f"{gpu.capabilities.adapter}: matrix units {gpu.capabilities.matrix_units or 'none'}", flush=True)
    failures = 0
    for problem in [] if options.no_checks else [p for p in suite.checks if re.search(options.only, p.name)]:
        try:
            failures += not suite.run_check(problem)
        except Exception as error:  # the others are checked all the same
            failures += 1
            print(f"{problem.name:44s} FAILED {type(error).__name__}: {str(error)[:400]}", flush=True)
    for problem in [] if options.no_times else [p for p in suite.timed if re.search(options.only, p.name)]:
        suite.run_timed(problem)
        if options.schedules is not None:
            suite.run_schedules(problem, options.schedules)
    print(f"{failures} checks failed" if failures else "all checks passed")
    return 1 if failures else 0
