"""Run a fuzzer by its subject: `python -m tests.fuzz kernels --minutes 60`; `--help` after a subject lists its options.

Every module of this folder that defines `main(argv)` is a subject.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path


def subjects() -> list[str]:
    """Return the names of the modules that are commands."""
    modules = sorted(Path(__file__).parent.glob("[a-z]*.py"))
    return [module.stem for module in modules if "\ndef main(argv" in module.read_text()]


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("subject", choices=subjects())
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of the subject")
    arguments = parser.parse_args(argv)
    return int(importlib.import_module(f"tests.fuzz.{arguments.subject}").main(arguments.options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
