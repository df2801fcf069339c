"""Attention as machine code: against PyTorch and its definition in float64, with every transform, and in memory that grows linearly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.cpu.running import run_routine
from volta_fn import nn
from volta_fn.compiler.pipeline import lower
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import Axes, Form
from volta_fn.targets.cpu import attention
from volta_fn.targets.cpu.target import TARGET

pytest.importorskip("llvmlite")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def routines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have attention of any size compute block by block, in programs that no other test traces."""
    monkeypatch.setattr(attention, "FEWEST_QUERIES", 1)
    monkeypatch.setattr(attention, "FEWEST_LOGITS", 1)
    monkeypatch.setenv("VOLTA_CACHE_DIR", "")  # where programs are known by what was traced
    vf.clear_caches()
    yield
    vf.clear_caches()


def operands(batch: int, t: int, s: int, heads: int, groups: int, width: int, dtype: Any = np.float32) -> list[Any]:
    """Queries, keys and values."""
    shapes = (batch, t, heads, width), (batch, s, groups, width), (batch, s, groups, width)
    return [vnp.asarray(RNG.standard_normal(shape)).astype(dtype) for shape in shapes]


def definition(q: Any, k: Any, v: Any, bias: Any = 0.0, mask: Any = True, *, is_causal: bool = False, **options: Any) -> np.ndarray:
    """Compute the result by its definition, in float64: (batch, T, heads, features)."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    logits = np.einsum("bthd,bshd->bhts", q, k) * options.get("scale", q.shape[-1] ** -0.5)
    cap = options.get("logits_soft_cap")
    logits = (logits if cap is None else cap * np.tanh(logits / cap)) + np.asarray(bias, np.float64)
    t, s = logits.shape[2:]
    before, after = options.get("local_window_size", (t + s, t + s))
    ahead = np.arange(s) - np.arange(t)[:, None]
    seen = (-before <= ahead) & (ahead <= (min(after, 0) if is_causal else after)) & np.asarray(mask)
    if "key_value_seq_lengths" in options:
        seen = seen & (np.arange(s) < options["key_value_seq_lengths"][:, None, None, None])
    logits = np.where(seen, logits, -2e38)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    out: np.ndarray = np.einsum("bhts,bshd->bthd", weights / weights.sum(-1, keepdims=True), v)
    for entry, length in enumerate(options.get("query_seq_lengths", ())):
        out[entry, length:] = 0
    return out


def blind(t: int, s: int) -> np.ndarray:
    """Return a mask under which some queries see nothing, and others only the last keys."""
    mask = RNG.random((2, 1, t, s)) < 0.3
    mask[0, 0, t // 3] = False
    mask[1, 0, : t // 2, : s - 1] = False
    return mask


def least_bias(number: float) -> np.ndarray:
    """Return a bias under which the first queries see no key that it does not make as small as a hidden one."""
    bias = np.zeros((2, 1, 1, 300), np.float32)
    bias[0, ..., :90] = bias[1] = number
    return bias


LEAST = float(np.finfo(np.float32).min)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"local_window_size": (7, 40)},
    "window of few": {"local_window_size": (3, 0), "is_causal": True},
    "window ahead": {"local_window_size": (-2, 5)},
    "lengths": {"query_seq_lengths": np.int32([0, 90]), "key_value_seq_lengths": np.int32([300, 1])},
    "bias of keys": {"bias": RNG.standard_normal((4, 1, 300), np.float32), "is_causal": True},
    "bias of all": {"bias": RNG.standard_normal((2, 4, 130, 300), np.float32)},
    "bias of a query": {"bias": RNG.standard_normal((2, 1, 130, 1), np.float32), "scale": 0.3},
    "minus infinity": {"bias": np.where(RNG.random((130, 300)) < 0.5, -np.inf, 0).astype(np.float32)},
    "causal, minus infinity": {"bias": least_bias(-np.inf), "is_causal": True},
    "causal, the least number": {"bias": least_bias(LEAST), "is_causal": True},
    "window, minus infinity": {"bias": least_bias(-np.inf), "local_window_size": (9, 20)},
    "the least number": {"bias": least_bias(LEAST)},
    "blind": {"mask": blind(130, 300), "is_causal": True},
    "soft cap": {"logits_soft_cap": 1.5, "is_causal": True},
    "all": {
        "logits_soft_cap": 3.0,
        "mask": blind(130, 300),
        "bias": RNG.standard_normal(300).astype(np.float32),
        "local_window_size": (90, 9),
    },
}
TOLERANCE = {"float32": 3e-6, "float64": 1e-12, "float16": 3e-3, "bfloat16": 2e-2}


def is_routine(lowered: Any) -> bool:
    return "attention_routine" in [item.key.key[0] for item in lower(lowered.jaxpr, TARGET).items if item.key is not None]


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    arrays = operands(2, 130, 300, 4, 2, 20)
    options = OPTIONS[name]
    run = vf.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, **options))
    np.testing.assert_allclose(run(*arrays), definition(*arrays, **options), rtol=0, atol=5e-6)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1, 1), (1, 1, 70, 6, 2, 33), (2, 65, 1, 2, 2, 64), (1, 17, 31, 3, 1, 130), (3, 33, 257, 1, 1, 8)]
)
def test_dtypes_and_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    arrays = operands(*shape, dtype=dtype)
    for is_causal in (False, True):
        out = vf.jit(lambda *a, is_causal=is_causal: nn.dot_product_attention(*a, is_causal=is_causal))(*arrays)
        assert out.dtype == arrays[0].dtype
        expected = definition(*arrays, is_causal=is_causal)
        np.testing.assert_allclose(np.asarray(out).astype(np.float64), expected, rtol=0, atol=4 * TOLERANCE[dtype] * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(1, 0, 5, 2, 2, 4), (0, 3, 5, 2, 2, 4), (1, 3, 5, 2, 2, 0)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    out = vf.jit(nn.dot_product_attention)(*operands(*shape))
    assert out.shape == (*shape[:2], shape[3], shape[5])


def torch_gradients(arrays: list[Any], cotangent: Any, bias: Any, mask: Any, cap: float | None) -> list[np.ndarray]:
    """Gradients in float64, of queries, keys, values and the bias."""
    torch = pytest.importorskip("torch")
    q, k, v, b = (torch.tensor(np.asarray(x).astype(np.float64), requires_grad=True) for x in (*arrays, bias))
    keys, values = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    logits = torch.einsum("bthd,bshd->bhts", q, keys) * q.shape[-1] ** -0.5
    logits = (logits if cap is None else cap * torch.tanh(logits / cap)) + b
    logits = torch.where(torch.tensor(mask), logits, torch.tensor(-2e38, dtype=torch.float64))
    out = torch.einsum("bhts,bshd->bthd", logits.softmax(-1), values)
    return [x.numpy() for x in torch.autograd.grad(out, (q, k, v, b), torch.tensor(np.asarray(cotangent).astype(np.float64)))]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias_shape", [(), (300,), (4, 1, 300), (2, 1, 130, 300), (130, 1)])
def test_gradients_match_torch(dtype: str, bias_shape: tuple[int, ...]) -> None:
    arrays = operands(2, 130, 300, 4, 2, 20, dtype=dtype)
    cotangent, bias = vnp.asarray(RNG.standard_normal(arrays[0].shape)).astype(dtype), vnp.asarray(RNG.standard_normal(bias_shape))
    bias = bias.astype("float64" if dtype == "float64" else "float32")
    mask = blind(130, 300) & np.tri(130, 300, dtype=np.bool_)

    def attend(q: Any, k: Any, v: Any, b: Any) -> Any:
        return nn.dot_product_attention(q, k, v, b, mask, is_causal=True, logits_soft_cap=4.0)

    gradients = vf.jit(lambda *a: vf.vjp(attend, *a)[1](cotangent))(*arrays, bias)
    summed = 8 * 130 * 300 // max(bias.size, 1)  # numbers of both signs, whose rounding errors add up
    for x, y, count in zip(gradients, torch_gradients(arrays, cotangent, bias, mask, 4.0), (1, 1, 1, summed), strict=True):
        tolerance = 4 * TOLERANCE[dtype] * max(math.sqrt(count), np.abs(y).max())
        np.testing.assert_allclose(np.asarray(x).astype(np.float64), y, rtol=0, atol=tolerance)


@pytest.mark.parametrize("number", [-np.inf, LEAST])
def test_gradients_where_hidden_keys_have_weights(number: float) -> None:
    """Logits that a bias takes below those of hidden keys, as that of padding on the left does."""
    arrays, bias = operands(2, 130, 300, 4, 2, 20), vnp.asarray(least_bias(number))
    cotangent, mask = vnp.asarray(RNG.standard_normal(arrays[0].shape)).astype("float32"), np.tri(130, 300, dtype=np.bool_)
    gradients = vf.jit(lambda *a: vf.vjp(lambda *b: nn.dot_product_attention(*b, is_causal=True), *a)[1](cotangent))(*arrays, bias)
    for x, y in zip(gradients, torch_gradients(arrays, cotangent, bias, mask, None), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


@pytest.mark.parametrize("window", [{"is_causal": True}, {"local_window_size": (20, 30)}])
def test_products_that_overflow(window: dict[str, Any]) -> None:
    """Queries all of whose visible logits are -inf weigh hidden keys, as in JAX."""
    q, k, v = (np.array(x) for x in operands(1, 300, 300, 2, 1, 20))
    q[0, [5, 150]], k[0, :200] = 3e19, -3e19
    out, pull = vf.vjp(vf.jit(lambda *a: nn.dot_product_attention(*a, **window)), q, k, v)
    np.testing.assert_allclose(out, definition(q, k, v, **window), rtol=0, atol=5e-6)
    ahead = np.arange(300) - np.arange(300)[:, None]
    mask = ahead <= 0 if "is_causal" in window else (ahead >= -20) & (ahead <= 30)
    cotangent = RNG.standard_normal(q.shape).astype(np.float32)
    for x, y in [*zip(pull(cotangent), torch_gradients([q, k, v], cotangent, np.zeros(1), mask, None), strict=False)][1:]:
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


def test_rows_of_minus_infinity_are_nan() -> None:
    """Of a mask by -inf, under which no key remains where products overflow."""
    q, k, v = (np.array(x) for x in operands(1, 60, 60, 1, 1, 8))
    q[0, 5], k[0, :9] = 3e19, -3e19

    def by_hand(q: Any, k: Any, v: Any) -> Any:
        seen = vnp.arange(60)[None, :] <= vnp.arange(60)[:, None]
        return vnp.einsum("bhts,bshd->bthd", nn.softmax(vnp.where(seen, vnp.einsum("bthd,bshd->bhts", q, k), -vnp.inf)), v)

    assert is_routine(vf.jit(by_hand).lower(q, k, v))
    assert np.isnan(np.asarray(vf.jit(by_hand)(q, k, v))).any((0, 2, 3)).nonzero()[0].tolist() == [5]


@pytest.mark.parametrize(("keys", "itemsize"), [(48, 4), (80, 4), (112, 4), (24, 8), (40, 8)])
def test_reads_nothing_beyond_masks_and_biases(keys: int, itemsize: int) -> None:
    """With keys that fill vectors, but not pairs of them."""
    dtype = np.dtype(f"f{itemsize}")
    rows = [RNG.standard_normal((1, 1, n, 16)).astype(dtype) for n in (5, keys, keys)]
    inputs = [*rows, RNG.standard_normal((1, 1, 5, keys)).astype(dtype), np.ones((1, 1, 5, keys), np.bool_)]
    axes = Axes((0, 1), 2, 3)
    form = Form(axes, axes, axes, None, 0.25, -2e38, biased=True, masks=1)
    routine = attention.ROUTINES["attention_routine"](tuple([ShapedArray(x.shape, x.dtype) for x in inputs]), {"form": form})
    out, _ = run_routine(routine, inputs, [((1, 1, 5, 16), dtype), ((1, 5, 2), dtype)])
    q, k, v = (x.swapaxes(1, 2) for x in rows)
    np.testing.assert_allclose(out.swapaxes(1, 2), definition(q, k, v, inputs[3]), rtol=0, atol=5e-6)


def test_matches_scaled_dot_product_attention_of_torch() -> None:
    torch = pytest.importorskip("torch")
    arrays = operands(2, 200, 200, 4, 4, 32)
    theirs = [torch.from_numpy(np.asarray(x).copy()).transpose(1, 2).requires_grad_() for x in arrays]
    out = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True)
    gradients = torch.autograd.grad((out**2).sum(), theirs)
    value, ours = vf.jit(vf.value_and_grad(lambda *a: (nn.dot_product_attention(*a, is_causal=True) ** 2).sum(), (0, 1, 2)))(*arrays)
    np.testing.assert_allclose(value, (out**2).sum().item(), rtol=1e-5)
    for x, y in zip(ours, gradients, strict=True):
        np.testing.assert_allclose(x, y.transpose(1, 2).numpy(), rtol=0, atol=2e-5)


def test_transforms() -> None:
    """vmap, scan, rematerialisation, tangents and second derivatives agree with each other."""
    q, k, v = operands(3, 40, 70, 4, 2, 16)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (nn.dot_product_attention(q, k, v, is_causal=True) ** 2).sum()

    each = vf.jit(vf.vmap(vf.grad(loss, (0, 1, 2))))(q[:, None], k[:, None], v[:, None])
    together = vf.jit(vf.grad(loss, (0, 1, 2)))(q, k, v)
    again = vf.jit(vf.grad(vf.checkpoint(loss), (0, 1, 2)))(q, k, v)
    _, scanned = vf.jit(lambda *a: vf.lax.scan(lambda c, x: (c, vf.grad(loss, (0, 1, 2))(*[y[None] for y in x])), 0, a))(q, k, v)
    for x, y, z, w in zip(together, each, again, scanned, strict=True):
        for other in (y[:, 0], z, w[:, 0]):
            np.testing.assert_allclose(other, x, rtol=0, atol=2e-5)
    direction = operands(3, 40, 70, 4, 2, 16)
    _, slope = vf.jit(lambda: vf.jvp(loss, (q, k, v), tuple(direction)))()
    np.testing.assert_allclose(slope, sum(float((g * d).sum()) for g, d in zip(together, direction, strict=True)), rtol=1e-4)


@pytest.mark.wide
def test_second_derivatives() -> None:
    arrays = operands(1, 9, 12, 2, 1, 4, np.float64)
    direction = operands(1, 9, 12, 2, 1, 4, np.float64)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (nn.dot_product_attention(q, k, v, is_causal=True) ** 3).sum()

    gradient = vf.jit(vf.grad(loss, (0, 1, 2)))
    _, second = vf.jit(lambda: vf.jvp(vf.grad(loss, (0, 1, 2)), tuple(arrays), tuple(direction)))()
    ends = [gradient(*[x + sign * 1e-6 * d for x, d in zip(arrays, direction, strict=True)]) for sign in (1, -1)]
    for x, after, before in zip(second, *ends, strict=True):
        np.testing.assert_allclose(x, (np.asarray(after) - np.asarray(before)) / 2e-6, rtol=1e-5, atol=1e-7)


def test_written_out() -> None:
    """A user's own softmax(q kᵀ + bias) v is the routine, too."""
    q, k, v = operands(1, 50, 50, 2, 2, 8)
    bias = vnp.asarray(RNG.standard_normal((2, 1, 50), np.float32))

    def by_hand(q: Any, k: Any, v: Any) -> Any:
        logits = vnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(8) + bias
        seen = vnp.arange(50)[None, :] <= vnp.arange(50)[:, None]
        return vnp.einsum("bhts,bshd->bthd", nn.softmax(vnp.where(seen, logits, -vnp.inf)), v)

    np.testing.assert_allclose(vf.jit(by_hand)(q, k, v), definition(q, k, v, bias, is_causal=True), rtol=0, atol=3e-6)
    assert is_routine(vf.jit(by_hand).lower(q, k, v))


