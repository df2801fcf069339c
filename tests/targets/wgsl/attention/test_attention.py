"""Attention in WGSL, against its definition and gradients in float64; and programs that use it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.workloads import named
from benchmarks.workloads.case import arrays_in, contestant, library
from tests.targets.wgsl.running import capabilities, run_routine
from volta_fn.compiler.attention import attention_of
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import CAUSAL, Axes, Form, Window
from volta_fn.targets.wgsl.attention import attention, attention_gradient, blocks, worthwhile

GPU = vf.devices("gpu")[0]
LEAST = -0.7 * float(np.finfo(np.float32).max)

#: Arrays (batch, heads, rows, features), and (batch, rows, heads, features).
HEADS_FIRST, ROWS_FIRST = Axes((0, 1), 2, 3), Axes((0, 2), 1, 3)


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, d: np.ndarray, seen: np.ndarray, scale: float) -> list[np.ndarray]:
    """Return the result, and the gradients, by their definition."""
    each = q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, each, 1), np.repeat(v, each, 1)
    logits = np.where(seen, q @ keys.swapaxes(2, 3) * scale, LEAST)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = weights @ values
    slopes = np.where(seen, weights * (d @ values.swapaxes(2, 3) - (d * out).sum(-1, keepdims=True)), 0) * scale
    to_k, to_v = slopes.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ d
    together = [x.reshape(x.shape[0], k.shape[1], each, *x.shape[2:]).sum(2) for x in (to_k, to_v)]
    return [out, slopes @ keys, *together]


#: Batch, heads, groups, T, S, features, value features; and what is seen.
CASES = [((2, 4, 2, 40, 40, 16, 16), "causal"), ((1, 2, 2, 33, 70, 20, 24), "masked")]


@pytest.fixture
def little_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules with less unrolled, which a GPU in software compiles sooner."""
    for name in ("_FORWARD", "_WIDE"):
        monkeypatch.setattr(blocks, name, getattr(blocks, name)._replace(unroll=4))


def test_attention_and_its_gradients() -> None:
    check(*CASES[0], np.float32, 1e-5)


@pytest.mark.usefixtures("little_unrolled")
def test_a_mask() -> None:
    check(*CASES[1], np.float32, 1e-5)


