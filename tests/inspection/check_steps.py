"""Check what `explain` says of the training steps of the benchmarks.

    python -m tests.inspection.check_steps [--device cpu|gpu] [--quick] [--only REGEX] [--calls N]

For each step: kernels without a line of the user (none may be), the kernels' times over the measured step (within 10 %), and the peak of
memory over what a call allocates (within 2 %). That is measured in a process of its own: on the CPU as the growth of its resident memory
in the first call of the compiled step, on a GPU as the bytes that are leased from its pool. Exits with 1 if a step misses a bound.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import volta_fn as vf
from benchmarks.peak import forget_peak, highest, settle
from benchmarks.workloads import named
from benchmarks.workloads.case import library, map_arrays
from volta_fn.core.devices.device import Device

STEPS = ("train/mlp", "train/lenet", "train/lstm", "train/gpt")
#: How far times and the peak may be from what they are compared with.
TIME_BOUND, PEAK_BOUND = 0.10, 0.02
#: Linux's PR_SET_THP_DISABLE.
_NO_HUGE_PAGES = 41


class Found(NamedTuple):
    """What `explain` says of a step, and what the runtime allocated."""

    name: str
    kernels: int
    without_line: int
    kernel_seconds: float
    seconds: float
    peak: int
    allocated: int

    @property
    def time_error(self) -> float:
        """The kernels' times over the step's, less 1."""
        return self.kernel_seconds / self.seconds - 1

    @property
    def peak_error(self) -> float:
        """The peak over the allocated bytes, less 1."""
        return self.peak / self.allocated - 1

    @property
    def is_met(self) -> bool:
        """Whether every bound is kept."""
        return not self.without_line and abs(self.time_error) <= TIME_BOUND and abs(self.peak_error) <= PEAK_BOUND

    def __str__(self) -> str:
        times = f"{self.kernel_seconds * 1e3:9.3f} of {self.seconds * 1e3:9.3f} ms ({self.time_error:+.1%})"
        peaks = f"{self.peak:>12,} of {self.allocated:>12,} bytes ({self.peak_error:+.2%})"
        verdict = "met" if self.is_met else "MISSED"
        return f"{self.name:12s} {self.kernels:4d} kernels, {self.without_line} without a line; {times}; {peaks}; {verdict}"


def step_of(name: str, quick: bool) -> tuple[Any, tuple[Any, ...]]:
    """Return a jitted step, and its arguments on the default device."""
    lib = library("volta_fn")
    case = named(name).case(quick)
    return vf.jit(case.functional(lib)), map_arrays(lib.jnp.array, case.inputs)


def check(name: str, options: argparse.Namespace) -> Found:
    """Explain a step, and compare with what a call of it allocates."""
    step, args = step_of(name, options.quick)
    result = vf.explain(step, calls=options.calls)(*args)
    assert result.seconds is not None, "it was run"
    without = sum(not kernel.user_lines for kernel in result.steps)
    command = [sys.executable, "-m", "tests.inspection.check_steps", "--device", options.device, "--allocated", name]
    alone = subprocess.run([*command, *["--quick"] * options.quick], stdout=subprocess.PIPE, check=True, text=True)
    return Found(name, len(result.steps), without, result.kernel_seconds, result.seconds, result.memory.peak, int(alone.stdout))


def allocated(name: str, quick: bool) -> int:
    """Return the bytes of a step's arguments, and the most that its first call takes beyond.

    It is to run in a fresh process, where no memory is kept from other calls.
    """
    step, args = step_of(name, quick)
    leaves = vf.tree.leaves(args)
    warm = vf.jit(lambda x: vf.numpy.tanh(x @ x))  # starts threads, and loads what every program needs
    vf.block_until_ready(warm(vf.numpy.ones((256, 256))))
    compiled = step.lower(*args).compile()
    vf.block_until_ready(leaves)
    beyond = _leased if leaves[0].device.platform == "gpu" else _resident
    return sum(leaf.nbytes for leaf in leaves) + beyond(leaves[0].device, lambda: compiled(*args))


def _resident(device: Device, call: Callable[[], Any]) -> int:
    settle()
    ctypes.CDLL(None).prctl(_NO_HUGE_PAGES, 1, 0, 0, 0)  # which are resident as a whole, 2 MiB, when a byte is touched
    if not forget_peak():
        raise SystemExit("the kernel does not tell the peak of resident memory (/proc/self/clear_refs)")
    before = highest()
    results = vf.block_until_ready(call())
    grown = highest() - before
    del results  # not before the peak was read
    return grown


def _leased(device: Device, call: Callable[[], Any]) -> int:
    """Return the most bytes of leases that a call asks for at once."""
    pool: Any = device.backend.gpu.pool  # type: ignore[attr-defined]  # of a GPU
    device.backend.free_memory()
    now = most = 0

    def ended(size: int) -> None:
        nonlocal now
        now -= size

    def count(lease: Any, size: int) -> None:
        nonlocal now, most
        now += size
        most = max(most, now)
        weakref.finalize(lease, ended, size)

    def leases(sizes: Sequence[int]) -> Any:
        result = before[0](sizes)
        for lease, size in zip(result, sizes, strict=True):
            count(lease, size)
        return result

    def lease_unused(size: int) -> Any:
        result = before[1](size)
        if result is not None:
            count(result, size)
        return result

    before = pool.leases, pool.lease_unused
    pool.leases, pool.lease_unused = leases, lease_unused
    try:
        vf.block_until_ready(call())
    finally:
        pool.leases, pool.lease_unused = before
    return most


def main() -> int:
    """Check the steps and print a row for each."""
    parser = argparse.ArgumentParser(description="What explain says of the training steps, against what is measured.")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for a trial: microseconds and pages of memory are too coarse")
    parser.add_argument("--only", default="", help="a regular expression of the steps' names")
    parser.add_argument("--calls", type=int, default=15, help="timed calls of each step")
    parser.add_argument("--allocated", metavar="STEP", help="print only what a call of this step allocates, in this fresh process")
    options = parser.parse_args()
    met = True
    with vf.default_device(vf.devices(options.device)[0]):
        if options.allocated:
            print(allocated(options.allocated, options.quick))
            return 0
        for name in STEPS:
            if re.search(options.only, name):
                result = check(name, options)
                print(result, flush=True)
                met &= result.is_met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
