"""A process of the survey, which answers as `benchmarks.worker` does."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.survey.rows import Row
from benchmarks.survey.tables import TABLE
from benchmarks.worker import Worker, answer_requests

#: Where each framework has the modules of the rows; others it does not compete in.
MODULES = {
    "volta_fn": {name: f"volta_fn.{path}" for name, path in (("numpy", "numpy"), ("fft", "numpy.fft"), ("lax", "lax"), ("nn", "nn"))}
    | {"special": "volta_fn.scipy.special"},
    "jax": {"numpy": "jax.numpy", "fft": "jax.numpy.fft", "lax": "jax.lax", "nn": "jax.nn", "special": "jax.scipy.special"},
    "numpy": {"numpy": "numpy", "fft": "numpy.fft", "special": "scipy.special"},
}
_ROWS = {row.name: row for row in TABLE}
#: Calls before the first timed one: eager functions are compiled meanwhile.
_WARM = 4


class Contestant(Worker):
    """The side that asks."""

    module = "benchmarks.survey.contestants"


class Survey:
    """The side that answers: one framework, one function at a time, in two forms."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.forms: dict[str, Callable[[], Any]] = {}
        if framework == "jax":
            importlib.import_module("jax").config.update("jax_enable_x64", True)

    def prepare(self, name: str, elements: int) -> dict[str, list[np.ndarray] | None]:
        """Prepare a function, and return the results of its forms."""
        row = _ROWS[name]
        self.forms = {}
        function = self._find(row)
        if function is None:
            return {}
        arrays = tuple(row.make(np.random.default_rng(0), elements))

        def call(*arrays: Any) -> Any:
            return row.call(function, *arrays)

        if self.framework == "numpy":  # within the same Python functions, since these take as long as small arrays
            self.forms["numpy"] = lambda: call(*arrays)
        else:
            library = importlib.import_module(self.framework)
            arrays = tuple([library.device_put(array) for array in arrays])
            for form, measured in (("eager", call), ("jit", library.jit(call))):
                self.forms[f"{self.framework} {form}"] = self._complete(measured, arrays)
        return {form: self._tried(form) for form in list(self.forms)}

    def _complete(self, call: Callable[..., Any], arrays: tuple[Any, ...]) -> Callable[[], Any]:
        """Return the call that ends when its results are computed.

        Those of volta_fn on the CPU always are when it returns, as NumPy's are.
        """
        return _waiting(call, arrays) if self.framework == "jax" else lambda: call(*arrays)

    def _find(self, row: Row) -> Callable[..., Any] | None:
        module, function = row.path()
        path = MODULES[self.framework].get(module)
        result: Callable[..., Any] | None = getattr(importlib.import_module(path), function, None) if path else None
        return result

    def _tried(self, form: str) -> list[np.ndarray] | None:
        """Call a form; drop it and return None if it fails."""
        try:
            for _ in range(_WARM):
                result = self.forms[form]()
        except Exception as error:
            del self.forms[form]
            print(f"{form}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            return None
        return [np.asarray(array, np.complex128) for array in _leaves(result)]

    def time_calls(self, form: str, count: int) -> float:
        """Return the seconds of one of so many calls."""
        call = self.forms[form]
        if count > 1:
            call()
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count


def _waiting(call: Callable[..., Any], arrays: tuple[Any, ...]) -> Callable[[], Any]:
    """Return the call that ends when its results are computed."""

    def wait_for_all() -> Any:
        result = call(*arrays)
        for leaf in _leaves(result):
            leaf.block_until_ready()
        return result

    try:
        several = isinstance(call(*arrays), (list, tuple))
    except Exception:  # which is reported when it is tried
        several = False
    return wait_for_all if several else lambda: call(*arrays).block_until_ready()


def _leaves(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [leaf for entry in result for leaf in _leaves(entry)]
    return [result]


if __name__ == "__main__":
    answer_requests(Survey(sys.argv[1]))
