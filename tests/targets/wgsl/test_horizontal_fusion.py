"""Dispatches that need not wait for each other are one, and compute what they do one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn import numpy as jnp
from volta_fn.compiler.emission import Slots
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl import target
from volta_fn.targets.wgsl.commands import Run, fuse_horizontally, range_of
from volta_fn.targets.wgsl.shader import Binding, Builtin, ShaderModule, WorkgroupVariable

GPU = vf.devices("gpu")[0]


def run(function: Any, *args: Any, **options: Any) -> tuple[list[np.ndarray], int]:
    """Return the results of a second call on the GPU, and its dispatches."""
    jitted = vf.jit(function, **options)
    jitted.clear_cache()
    vf.block_until_ready(jitted(*vf.device_put(args, GPU)))
    placed = vf.block_until_ready(vf.device_put(args, GPU))
    before = GPU.backend.counters.dispatches
    results = vf.block_until_ready(jitted(*placed))
    return [np.asarray(x) for x in vf.tree.leaves(results)], GPU.backend.counters.dispatches - before


def both(monkeypatch: pytest.MonkeyPatch, function: Any, *args: Any, **options: Any) -> tuple[list[np.ndarray], int, int]:
    """Return the results, the same bits with independent dispatches fused and without, and both numbers of dispatches."""
    actual, few = run(function, *args, **options)
    monkeypatch.setattr(target, "fuse_horizontally", lambda commands, *_: list(commands))
    wanted, many = run(function, *args, **options)
    for x, y in zip(actual, wanted, strict=True):
        np.testing.assert_array_equal(x, y)
    return actual, few, many


def test_products_of_one_operand_are_one_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, u, v = (rng.standard_normal((48, 48), np.float32) for _ in range(3))
    (a, b, c), few, many = both(monkeypatch, lambda x, u, v: (x @ u, x @ v, (x @ u) @ (x @ v)), x, u, v)
    assert few < many
    for actual, wanted in ((a, x @ u), (b, x @ v), (c, (x @ u) @ (x @ v))):
        # Sums of 48 products of sums of 48: up to some 1000, and float32 has 1e-7 of each term.
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-3)


def test_a_step_of_training_has_fewer_dispatches_and_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients, sums of columns and updates in the memory of what they update, with values that wait long for their last reader."""
    rng = np.random.default_rng(1)
    params = [(rng.standard_normal((n, m), np.float32) / 5, np.zeros(m, np.float32)) for n, m in ((20, 36), (36, 28), (28, 12))]
    x, labels = rng.standard_normal((40, 20), np.float32), rng.integers(0, 12, 40)

    def loss(params: Any, x: Any) -> Any:
        for w, b in params[:-1]:
            x = nn.gelu(x @ w + b) + x.mean(1, keepdims=True)
        logits = x @ params[-1][0] + params[-1][1]
        return -nn.log_softmax(logits)[jnp.arange(40), labels].mean()

    def step(params: Any, x: Any) -> Any:
        value, grads = vf.value_and_grad(loss)(params, x)
        return vf.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    result, few, many = both(monkeypatch, step, params, x, donate_argnums=0)
    assert few < many
    for x_, y_ in zip(result, vf.tree.leaves(vf.jit(step)(params, x)), strict=True):
        # The CPU's: sums in another order, in float32, forward and backward.
        np.testing.assert_allclose(x_, np.asarray(y_), rtol=1e-3, atol=1e-5)


