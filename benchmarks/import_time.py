"""Time an import in this fresh process: `python -m benchmarks.import_time MODULE`.

Prints the seconds, and which heavy modules were loaded.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

HEAVY = {"wgpu", "llvmlite", "safetensors"}  # what volta_fn loads only when it is needed


def main() -> None:
    """Import the module named and print JSON."""
    start = time.perf_counter()
    importlib.import_module(sys.argv[1])
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "heavy": sorted(HEAVY & set(sys.modules))}))


if __name__ == "__main__":
    main()
