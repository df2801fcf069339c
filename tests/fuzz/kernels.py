"""Run random kernels in every schedule that a target has for them, and compare with the interpreter; print the smallest of what differs.

`python -m tests.fuzz kernels --minutes 60` runs machine code with this CPU's widest vectors, `--width 16` with narrower ones, and `--gpu`
shaders. Each routine runs as a whole and in parts, on one thread and on four, with its arrays next to a page that must not be touched and
at odd offsets between guard bytes, and with results in the memory of operands where the compiler allows it. What was once wrong is in
`kernel_corpus.txt`, one kernel a block, and is run first.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

import volta_fn.targets.numpy.backend as _evaluation_rules  # noqa: F401 # for the interpreter
from tests.fuzz.kernel_drawing import data_for, drawn
from tests.fuzz.kernel_oracle import Bounded, Oracle, differs
from tests.fuzz.kernel_shrinking import shrunk
from tests.fuzz.kernel_text import parsed, written
from volta_fn.compiler.ir.kernel import Kernel, interpret

CORPUS = Path(__file__).parent / "kernel_corpus.txt"

#: Seconds between lines that tell how many kernels there were.
_TELL = 60.0


class Machine(Protocol):
    """What runs every routine of a kernel."""

    #: Whether operations may be fused, so that results differ by rounding.
    fused: bool

    def supports(self, dtype: np.dtype) -> bool:
        """Return True if kernels may have a dtype."""

    def runs(self, kernel: Kernel, inputs: Sequence[np.ndarray]) -> Iterator[Run]:
        """Run a kernel in every way."""


class Run(NamedTuple):
    """One way to run a kernel, its results, and what else went wrong."""

    way: str
    results: Sequence[np.ndarray]
    fault: str = ""


class Report(NamedTuple):
    """A kernel in the corpus' form, and what is wrong with it."""

    kernel: Kernel
    seed: int
    way: str
    fault: str

    def __str__(self) -> str:
        return f"# seed {self.seed}: {self.fault}, {self.way}\n{written(self.kernel)}\n"


class Count(NamedTuple):
    """How many kernels were run, in how many ways."""

    kernels: int
    runs: int

    def __str__(self) -> str:
        return f"{self.kernels:,} kernels, {self.runs:,} runs"


def compared(kernel: Kernel, seed: int, machine: Machine) -> tuple[int, Report | None]:
    """Run a kernel in every way; return how many there were, and the first that is wrong."""
    inputs = data_for(kernel, seed)
    wanted = Oracle(kernel, inputs, fused=machine.fused).outputs()
    fault = _difference(interpret(kernel, *inputs), wanted)
    if fault:
        return 0, Report(kernel, seed, "in the interpreter", fault)
    right: set[bytes] = set()
    count = 0
    for run in machine.runs(kernel, inputs):
        count += 1
        bits = b"".join([x.tobytes() for x in run.results])
        fault = run.fault or ("" if bits in right else _difference(run.results, wanted))
        if fault:
            return count, Report(kernel, seed, run.way, fault)
        right.add(bits)
    return count, None


def _difference(results: Sequence[np.ndarray], wanted: Sequence[Bounded]) -> str:
    for number, (result, bounded) in enumerate(zip(results, wanted, strict=True)):
        wrong = differs(result, bounded)
        if wrong.any():
            first = int(np.argmax(wrong))
            actual, right, error = result.reshape(-1)[first], bounded.value[first], bounded.error[first]
            return f"y{number} has {int(wrong.sum())} of {result.size} wrong, at {first} {actual!s} instead of {right!s} ± {error:.3g}"
    return ""


def smallest(report: Report, machine: Machine) -> Report:
    """Return a report of the smallest kernel that fails."""
    last = [report]

    def fails(kernel: Kernel) -> bool:
        result = attempted(kernel, report.seed, machine)
        if result is not None:
            last[0] = result
        return result is not None

    shrunk(report.kernel, fails)
    return last[0]


def attempted(kernel: Kernel, seed: int, machine: Machine) -> Report | None:
    """Return what is wrong with a kernel, be it that the compiler fails."""
    try:
        return compared(kernel, seed, machine)[1]
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:120] if str(error) else ''}"
        return Report(kernel, seed, f"{Path(where.filename).name}:{where.lineno}", text)


