"""Measure tiny calls and imports alone: `python benchmarks/small.py`.

Takes the options of `python -m benchmarks`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.__main__ import main  # noqa: E402  the folder above must be found first

if __name__ == "__main__":
    sys.exit(main(["--only", "^call/|^start/import", *sys.argv[1:]]))
