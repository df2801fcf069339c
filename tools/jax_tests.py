"""Run JAX's own tests on volta_fn.

    python tools/jax_tests.py CHECKOUT [NAME ...] [--seconds N] [--limit N] [--part K/N] [--only PATTERN] [--save FILE] [--show]
        [--target TARGET] [--x64] [--cases N] [--seed N] [--oracle | --beside FILE]

CHECKOUT is a clone of https://github.com/jax-ml/jax; each NAME is one of its tests, such as lax_numpy_test (without any: those of
docs/jax_tests.md). Of parametrised tests a sample of --cases (3) runs, each within --limit (10) seconds and each file within --seconds;
--seed draws another sample, and other random numbers in every test. --part 1/4 takes every fourth test from the first, --only those whose
name has a pattern. --target is where they run: cpu, numpy or gpu; --x64 sets jax_enable_x64.

A line per file says how many tests there were of each outcome: `pass`; `wording`, the error that JAX raises with another message;
`internal`, a test that uses JAX's private modules; `refused`, one whose dtype the GPU lacks; `fail`, everything else; and the rate of
tests of public behaviour, which leaves out those, passed or not, whose source looks at something else (`jax_test_kinds.KINDS`). With
--show the failures follow, the most frequent causes first; with --save all outcomes go to a file as JSON. With --oracle the tests run
under the installed JAX; with --beside, and what such a run has saved, only tests are counted that pass there.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
import unittest
import warnings
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
OUTCOMES = ("pass", "wording", "internal", "refused", "fail")
#: The environment of a target.
TARGETS: dict[str, dict[str, str]] = {"cpu": {}, "numpy": {"VOLTA_NATIVE": "0"}, "gpu": {"VOLTA_DEVICE": "gpu"}}
NAMES = """
lax_numpy_test lax_numpy_indexing_test lax_numpy_einsum_test lax_numpy_operators_test lax_numpy_reducers_test lax_numpy_ufuncs_test
lax_numpy_vectorize_test lax_numpy_setops_test polynomial_test lax_test lax_autodiff_test lax_control_flow_test lax_vmap_test batching_test
api_test custom_api_test custom_root_test custom_linear_solve_test linalg_test lax_scipy_test lax_scipy_sparse_test
lax_scipy_special_functions_test scipy_fft_test scipy_interpolate_test scipy_ndimage_test scipy_optimize_test scipy_signal_test
scipy_spatial_test scipy_stats_test random_lax_test random_test tree_util_test nn_test dtypes_test fft_test image_test ode_test
""".split()
#: What assertions say when the error was right and its message another one.
_WORDING = re.compile(r"(\" does not match [\"'])|(message does not match)|(Regex didn't match)")
#: The names of JAX's primitives, which tests compare programs with.
_PRIMITIVE = re.compile(r"has no attribute '\w+_p'")
#: What a GPU says of a dtype that it lacks.
_NO_SUCH_DTYPE = re.compile(r"the GPU .* has no \w+;")


class TooLong(BaseException):
    """A test took longer than its limit."""


class Outcome(unittest.TestResult):
    """The outcome of one test."""

    def __init__(self) -> None:
        super().__init__()
        self.row: dict[str, Any] = {"outcome": "pass"}

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # unittest's name
        self.row = {"outcome": "skip"}

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.row = outcome_of(*err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.row = outcome_of(*err)

    addError = addFailure


def outcome_of(kind: Any, error: BaseException, trace: Any) -> dict[str, Any]:
    """Classify an exception."""
    message = str(error)
    context = error.__context__
    if kind.__name__ == "AbsentInternal" or _PRIMITIVE.search(message):
        outcome = "internal"
    elif kind is AssertionError and (_WORDING.search(message) or (context and message.lstrip("\n").startswith(str(context)[:30]))):
        outcome = "wording"
    elif _NO_SUCH_DTYPE.search(message):
        outcome = "refused"
    else:
        outcome = "fail"
    frames = [f for f in traceback.extract_tb(trace) if "/volta_fn/" in f.filename]
    where = f"{frames[-1].filename.split('/volta_fn/')[-1]}:{frames[-1].lineno}" if frames else ""
    return {"outcome": outcome, "error": kind.__name__, "message": message[:500], "where": where}


def shift_seeds(by: int) -> None:
    """Add a number to every seed of NumPy's generators.

    JAX's tests draw their cases and their numbers by them.
    """

    class RandomState(np.random.RandomState):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(None if seed is None else (np.asarray(seed) + by) % 2**32)

    np.random.RandomState = RandomState  # type: ignore[misc]


def run_file(
    checkout: Path, name: str, seconds: float, limit: float, oracle: bool = False, part: slice = slice(None), only: str = ""
) -> list[dict[str, Any]]:
    """Run the tests of one file in this process, or under JAX itself."""
    for library in "stats special linalg signal optimize ndimage fft interpolate".split():
        importlib.import_module(f"scipy.{library}")  # before sys.modules has a jax that they look for
    import jax_internals  # noqa: PLC0415  # of this folder
    import jax_test_kinds  # noqa: PLC0415

    if not oracle:
        jax_internals.install(checkout)
    path = checkout / "tests" / f"{name}.py"
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.argv = [str(path)]
    spec.loader.exec_module(module)
    jax_internals.running = True
    warnings.simplefilter("ignore")
    end = time.monotonic() + seconds
    tests = [test for suite in unittest.TestLoader().loadTestsFromModule(module) for test in suite if re.search(only, test.id())][part]
    kinds = jax_test_kinds.kinds_in(path)
    rows = []
    for test in tests:
        row = run(test, limit) if time.monotonic() < end else {"outcome": "skip"}
        rows.append({"test": test.id(), "looks_at": jax_test_kinds.kind_of(test.id(), kinds), **row})
    return rows


def run(test: Any, limit: float) -> dict[str, Any]:
    """Run one test within a limit of time."""

    def stop(*_: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    result = Outcome()
    try:
        test.run(result)
    except TooLong:
        return {"outcome": "fail", "error": "TooLong", "message": "", "where": ""}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return result.row


def rate_of(counts: collections.Counter[str]) -> float:
    """Return the percentage of tests that pass, without those of private modules."""
    passed = counts["pass"] + counts["wording"]
    return 100 * passed / max(passed + counts["fail"], 1)


def report(name: str, rows: list[dict[str, Any]], show: bool) -> None:
    """Print a line of counts and, if asked for, the failures by their cause."""
    counts = collections.Counter(row["outcome"] for row in rows)
    behaviour = collections.Counter(row["outcome"] for row in rows if row["looks_at"] == "public")
    rates = f"{rate_of(counts):5.1f} %  of those of public behaviour {rate_of(behaviour):5.1f} % ({behaviour['fail']} fail)"
    print(f"{name:34}" + "".join(f"{o} {counts[o]:5}  " for o in OUTCOMES) + rates, flush=True)
    if show:
        causes = collections.Counter(
            f"{r['looks_at']}: {r['error']} [{r['where']}] {r['message'][:160]!r}" for r in rows if r["outcome"] == "fail"
        )
        for cause, count in causes.most_common():
            print(f"  {count:4} {cause}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--limit", type=float, default=10.0)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--target", choices=TARGETS, default="cpu")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--cases", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--beside", type=Path)
    arguments = parser.parse_args()
    os.environ |= TARGETS[arguments.target] | {"JAX_NUM_GENERATED_CASES": str(arguments.cases), "JAX_ENABLE_X64": str(arguments.x64)}
    if len(arguments.names) == 1:
        sys.path[:0] = [str(HERE.parent), str(arguments.checkout / "tests")]
        first, step = map(int, arguments.part.split("/"))
        part = slice(first - 1, None, step)
        if arguments.seed:
            shift_seeds(arguments.seed)
        limits = arguments.seconds, arguments.limit
        rows = run_file(arguments.checkout, arguments.names[0], *limits, arguments.oracle, part, arguments.only)
        if arguments.beside:
            passing = {row["test"].partition(" ")[0] for row in json.loads(arguments.beside.read_text()) if row["outcome"] == "pass"}
            rows = [row for row in rows if row["test"].partition(" ")[0] in passing]
        report(arguments.names[0], rows, arguments.show)
        if arguments.save:
            arguments.save.write_text(json.dumps(rows))
        return
    values = {key: value for key, value in vars(arguments).items() if value and key not in ("checkout", "names", "save")}
    options = [f"--{key}" if value is True else f"--{key}={value}" for key, value in values.items()]
    for name in arguments.names:
        file = [f"--save={arguments.save.with_suffix(f'.{name}.json')}"] if arguments.save else []
        subprocess.run([sys.executable, __file__, str(arguments.checkout), name, *options, *file], check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