def check(seeds: range, machine: Machine, until: float = float("inf"), say: Callable[[str], None] = print) -> tuple[Count, list[Report]]:
    """Compare the kernels of seeds; return how many there were, and reports of what differs."""
    kernels = runs = 0
    reports = []
    for seed in seeds:
        if time.monotonic() > until:
            break
        kernel = drawn(seed, machine.supports)
        kernels += 1
        try:
            count, report = compared(kernel, seed, machine)
            runs += count
        except Exception:
            report = attempted(kernel, seed, machine)
        if report is not None:
            reports.append(smallest(report, machine))
            say(str(reports[-1]))
    return Count(kernels, runs), reports


def corpus() -> list[tuple[str, Kernel]]:
    """Return the kernels that were once wrong, with what was wrong with them."""
    blocks = [block.strip() for block in CORPUS.read_text().split("\n\n") if block.strip()]
    return [(block.split("\n")[0].removeprefix("# "), parsed(block)) for block in blocks]


def replayed(machine: Machine) -> list[Report]:
    """Return what is wrong with the kernels of the corpus."""
    kernels = [kernel for _, kernel in corpus() if all(machine.supports(n.dtype) for n in kernel.nodes)]
    reports = [attempted(kernel, seed, machine) for kernel in kernels for seed in range(1, 5)]
    return [report for report in reports if report is not None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="how many kernels")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so many minutes (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="the first kernel's seed")
    parser.add_argument("--width", type=int, choices=(16, 32, 64), help="bytes of a vector (default: the widest)")
    parser.add_argument("--gpu", action="store_true", help="run shaders on the GPU, or on a software Vulkan, instead of machine code")
    options = parser.parse_args(argv)
    if options.width:
        os.environ["VOLTA_VECTOR_BYTES"] = str(options.width)
    until = time.monotonic() + 60 * options.minutes
    return _supervised(options.seed, options.count, until, options.gpu)


def machine_of(gpu: bool) -> Machine:
    if gpu:
        from tests.fuzz.kernel_shaders import Shaders

        return Shaders()
    from tests.fuzz.kernel_machine_code import MachineCode

    return MachineCode()


def _supervised(first: int, count: int, until: float, gpu: bool) -> int:
    """Check kernels in a process of their own; after a crash, go on in another."""
    total, wrong, replay = Count(0, 0), 0, True
    told = time.monotonic()
    while total.kernels < count and (time.monotonic() < until or replay):
        reader, writer = os.pipe()
        process = os.fork()
        if not process:
            os.close(reader)
            _in_process(range(first + total.kernels, first + count), until, gpu, replay, writer)
        os.close(writer)
        with os.fdopen(reader) as lines:
            for line in lines:
                done, runs, reports = map(int, line.split())
                total, wrong = Count(total.kernels + done, total.runs + runs), wrong + reports
                if time.monotonic() > told + _TELL:
                    told = time.monotonic()
                    print(f"… {total}, {wrong} wrong", flush=True)
        _, status = os.waitpid(process, 0)
        replay = False
        if os.WIFSIGNALED(status):
            seed = first + total.kernels
            total, wrong = Count(total.kernels + 1, total.runs), wrong + 1
            print(f"# seed {seed}: ended by {signal.Signals(os.WTERMSIG(status)).name}", flush=True)
            print(written(drawn(seed, machine_of(gpu).supports)), flush=True)
        elif status:
            return 2
        elif time.monotonic() > until:
            break
    print(f"{total}, {wrong} wrong")
    return bool(wrong)


def _in_process(seeds: range, until: float, gpu: bool, replay: bool, writer: int) -> None:
    """Check kernels one by one, and tell of each when it is done."""
    status = 1
    try:
        machine = machine_of(gpu)
        for report in replayed(machine) if replay else ():
            print(f"of the corpus: {report}", flush=True)
            os.write(writer, b"0 0 1\n")
        for seed in seeds:
            if time.monotonic() > until:
                break
            counted, reports = check(range(seed, seed + 1), machine, say=lambda text: print(text, flush=True))
            os.write(writer, f"1 {counted.runs} {len(reports)}\n".encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
