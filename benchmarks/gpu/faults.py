"""Failing processes of a training run: `python -m benchmarks.gpu.faults -n 2`.

A GPT is trained by data parallelism, a process for each GPU, with a checkpoint every ten steps. In the middle the last process is killed,
or runs a kernel that stores where no memory is. The others must end within `SOON` seconds, the launcher must name that process, and the
run that it starts again must end with the bits of an undisturbed one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
from benchmarks.gpu.collectives import Gpus, training_program
from benchmarks.machine import ROOT, use_gpu
from benchmarks.workloads import named
from benchmarks.workloads.case import Workload
from volta_fn import io, tree
from volta_fn.runtime.llvm.text import i64
from volta_fn.targets.gpu.driver import BoundDispatch, BoundRange
from volta_fn.targets.nvidia.kernel import GLOBAL, KernelFunction, KernelHeader, i32, kernel_dispatch

FAULTS = ("killed", "kernel")
#: Seconds in which the others must end.
SOON = 5.0
STEPS, SAVED_EVERY, FAILING = 40, 10, 25


# The processes.


def train(workload: Workload, folder: Path, fault: str) -> None:
    """Train one of the processes, and print its losses and a hash of its parameters."""
    vf.distributed.initialize()
    gpus = Gpus(vf.process_count(), (vf.process_index(),))
    program, state, data = training_program(workload, gpus, workload.size["batch"])
    checkpoints = io.Checkpointer(folder / "checkpoints")
    saved: dict[str, Any] = {"state": state, "losses": [0.0] * STEPS, "step": 0}
    if checkpoints.all_steps():
        saved = checkpoints.restore(saved)
    state, losses, mark = saved["state"], saved["losses"], folder / "failed"
    for number in range(saved["step"], STEPS):
        if fault and number == FAILING and vf.process_index() == vf.process_count() - 1 and not mark.exists():
            mark.touch()
            print(f"fails by {fault!r} now", flush=True)
            fail(fault)
        state, loss = program(state, *data)
        losses[number] = float(np.asarray(loss))
        if (number + 1) % SAVED_EVERY == 0:
            checkpoints.save(number + 1, {"state": state, "losses": losses, "step": number + 1})
    bits = b"".join([np.asarray(x).tobytes() for x in tree.leaves(state)])
    print(f"losses {losses} state {hashlib.sha256(bits).hexdigest()[:16]}", flush=True)


def fail(fault: str) -> None:
    """End this process, or let its GPU run a kernel that fails."""
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    driver: Any = vf.local_devices(backend="gpu")[0].backend.gpu.queue.driver  # type: ignore[attr-defined]
    kernel, layout = driver.compile(faulty_kernel(), 1, frozenset([0]), 0)
    block = _Block(driver.allocate(256))
    driver.play([BoundDispatch(kernel, driver.bind(layout, [BoundRange(block, 0, 256)]), (1, 1, 1))])


class _Block(NamedTuple):
    """What a bind group needs of memory."""

    handle: int


def faulty_kernel() -> str:
    """Return a kernel that stores to an address that no memory has."""
    f = KernelFunction(0, 1, 32)
    f.store(i32(7), f.let(GLOBAL, f"inttoptr {i64(64)} to {GLOBAL}"), 4)
    return kernel_dispatch(KernelHeader(f.threads, 0), [0], 1, f.text(), 1).source


# What watches them.


class Run(NamedTuple):
    """The output of a run, and the seconds from a fault to the end of all."""

    output: str
    seconds: float


def run(words: Sequence[str], count: int, folder: Path, fault: str, runner: Sequence[str]) -> Run:
    """Train on so many processes, which start again once."""
    command = [sys.executable, "-m", "volta_fn.launch", "-n", str(count), "--restarts", "1", *runner]
    command += [str(Path(__file__)), *words, "--folder", str(folder), "--fault", fault]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "bufsize": 1}
    lines, begin, seconds = [], 0.0, 0.0
    with subprocess.Popen(command, env=environment, **pipes) as process:  # type: ignore[call-overload]
        for line in process.stdout:
            lines.append(line)
            if "fails by" in line:
                begin = time.monotonic()
            elif "all processes have ended" in line and not seconds:
                seconds = time.monotonic() - begin
    return Run("".join(lines), seconds)


def bits(output: str, count: int) -> str:
    """Return the losses and the hash that all processes have printed alike."""
    ends = re.findall(r"losses (\[.*\] state \w+)", output)
    assert len(ends) == count and len(set(ends)) == 1, output
    return str(ends[0])


def check(words: Sequence[str], count: int, runner: Sequence[str]) -> int:
    """Compare runs with a fault with an undisturbed one; return how many are wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        expected = bits(run(words, count, Path(root, "none"), "", runner).output, count)
        print(f"undisturbed: {expected[-60:]}", flush=True)
        for fault in FAULTS:
            output, seconds = run(words, count, Path(root, fault), fault, runner)
            reason = re.search(rf"volta_fn.launch: (process {count - 1} has .*)", output)
            is_same = f"losses {expected}" in output and bits(output, count) == expected
            is_right = reason is not None and seconds < SOON and is_same
            wrong += not is_right
            cause = "no process is named: " + output[-2000:] if reason is None else reason[1][:300]
            print(f"{fault}: all ended after {seconds:.2f} s; {cause}; started again, the bits are {'' if is_same else 'NOT '}the same")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status counts wrong ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", "--gpus", type=int, default=2)
    parser.add_argument("--workload", default="gpu train/gpt small@bfloat16")
    parser.add_argument("--runner", nargs="+", default=[], help="a script that runs the processes' script, as those of emulated GPUs")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fault", default="", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a tiny size")
    options = parser.parse_args(arguments)
    if options.folder is None:
        words = ["--workload", options.workload, *["--quick"] * options.quick]
        return check(words, options.gpus, options.runner)
    workload = named(options.workload)
    use_gpu()
    train(replace(workload, size=workload.quick) if options.quick else workload, options.folder, options.fault)
    return 0


if __name__ == "__main__":
    sys.exit(main())
