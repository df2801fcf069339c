"""`python -m benchmarks [--json FOLDER]` runs every benchmark, each in a process of its own."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Run all the programs of this folder."""
    parser = argparse.ArgumentParser(description="Run every benchmark.")
    parser.add_argument("--json", type=Path, help="write each benchmark's results to a file in this folder")
    options = parser.parse_args()
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
    for program in sorted(HERE.glob("[a-z]*.py")):
        print(f"== {program.stem}", flush=True)
        output = ["--json", str(options.json / f"{program.stem}.json")] if options.json else []
        subprocess.run([sys.executable, str(program), *output], check=True)


if __name__ == "__main__":
    main()
