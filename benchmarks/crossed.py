"""Count the modules of volta_fn that a first jitted training step crosses.

A reader of its path opens as many files.

    python -m benchmarks.crossed [numpy] [cpu] [gpu] [--list] [--workload NAME]

A module is crossed if one of its functions runs from the call to the result. The limits are for the thread that calls; machine code is
generated and compiled on others, which are counted as well. What runs while a module is imported does not count. Each target has a process
of its own, without compiled objects from earlier ones. The exit status is 1 if a target exceeds its limit.
"""

from __future__ import annotations

import _thread
import argparse
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.fresh import run_fresh
from benchmarks.workloads import named
from benchmarks.workloads.case import contestant

STEP = "train/mlp"
PACKAGE = "volta_fn"

#: The most modules that the calling thread may cross, and the environment that selects the target.
LIMITS = {"numpy": 70, "cpu": 70, "gpu": 100}
ENVIRONMENTS = {"numpy": {"VOLTA_NATIVE": "0", "VOLTA_DEVICE": "cpu"}, "cpu": {"VOLTA_DEVICE": "cpu"}, "gpu": {"VOLTA_DEVICE": "gpu"}}


#: The names of code that runs while a module is imported: its own, and Python's search for it, in which finders take part.
_IMPORTS = ("<module>", "_find_and_load")


class Crossed(NamedTuple):
    """The functions that ran, by module: in the calling thread, and in all."""

    here: dict[str, list[str]]
    everywhere: dict[str, list[str]]


def modules_crossed(call: Callable[[], Any]) -> Crossed:
    """Call a function, and return the functions of the package that ran."""
    here: dict[str, dict[str, None]] = {}
    everywhere: dict[str, dict[str, None]] = {}
    caller, importing = threading.get_ident(), threading.local()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name in _IMPORTS and event in ("call", "return"):  # of any package: an import may call functions of another one
            importing.depth = getattr(importing, "depth", 0) + (1 if event == "call" else -1)
        elif event == "call" and not getattr(importing, "depth", 0):
            module = frame.f_globals.get("__name__", "")
            if module.partition(".")[0] == PACKAGE:
                for names in [everywhere, here] if threading.get_ident() == caller else [everywhere]:
                    names.setdefault(module, {})[code.co_qualname] = None

    def start_noting(function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
        def run() -> None:
            sys.setprofile(note)
            function(*arguments)

        return start_thread(run, ())

    start_thread = _thread.start_new_thread
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with mock.patch("_thread.start_new_thread", start_noting):
            call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    # Generated code has names of modules that do not exist.
    results = [
        {module: [*functions] for module, functions in sorted(names.items()) if module in sys.modules} for names in (here, everywhere)
    ]
    return Crossed(*results)


def report(target: str, crossed: Crossed, with_names: bool) -> bool:
    """Print how many modules a step crosses; return whether the limit is kept."""
    count, limit = len(crossed.here), LIMITS[target]
    packages = Counter(".".join(module.split(".")[1:3]) for module in crossed.everywhere)
    print(f"{target}: {count} modules (limit {limit}), {len(crossed.everywhere)} with all threads")
    print(f"  {', '.join(f'{name} {number}' for name, number in packages.items())}")
    for module, functions in crossed.everywhere.items() if with_names else ():
        print(f"  {'' if module in crossed.here else '(other threads) '}{module}: {', '.join(functions)}")
    return count <= limit


def main(arguments: Sequence[str] | None = None) -> int:
    """Count for the targets named; return 1 if one exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crossed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="{numpy,cpu,gpu}", help="all by default")
    parser.add_argument("--list", action="store_true", help="print the modules, and their functions that ran")
    parser.add_argument("--workload", default=STEP, metavar="NAME", help=f"another step than {STEP}")
    parser.add_argument("--here", action="store_true", help="in this process, as it is: print JSON")
    options = parser.parse_args(arguments)
    if unknown := [target for target in options.targets if target not in LIMITS]:
        parser.error(f"no target {unknown[0]!r}: choose from {', '.join(LIMITS)}")
    if options.here:
        call, wait = contestant(PACKAGE, named(options.workload).case(quick=True))
        print(json.dumps(modules_crossed(lambda: wait(call()))))
        return 0
    few_enough = True
    for target in options.targets or LIMITS:
        environment = ENVIRONMENTS[target]
        result = run_fresh("crossed", "--here", "--workload", options.workload, timeout=None, VOLTA_CACHE_DIR="", **environment)
        few_enough &= report(target, Crossed(*result), options.list)
    return 0 if few_enough else 1


if __name__ == "__main__":
    raise SystemExit(main())