def test_nan_stays_in_its_row() -> None:
    q, k, v = (np.asarray(x).copy() for x in operands(1, 40, 60, 1, 1, 8))
    q[0, 7] = np.nan
    out = np.asarray(vf.jit(nn.dot_product_attention)(q, k, v))
    assert np.isnan(out[0, 7]).all() and np.isfinite(np.delete(out, 7, 1)).all()


def temporaries(function: Callable[..., Any], tokens: int) -> int:
    rows = vf.ShapeDtypeStruct((1, tokens, 4, 64), "float32")
    bytes_: int = vf.jit(function).lower(rows, rows, rows).memory().temporaries
    return bytes_


@pytest.mark.parametrize("options", [{}, {"local_window_size": (256, 0)}, {"logits_soft_cap": 30.0}], ids=lambda o: "-".join(o) or "plain")
def test_memory_grows_linearly(options: dict[str, Any]) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return nn.dot_product_attention(q, k, v, is_causal=True, **options)

    for function in (attend, vf.grad(lambda *a: (attend(*a) ** 2).mean(), (0, 1, 2))):
        sizes = [temporaries(function, tokens) for tokens in (4096, 16384, 65536)]
        assert sizes[1] / sizes[0] == pytest.approx(4, rel=0.1)
        assert sizes[2] / sizes[1] == pytest.approx(4, rel=0.1)
        assert sizes[0] < 48 << 20


def test_the_gradient_of_a_bias_takes_its_own_memory() -> None:
    rows, bias = vf.ShapeDtypeStruct((1, 16384, 4, 64), "float32"), vf.ShapeDtypeStruct((4, 1, 16384), "float32")
    gradient = vf.grad(lambda b, q: (nn.dot_product_attention(q, q, q, b, is_causal=True) ** 2).mean())
    assert vf.jit(gradient).lower(bias, rows).memory().temporaries < 256 << 20


def test_small_problems_are_products_and_a_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    vf.clear_caches()
    few, many = operands(1, 64, 64, 4, 4, 16), operands(1, 512, 512, 4, 4, 16)
    assert [is_routine(vf.jit(nn.dot_product_attention).lower(*arrays)) for arrays in (few, many)] == [False, True]


def test_the_target_names_its_pass() -> None:
    assert "attention" in [p.name for p in TARGET.passes()]
