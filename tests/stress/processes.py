"""Programs that run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: What every program begins with: a model of which each number makes another program.
HEAD = """
import os, sys, threading, time
import numpy as np
import volta_fn as vf
import volta_fn.numpy as jnp

def model(number):
    def f(x):
        for i in range(3):
            x = jnp.tanh(x * (number + 0.25)) + jnp.sin(x + i)
        return jnp.cumsum(x).sum()
    return vf.jit(f)

x = jnp.linspace(0.0, 1.0, 64)
"""


def run(program: str, cache: Path | str = "", timeout: float = 120, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run a program after `HEAD`; a variable that is None is not set."""
    settings: dict[str, str | None] = {
        **os.environ,
        "VOLTA_CACHE_DIR": str(cache),
        "VOLTA_NATIVE": "1",
        "VOLTA_DEVICE": "cpu",
        **environment,
    }
    command = [sys.executable, "-c", HEAD + program]
    variables = {name: value for name, value in settings.items() if value is not None}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=variables, cwd=Path(__file__).parents[2], check=False
    )


def check(result: subprocess.CompletedProcess[str], printed: str) -> None:
    """Assert that a program printed this, nothing on stderr, and ended well."""
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, printed, "")
