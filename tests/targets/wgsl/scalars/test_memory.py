"""Loading and storing: elements one by one, and in fours with an incomplete last one."""

import numpy as np
import pytest

from tests.targets.scalar_samples import assert_same_bits, samples
from tests.targets.wgsl import running
from volta_fn import dtypes
from volta_fn.targets.wgsl.routine import Routine, Shader

ALL = [dtypes.as_dtype(d) for d in ("bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16", "float32", "int32", "uint32")]
WIDE = [dtypes.as_dtype(d) for d in ("float64", "int64", "uint64", "complex64", "complex128")]


def some(dtype, size):
    """Return so many values of a dtype."""
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.resize(samples(part), 2 * size).view(dtype)
    return np.resize(samples(dtype), size)


def same(actual, expected):
    """Equal with signs of zeros; complex numbers part by part."""
    if actual.dtype.kind == "c":
        actual, expected = (x.view(f"f{x.dtype.itemsize // 2}") for x in (actual, expected))
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("dtype", [*ALL, *WIDE], ids=str)
def test_one_by_one(dtype):
    """Reversed; each invocation writes one element, others writing its neighbours in the same word."""
    size = 203
    x = some(dtype, size)
    shader = Shader(running.capabilities(), 32)
    source, target = shader.buffer(0, dtype), shader.buffer(1, dtype, written=True)
    index = shader.let("u32", f"{shader.group} * 32u + {shader.local}")
    with shader.block(f"if ({index} < {size}u)"):
        target.store(index, source.load(f"{size - 1}u - {index}"))
    (result,) = running.run_routine(Routine((shader.dispatch(7),)), [x], [((size,), dtype)])
    same(result, x[::-1].copy())


@pytest.mark.parametrize("size", [1, 6, 64, 131], ids=str)
@pytest.mark.parametrize("dtype", [*ALL, *WIDE], ids=str)
def test_fours(dtype, size):
    x = some(dtype, size)
    shader = Shader(running.capabilities(), 32)
    source, target = shader.buffer(0, dtype, size=size), shader.buffer(1, dtype, written=True, size=size)
    index = shader.let("u32", f"{shader.group} * 32u + {shader.local}")
    with shader.block(f"if ({index} < {-(-size // 4)}u)"):
        target.store4(index, source.load4(index))
    (result,) = running.run_routine(Routine((shader.dispatch(2),)), [x], [((size,), dtype)], margins=False)
    same(result, x)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_elements_of_an_array_of_fours(dtype):
    x = some(dtype, 64)
    shader = Shader(running.capabilities(), 64)
    source, target = shader.buffer(0, dtype, size=64), shader.buffer(1, dtype, written=True)
    target.store(shader.local, source.load(f"63u - {shader.local}"))
    (result,) = running.run_routine(Routine((shader.dispatch(1),)), [x], [((64,), dtype)])
    same(result, x[::-1].copy())


def test_many_workgroups_fold():
    """Beyond the limit along x the grid has rows, and the surplus of the last row does nothing."""
    shader = Shader(running.capabilities()._replace(groups=6), 1)
    counts = shader.buffer(0, np.dtype(np.int32), written=True)
    counts.store(shader.group, counts.load(shader.group)._replace(text="1i"))
    dispatch = shader.dispatch(13)
    assert dispatch.workgroups == (5, 3, 1)
    (result,) = running.run_routine(Routine((dispatch,)), [], [((13,), np.int32)])
    assert (result == 1).all()
