"""Programs in processes of their own, as `install` changes its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments; the result has what it printed."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, **options)  # type: ignore[call-overload]


def output_of(program: str) -> str:
    """Return what a program prints after `volta_fn.jax.install()`."""
    completed = run("-W", "error", "-c", f"import volta_fn.jax\nvolta_fn.jax.install()\n{program}")
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


def output_of_jax(program: str) -> str:
    """Return what a program prints under JAX itself."""
    completed = run("-c", program, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()
