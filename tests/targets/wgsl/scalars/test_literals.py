"""Operations on literals give what they give for numbers from memory, and every compiler takes them."""

import itertools

import numpy as np
import pytest

import volta_fn.primitives.elementwise.arithmetic  # noqa: F401  # declare what programs ask for late
from tests.targets.scalar_samples import CASES, assert_same_bits
from tests.targets.wgsl import running
from volta_fn import dtypes
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.targets.wgsl.routine import Routine, Shader
from volta_fn.targets.wgsl.scalars import apply, constant, operations, supports

FLOATS, WHOLE = ("float16", "bfloat16", "float32", "float64"), ("bool", "int8", "int32", "uint32", "int64", "uint64")


def few_values(dtype):
    """Return some numbers of a dtype, with what compilers refuse to compute with or compute otherwise."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype in dtypes.INTEGERS:
        info = np.iinfo(dtype)
        return np.array([7, info.bits, 0, info.max, info.min], dtype)
    return np.array([0.3, -2.5, np.inf, -0.0, np.nan], dtype)


def results(ops, dtype, columns, literal):
    """Return the results of operations on columns of numbers, of which those are literals that `literal` says.

    One invocation computes all of them: literals differ, and several numbers share a word of memory. Each number that is from memory, and
    fills words, has its own invocation, so that the code for it is compiled once.
    """
    shader, read = Shader(running.capabilities()), [c for c, is_literal in zip(columns, literal, strict=True) if not is_literal]
    inputs = [shader.buffer(i, dtype) for i in range(len(read))]
    result_dtypes = [np.asarray(PRIMITIVES[op].evaluate(*[c[:1] for c in columns])).dtype for op in ops]
    outputs = [shader.buffer(len(read) + i, one, written=True) for i, one in enumerate(result_dtypes)]
    alone = any(literal) or min(d.itemsize for d in (dtype, *result_dtypes)) < 4
    with shader.block(f"if ({shader.group} == 0u && {shader.local} < {1 if alone else len(columns[0])}u)"):
        for k in range(len(columns[0]) if alone else 1):
            place, loads = shader.let("u32", f"{shader.local} + {k}u"), iter(inputs)
            numbers = [
                constant(dtype, c[k]) if is_literal else next(loads).load(place) for c, is_literal in zip(columns, literal, strict=True)
            ]
            for op, out, result in zip(ops, outputs, result_dtypes, strict=True):
                out.store(place, apply(shader, op, numbers, result, {}))
    return running.run_routine(Routine((shader.dispatch(1),)), read, [(columns[0].shape, one) for one in result_dtypes])


def approximate(name):
    """Return the approximate functions to try in a dtype: of the halves, which compute in float32, every fourth."""
    every = {"float32": 1, "float64": 1, "float16": 4, "bfloat16": 4}.get(name)
    return [] if every is None else sorted([op for op, p in PRIMITIVES.items() if p.formula])[name == "bfloat16" :: every]


def is_long(op, dtype, arity):
    """Return True if the code of an operation is so long that a compiler takes seconds for a few copies of it.

    That of pairs of floats is short, but all in calls.
    """
    if operations.is_long(op, dtype):
        return True
    shader = Shader(running.capabilities())
    *operands, out = [shader.buffer(i, dtype, written=i == arity) for i in range(arity + 1)]
    place = shader.let("u32", shader.local)
    out.store(place, apply(shader, op, [operand.load(place) for operand in operands], dtype, {}))
    return shader.dispatch(1).fastest.count("\n") > 300


@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("name", [*FLOATS, *WHOLE])
def test_literals_are_as_numbers_from_memory(name, arity):
    dtype = np.dtype(dtypes.bfloat16 if name == "bfloat16" else name)
    supported = [op for op, one in CASES if one == dtype] + approximate(name)
    ops = [op for op in supported if PRIMITIVES[op].arity == arity and supports(op, [dtype] * arity, {}, running.capabilities())]
    long = [op for op in ops if PRIMITIVES[op].formula and is_long(op, dtype, arity)]
    short = [op for op in ops if op not in long]
    columns = [np.roll(few_values(dtype), -i) for i in range(arity)]
    groups = [(short[start : start + 6], columns) for start in range(0, len(short), 6)]
    with np.errstate(all="ignore"):
        for some, numbers in [*groups, *[([op], [column[:1] for column in columns]) for op in long]]:
            wanted = results(some, dtype, numbers, [False] * arity)
            for literal in list(itertools.product([True, False], repeat=arity))[:-1]:
                for op, actual, right in zip(some, results(some, dtype, numbers, literal), wanted, strict=True):
                    check(op, actual, right)


def check(op, result, right):
    """Check for the same bits; of approximations, of which compilers may make other sums, for nearly the same number."""
    if PRIMITIVES[op].formula and right.dtype in dtypes.FLOATS:
        close = 4 * dtypes.finfo(right.dtype).eps
        np.testing.assert_allclose(result.astype(np.float64), right.astype(np.float64), rtol=float(close), atol=0, err_msg=op)
    else:
        assert_same_bits(result, right)
