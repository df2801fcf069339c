"""A process that runs one framework: `python -m benchmarks.worker FRAMEWORK`.

Frameworks in one process disturb each other (PyTorch's OpenMP threads were seen ten times slower once JAX's were there), so each has
its own, and all but one wait for a request while it is measured. Requests and answers are pickled, through standard input and output.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.machine import on_gpu, search_path
from benchmarks.workloads import named
from benchmarks.workloads.case import STEPS, Contestant, arrays_in, competes, contestant, library, map_arrays

NOTHING = Contestant(lambda: None, lambda result: None)
#: Of arrays of more elements every so-manieth row is compared.
LARGE, ROWS = 1 << 22, 17


class FrameworkError(RuntimeError):
    """A framework failed, or its process died."""

    def __init__(self, framework: str, message: str) -> None:
        super().__init__(message)
        self.framework = framework


class Worker:
    """The side that asks."""

    #: What is run, with the framework as its argument.
    module = "benchmarks.worker"

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", self.module, self.framework]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": search_path()})

    def ask(self, request: str, *arguments: Any) -> Any:
        """Return what a method of `Bench` returns in the process, restarted if it died.

        Raises:
            FrameworkError: it failed, or the process died.
        """
        self.begin(request, *arguments)
        return self.answer()

    def begin(self, request: str, *arguments: Any) -> None:
        """Send a request to the process, restarted if it died.

        `answer` returns the answer.
        """
        if self.process.poll() is not None:
            self.stop()
            self.process = self._start()
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # `answer` finds that the process died
            pickle.dump((request, arguments), self.process.stdin)
            self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the answer to what was begun; raise as `ask` does."""
        assert self.process.stdout
        try:
            fine, answer = pickle.load(self.process.stdout)
        except EOFError:
            raise FrameworkError(self.framework, f"the process of {self.framework} died with status {self.process.wait()}") from None
        if not fine:
            raise FrameworkError(self.framework, f"{self.framework} failed:\n{answer}")
        return answer

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):  # of a process that died with a question unread
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def ask_all(workers: Mapping[str, Worker], request: str, *arguments: Any) -> dict[str, Any]:
    """Return the answers of all processes, which work at the same time.

    The first failure is raised when all have answered.
    """
    for worker in workers.values():
        worker.begin(request, *arguments)
    answers, failures = {}, []
    for name, worker in workers.items():
        try:
            answers[name] = worker.answer()
        except FrameworkError as error:
            failures.append(error)
    for failure in failures:
        raise failure
    return answers


class Bench:
    """The side that answers: one framework, one workload at a time."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.work = NOTHING
        #: What the function is that the work does, and arguments' shapes and dtypes; volta_fn's.
        self.outline: tuple[Any, ...] = ()
        if framework == "torch" and "OMP_NUM_THREADS" in os.environ:
            importlib.import_module("torch").set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def finds_gpu(self) -> bool:
        """Return True if the framework computes on a GPU; ours raises without one."""
        module = importlib.import_module(self.framework)
        if self.framework == "jax":
            return bool(module.default_backend() == "gpu")
        return bool(self.framework == "volta_fn" or module.cuda.is_available())

    def prepare(self, name: str, quick: bool) -> tuple[float, list[Any]] | None:
        """Prepare a workload; return its first call's seconds, and results to compare.

        That is None if the framework has no such workload.
        """
        self.work = NOTHING
        gc.enable()
        gc.collect()
        case = named(name).case(quick)
        if not competes(self.framework, case):
            return None
        work = contestant(self.framework, case)
        start = time.perf_counter()
        result = work.call()
        work.wait(result)
        seconds = time.perf_counter() - start
        results = [_sample(arrays_in(result))] + [arrays_in(work.call()) for _ in range(STEPS - 1 if case.stateful else 0)]
        self.work = work
        if self.framework == "volta_fn":
            self.outline = case.functional(library("volta_fn")), map_arrays(_cost().outline, case.inputs)
        gc.disable()
        return seconds, results

    def plan(self, name: str, quick: bool) -> int:
        """Return the bytes that a compiled workload needs besides inputs and results.

        Nothing runs. It is for JAX and volta_fn.
        """
        case, lib = named(name).case(quick), library(self.framework)
        shapes = map_arrays(lambda a: lib.jax.ShapeDtypeStruct(a.shape, a.dtype), case.inputs)
        lowered = lib.jax.jit(case.functional(lib)).lower(*shapes)
        if self.framework == "jax":
            return int(lowered.compile().memory_analysis().temp_size_in_bytes)
        return int(lowered.memory().temporaries)

    def rest(self, seconds: float) -> None:
        """Wait so many seconds, or up to ten times as many while own threads spin."""
        for _ in range(10):
            before = time.process_time()
            time.sleep(seconds)
            if time.process_time() - before <= seconds / 10:
                return

    def cost(self) -> Any:
        """Return the cost of volta_fn's call."""
        return _cost().cost(*self.outline, self.work.call)

    def time_calls(self, count: int, warm_up: bool) -> float:
        """Return the seconds of one of so many calls; on a GPU, of all of them, divided."""
        call, wait = self.work
        if warm_up:
            wait(call())
        start = time.perf_counter()
        for _ in range(count):
            result = call()
        if on_gpu():
            wait(result)
        return (time.perf_counter() - start) / count


def _sample(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return some rows of large arrays, which are enough to compare."""
    return [a if a.size <= LARGE or a.ndim == 0 else a[::ROWS] for a in arrays]


def _cost() -> Any:
    """Import the module that counts, and volta_fn, which other processes do not."""
    return importlib.import_module("benchmarks.cost")


def answer_requests(bench: Any) -> None:
    """Answer with the methods of `bench` until there are no more requests."""
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    while True:
        try:
            request, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = True, getattr(bench, request)(*arguments)
        except Exception:
            answer = False, traceback.format_exc(limit=-6)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    answer_requests(Bench(sys.argv[1]))