#: Bytes of workgroup memory on any device, and on some.
MEMORY = [16 << 10, 32 << 10]


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.usefixtures("little_unrolled")
def test_much_work(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    """With schedules for that, by workgroups that have several blocks of keys."""
    for name in ("_MANY", "_ENOUGH"):
        monkeypatch.setattr(blocks, name, 0)
    check((1, 2, 1, 150, 280, 64, 72), "causal", np.float32, 1e-5, workgroup_memory=memory)


@pytest.mark.parametrize("many", [0, 1 << 30])
@pytest.mark.parametrize("width", [16, 64, 100, 128])
@pytest.mark.parametrize("memory", MEMORY)
def test_workgroup_memory(monkeypatch: pytest.MonkeyPatch, width: int, many: int, memory: int) -> None:
    monkeypatch.setattr(blocks, "_MANY", many)
    rows, limits = ShapedArray((1, 1, 256, width), np.dtype(np.float32)), TargetCapabilities(workgroup_memory=memory)
    a = attention_of((rows,) * 6, Form(HEADS_FIRST, HEADS_FIRST, HEADS_FIRST, HEADS_FIRST, 1.0, LEAST, window=CAUSAL))
    for result, transposed in ((blocks.forward_schedule(a, limits), False), (blocks.backward_schedule(a, limits), True)):
        assert 16 * result.memory(width, transposed=transposed) <= memory
        assert result.y <= result.value_rows <= 4 * min(result.x, result.y) // result.passes


@pytest.mark.usefixtures("little_unrolled")
def test_halves_that_do_not_fill_words() -> None:
    check((1, 1, 1, 5, 7, 10, 6), "both", np.float16, 4e-3)


def check(sizes: tuple[int, ...], kind: str, dtype: Any, tolerance: float, **limits: int) -> None:
    """Compare results and gradients, relative to the largest of each. Keys and cotangents have their rows first."""
    batch, heads, groups, t, s, width, v_width = sizes
    rng, plain = np.random.default_rng(0), TargetCapabilities(float64=capabilities().float64, int64=capabilities().int64)._replace(**limits)
    shapes = (batch, heads, t, width), (batch, groups, s, width), (batch, groups, s, v_width), (batch, heads, t, v_width)
    q, k, v, d = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    mask = rng.random((1, heads, t, s)) < 0.5
    mask[0, 0, 0] = False  # a query that sees nothing weighs all keys alike
    masked, causal = kind in ("masked", "both"), kind in ("causal", "both")
    seen = mask if masked else np.ones((t, s), np.bool_)
    seen = seen & (np.arange(s) <= np.arange(t)[:, None]) if causal else seen
    form = Form(HEADS_FIRST, ROWS_FIRST, HEADS_FIRST, ROWS_FIRST, width**-0.5, LEAST, CAUSAL if causal else Window(), masks=int(masked))

    def avals(arrays: list[np.ndarray]) -> tuple[ShapedArray, ...]:
        return tuple([ShapedArray(x.shape, x.dtype) for x in arrays])

    operands = [q, k.swapaxes(1, 2), v, *([mask] if masked else [])]
    routine = attention(avals(operands), {"form": form._replace(cotangent=None)}, plain)
    out, statistics = run_routine(routine, operands, [(d.shape, dtype), ((batch * heads, t, 2), np.float32)])
    operands += [out, statistics, d.swapaxes(1, 2)]
    routine = attention_gradient(avals(operands), {"form": form}, plain)
    assert all(len(dispatch.buffers) <= plain.buffers for dispatch in routine.dispatches)
    to_q, to_k, to_v = run_routine(routine, operands, [(x.shape, dtype) for x in operands[:3]])
    wanted = expected(*(x.astype(np.float64) for x in (q, k, v, d)), seen, form.scale)
    for name, x, y in zip(("out", "q", "k", "v"), [out, to_q, to_k.swapaxes(1, 2), to_v], wanted, strict=True):
        assert np.abs(x.astype(np.float64) - y).max() <= tolerance * max(np.abs(y).max(), 1), name


#: Sizes of the bias: 1 where it is broadcast.
BIASES = [
    pytest.param((1, 4, 40, 70), "causal", {}, id="relative positions"),
    pytest.param((2, 1, 1, 70), "masked", {}, id="by keys"),
    pytest.param((2, 2, 40, 1), "window", {}, id="by queries, under a window"),
    pytest.param((1, 4, 1, 1), "causal", {"softcap": 3.0}, id="by heads, bounded"),
    pytest.param((40, 70), "none", {"dtype": np.float16}, id="one for all, of halves"),
    pytest.param((2, 4, 40, 70), "masked", {"many": True}, id="by all, with schedules for much work"),
]


@pytest.mark.parametrize(("shape", "kind", "options"), BIASES)
@pytest.mark.usefixtures("little_unrolled")
def test_the_gradient_of_a_bias(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], kind: str, options: dict[str, Any]) -> None:
    if options.get("many"):
        for name in ("_MANY", "_ENOUGH"):
            monkeypatch.setattr(blocks, name, 0)
    dtype, softcap = options.get("dtype", np.float32), options.get("softcap", 0.0)
    rng = np.random.default_rng(0)
    batch, heads, groups, t, s, width = (2, 2 if shape[:2] == (2, 2) else 4, 2, 40, 70, 20)
    shapes = (batch, heads, t, width), (batch, groups, s, width), (batch, groups, s, width), (batch, heads, t, width)
    q, k, v, d = (rng.standard_normal(x).astype(dtype) for x in shapes)
    bias = rng.standard_normal(shape).astype(dtype)
    mask = rng.random((batch, 1, t, s)) < 0.5
    mask[0, 0, 3] = False  # a query that sees nothing
    window = {"causal": CAUSAL, "window": Window(9, 5)}.get(kind, Window())
    ahead = np.arange(s) - np.arange(t)[:, None]
    seen = mask if kind == "masked" else np.ones((t, s), np.bool_)
    seen = seen & (ahead <= (s if window.after is None else window.after)) & (ahead >= -(t if window.before is None else window.before))
    form = Form(HEADS_FIRST, HEADS_FIRST, HEADS_FIRST, HEADS_FIRST, width**-0.5, LEAST, window, softcap, masks=int(kind == "masked"))
    form = form._replace(biased=True, to_bias=True)
    avals = lambda arrays: tuple([ShapedArray(x.shape, x.dtype) for x in arrays])
    operands = [q, k, v, bias, *([mask] if kind == "masked" else [])]
    forward = attention(avals(operands), {"form": form._replace(cotangent=None)}, capabilities())
    out, statistics = run_routine(forward, operands, [(d.shape, dtype), ((batch * heads, t, 2), np.float32)])
    operands += [out, statistics, d]
    routine = attention_gradient(avals(operands), {"form": form}, capabilities())
    assert all(len(dispatch.buffers) <= max(capabilities().buffers, 8) for dispatch in routine.dispatches)
    *_, to_bias = run_routine(routine, operands, [(x.shape, dtype) for x in (q, k, v, bias)])
    # By the definition, in float64.
    q, k, v, d, wide = (x.astype(np.float64) for x in (q, k, v, d, bias))
    k, v = np.repeat(k, heads // groups, 1), np.repeat(v, heads // groups, 1)
    logits = q @ k.swapaxes(2, 3) * form.scale
    logits = np.where(seen, (np.tanh(logits / softcap) * softcap if softcap else logits) + wide, LEAST)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    slopes = d @ v.swapaxes(2, 3)
    slopes = np.where(seen, weights * (slopes - (slopes * weights).sum(-1, keepdims=True)), 0)
    full = (1,) * (4 - bias.ndim) + bias.shape
    expected_ = slopes.sum(tuple([axis for axis in range(4) if full[axis] == 1]), keepdims=True).reshape(bias.shape)
    tolerance = 2e-5 if dtype == np.float32 else 4e-3
    assert np.abs(to_bias.astype(np.float64) - expected_).max() <= tolerance * max(np.abs(expected_).max(), 1)


def test_learned_relative_positions_are_part_of_the_routine() -> None:
    rng, shape = np.random.default_rng(0), (1, 33, 2, 16)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    table = rng.standard_normal((2, 65)).astype(np.float32)

    def loss(q: Any, k: Any, v: Any, table: Any) -> Any:
        positions = vnp.arange(33)
        bias = table[:, positions[:, None] - positions + 32]
        return vnp.sum(vf.nn.dot_product_attention(q, k, v, bias[None]) * q)

    step = vf.jit(vf.grad(loss, (0, 1, 2, 3)))
    items = lower(step.lower(q, k, v, table).jaxpr, GPU.backend.gpu.target).items
    assert [item.key.key[0] for item in items if item.key is not None].count("attention_gradient_routine") == 1
    expected_ = step(q, k, v, table)
    with vf.default_device(GPU):
        result = step(q, k, v, table)
    for x, y in zip(result, expected_, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-4, atol=2e-5)


def test_worth_while() -> None:
    def judged(axes: Axes, rows: int, width: int) -> bool:
        shape = (8, 16, rows, width) if axes is HEADS_FIRST else (8, rows, 16, width)
        array = ShapedArray(shape, np.dtype(np.float32))
        return worthwhile((array,) * 3, Form(axes, axes, axes, axes, 1.0, LEAST, window=CAUSAL), TargetCapabilities())

    assert judged(HEADS_FIRST, 1024, 64)
    assert judged(ROWS_FIRST, 1024, 128)
    assert judged(HEADS_FIRST, 16, 64)
    assert not judged(HEADS_FIRST, 8, 64)  # blocks would be mostly empty
    assert not judged(HEADS_FIRST, 1024, 256)
    assert not judged(HEADS_FIRST, 16384, 128)  # more than a shader can bind
    assert not judged(Axes((0, 1), 3, 2), 1024, 64)  # features are no neighbours


def test_a_training_step_has_no_array_of_all_weights() -> None:
    tokens = 24
    case = named("train/gpt").make(np.random.default_rng(0), batch=2, tokens=tokens, width=16, layers=1, heads=2, vocabulary=11)
    step = vf.jit(case.functional(library("volta_fn")))
    lowered = step.lower(*case.inputs).jaxpr
    items = lower(lowered, GPU.backend.gpu.target).items
    avals = [v.aval for item in items for v in item.results]
    assert not [a for a in avals if a.shape[-2:] == (tokens, tokens)]
    names = [item.key.key[0] for item in items if item.key is not None]
    assert (names.count("attention_routine"), names.count("attention_gradient_routine")) == (1, 1)
    expected_ = arrays_in(contestant("volta_fn", case).call())
    with vf.default_device(GPU):
        result = arrays_in(contestant("volta_fn", case).call())
    for x, y in zip(result, expected_, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


OPTIONS: list[dict[str, Any]] = [
    {"local_window_size": (20, 4)},
    {"local_window_size": (3, 0), "is_causal": True},
    {"logits_soft_cap": 1.5, "is_causal": True},
    {"bias": np.random.default_rng(1).standard_normal((2, 1, 70), np.float32)},
    {"bias": np.where(np.arange(70) < 35, -np.inf, 0).astype(np.float32), "is_causal": True},
    {"bias": np.full(70, np.finfo(np.float32).min)},
    {"logits_soft_cap": 1e5},
    {"bias": np.random.default_rng(1).standard_normal((2, 40, 70), np.float32), "key_value_seq_lengths": np.int32([33])},
    {
        "mask": np.random.default_rng(1).random((1, 1, 1, 70)) < 0.5,
        "query_seq_lengths": np.int32([30]),
        "key_value_seq_lengths": np.int32([9]),
    },
]


@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_options_agree_with_the_cpu(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, n, 2, 16), np.float32) for n in (40, 70, 70)]

    def loss(*arrays: Any) -> Any:
        return vnp.sum(vf.nn.dot_product_attention(*arrays, **options) ** 2)

    results = []
    for device in (vf.devices("cpu")[0], GPU):
        with vf.default_device(device):
            value, gradients = vf.jit(vf.value_and_grad(loss, argnums=(0, 1, 2)))(*[vnp.asarray(x) for x in arrays])
            results.append([np.asarray(x) for x in (value, *gradients)])
    for x, y in zip(*results, strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("is_causal", [True, False])
def test_products_that_overflow(is_causal: bool) -> None:
    """Queries all of whose visible logits are -inf weigh hidden keys in all blocks, as in JAX."""
    rng = np.random.default_rng(0)
    q, k, v, d = (rng.standard_normal((1, 1, 140, 16), np.float32) for _ in range(4))
    q[..., [5, 70], :], k[..., :75, :] = 3e19, -3e19
    window = CAUSAL if is_causal else Window(20, 30)
    ahead = np.arange(140) - np.arange(140)[:, None]
    seen = ahead <= 0 if is_causal else (ahead >= -20) & (ahead <= 30)
    form = Form(HEADS_FIRST, HEADS_FIRST, HEADS_FIRST, HEADS_FIRST, 0.25, LEAST, window)
    avals = (ShapedArray(q.shape, q.dtype),) * 3
    routine = attention(avals, {"form": form._replace(cotangent=None)}, capabilities())
    out, statistics = run_routine(routine, [q, k, v], [(q.shape, np.float32), ((1, 140, 2), np.float32)])
    routine = attention_gradient((*avals, avals[0], ShapedArray((1, 140, 2), q.dtype), avals[0]), {"form": form}, capabilities())
    _, to_k, to_v = run_routine(routine, [q, k, v, out, statistics, d], [(q.shape, np.float32)] * 3)
    result, _, for_k, for_v = expected(*(x.astype(np.float64) for x in (q, k, v, d)), seen, 0.25)
    for x, y in ((out, result), (to_k, for_k), (to_v, for_v)):
        assert np.abs(x - y).max() <= 1e-5 * max(np.abs(y).max(), 1)


#: What else a query sees, and the blocks of 32 queries by 64 keys that 256 queries visit; and that the gradient visits, of 64 by 64.
VISITS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "causal": ({}, (20, 10)),
    "bias": ({"bias": np.random.default_rng(1).standard_normal((1, 1, 256, 256), np.float32)}, (20, 10)),
    "bias, window": ({"bias": np.zeros(256, np.float32), "local_window_size": (40, 0)}, (14, 7)),
    "blind to 40 keys": ({"bias": np.where(np.arange(256) < 40, -np.inf, 0).astype(np.float32)}, (26, 16)),
    "mask": ({"mask": np.arange(256) >= 40}, (26, 16)),
}


