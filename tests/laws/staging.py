"""The laws of staging: tracing keeps types, and `jit` keeps values."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.laws.common import ROUNDING, Function, arrays, assert_close, assert_same_bits, draw, host, on_gpu, restricted
from tests.samples.sample import Sample
from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array
from volta_fn.core.staging import eval_jaxpr


def _shift(x: Array, by: int) -> Array:
    """Apply an elementwise operation that every dtype has; -`by` inverts it."""
    if x.dtype in dtypes.BOOL:
        return vf.lax.bitwise_not(x)
    step = np.asarray(1).astype(x.dtype)
    return vf.lax.add(x, step) if by > 0 else vf.lax.sub(x, step)


def in_the_middle(function: Function) -> Function:
    """Return `function` between operations whose buffers a plan may overwrite.

    If a result shared memory with an argument without the plan's knowledge, the arguments' sum, computed last, would show it.
    """

    def program(*args: Any) -> list[Any]:
        moved = [_shift(_shift(a, 1), -1) for a in args]
        outs = tree.leaves(function(*moved))
        changed = [_shift(_shift(o, 1), 1) for o in outs]
        return [*changed, *[_shift(m, 1) for m in moved]]

    return program


def programs_of(sample: Sample) -> list[Function]:
    """Return a sample alone, and in the middle of a program.

    On a GPU, bits are not taken of values that a program may have rounded otherwise.
    """
    shows_roundings = on_gpu() and any(p.startswith("bitcast") for p in sample.primitives)
    return [sample.function] if shows_roundings else [sample.function, in_the_middle(sample.function)]


def jit_is_eager(sample: Sample) -> None:
    """Assert that `jit` keeps the bits, alone and in a program, called twice.

    On a GPU not to the last bit: its compiler may round a product and a sum of one program once.
    """
    for name in sample.dtypes:
        inputs = draw(sample, dtypes.as_dtype(name))
        copies = [v.copy() for v in inputs]
        operands = arrays(inputs)
        for function in programs_of(sample):
            expected, compiled = host(function(*operands)), vf.jit(function)
            for _ in range(2):
                _assert_same(host(compiled(*operands)), expected, f"jit of {sample} in {name}")
        for array, before in zip(operands, copies, strict=True):
            assert_same_bits(np.asarray(array), before, f"an argument of {sample} in {name} after the calls")


def gradient_under_jit_is_eager(sample: Sample) -> None:
    """Assert that the vjp (else the jvp) inside `jit`, of `jit`, and eagerly agree.

    Not to the last bit, since the compiler may simplify and fuse.
    """
    for name in sample.dtypes:
        dtype = dtypes.as_dtype(name)
        if dtype not in dtypes.INEXACT:
            continue
        operands = arrays(draw(sample, dtype))
        expected = host(_derivative(sample, sample.function)(*operands))
        inside = host(vf.jit(_derivative(sample, sample.function))(*operands))
        outside = host(_derivative(sample, vf.jit(sample.function))(*operands))
        assert len(inside) == len(outside) == len(expected)
        rtol = sample.tolerance.get(name, ROUNDING[name])
        for of_jit, in_jit, eager in zip(outside, inside, expected, strict=True):
            assert_close(in_jit, eager, rtol, f"jit of the derivative of {sample} in {name}")
            assert_close(of_jit, eager, rtol, f"the derivative of jit of {sample} in {name}")


def _derivative(sample: Sample, function: Function) -> Function:
    def derivative(*args: Any) -> list[Any]:
        chosen = [args[i] for i in sample.wrt]
        partial = restricted(function, args, sample.wrt)
        if not sample.reverse:
            return vf.jvp(partial, tuple(chosen), tuple(chosen))[1]
        outs, pull_back = vf.vjp(partial, *chosen)
        return list(pull_back(outs))

    return derivative


def jaxpr_is_true(sample: Sample) -> None:
    """Assert that the program is well formed, with the types and values promised."""
    for name in sample.dtypes:
        operands = arrays(draw(sample, dtypes.as_dtype(name)))
        results = tree.leaves(sample.function(*operands))
        closed = vf.make_jaxpr(sample.function)(*operands)
        vf.check_jaxpr(closed)
        promised, result = closed.out_avals, [r.aval for r in results]
        assert promised == result, f"{sample} in {name}: the program promises {promised}, evaluation gives {result}"
        _assert_same(host(eval_jaxpr(closed, *operands)), host(results), f"the program of {sample} in {name}")


def derived_jaxprs_are_true(sample: Sample) -> None:
    """Assert that programs of the derivative and the batched call are well formed."""
    inputs = draw(sample, dtypes.as_dtype(sample.dtypes[-1]))
    arguments, stacked = arrays(inputs), arrays([np.stack([x, x]) for x in inputs])
    programs = []
    if sample.wrt and any(x.dtype in dtypes.INEXACT for x in inputs):
        programs.append(vf.make_jaxpr(_derivative(sample, sample.function))(*arguments))
    if sample.vmap and sample.args:
        programs.append(vf.make_jaxpr(vf.vmap(sample.function))(*stacked))
    if len(programs) == 2:
        programs.append(vf.make_jaxpr(vf.vmap(_derivative(sample, sample.function)))(*stacked))
    for program in programs:
        vf.check_jaxpr(program)


def _assert_same(actual: list[np.ndarray], expected: list[np.ndarray], label: str) -> None:
    assert len(actual) == len(expected), f"{label}: {len(actual)} results where {len(expected)} were expected"
    for got, want in zip(actual, expected, strict=True):
        if on_gpu():
            assert_close(got, want, 16 * ROUNDING.get(got.dtype.name, 0.0), label)
        else:
            assert_same_bits(got, want, label)
