"""The laws of every collective, at every number of processes, on every target; one launch for each.

    python -m tests.distributed.laws [--processes 1 2 4 8] [--targets numpy native gpu] [--every N]

`law_cases.py` has the laws. The GPU is Mesa's, in software, where the machine has none.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.distributed.launching import run

#: What chooses a target.
TARGETS = {"numpy": {"VOLTA_NATIVE": "0"}, "native": {"VOLTA_NATIVE": "1"}, "gpu": {"VOLTA_DEVICE": "gpu"}}
#: Seconds after which the laws at one number of processes count as hanging.
LIMIT = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 if a law is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.distributed.laws")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=[*TARGETS])
    parser.add_argument("--every", type=int, default=1, help="check one law in so many")
    options = parser.parse_args(arguments)
    failed = 0
    for target in options.targets:
        for count in options.processes:
            start = time.monotonic()
            script = str(Path(__file__).with_name("law_cases.py"))
            completed = run(count, script, "--every", str(options.every), limit=LIMIT, **TARGETS[target])
            good = completed.returncode == 0 and "laws hold" in completed.stdout
            failed += not good
            summary = completed.stdout.strip().removeprefix("[0] ") if good else f"FAILED\n{completed.stdout}{completed.stderr}"
            print(f"{target}: {summary} ({time.monotonic() - start:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
