"""The sweep: every primitive in the registry has its rules and samples, and every law holds for every sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.laws import laws_for, missing
from tests.laws.common import arrays, draw
from tests.samples import all_samples
from tests.samples.sample import Sample
from volta_fn import dtypes, jit
from volta_fn.core.jaxpr import sub_jaxprs
from volta_fn.core.primitive import PRIMITIVES, Primitive
from volta_fn.transforms.vmap import BatchTrace

SAMPLES = list(all_samples())
COVERED = {name for sample in SAMPLES for name in sample.primitives}


#: A primitive without results, which only `checkify` loads; tests/experimental/checkify has its tests.
_WITHOUT_RESULTS = {"check"}


@pytest.mark.parametrize("name", [name for name in PRIMITIVES if name not in _WITHOUT_RESULTS])
def test_primitive_is_whole(name: str) -> None:
    lacks = missing(PRIMITIVES[name], COVERED)
    assert not lacks, f"the primitive {name} lacks {', '.join(lacks)}"


def test_samples_are_of_primitives() -> None:
    unknown = COVERED - set(PRIMITIVES)
    assert not unknown, f"samples of primitives that do not exist: {sorted(unknown)}"
    names = [str(s) for s in SAMPLES]
    assert len(set(names)) == len(names), f"samples that share a name: {sorted({n for n in names if names.count(n) > 1})}"


@contextmanager
def monitored_batching(result: set[str]) -> Iterator[None]:
    """Collect the names of the primitives whose batching rules run: collectives leave no other trace of themselves."""
    process = BatchTrace.process

    def noting(self: BatchTrace, primitive: Primitive, args: Any, params: Any) -> Any:
        result.add(primitive.name)
        return process(self, primitive, args, params)

    BatchTrace.process = noting  # type: ignore[method-assign]  # restored below
    try:
        yield
    finally:
        BatchTrace.process = process  # type: ignore[method-assign]


def primitives_of(function: Callable[..., Any], *args: Any) -> set[str]:
    """Return the names of the primitives in a function's program, in the programs nested in it, and of those that `vmap` mapped away."""
    results: set[str] = set()
    with monitored_batching(results):
        pending = [jit(function).lower(*args).jaxpr]
    while pending:
        for eqn in pending.pop().eqns:
            results.add(eqn.primitive.name)
            pending += sub_jaxprs(eqn.params)
    return results


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_sample_calls_its_primitives(sample: Sample) -> None:
    args = arrays(draw(sample, dtypes.as_dtype(sample.dtypes[0])))
    unused = set(sample.primitives) - primitives_of(sample.function, *args)
    assert not unused, f"the sample {sample} does not call {sorted(unused)}"


CASES = [(sample, law) for sample in SAMPLES for law in laws_for(sample)]


@pytest.mark.parametrize(("sample", "law"), CASES, ids=[f"{sample}-{law.__name__}" for sample, law in CASES])
def test_law(sample: Sample, law: Callable[[Sample], None]) -> None:
    law(sample)
