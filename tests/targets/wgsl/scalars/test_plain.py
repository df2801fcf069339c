"""Operations that are exact, or rounded once: they have the bits of the evaluation rules."""

import itertools
from collections import defaultdict
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import volta_fn  # noqa: F401  # declares the primitives
from tests.targets.scalar_samples import BOOL, CASES, FLOATS, INTEGERS, operands, samples
from tests.targets.wgsl import running
from tests.targets.wgsl.scalars.running import Call, assert_reference, run
from volta_fn import dtypes
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.targets.wgsl.routine import Routine, Shader
from volta_fn.targets.wgsl.scalars import apply, constant, supports


def check(calls, arrays):
    """Shaders against the evaluation rules. A call is (op, numbers of operands, parameters)."""
    call_list, expected = [], []
    for op, places, params in calls:
        expected.append(partial(PRIMITIVES[op].evaluate, **params))
        with np.errstate(all="ignore"):
            call_list.append(Call(op, places, np.asarray(expected[-1](*[arrays[i] for i in places])).dtype, params))
    for call, actual, reference in zip(call_list, run(call_list, arrays), expected, strict=True):
        try:
            assert_reference(actual, reference, [arrays[i] for i in call.operands])
        except AssertionError as error:
            error.add_note(f"of {call.op} {dict(call.params)}")
            raise


def by_operands():
    """Return the operations by the dtype and the number of their operands."""
    groups = defaultdict(list)
    for op, dtype in CASES:
        if op != "nextafter":
            groups[dtype, PRIMITIVES[op].arity].append(op)
    return [(dtype, arity, ops) for (dtype, arity), ops in groups.items()]


@pytest.mark.parametrize("dtype, arity, ops", by_operands(), ids=str)
def test_bits_of_the_evaluation_rule(dtype, arity, ops):
    check([(op, tuple(range(arity)), {}) for op in ops], operands(arity, dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_integer_pow(dtype):
    powers = [2, 3, 10, *([-1, -2, 0] if dtype in dtypes.FLOATS else [])]
    check([("integer_pow", (0,), {"y": y}) for y in powers], operands(1, dtype))


@pytest.mark.parametrize("old", [*BOOL, *INTEGERS, *FLOATS], ids=str)
def test_conversion(old):
    values = samples(old)
    calls = [("convert_element_type", (0,), {"new_dtype": new, "weak_type": False}) for new in [*BOOL, *INTEGERS, *FLOATS]]
    bits = [("bitcast_convert_type", (0,), {"new_dtype": new}) for new in [*INTEGERS, *FLOATS] if new.itemsize == old.itemsize]
    check(calls + (bits if old.kind != "b" else []), [values])


def test_conversion_of_float64_rounds_once():
    halves = np.random.default_rng(1).integers(0, 0x7C00, 4000, np.uint16).view(np.float16).astype(np.float64)
    middle = np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float64) / 2 + halves / 2
    values = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), -middle * (1 + 1e-12)])
    check([("convert_element_type", (0,), {"new_dtype": np.dtype(np.float16), "weak_type": False})], [values])


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_every_half_survives(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    to_float = {"new_dtype": np.dtype(np.float32), "weak_type": False}
    check([("bitcast_convert_type", (0,), {"new_dtype": dtype}), ("convert_element_type", (1,), to_float)], [bits, bits.view(dtype)])


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_rounding_to_halves(dtype):
    """Halves, the numbers between neighbours, and what is next to these."""
    halves = np.arange(0x7C00 if dtype == np.float16 else 0x7F80, dtype=np.uint16).view(dtype).astype(np.float32)
    middle = ((halves[1:].astype(np.float64) + halves[:-1]) / 2).astype(np.float32)
    values = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf)), -middle])
    check([("convert_element_type", (0,), {"new_dtype": dtype, "weak_type": False})], [values])


@pytest.mark.parametrize("name", ["bool", "int8", "float16", "bfloat16", "float32", "float64", "complex64"])
def test_select_n(name):
    dtype = dtypes.as_dtype(name)
    values = samples(dtype) if dtype.kind != "c" else np.arange(20) * np.complex64(1 + 2j)
    x, y = [np.array(column, dtype) for column in zip(*itertools.product(values, repeat=2), strict=True)]
    which = np.arange(x.size, dtype=np.int32) % 3
    check([("select_n", (0, 2, 3), {}), ("select_n", (1, 2, 3, 4), {})], [which == 0, which, x, y, x[::-1].copy()])


def test_what_a_device_lacks_is_refused():
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    assert supports("add", (single, single), {}, TargetCapabilities())
    assert not supports("add", (double, double), {}, TargetCapabilities())
    assert not supports("convert_element_type", (single,), {"new_dtype": np.dtype(np.int64)}, TargetCapabilities())
    assert not supports("sort", (single,), {}, TargetCapabilities())
    assert not supports("bitcast_convert_type", (single,), {"new_dtype": double}, TargetCapabilities(float64=True))


def test_random_words():
    uint32 = np.dtype(np.uint32)
    check([("threefry2x32_word", (0, 1, 2, 3), {"word": word}) for word in ("first", "second", "mixed")], operands(4, uint32))


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_operations_with_constants(op):
    """What a compiler knows to be a number may be simplified away, but only where that is right."""
    x = samples(np.dtype(np.float32))
    for value in (0.0, -0.0, 0.0625, -0.03, 0.004, 1e-30, 1.0, -1.0, float("inf")):
        for swapped in (False, True):
            shader = Shader(running.capabilities(), 256)
            arguments, out = shader.buffer(0, x.dtype, size=x.size), shader.buffer(1, x.dtype, written=True, size=x.size)
            with shader.block(f"if ({shader.local} < {x.size}u)"):
                pair = [arguments.load(shader.local), constant(x.dtype, value)]
                out.store(shader.local, apply(shader, op, pair[::-1] if swapped else pair, x.dtype, {}))
            (result,) = running.run_routine(Routine((shader.dispatch(1),)), [x], [(x.shape, x.dtype)])
            both = [x, np.full_like(x, value)]
            assert_reference(result, PRIMITIVES[op].evaluate, both[::-1] if swapped else both)
