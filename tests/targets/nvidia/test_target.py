"""Which kernels run on matrix units, in plans of programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.nvidia.planning import AMPERE, HOPPER, NONE, shaped
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.config import default_matmul_precision
from volta_fn.targets.nvidia.kernel import header_of
from volta_fn.targets.nvidia.target import NvidiaTarget
from volta_fn.targets.wgsl.commands import Run, runs
from volta_fn.targets.wgsl.program_plan import plan_program
from volta_fn.targets.wgsl.target import RoutineCache


def planned(f: Callable[..., Any], *types: Any, device: TargetCapabilities = HOPPER) -> list[Run]:
    """Return the dispatches of a function's program."""
    lowered = vf.jit(f).lower(*types)
    target = NvidiaTarget(device)
    return list(runs(plan_program(lowered.jaxpr, (False,) * len(types), pipeline, target, RoutineCache()).commands))


def on_matrix_units(dispatches: list[Run]) -> list[bool]:
    """Return which dispatches are no shaders."""
    return [header_of(run.source) is not None for run in dispatches]


def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Return a layer with an activation and a residual connection."""
    return r + vf.nn.gelu(x @ w + b)


LAYER = shaped(1024, 768), shaped(768, 512), shaped(512), shaped(1024, 512)


@pytest.mark.parametrize("device", [AMPERE, HOPPER], ids=["mma", "wgmma"])
def test_a_layer_is_one_dispatch(device: TargetCapabilities) -> None:
    (run,) = planned(layer, *LAYER, device=device)
    assert on_matrix_units([run]) == [True]
    assert len(run.ranges) == 5
    assert run.written_bindings == {4}


@pytest.mark.parametrize("gates", [1, 2])
def test_products_with_arrays_beyond_a_binding_are_one_dispatch(gates: int) -> None:
    """Shaders would be cut into chunks, but code that is not WGSL has offsets of 64 bits."""
    device = HOPPER._replace(binding=(1 << 31) - 4)
    types = shaped(1 << 15, 512), *[shaped(512, 50304)] * gates
    (run,) = planned(lambda x, w, *v: vnp.tanh(x @ w) * (x @ v[0] if v else 1), *types, device=device)
    assert on_matrix_units([run]) == [True]
    assert run.ranges[-1].size == 2 * 50304 << 15
    assert not any(on_matrix_units(planned(lambda x: vnp.tanh(x), shaped(1 << 15, 50304), device=device)))


def test_without_matrix_units_it_is_a_shader() -> None:
    assert not any(on_matrix_units(planned(layer, *LAYER, device=NONE)))


def test_float32_is_never_rounded() -> None:
    types = [shaped(*x.shape, dtype="float32") for x in LAYER]
    assert not any(on_matrix_units(planned(layer, *types)))


def test_float32_is_rounded_if_the_program_allows_it() -> None:
    def product(x: Any, w: Any) -> Any:
        return vnp.matmul(x, w, precision="tensorfloat32")

    types = shaped(1024, 768, dtype="float32"), shaped(768, 2048, dtype="float32")
    assert on_matrix_units(planned(product, *types)) == [True]
    assert on_matrix_units(planned(lambda x, w: product(x.T, w), types[0], shaped(1024, 2048, dtype="float32"))) == [False, True]
    assert not any(on_matrix_units(planned(product, *types, device=AMPERE)))
    with default_matmul_precision("high"):
        assert on_matrix_units(planned(lambda x, w: x @ w.T, types[0], shaped(2048, 768, dtype="float32"))) == [True]


def test_small_products_are_shaders() -> None:
    assert not any(on_matrix_units(planned(lambda x, y: x @ y, shaped(64, 64), shaped(64, 64))))


def test_short_sums_of_few_rows_use_wgmma() -> None:
    def product(x: Any, y: Any) -> Any:
        return x @ y

    assert on_matrix_units(planned(product, shaped(32, 256), shaped(256, 1024), device=HOPPER)) == [True]
    assert not any(on_matrix_units(planned(product, shaped(32, 256), shaped(256, 1024), device=AMPERE)))
    assert not any(on_matrix_units(planned(product, shaped(32, 1024), shaped(1024, 256), device=HOPPER)))


def test_rows_that_are_not_aligned_are_copied() -> None:
    assert on_matrix_units(planned(lambda x, y: x @ y, shaped(1024, 1001), shaped(1001, 1000))) == [False, True]
    assert not any(on_matrix_units(planned(lambda x, y: x @ y, shaped(1 << 15, 1001), shaped(1001, 24))))


def test_few_tiles_of_long_sums_are_split() -> None:
    dispatches = planned(lambda x, y: x.T @ y, shaped(1 << 15, 256), shaped(1 << 15, 256))
    assert on_matrix_units(dispatches) == [True, False]


def test_other_epilogues_are_a_second_dispatch() -> None:
    def product(x: Any, y: Any) -> Any:
        return lax.nextafter(vnp.dot(x, y, preferred_element_type="float32"), vnp.float32(0))

    assert on_matrix_units(planned(product, shaped(1024, 768), shaped(768, 512))) == [True, False]


def test_a_matrix_times_itself_is_bound_once() -> None:
    (run,) = planned(lambda x: x @ x.T, shaped(1024, 768))
    assert on_matrix_units([run]) == [True]
    assert len(run.ranges) == 2


def test_products_and_small_kernels_are_not_fused() -> None:
    def program(x: Any, y: Any, z: Any) -> Any:
        return x @ y, vnp.sin(z), vnp.cumsum(z), vnp.sort(z)

    dispatches = planned(program, shaped(1024, 768), shaped(768, 512), shaped(1000, dtype="float32"))
    assert sum(on_matrix_units(dispatches)) == 1


def test_a_branch_reads_its_grid() -> None:
    def program(p: Any, x: Any, y: Any) -> Any:
        return lax.cond(p, lambda: x @ y, lambda: vnp.zeros((1024, 512), x.dtype))

    dispatches = planned(program, shaped(dtype="bool"), shaped(1024, 768), shaped(768, 512))
    (product,) = [run for run in dispatches if header_of(run.source)]
    assert product.region is not None


def test_a_gradient_has_products_of_all_layouts() -> None:
    def loss(w: Any, x: Any) -> Any:
        return vnp.sum(vnp.tanh(x @ w).astype("float32"))

    dispatches = planned(vf.grad(loss, argnums=(0, 1)), shaped(768, 512), shaped(1024, 768))
    assert sum(on_matrix_units(dispatches)) == 3


def test_attention_and_its_gradients() -> None:
    def both(q: Any, k: Any, v: Any, d: Any) -> Any:
        out, back = vf.vjp(lambda *x: vf.nn.dot_product_attention(*x, is_causal=True), q, k, v)
        return out, back(d)

    types = [shaped(4, 256, 12, 64)] * 4
    assert on_matrix_units(planned(both, *types)) == [True] * 4
    assert not any(on_matrix_units(planned(both, *types, device=NONE)))


def test_rows_are_transposed_by_a_kernel_of_its_own() -> None:
    def normalised(x: Any) -> Any:
        centred = x - vnp.mean(x, (0, 2), keepdims=True)
        return vnp.transpose(centred / vnp.max(centred, (0, 2), keepdims=True), (0, 2, 1))

    (_, transposed) = planned(normalised, shaped(8, 64, 256, dtype="float32"))
    assert transposed.workgroups[0] > 64  # not one for each row
    assert len(planned(lambda x: vnp.transpose(x + 1, (0, 2, 1)), shaped(8, 64, 256, dtype="float32"))) == 1


def rotated(x: Any, angles: Any) -> Any:
    """Return heads with rotary embeddings."""
    left, right = vnp.split(x, 2, axis=-1)
    return vnp.concatenate([left * vnp.cos(angles) - right * vnp.sin(angles), left * vnp.sin(angles) + right * vnp.cos(angles)], -1)


@pytest.mark.parametrize("device", [NONE, AMPERE, HOPPER])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_conversions_that_nothing_is_fused_with_stay_on_the_gpu(dtype: str, device: TargetCapabilities) -> None:
    """Also where the target has a routine for other conversions, those of float8."""

    def loss(x: Any, angles: Any) -> Any:
        return (rotated(x.astype(dtype), angles.astype(dtype)).astype("float32") ** 2).sum()

    types = shaped(8, 15, 1, 2, dtype="float32"), shaped(15, 1, 1, dtype="float32")
    target = NvidiaTarget(device)
    program = pipeline.lower(vf.jit(vf.grad(loss, (0, 1))).lower(*types).jaxpr, target)
    assert [target.host_reason(item) for item in program.items] == [None] * len(program.items)
