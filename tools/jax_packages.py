"""Run programs of packages drawn at random under JAX and under volta_fn.

    python tools/jax_packages.py [PACKAGE ...] [--rounds 1] [--limit 240] [--list]

Each package must be installed (`python -m pip install NAME==VERSION`, in an environment that has JAX); others are named and left out.
A program runs unmodified, by `python program.py` and by `python -m volta_fn.jax program.py`, in fresh processes on the CPU, volta_fn
with an empty cache. It gives the *same* numbers if all that it prints differ by at most 1e-4 from JAX's, relative to numbers above 1. The
*time* is that of the whole process, volta_fn's over JAX's, from the least of `--rounds` runs by turns.

`tools/jax_packages.txt` begins each program by a line `=== package version | description`. `--list` prints these as a table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "jax_packages.txt"
TOLERANCE = 1e-4
_NUMBER = re.compile(r"(?:[-+]|(?<![\w.]))(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan\b|inf\b)")
_COMMANDS = {"jax": [sys.executable, "-W", "ignore"], "volta_fn": [sys.executable, "-W", "ignore", "-m", "volta_fn.jax"]}


@dataclass(frozen=True)
class Program:
    """A program that uses a package."""

    package: str
    version: str
    description: str
    text: str


@dataclass(frozen=True)
class Outcome:
    """What a run of a program gave; the status is None after the limit."""

    status: int | None
    output: str
    errors: str
    seconds: float

    def numbers(self) -> list[float]:
        """Return the numbers printed."""
        return [float(number) for number in _NUMBER.findall(self.output)]

    def failure(self) -> str:
        """Return the last line of the errors."""
        rows = [
            row for row in self.errors.splitlines() if row.strip() and not row.startswith(("For simplicity", "---", "The frames", "More:"))
        ]
        return "too long" if self.status is None else rows[-1].strip() if rows else f"status {self.status}"


def read_programs(text: str) -> Iterator[Program]:
    """Yield the programs of a text, in its order."""
    for section in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        name, _, description = head.partition(" | ")
        package, _, version = name.partition(" ")
        yield Program(package, version, description, body)


def run(program: Program, library: str, limit: float) -> Outcome:
    """Run a program under "jax" or "volta_fn", in another process."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "program.py"
        source.write_text(program.text)
        paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "Agg", "TQDM_DISABLE": "1"}
        environment["PYTHONHASHSEED"] = "0"  # sets of text, whose order some packages make the order of random keys
        environment |= {"VOLTA_CACHE_DIR": str(Path(folder) / "cache")} if library == "volta_fn" else {"JAX_PLATFORMS": "cpu"}
        start = time.perf_counter()
        try:
            completed = subprocess.run(
                [*_COMMANDS[library], str(source)], cwd=folder, env=environment, timeout=limit, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome(None, "", "", limit)
        return Outcome(completed.returncode, completed.stdout, completed.stderr, time.perf_counter() - start)


def compare(theirs: Outcome, ours: Outcome) -> str:
    """Return how a program went under volta_fn, given how it went under JAX."""
    if theirs.status != 0:
        return f"not counted, as under JAX: {theirs.failure()}"
    if ours.status != 0:
        return f"fails: {ours.failure()}"
    a, b = theirs.numbers(), ours.numbers()
    if not a:
        return "not counted: it prints no number"
    if len(a) != len(b):
        return f"differs: {len(b)} numbers, JAX's {len(a)}"
    largest = max(0.0 if x == y or (math.isnan(x) and math.isnan(y)) else abs(x - y) / max(1.0, abs(x)) for x, y in zip(a, b, strict=True))
    return f"{'same' if largest <= TOLERANCE else 'differs'} ({len(a)} numbers, {largest:.0e})"


def installed_version(package: str) -> str | None:
    """Return the version of a package that is installed, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Run the programs that the command names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=240.0)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    programs = list(read_programs(PROGRAMS.read_text()))
    if unknown := {*arguments.packages} - {p.package for p in programs}:
        parser.error(f"no program for {', '.join(sorted(unknown))}")
    print("| package | program |" + ("" if arguments.list else " result | time |"))
    print("| --- | --- |" + ("" if arguments.list else " --- | --- |"))
    same = counted = 0
    for program in programs:
        if arguments.packages and program.package not in arguments.packages:
            continue
        row = f"| {program.package} {program.version} | {program.description} |"
        version = installed_version(program.package)
        if arguments.list:
            print(row)
            continue
        if version is None:
            print(f"{row} not installed | |")
            continue
        runs = {library: [run(program, library, arguments.limit)] for library in ("jax", "volta_fn")}
        for _ in range(arguments.rounds - 1):
            for library, outcomes in runs.items():
                outcomes.append(run(program, library, arguments.limit))
        theirs, ours = (min(outcomes, key=lambda outcome: outcome.seconds) for outcomes in runs.values())
        result = compare(theirs, ours)
        same += result.startswith("same")
        counted += not result.startswith("not counted")
        remark = "" if version == program.version else f", of {version}"
        print(f"{row} {result}{remark} | {ours.seconds / theirs.seconds:.2f} |", flush=True)
    if not arguments.list:
        print(f"\n{same} of {counted} programs give JAX's numbers.")


if __name__ == "__main__":
    main()
