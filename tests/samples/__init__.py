"""Samples of every primitive, by family: each module holds a list `SAMPLES`, except `sample`, which says what a sample is."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace

import volta_fn.primitives
import volta_fn.random  # packages that load on demand declare primitives, too
import volta_fn.special
from tests.samples.sample import Sample
from volta_fn.errors import DTypeError

for _module in pkgutil.walk_packages(volta_fn.primitives.__path__, "volta_fn.primitives."):
    importlib.import_module(_module.name)  # the whole instruction set, most of which loads on demand


def all_samples() -> Iterator[Sample]:
    """Every sample of every family, in the dtypes that the default device has."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        if module != "sample":
            for sample in importlib.import_module(f"{__name__}.{module}").SAMPLES:
                there = [name for name in sample.dtypes if has(name)]
                if there:
                    yield sample if len(there) == len(sample.dtypes) else replace(sample, dtypes=tuple(there))


@functools.cache
def has(dtype: str) -> bool:
    """Whether the default device has a dtype."""
    try:
        volta_fn.numpy.zeros(1, dtype)
    except DTypeError:
        return False
    return True
