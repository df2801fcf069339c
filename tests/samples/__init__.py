"""Samples of every primitive, by family: each module holds a list `SAMPLES`, except `sample`, which says what a sample is."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import volta_fn.random  # packages that load on demand declare primitives, too
import volta_fn.special  # noqa: F401
from tests.samples.sample import Sample


def all_samples() -> Iterator[Sample]:
    """Every sample of every family."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        if module != "sample":
            yield from importlib.import_module(f"{__name__}.{module}").SAMPLES
