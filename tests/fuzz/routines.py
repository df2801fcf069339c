"""Random problems for every routine of machine code and WGSL, by every choice that the target can make: `--help` lists the options.

Buffers stand between guard bytes, at odd addresses, and begin as NaN; tasks run whole, in reverse, and on four threads; results lie in
operands where the compiler allows it. What is wrong is printed with the smallest problem that is, as an expression for
`tests/fuzz/routine_corpus.txt`.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.fuzz.routine_bounds import Residual, Want, difference, wanted
from tests.fuzz.routine_choices import DEFAULT, FAMILY_OF
from tests.fuzz.routine_problems import FAMILIES, FAMILIES_OF, Problem, text_of
from tests.fuzz.routine_runs import placements, run_on_cpu
from volta_fn.errors import VoltaError

CORPUS = Path(__file__).with_name("routine_corpus.txt")

#: Elements of operands: of most problems, and of some.
_FEW, _MANY = 1 << 12, 1 << 18

#: Elements of large problems on a GPU.
_LARGE = 1 << 15


class Fault(NamedTuple):
    """A routine whose results are wrong."""

    problem: Problem
    target: str
    label: str
    message: str

    def __str__(self) -> str:
        return f"{text_of(self.problem)}\n    {self.target}, {self.label}: {self.message}"


class Tally(NamedTuple):
    """How many problems, routines and runs there were, by family."""

    problems: collections.Counter[str]
    routines: collections.Counter[str]
    host: collections.Counter[str]


def _run_wgsl(problem: Problem, routine: object, inputs: list[np.ndarray], want: list[Want] | Residual) -> str | None:
    from tests.targets.wgsl.running import run_routine
    from volta_fn.targets.wgsl.target import IN_PLACE

    place = IN_PLACE.get(problem.name)
    for where in (None, place) if place is not None and inputs[place].size else (None,):
        wrong = difference(problem, want, run_routine(routine, inputs, problem.outputs, place=where))  # type: ignore[arg-type]
        if wrong:
            return wrong if where is None else f"in place: {wrong}"
    return None


def _run_cpu(problem: Problem, routine: object, inputs: list[np.ndarray], want: list[Want] | Residual) -> str | None:
    from volta_fn.targets.cpu.target import IN_PLACE

    first: list[bytes] | None = None
    for how in placements(IN_PLACE.get(problem.name), 1):
        results = run_on_cpu(routine, inputs, problem.outputs, how)  # type: ignore[arg-type]
        values = [x.tobytes() for x in results]
        if first is None and (wrong := difference(problem, want, results)):
            return wrong
        if first is not None and values != first:
            return f"{how}: other bits than as a whole; {difference(problem, want, results) or 'both within the bound'}"
        first = values
    return None


def faults(
    problem: Problem, target: str, tally: Tally | None = None, label: str | None = None, end: float = float("inf")
) -> Iterator[Fault]:
    """Yield what is wrong with a problem's routines, until a time; only with those of a label, if there is one.

    On a GPU large problems are only computed as chosen: one in software takes minutes for what is divided in the wrong way.
    """
    module = importlib.import_module(f"tests.fuzz.routine_choices_{target}")  # the GPU's looks for one
    family = FAMILY_OF[problem.name]
    if tally:
        tally.problems[family] += 1
    inputs = problem.inputs()
    try:
        want = wanted(problem, inputs)
    except Exception as error:  # a fault of the primitive's NumPy function
        yield Fault(problem, "numpy", "", f"{type(error).__name__}: {str(error)[:400]}")
        return
    for name, routine in module.routines(problem):
        if time.monotonic() > end:
            return
        if label not in (None, name) or (target == "wgsl" and problem.size > _LARGE and not name.startswith(DEFAULT.label)):
            continue
        if routine is None:
            if tally:
                tally.host[family] += 1
            continue
        if tally:
            tally.routines[family] += 1
        if isinstance(routine, Exception):
            yield Fault(problem, target, name, f"{type(routine).__name__}: {routine}")
            continue
        try:
            wrong = (_run_cpu if target == "cpu" else _run_wgsl)(problem, routine, inputs, want)
        except Exception as error:  # a generator's fault, too
            wrong = f"{type(error).__name__}: {str(error)[:400]}"
        if wrong:
            yield Fault(problem, target, name, wrong)


def smallest(fault: Fault, family: str, seconds: float = 20.0) -> Fault:
    """Return the fault of a smaller problem: of one with shorter axes, or of the smallest of some random ones."""
    rng, end = np.random.default_rng(1), time.monotonic() + seconds
    if fault.target == "numpy":
        return fault
    while shorter := next((f for p in _shorter(fault.problem) for f in _unless_late(end, p, fault)), None):
        fault = shorter
    for room in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384):
        for _ in range(60):
            if time.monotonic() > end:
                return fault
            problem = drawn(family, rng, room)
            if problem.name == fault.problem.name and problem.size < fault.problem.size:
                for result in faults(problem, fault.target, label=fault.label):
                    return result
    return fault


def _unless_late(end: float, problem: Problem, like: Fault) -> Iterator[Fault]:
    if time.monotonic() < end:
        yield from faults(problem, like.target, label=like.label)


def _shorter(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with one axis shorter, if its operands and results have one shape."""
    shape = problem.operands[0].shape
    alike = all(o.shape == shape for o in problem.operands) and all(s == shape for s, _ in problem.outputs)
    if not alike or problem.name in ("dot_general", "fft"):
        return
    for axis, size in enumerate(shape):
        for less in sorted({1, size // 2, size - 1}):
            if 0 < less < size:
                some = tuple([o._replace(shape=(*shape[:axis], less, *shape[axis + 1 :])) for o in problem.operands])
                if _is_accepted(shorter := problem._replace(operands=some)):
                    yield shorter


def _is_accepted(problem: Problem) -> bool:
    """Return True if the primitive takes the problem and has results."""
    try:
        return bool(problem.outputs)
    except VoltaError:
        return False


def drawn(family: str, seed: int | np.random.Generator, room: int) -> Problem:
    """Return a problem of a family that the primitive accepts."""
    rng = np.random.default_rng([seed, 3]) if isinstance(seed, int) else seed
    while not _is_accepted(problem := FAMILIES[family](rng, room)):
        pass
    return problem


def check(
    seed: int,
    count: int,
    target: str = "cpu",
    families: Sequence[str] = (),
    seconds: float = float("inf"),
    *,
    many: int = 16,
    most: int = 1 << 30,
    shrink: bool = True,
) -> tuple[Tally, list[Fault]]:
    """Try problems from a seed on, of which one in `many` has many elements, until `most` are wrong."""
    tally = Tally(collections.Counter(), collections.Counter(), collections.Counter())
    families = families or FAMILIES_OF[target]
    end, wrong = time.monotonic() + seconds, []
    for number in range(seed, seed + count):
        if time.monotonic() > end or len(wrong) >= most:
            break
        family = families[number % len(families)]
        rng = np.random.default_rng([number, 3])
        problem = drawn(family, rng, _MANY if rng.integers(many) == 0 else _FEW)
        for fault in faults(problem, target, tally, end=end):
            wrong.append(smallest(fault, family) if shrink else fault)
            print(f"{number}: {wrong[-1]}", flush=True)
            break  # other choices are likely to be wrong for the same reason
    return tally, wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz routines", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long to try (until the count, if there is one)")
    parser.add_argument("--count", type=int, help="how many problems")
    parser.add_argument("--seed", type=int, default=0, help="the first problem")
    parser.add_argument("--gpu", action="store_true", help="in WGSL, not as machine code")
    parser.add_argument("--width", type=int, choices=(16, 32, 64), help="bytes of a vector, at most those of the CPU")
    parser.add_argument("--only", choices=tuple(FAMILIES), action="append", help="only problems of this kind")
    arguments = parser.parse_args(argv)
    if arguments.width:
        os.environ["VOLTA_VECTOR_BYTES"] = str(arguments.width)
    faulthandler.enable()
    count = arguments.count or (1 << 60 if arguments.minutes else 200)
    seconds = 60 * arguments.minutes if arguments.minutes else float("inf")
    tally, wrong = check(arguments.seed, count, "wgsl" if arguments.gpu else "cpu", arguments.only or (), seconds)
    for family, problems in sorted(tally.problems.items()):
        host = f", {tally.host[family]} of no routine" if tally.host[family] else ""
        print(f"{family}: {problems} problems, {tally.routines[family]} routines{host}")
    print(f"{sum(tally.problems.values())} problems, {sum(tally.routines.values())} routines, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