@pytest.mark.parametrize("name", VISITS)
def test_blocks_that_the_window_hides(name: str) -> None:
    """They are visited only where a query weighs hidden keys: elsewhere NaN in them does not matter."""
    options, visits = VISITS[name]
    q, k, v = (np.random.default_rng(0).standard_normal((1, 256, 1, 16), np.float32) for _ in range(3))

    def attend(*arrays: Any) -> Any:
        return vf.nn.dot_product_attention(*arrays, is_causal=True, **options)

    run, pull = vf.jit(attend), vf.jit(lambda v, d: vf.vjp(lambda v: attend(q, k, v), v)[1](d)[0])
    counts = np.zeros(2, np.int64)
    with vf.default_device(GPU):
        for first in range(0, 256, 64):
            bad, slopes = v.copy(), np.ones_like(q)
            bad[:, first : first + 64] = slopes[:, first : first + 64] = np.nan
            results = (np.isnan(np.asarray(x)).any((0, 2, 3)) for x in (run(q, k, bad), pull(v, slopes)))
            counts += [x.reshape(-1, size).any(1).sum() for x, size in zip(results, (32, 64), strict=True)]
    assert tuple(counts) == visits


def test_a_window_takes_no_array_of_all_weights() -> None:
    rows = vf.ShapeDtypeStruct((1, 4096, 4, 64), "float32")

    def loss(q: Any, k: Any, v: Any) -> Any:
        return vnp.sum(vf.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(256, 0)))

    assert vf.jit(vf.grad(loss, argnums=(0, 1, 2))).lower(rows, rows, rows).plan("webgpu").peak_memory < 4 * 4096**2 * 4


def test_operands_whose_features_are_not_last_in_memory() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 16, 2, 40), np.float32) for _ in range(3)]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return vnp.sum(vf.nn.dot_product_attention(*[x.transpose(0, 3, 2, 1) for x in (q, k, v)]) ** 2)

    results = []
    for device in (vf.devices("cpu")[0], GPU):
        with vf.default_device(device):
            value, gradients = vf.jit(vf.value_and_grad(loss, argnums=(0, 1, 2)))(*[vnp.asarray(x) for x in arrays])
            results.append([np.asarray(x) for x in (value, *gradients)])
    for x, y in zip(*results, strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5)
