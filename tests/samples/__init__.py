"""Samples of every primitive, by family: each module has a list `SAMPLES`.

The module `sample` defines what a sample is.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace

import volta_fn.primitives
import volta_fn.random  # packages that load on demand declare primitives, too
import volta_fn.scipy.special
from tests.narrow_devices import has
from tests.samples.sample import USUAL_SHAPE, Sample
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.dtypes import as_dtype

#: Elementwise primitives, one of each arity, whose samples of every shape are tried where code is generated.
EVERY_SHAPE = frozenset({"neg", "add", "clamp"})

for _module in pkgutil.walk_packages(volta_fn.primitives.__path__, "volta_fn.primitives."):
    importlib.import_module(_module.name)  # all primitives, most of which load on demand


def on_this_device(sample: Sample) -> Sample:
    """Restrict a sample to the dtypes whose arguments and results the device has."""
    supported = tuple([name for name in sample.dtypes if has(name) and all(map(has, _promised(sample, name)))])
    return sample if len(supported) == len(sample.dtypes) else replace(sample, dtypes=supported)


def _promised(sample: Sample, name: str) -> list[str]:
    """Return the dtypes of results, where the sample says them."""
    result = sample.result_dtype(as_dtype(name)) if sample.result_dtype else ()
    return [as_dtype(d).name for d in (result if isinstance(result, tuple) else (result,))]


def all_samples() -> Iterator[Sample]:
    """Yield every sample of every family, in the dtypes of the default device."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        if module != "sample":
            for sample in map(on_this_device, importlib.import_module(f"{__name__}.{module}").SAMPLES):
                if sample.dtypes:
                    yield sample


def samples_of_code() -> Iterator[Sample]:
    """Yield the samples for tests of generated code: elementwise ones of one shape.

    How zero-dimensional, empty and broadcast operands are indexed is decided for all elementwise primitives alike, before any formula is
    generated: so the other shapes are tried with `EVERY_SHAPE`, and every law still holds for all samples in `tests/test_registry.py`.
    """
    for sample in all_samples():
        (name, *others) = sample.primitives
        arity = PRIMITIVES[name].arity
        if others or not arity or name in EVERY_SHAPE or {arg.shape for arg in sample.args} == {USUAL_SHAPE}:
            yield sample
