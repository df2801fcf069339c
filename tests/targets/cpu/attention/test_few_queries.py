"""Attention of few queries, which reads keys and values in place: against its definition in float64, and what it does not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.cpu.attention.test_attention import TOLERANCE, definition, is_routine, operands
from tests.targets.cpu.running import run_routine
from volta_fn import nn
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import CAUSAL, Axes, Form, Window
from volta_fn.targets.cpu import attention
from volta_fn.targets.cpu.attention import few_queries

pytest.importorskip("llvmlite")
RNG = np.random.default_rng(0)
HEADS_FIRST, ROWS_FIRST = Axes((0, 1), 2, 3), Axes((0, 2), 1, 3)
LEAST = float(np.finfo(np.float32).min)


@pytest.fixture(autouse=True)
def in_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have even one key, and any dtype, be read in place, in programs that no other test traces."""
    monkeypatch.setattr(attention, "has_few_queries", lambda a: True)
    monkeypatch.setenv("VOLTA_CACHE_DIR", "")  # where programs are known by what was traced
    vf.clear_caches()
    yield
    vf.clear_caches()


def visible(t: int, s: int) -> np.ndarray:
    """Return a mask under which some queries see nothing, others only the last key, and most the keys up to some."""
    mask = np.broadcast_to(np.arange(s) < s // 3, (2, 1, t, s)).copy()
    mask[0, 0, 0] = False
    mask[1, 0, -1, : s - 1], mask[1, 0, -1, s - 1] = False, True
    return mask


def of_heads(s: int) -> np.ndarray:
    """Return a mask that is another one for each head."""
    mask: np.ndarray = np.arange(s) < np.array([s, 1, s // 2, s - 3])[:, None, None]
    return mask


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"local_window_size": (1, 40)},
    "window ahead": {"local_window_size": (-2, 70)},
    "lengths": {"key_value_seq_lengths": np.int32([300, 1])},
    "bias of keys": {"bias": RNG.standard_normal((4, 1, 300), np.float32)},
    "bias of all, scaled": {"bias": RNG.standard_normal((2, 4, 3, 300), np.float32), "scale": 0.3},
    "minus infinity": {"bias": np.where(RNG.random((3, 300)) < 0.5, -np.inf, 0).astype(np.float32)},
    "window, minus infinity": {"bias": np.full((1, 1, 1, 300), -np.inf, np.float32), "local_window_size": (9, 20)},
    "window, the least number": {"bias": np.full((1, 1, 1, 300), LEAST, np.float32), "local_window_size": (9, 20)},
    "filled": {"mask": (np.arange(300) <= 129)[None, None, None]},
    "blind": {"mask": visible(3, 300)},
    "nothing": {"mask": np.zeros((1, 1, 1, 300), np.bool_)},
    "masks of heads": {"mask": of_heads(300)},
    "soft cap": {"logits_soft_cap": 1.5, "mask": visible(3, 300)},
    "all": {
        "logits_soft_cap": 3.0,
        "mask": visible(3, 300),
        "bias": RNG.standard_normal(300).astype(np.float32),
        "local_window_size": (90, 90),
    },
}


@pytest.mark.parametrize("task_bytes", [few_queries._TASK_BYTES, 1 << 13], ids=["one task", "chunks"])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, task_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all keys of a group in one task, and with chunks that another launch combines."""
    monkeypatch.setattr(few_queries, "_TASK_BYTES", task_bytes)
    arrays, options = operands(2, 3, 300, 4, 2, 20), OPTIONS[name]
    run = vf.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, **options))
    assert is_routine(run.lower(*arrays))
    np.testing.assert_allclose(run(*arrays), definition(*arrays, **options), rtol=0, atol=5e-6)


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1, 1, 1), (1, 1, 1024, 9, 3, 64), (2, 1, 70, 6, 2, 33), (2, 5, 64, 2, 2, 64), (1, 1, 31, 3, 1, 130), (3, 2, 257, 8, 1, 8),
        (1, 1, 96, 2, 2, 300), (1, 16, 65, 1, 1, 12), (1, 1, 5000, 4, 4, 96), (1, 8, 64, 64, 64, 64),
    ],
)  # fmt: skip
def test_dtypes_and_shapes(shape: tuple[int, ...], dtype: str, heads_first: bool) -> None:
    """With groups side by side in memory, and with all keys of a group."""
    q, k, v = operands(*shape, dtype=dtype)
    mask = (np.arange(shape[2]) < max(1, shape[2] // 2))[None, None, None]
    keys, values = (x.swapaxes(1, 2) if heads_first else x for x in (k, v))

    def attend(q: Any, keys: Any, values: Any) -> Any:
        k, v = (x.swapaxes(1, 2) if heads_first else x for x in (keys, values))
        return nn.dot_product_attention(q, k, v, mask=mask)

    out = vf.jit(attend)(q, keys, values)
    assert out.dtype == q.dtype
    expected = definition(q, k, v, mask=mask)
    np.testing.assert_allclose(np.asarray(out).astype(np.float64), expected, rtol=0, atol=4 * TOLERANCE[dtype] * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [Window(), CAUSAL])
@pytest.mark.parametrize("keys", [1, 24, 48, 80, 301])
@pytest.mark.parametrize("axes", [HEADS_FIRST, ROWS_FIRST])
def test_statistics_and_bounds(axes: Axes, keys: int, window: Window, dtype: str) -> None:
    """Largest logits and totals are those of the definition; nothing beyond an array is written."""
    kind = vf.dtypes.as_dtype(dtype)
    mask, bias = np.arange(keys) % 7 != 3, RNG.standard_normal((2, 4, 2, keys)).astype(np.float32)
    q, k, _ = (np.asarray(x.swapaxes(1, 2)) for x in operands(2, 2, keys, 4, 2, 18, kind))
    v = RNG.standard_normal((2, 2, keys, 27)).astype(kind)
    stored = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) if axes is ROWS_FIRST else x for x in (k, v)]
    inputs = [np.ascontiguousarray(q), *map(np.ascontiguousarray, stored), bias, mask]
    form = Form(HEADS_FIRST, axes, axes, None, 0.25, -2e38, window, biased=True, masks=1)
    routine = attention.ROUTINES["attention_routine"](tuple([ShapedArray(x.shape, x.dtype) for x in inputs]), {"form": form})
    out, statistics = run_routine(routine, inputs, [((2, 4, 2, 27), kind), ((8, 2, 2), np.dtype(np.float32))])
    x, y, z = (a.astype(np.float64) for a in (q, np.repeat(k, 2, 1), np.repeat(v, 2, 1)))
    logits = 0.25 * np.einsum("bhtd,bhsd->bhts", x, y) + bias
    seen = mask & (np.tri(2, keys, dtype=np.bool_) if window == CAUSAL else True)
    logits = np.where(seen, logits, -2e38)
    largest = logits.max(-1)
    weights = np.exp(logits - largest[..., None])
    tolerance = {"float32": 5e-6, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(statistics[..., 0].reshape(2, 4, 2), largest, rtol=0, atol=tolerance)
    np.testing.assert_allclose(statistics[..., 1].reshape(2, 4, 2), weights.sum(-1), rtol=tolerance)
    expected = np.einsum("bhts,bhsd->bhtd", weights / weights.sum(-1, keepdims=True), z)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_that_no_query_sees_are_not_read(dtype: str) -> None:
    """NaN in slots that are not yet filled leaves no trace; in visible ones it does."""
    q, k, v = (np.array(x) for x in operands(1, 1, 512, 6, 2, 32, vf.dtypes.as_dtype(dtype)))
    mask = (np.arange(512) < 200)[None, None, None]
    run = vf.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, mask=mask))
    expected = np.asarray(run(q, k, v)).astype(np.float64)
    k[:, 256:], v[:, 256:] = np.nan, np.nan
    np.testing.assert_array_equal(np.asarray(run(q, k, v)).astype(np.float64), expected)
    v[:, 100, 1] = np.nan
    out = np.asarray(run(q, k, v)).astype(np.float64)
    assert np.isnan(out[:, :, 3:]).all() and np.isfinite(out[:, :, :3]).all()


@pytest.mark.parametrize("chunks", [False, True])
def test_products_that_overflow(chunks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query all of whose visible logits are -inf weighs hidden keys, as in JAX."""
    monkeypatch.setattr(few_queries, "_TASK_BYTES", 1 << 13 if chunks else few_queries._TASK_BYTES)
    q, k, v = (np.array(x) for x in operands(1, 2, 300, 2, 1, 20))
    q[0, 1], k[0, :200] = 3e19, -3e19
    mask = (np.arange(300) < 200)[None, None, None]
    out = vf.jit(lambda *a: nn.dot_product_attention(*a, mask=mask))(q, k, v)
    np.testing.assert_allclose(out, definition(q, k, v, mask=mask), rtol=0, atol=5e-6)


def test_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks depend on shapes alone: a long cache has several, and all batch entries the same ones."""
    monkeypatch.setattr(few_queries, "_TASK_BYTES", 1 << 14)
    q, k, v = operands(2, 1, 1000, 4, 2, 32)
    together = np.asarray(vf.jit(nn.dot_product_attention)(q, k, v))
    apart = [np.asarray(vf.jit(nn.dot_product_attention)(*[x[i : i + 1] for x in (q, k, v)])) for i in range(2)]
    np.testing.assert_array_equal(together, np.concatenate(apart))


def test_transforms() -> None:
    """vmap gives more heads; gradients and tangents keep what they were computed by."""
    q, k, v = operands(3, 1, 80, 6, 2, 16)
    attend = lambda q, k, v: nn.dot_product_attention(q, k, v)
    each = vf.jit(vf.vmap(attend))(*[x[:, None] for x in (q, k, v)])
    np.testing.assert_allclose(each[:, 0], definition(q, k, v), rtol=0, atol=3e-6)
    loss = lambda *a: (attend(*a) ** 2).sum()
    gradient = vf.grad(loss, (0, 1, 2))
    assert not is_routine(vf.jit(gradient).lower(q, k, v))
    torch = pytest.importorskip("torch")
    theirs = [torch.from_numpy(np.asarray(x).astype(np.float64)).requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(3, 2).transpose(1, 2) for x in theirs[1:])
    out = torch.nn.functional.scaled_dot_product_attention(theirs[0].transpose(1, 2), keys, values)
    for x, y in zip(vf.jit(gradient)(q, k, v), torch.autograd.grad((out**2).sum(), theirs), strict=True):
        np.testing.assert_allclose(x, y.numpy(), rtol=0, atol=1e-5)


def test_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few queries of heads that share keys, and of narrow floats; not of many, of few keys, or with the softmax's statistics."""
    monkeypatch.undo()
    vf.clear_caches()

    def is_kept(*shape: int, dtype: Any = np.float32, **options: Any) -> bool:
        run = vf.jit(lambda *a: nn.dot_product_attention(*a, **options))
        return is_routine(run.lower(*operands(*shape, dtype=dtype)))

    assert is_kept(1, 1, 64, 6, 2, 32) and is_kept(1, 1, 64, 2, 2, 32, dtype=vnp.bfloat16)
    assert not is_kept(1, 1, 64, 2, 2, 32) and not is_kept(1, 1, 63, 6, 2, 32) and not is_kept(1, 17, 64, 2, 2, 32)
    assert not is_kept(1, 1, 64, 6, 2, 32, return_residual=True)
