"""Run the Array API standard's own tests on volta_fn.numpy.

    python tools/array_api_tests.py CHECKOUT [pytest's options and tests]

CHECKOUT is a clone of https://github.com/data-apis/array-api-tests with its submodule, whose requirements.txt is installed. Without options
every test draws 200 examples, the same in every run; --hypothesis-seed=N draws others. VOLTA_DEVICE=gpu and VOLTA_NATIVE=0 choose another
target. The tests that assign to elements run where that is allowed (array_api_assignment.py).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = "2025.12"

_OPTIONS = ["-p", "no:cacheprovider", "-p", "tools.array_api_assignment", "-q", "-rs", "--tb=short", "--disable-deadline"]


def command(options: list[str]) -> list[str]:
    """Return the command line of pytest, run in the checkout."""
    examples = [] if any(o.startswith(("--max-examples", "--hypothesis-max-examples")) for o in options) else ["--max-examples=200"]
    seeds = [] if any(o.startswith("--hypothesis-seed") for o in options) else ["--derandomize"]
    tests = [] if any(o.startswith("array_api_tests") for o in options) else ["array_api_tests"]
    return [sys.executable, "-m", "pytest", *_OPTIONS, *seeds, *examples, *options, *tests]


def environment() -> dict[str, str]:
    """Return the environment: the module of this repository and the version to test."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "ARRAY_API_TESTS_MODULE": os.environ.get("ARRAY_API_TESTS_MODULE", "volta_fn.numpy"),
        "ARRAY_API_TESTS_VERSION": VERSION,
    }


def main(arguments: list[str]) -> int:
    """Run the tests; return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    known_options, options = parser.parse_known_args(arguments)
    if not (known_options.checkout / "array_api_tests").is_dir() or not any((known_options.checkout / "array-api").glob("*")):
        parser.error(
            f"{known_options.checkout} is not a clone of array-api-tests with its submodule array-api (git submodule update --init)"
        )
    return subprocess.run(command(options), cwd=known_options.checkout, env=environment()).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
