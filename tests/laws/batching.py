"""The law of `vmap`: it gives what a Python loop gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

import volta_fn as vf
from tests.laws.common import Function, arrays, assert_close, draw, host, restricted
from tests.laws.staging import in_the_middle
from tests.samples.sample import Sample
from volta_fn import dtypes

#: Examples mapped over: unlike any size in the samples, so that no axis can be mistaken for another.
SIZE = 7
#: A call on stacked arguments may round differently (matrix products sum in another order).
ROUNDING = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "complex64": 1e-5, "float64": 1e-12, "complex128": 1e-12}


def vmap_is_a_loop(sample: Sample) -> None:
    """Assert it for in_axes of None, 0, 1 and -1, between elementwise operations."""
    dtype = batched_dtype(sample)
    examples = [draw(sample, dtype, seed) for seed in range(SIZE)]
    function = in_the_middle(sample.function)
    for pattern in itertools.product((True, False), repeat=len(sample.args)):
        if not any(pattern):
            continue
        expected = loop(function, examples, pattern)
        for in_axes in _axes([np.ndim(x) for x in examples[0]], pattern):
            operands = [
                x if a is None else np.stack([e[i] for e in examples], a) for i, (x, a) in enumerate(zip(examples[0], in_axes, strict=True))
            ]
            actual = host(vf.vmap(function, in_axes)(*arrays(operands)))
            _assert_all_close(actual, expected, f"vmap of {sample} in {dtype.name} with in_axes={in_axes}")


def vmap_of_derivatives_is_a_loop(sample: Sample) -> None:
    """Assert it for the forward and reverse derivative by all arguments together."""
    dtype = batched_dtype(sample)
    examples = [draw(sample, dtype, seed) for seed in range(SIZE)]

    def forward(*args: vf.Array) -> list[vf.Array]:
        chosen = [args[i] for i in sample.wrt]
        return vf.jvp(restricted(sample.function, args, sample.wrt), tuple(chosen), tuple(chosen))[1]

    def backward(*args: vf.Array) -> list[vf.Array]:
        outs, pull_back = vf.vjp(restricted(sample.function, args, sample.wrt), *[args[i] for i in sample.wrt])
        return list(pull_back(outs))

    for name, function in (("jvp", forward), ("vjp", backward)) if sample.reverse else (("jvp", forward),):
        mapped = [True] * len(sample.args)
        operands = [np.stack([e[i] for e in examples]) for i in range(len(sample.args))]
        _assert_all_close(host(vf.vmap(function)(*arrays(operands))), loop(function, examples, mapped), f"vmap of {name} of {sample}")


def loop(function: Function, examples: Sequence[Sequence[np.ndarray]], mapped: Sequence[bool]) -> list[np.ndarray]:
    """Call the function on each example and stack the results: what `vmap` means."""
    results = [
        host(function(*arrays([example if m else shared for example, shared, m in zip(e, examples[0], mapped, strict=True)])))
        for e in examples
    ]
    return [np.stack(outs) for outs in zip(*results, strict=True)]


def batched_dtype(sample: Sample) -> np.dtype:
    """Return float64 if the sample takes it, else float32, else its first dtype.

    Derivatives are exact enough in float64.
    """
    return dtypes.as_dtype(next((name for name in ("float64", "float32") if name in sample.dtypes), sample.dtypes[0]))


def _axes(ranks: Sequence[int], pattern: Sequence[bool]) -> Iterator[tuple[int | None, ...]]:
    """Yield combinations of stacking axes for the mapped arguments.

    For one or two arguments all of them, for more aligned and staggered ones.
    """
    choices = [(None,) if not mapped else (0, 1, -1) if rank else (0,) for rank, mapped in zip(ranks, pattern, strict=True)]
    if sum(pattern) <= 2:
        yield from itertools.product(*choices)
        return
    for start in range(3):
        yield tuple(options[start % len(options)] for options in choices)
        yield tuple(options[(start + i) % len(options)] for i, options in enumerate(choices))


def _assert_all_close(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], label: str) -> None:
    assert len(actual) == len(expected), f"{label}: {len(actual)} results where the loop gives {len(expected)}"
    for got, want in zip(actual, expected, strict=True):
        assert_close(got, want, ROUNDING.get(want.dtype.name, 0.0), label)
