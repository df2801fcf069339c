"""Time the first training steps in this fresh process.

    python -m benchmarks.first_call WORKLOAD FRAMEWORK [--quick]

The first step includes tracing and compilation. VOLTA_CACHE_DIR names the folder of volta_fn's compiled objects.
"""

from __future__ import annotations

import argparse
import json
import time

from benchmarks.workloads import named
from benchmarks.workloads.case import contestant


def main() -> None:
    """Print the seconds of the first step and of the fastest of the next ones as JSON."""
    parser = argparse.ArgumentParser(description="How long a framework's first step takes.")
    parser.add_argument("workload")
    parser.add_argument("framework")
    parser.add_argument("--quick", action="store_true", help="a tiny size")
    options = parser.parse_args()
    call, wait = contestant(options.framework, named(options.workload).case(options.quick))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        wait(call())
        times.append(time.perf_counter() - start)
    print(json.dumps({"first": times[0], "later": min(times[1:])}))


if __name__ == "__main__":
    main()
