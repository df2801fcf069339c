"""Run a sample of the tests with other versions of the dependencies.

`python tools/dependency_versions.py oldest` or `newest`. The oldest are the lower bounds of pyproject.toml, the newest what pip finds. They
are installed in a virtual environment in a temporary folder, or in `--environment`, which is then kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: What the sample needs in addition; no test of it compares with JAX or PyTorch.
_TESTING = ["pytest>=8.3", "pytest-xdist", "hypothesis>=6.100"]
#: Tests that reach every dependency.
SAMPLE = """tests/core/arrays/test_array.py tests/core/test_check.py tests/tree tests/io/test_tensor_file.py tests/io/test_checkpoint.py
tests/jit/test_function.py tests/jit/test_compile.py tests/data tests/runtime tests/targets/cpu/runtime tests/targets/cpu/scalars
tests/targets/cpu/loops tests/targets/gpu/test_arrays.py""".split()


def versions(kind: str) -> list[str]:
    """Return the dependencies at their lower bounds, or without versions."""
    needed = [Requirement(text) for text in _PROJECT["dependencies"]]
    result = {r.name: r for r in needed if r.marker is None or r.marker.evaluate()}
    if kind == "newest":
        return sorted(result)
    return sorted(f"{name}=={_lowest(requirement)}" for name, requirement in result.items())


def _lowest(requirement: Requirement) -> str:
    (bound,) = [specifier.version for specifier in requirement.specifier if specifier.operator == ">="]
    return bound


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=["oldest", "newest"])
    parser.add_argument("--environment", type=Path, help="the folder of the virtual environment")
    parser.add_argument("--every", type=int, default=10, help="one test in so many (default 10)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = options.environment or Path(folder)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        python = str(environment / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", *versions(options.kind), *_TESTING], check=True)
        print(*versions(options.kind), flush=True)
        return subprocess.run([python, "-m", "pytest", "--every", str(options.every), *SAMPLE], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
