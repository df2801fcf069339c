"""Run all planted faults in all modes on all targets, and compare the messages with the golden files.

    python -m tests.inspection.check_faults [--target numpy|native|gpu]

Prints each fault whose message is another, and a row for each target. Exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import numpy as np

import volta_fn as vf
from tests.inspection import test_faults as faults
from tests.inspection import test_habits as habits
from tests.inspection.golden_file import shown
from volta_fn.jit.eager import forget_kernels

TARGETS = ("numpy", "native", "gpu")


def messages(mode: str) -> Iterator[tuple[str, str, str]]:
    """Yield for each fault its name, the message, and that of the golden file."""
    wanted = faults.GOLDEN.read()
    for name, fault in faults.FAULTS.items():
        error = faults.raised(fault, mode)
        at = error.location
        assert at is not None
        assert (Path(at.file).name, at.lineno) == ("faults.py", fault.line()), f"{name} under {mode}: {error}"
        yield name, shown(str(error)), wanted[f"{name} under {mode}"]
    wanted = habits.GOLDEN.read()
    for name, text in habits.messages(mode).items():
        yield name, text, wanted[name]


def check(target: str) -> int:
    """Run all on a target; return how many messages are other ones."""
    vf.clear_caches()
    forget_kernels()
    wrong = count = 0
    with ExitStack() as stack:
        stack.enter_context(np.errstate(all="ignore"))
        if target == "gpu":
            stack.enter_context(vf.default_device(vf.devices("gpu")[0]))
        else:
            stack.enter_context(mock.patch.object(vf.devices("cpu")[0].backend, "native", target == "native"))
        for mode in faults.MODES:
            for name, text, wanted in messages(mode):
                count += 1
                if text != wanted:
                    wrong += 1
                    print(f"{target}, {name} under {mode}:\n{text}\nin place of\n{wanted}", flush=True)
    print(f"{target:7}{len(faults.FAULTS) + len(habits.HABITS)} faults, {count} messages, {wrong} other ones", flush=True)
    return wrong


def main() -> int:
    """Run the faults; return 1 if a message is another."""
    parser = argparse.ArgumentParser(description="All planted faults in all modes on all targets.")
    parser.add_argument("--target", choices=TARGETS, help="only this one")
    options = parser.parse_args()
    return int(sum([check(target) for target in TARGETS if options.target in (None, target)]) > 0)


if __name__ == "__main__":
    sys.exit(main())
