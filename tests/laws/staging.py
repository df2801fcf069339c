"""The laws of staging: a traced program has the types, and `jit` the values, that evaluating operation by operation gives."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.laws.common import ROUNDING, Function, arrays, assert_close, assert_same_bits, draw, host, on_gpu, restricted
from tests.samples.sample import Sample
from volta_fn import dtypes, tree
from volta_fn.core.array import Array
from volta_fn.core.staging import eval_jaxpr


def _shift(x: Array, by: int) -> Array:
    """An elementwise operation that every dtype has, and its inverse for -`by` (up to rounding)."""
    if x.dtype in dtypes.BOOL:
        return vf.lax.bitwise_not(x)
    step = np.asarray(1).astype(x.dtype)
    return vf.lax.add(x, step) if by > 0 else vf.lax.sub(x, step)


def in_the_middle(function: Function) -> Function:
    """`function` between elementwise operations, whose buffers die around it and which a plan may overwrite: if a result shared memory
    with an argument behind the plan's back, the arguments' sum, computed last, would show it."""

    def program(*args: Any) -> list[Any]:
        moved = [_shift(_shift(a, 1), -1) for a in args]
        outs = tree.leaves(function(*moved))
        changed = [_shift(_shift(o, 1), 1) for o in outs]
        return [*changed, *[_shift(m, 1) for m in moved]]

    return program


def programs_of(sample: Sample) -> list[Function]:
    """A sample alone, and in the middle of a program; but on a GPU bits are not taken of what a program may have rounded otherwise."""
    shows_roundings = on_gpu() and any(p.startswith("bitcast") for p in sample.primitives)
    return [sample.function] if shows_roundings else [sample.function, in_the_middle(sample.function)]


def jit_is_eager(sample: Sample) -> None:
    """`jit` against evaluation of one operation at a time, bit for bit, alone and in the middle of a program, twice each.

    On a GPU not to the last bit: its compiler may round once, of a product and a sum that are in one program.
    """
    for name in sample.dtypes:
        inputs = draw(sample, dtypes.as_dtype(name))
        kept = [v.copy() for v in inputs]
        given = arrays(inputs)
        for function in programs_of(sample):
            expected, compiled = host(function(*given)), vf.jit(function)
            for _ in range(2):
                _assert_same(host(compiled(*given)), expected, f"jit of {sample} in {name}")
        for array, before in zip(given, kept, strict=True):
            assert_same_bits(np.asarray(array), before, f"an argument of {sample} in {name} after the calls")


def gradient_under_jit_is_eager(sample: Sample) -> None:
    """The vjp (or, where there is none, the jvp) inside `jit`, of `jit`, and eagerly.

    Not to the last bit, since the compiler may simplify and fuse.
    """
    for name in sample.dtypes:
        dtype = dtypes.as_dtype(name)
        if dtype not in dtypes.INEXACT:
            continue
        given = arrays(draw(sample, dtype))
        expected = host(_derivative(sample, sample.function)(*given))
        inside = host(vf.jit(_derivative(sample, sample.function))(*given))
        outside = host(_derivative(sample, vf.jit(sample.function))(*given))
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
    """The traced program is well formed, promises the types that come out, and evaluates to the same values."""
    for name in sample.dtypes:
        given = arrays(draw(sample, dtypes.as_dtype(name)))
        results = tree.leaves(sample.function(*given))
        closed = vf.make_jaxpr(sample.function)(*given)
        vf.check_jaxpr(closed)
        promised, found = closed.out_avals, [r.aval for r in results]
        assert promised == found, f"{sample} in {name}: the program promises {promised}, evaluation gives {found}"
        _assert_same(host(eval_jaxpr(closed, *given)), host(results), f"the program of {sample} in {name}")


def derived_jaxprs_are_true(sample: Sample) -> None:
    """The programs that transforms make are well formed too: the derivative's, the batched one's, and the batched derivative's."""
    inputs = draw(sample, dtypes.as_dtype(sample.dtypes[-1]))
    given, stacked = arrays(inputs), arrays([np.stack([x, x]) for x in inputs])
    programs = []
    if sample.wrt and any(x.dtype in dtypes.INEXACT for x in inputs):
        programs.append(vf.make_jaxpr(_derivative(sample, sample.function))(*given))
    if sample.vmap and sample.args:
        programs.append(vf.make_jaxpr(vf.vmap(sample.function))(*stacked))
    if len(programs) == 2:
        programs.append(vf.make_jaxpr(vf.vmap(_derivative(sample, sample.function)))(*stacked))
    for program in programs:
        vf.check_jaxpr(program)


def _assert_same(actual: list[np.ndarray], expected: list[np.ndarray], what: str) -> None:
    assert len(actual) == len(expected), f"{what}: {len(actual)} results where {len(expected)} were expected"
    for got, want in zip(actual, expected, strict=True):
        if on_gpu():
            assert_close(got, want, 16 * ROUNDING.get(got.dtype.name, 0.0), what)
        else:
            assert_same_bits(got, want, what)
