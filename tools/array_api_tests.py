"""Run the Array API standard's own tests on volta_fn.numpy.

    python tools/array_api_tests.py CHECKOUT [--assign] [pytest's options and tests]

CHECKOUT is a clone of https://github.com/data-apis/array-api-tests with its submodule, whose requirements.txt is installed. Without options
every test draws 200 examples, the same in every run. The tests in array_api_skips.txt are skipped; with --assign none is, and x[i] = v
is allowed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIPS = HERE / "array_api_skips.txt"
VERSION = "2025.12"

#: The module under test: the namespace, with assignment allowed in all tests.
_ASSIGNING = "exec('import volta_fn.numpy as xp; allowed = xp.allow_assignment(); allowed.__enter__()')"

_OPTIONS = ["-p", "no:cacheprovider", "-q", "-rs", "--tb=short", "--disable-deadline", "--derandomize"]


def command(options: list[str], assign: bool) -> list[str]:
    """Return the command line of pytest, run in the checkout."""
    examples = [] if any(o.startswith(("--max-examples", "--hypothesis-max-examples")) for o in options) else ["--max-examples=200"]
    tests = [] if any(o.startswith("array_api_tests") for o in options) else ["array_api_tests"]
    skips = [] if assign else [f"--skips-file={SKIPS}"]
    return [sys.executable, "-m", "pytest", *_OPTIONS, *skips, *examples, *options, *tests]


def environment(assign: bool) -> dict[str, str]:
    """Return the environment: the module of this repository and the version to test."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    module = _ASSIGNING if assign else "volta_fn.numpy"
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "ARRAY_API_TESTS_MODULE": module,
        "ARRAY_API_TESTS_VERSION": VERSION,
    }


def main(arguments: list[str]) -> int:
    """Run the tests; return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--assign", action="store_true", help="allow x[i] = v, and skip nothing")
    given, options = parser.parse_known_args(arguments)
    if not (given.checkout / "array_api_tests").is_dir() or not any((given.checkout / "array-api").glob("*")):
        parser.error(f"{given.checkout} is not a clone of array-api-tests with its submodule array-api (git submodule update --init)")
    return subprocess.run(command(options, given.assign), cwd=given.checkout, env=environment(given.assign)).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
