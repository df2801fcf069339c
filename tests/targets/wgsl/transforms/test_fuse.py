"""Shaders side by side in one dispatch do what they do alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.targets.wgsl import running
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader
from volta_fn.targets.wgsl.scalars import Number, apply
from volta_fn.targets.wgsl.shader import ShaderModule
from volta_fn.targets.wgsl.transforms import fused, fused_size

F32 = np.dtype(np.float32)


def reversal(invocations: int, factor: int) -> ShaderModule:
    """Reverse each workgroup's numbers, times a factor: through memory that it shares, and a function whose name others have, too."""
    shader = Shader(running.capabilities(), invocations)
    x, y = shader.buffer(0, F32), shader.buffer(1, F32, written=True)
    shared = shader.workgroup("a", "f32", invocations)
    shader.helper("scaled", f"fn scaled(x: f32) -> f32 {{\n  return x * {factor}.0;\n}}")
    place = shader.let("u32", f"{shader.group} * {invocations}u + {shader.local}")
    shader.emit(f"{shared}[{invocations - 1}u - {shader.local}] = {x.load(place).text};")
    shader.emit("workgroupBarrier();")
    y.store(place, Number(F32, f"scaled({shared}[{shader.local}])"))
    return shader.dispatch(3).shader


def doubled(invocations: int) -> ShaderModule:
    """Double each number, without waiting; the last workgroup ends early."""
    shader = Shader(running.capabilities(), invocations)
    x, y = shader.buffer(0, F32), shader.buffer(1, F32, written=True)
    shader.emit(f"if ({shader.group} == 1u && {shader.local} > 3u) {{ return; }}")
    place = shader.let("u32", f"{shader.group} * {invocations}u + {shader.local}")
    y.store(place, Number(F32, f"{x.load(place).text} * 2.0"))
    return shader.dispatch(2).shader


def test_shaders_beside_each_other_do_what_they_do_alone() -> None:
    sources, counts = (reversal(64, 3), doubled(32), reversal(64, 5)), (3, 2, 3)
    assert fused_size(sources) == 64
    x, y, z = (np.arange(n, dtype=np.float32) + 1 for n in (192, 64, 192))
    routine = Routine((Dispatch(fused(sources, counts), (0, 3, 1, 4, 2, 5), (8, 1, 1)),))
    first, second, third = running.run_routine(routine, [x, y, z], [((192,), F32), ((64,), F32), ((192,), F32)])
    np.testing.assert_array_equal(first, 3 * x.reshape(3, 64)[:, ::-1].ravel())
    np.testing.assert_array_equal(second[:36], 2 * y[:36])
    np.testing.assert_array_equal(third, 5 * z.reshape(3, 64)[:, ::-1].ravel())


def test_equal_shaders_are_one_text_that_chooses_its_buffers() -> None:
    sources, counts = (doubled(64), *[reversal(64, 3)] * 3, doubled(64)), (2, 3, 3, 3, 2)
    shader = fused(sources, counts)
    assert shader.text.count("scaled(x: f32)") == 1
    arrays = [np.arange(n, dtype=np.float32) + k for k, n in enumerate((128, 192, 192, 192, 128))]
    order = tuple(n for k in range(5) for n in (k, 5 + k))
    routine = Routine((Dispatch(shader, order, (13, 1, 1)),))
    result = running.run_routine(routine, arrays, [((len(x),), F32) for x in arrays])
    for k in (1, 2, 3):
        np.testing.assert_array_equal(result[k], 3 * arrays[k].reshape(3, 64)[:, ::-1].ravel())
    for k in (0, 4):
        np.testing.assert_array_equal(result[k][:68], 2 * arrays[k][:68])


def cosines(invocations: int) -> ShaderModule:
    """Compute the cosine of each number, whose argument is reduced by adding and subtracting a large number."""
    shader = Shader(running.capabilities(), invocations)
    x, y = shader.buffer(0, F32), shader.buffer(1, F32, written=True)
    place = shader.let("u32", f"{shader.group} * {invocations}u + {shader.local}")
    y.store(place, apply(shader, "cos", [x.load(place)], F32, {}))
    return shader.dispatch(1).shader


def test_compilers_do_not_simplify_what_equal_shaders_round() -> None:
    """A one that they know let them cancel the large number."""
    routine = Routine((Dispatch(fused((cosines(64),) * 3, (1, 1, 1)), (0, 3, 1, 4, 2, 5), (3, 1, 1)),))
    arrays = [np.arange(64, dtype=np.float32) + 10 * k for k in range(3)]
    for x, result in zip(arrays, running.run_routine(routine, arrays, [((64,), F32)] * 3), strict=True):
        np.testing.assert_allclose(result, np.cos(x.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_who_waits_for_others_of_a_smaller_workgroup_does_not_go_beside_larger_ones() -> None:
    assert fused_size((reversal(64, 3), reversal(32, 3))) == 0
    assert fused_size((doubled(64), reversal(32, 3))) == 0


def test_who_reads_its_place_in_the_whole_grid_does_not_go_beside_others() -> None:
    shader = doubled(64)
    builtins = tuple([b._replace(value="global_invocation_id") if b.value == "workgroup_id" else b for b in shader.builtins])
    assert fused_size((shader, replace(shader, builtins=builtins))) == 0
    assert fused_size((shader, shader)) == 64