def test_who_writes_over_what_others_read_comes_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.arange(64, dtype=np.float32).reshape(8, 8), np.ones((8, 8), np.float32)

    def swapped(x: Any, y: Any) -> Any:
        return x @ y, (x @ x)[::-1], x.sum(0), y * 2 + x

    actual, _, _ = both(monkeypatch, swapped, x, y, donate_argnums=(0, 1))
    for got, wanted in zip(actual, (x @ y, (x @ x)[::-1], x.sum(0), y * 2 + x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def sharing(slots: Slots, shared: tuple[str, int], *, deferred: bool) -> Run:
    """Return a dispatch of a few workgroups that share some memory and wait, each writing to a slot of its own."""
    declarations = (Binding("b0", "f32", written=True), WorkgroupVariable("room", *shared))
    shader = ShaderModule(declarations, 64, (Builtin("workgroup_id", "_workgroup_id", "vec3<u32>"),), "  workgroupBarrier();\n")
    return Run(shader, frozenset({0}), (range_of(slots.caller(), 64),), (4, 1, 1), deferred=deferred)


@pytest.mark.parametrize("shared", [("vec4<f32>", 100), ("vec4<f32>", 7)])
def test_late_dispatches_take_in_what_shares_no_more_memory(shared: tuple[str, int]) -> None:
    slots = Slots()
    runs = [sharing(slots, ("vec4<f32>", 100), deferred=True), sharing(slots, shared, deferred=False)]
    assert len(fuse_horizontally(runs, slots, TargetCapabilities())) == 1


@pytest.mark.parametrize("shared", [("u32", 7), ("u32", 700)])
def test_late_dispatches_fill_a_gpu_and_do_nothing_beside_that_needs_more_memory(shared: tuple[str, int]) -> None:
    """A small sort beside the 17 gradients by weights of a small GPT's step made the step take 1.29 ms in place of 1.18 (H200)."""
    slots = Slots()
    runs = [sharing(slots, ("vec4<f32>", 100), deferred=True), sharing(slots, shared, deferred=False)]
    assert len(fuse_horizontally(runs, slots, TargetCapabilities())) == 2
    assert len(fuse_horizontally([replace(run, deferred=False) for run in runs], slots, TargetCapabilities())) == 1


def test_the_first_sort_of_a_scatter_runs_beside_the_zeros_that_it_adds_to(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    rows, updates = rng.integers(0, 6000, 3000, np.int32), rng.standard_normal((3000, 128), np.float32)
    (actual,), few, many = both(monkeypatch, lambda i, u: jnp.zeros((6000, 128)).at[i].add(u), rows, updates)
    assert few == many - 1
    wanted = np.zeros((6000, 128))
    np.add.at(wanted, rows, updates)
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("groups", "elements", "dispatches"), [(8, 4096, 1), (17, 4096, 2), (8, 4097, 2)])
def test_few_workgroups_with_little_memory_run_beside_a_copy(groups: int, elements: int, dispatches: int) -> None:
    slots = Slots()
    small = replace(sharing(slots, ("u32", elements), deferred=False), workgroups=(groups, 1, 1))
    shader = ShaderModule((Binding("b0", "f32", written=True),), 64, (Builtin("workgroup_id", "_workgroup_id", "vec3<u32>"),), "")
    copy = Run(shader, frozenset({0}), (range_of(slots.caller(), 1 << 20),), (4096, 1, 1))
    for runs in ([small, copy], [copy, small]):
        assert len(fuse_horizontally(runs, slots, TargetCapabilities())) == dispatches


@pytest.mark.parametrize(("groups", "dispatches"), [(80, 1), (384, 2)])
def test_many_small_workgroups_do_not_run_beside_large_ones(groups: int, dispatches: int) -> None:
    """Most invocations of such workgroups would be idle, and would leave no room for others."""
    slots, builtins = Slots(), (Builtin("workgroup_id", "_workgroup_id", "vec3<u32>"),)

    def alone(invocations: int, groups: int) -> Run:
        shader = ShaderModule((Binding("b0", "f32", written=True),), invocations, builtins, "")
        return Run(shader, frozenset({0}), (range_of(slots.caller(), 64),), (groups, 1, 1))

    assert len(fuse_horizontally([alone(256, 6), alone(64, groups)], slots, TargetCapabilities())) == dispatches
