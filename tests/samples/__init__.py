"""Samples of every primitive, by family: each module holds a list `SAMPLES`, except `sample`, which says what a sample is."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace

import volta_fn.primitives
import volta_fn.random  # packages that load on demand declare primitives, too
import volta_fn.special
from tests.narrow_devices import has
from tests.samples.sample import Sample
from volta_fn.dtypes import as_dtype

for _module in pkgutil.walk_packages(volta_fn.primitives.__path__, "volta_fn.primitives."):
    importlib.import_module(_module.name)  # the whole instruction set, most of which loads on demand


def on_this_device(sample: Sample) -> Sample:
    """The sample in those of its dtypes in which the default device has what goes in and what comes out."""
    there = tuple([name for name in sample.dtypes if has(name) and all(map(has, _promised(sample, name)))])
    return sample if len(there) == len(sample.dtypes) else replace(sample, dtypes=there)


def _promised(sample: Sample, name: str) -> list[str]:
    """The dtypes of results, where the sample says them."""
    found = sample.result_dtype(as_dtype(name)) if sample.result_dtype else ()
    return [as_dtype(d).name for d in (found if isinstance(found, tuple) else (found,))]


def all_samples() -> Iterator[Sample]:
    """Every sample of every family, in the dtypes that the default device has."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        if module != "sample":
            for sample in map(on_this_device, importlib.import_module(f"{__name__}.{module}").SAMPLES):
                if sample.dtypes:
                    yield sample
