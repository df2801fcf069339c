"""Run tests as in Pyodide: without compiled packages and threads.

``python -m tests.pyodide_like PYTEST_ARGUMENTS``. The modules cannot be imported, and starting a thread raises what it raises there.
"""

from __future__ import annotations

import _thread
import importlib.machinery
import sys
import threading
from typing import Any, NoReturn

import ml_dtypes

#: Packages that Pyodide does not have, or not before a program asks for them.
MISSING = frozenset({"llvmlite", "onnx", "optree", "safetensors", "scipy", "wgpu"})


def _hidden(find: Any) -> Any:
    """Make a finder find none of the packages that are missing."""

    def find_spec(cls: type, fullname: str, path: Any = None, target: Any = None) -> Any:
        return None if fullname.partition(".")[0] in MISSING else find(fullname, path, target)

    return classmethod(find_spec)


def _no_thread(*args: Any) -> NoReturn:
    raise RuntimeError("can't start new thread")


def become() -> None:
    """Make this process like Pyodide's, before the package is imported."""
    finder: Any = importlib.machinery.PathFinder
    finder.find_spec = _hidden(finder.find_spec)
    threading.Thread.start = _no_thread  # type: ignore[method-assign,assignment]
    _thread.start_new_thread = _no_thread
    del ml_dtypes.int1, ml_dtypes.uint1  # Pyodide's is older


if __name__ == "__main__":
    become()
    import pytest

    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib", *sys.argv[1:]]))
