"""GPTQ beside the algorithm as its paper writes it, in float64, and calibration through transforms and control flow."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax, nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError
from volta_fn.nn.quantization import ObservedArray, _solve, gram_matrices
from volta_fn.primitives.quantized import QuantizedLayout


def inputs_of(size: int, count: int = 256, seed: int = 0) -> np.ndarray:
    """Correlated inputs of different magnitudes."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, size)) @ rng.normal(size=(size, size)) * np.exp(rng.normal(size=size))).astype(np.float32)


def weight_of(out: int, size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(out, size)).astype(np.float32)


def paper(weight: np.ndarray, gram: np.ndarray, scales: np.ndarray, offsets: np.ndarray, order: np.ndarray, damping: float) -> np.ndarray:
    """Algorithm 1 of Frantar et al. (2022) with a block of one column, by the inverse's Cholesky factor."""
    w, h = weight.astype(np.float64)[:, order], gram.astype(np.float64)[order][:, order]
    h = h + damping * np.diag(gram).mean() * np.eye(len(h))
    factor = np.linalg.cholesky(np.linalg.inv(h)).T
    rounded = np.empty_like(w)
    for k, i in enumerate(order):
        code = np.clip(np.round((w[:, k] - offsets[:, i]) / scales[:, i]), -8, 7)
        rounded[:, k] = code * scales[:, i] + offsets[:, i]
        error = (w[:, k] - rounded[:, k]) / factor[k, k]
        w[:, k + 1 :] -= error[:, None] * factor[k, k + 1 :]
    result = np.empty_like(rounded)
    result[:, order] = rounded
    return result


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("out", "size", "group_size"), [(5, 64, 32), (3, 200, 64), (1, 7, 4), (4, 128, 128)])
def test_rounds_as_the_paper(out: int, size: int, group_size: int, symmetric: bool, act_order: bool) -> None:
    weight, x = weight_of(out, size), inputs_of(size)
    gram = x.T @ x / 256
    layer = nn.gptq(
        nn.Linear(vnp.asarray(weight.T)), [vnp.asarray(x)], group_size=group_size, symmetric=symmetric, act_order=act_order, damping=0.05
    )
    array = layer.weight
    assert (array.scheme, array.group_size, array.shape, array.rows_last) == ("int4", group_size, (size, out), True)
    full = [
        np.repeat(np.asarray(v, np.float64), group_size, 1)[:, :size]
        for v in (array.scales, array.scales * 0 if symmetric else array.offsets)
    ]
    order = np.argsort(-np.diag(gram), kind="stable") if act_order else np.arange(size)
    expected = paper(weight, gram, *full, order, 0.05)
    # A number on the edge of two codes may go either way in float32, and the rest of its row follows: rows agree, or are as good.
    actual = np.asarray(array.dequantize(), np.float64).T
    same = np.isclose(actual, expected, rtol=1e-4, atol=1e-5).all(1)
    loss = lambda w: np.einsum("oi,ij,oj->o", weight - w, gram, weight - w)
    assert same.mean() >= 0.6
    np.testing.assert_allclose(loss(actual).sum(), loss(expected).sum(), rtol=0.05)


@pytest.mark.parametrize("scheme", ["int8", "int4", "nf4", "fp8"])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_outputs_change_less_than_by_rounding(scheme: Any, group_size: int) -> None:
    x = vnp.asarray(inputs_of(256, 512))
    model = nn.Linear.init(vf.random.key(0), 256, 48)
    new = vnp.asarray(inputs_of(256, 512, seed=0)[::-1]) * 0.7  # other numbers of the same kind
    error = lambda small: float(vnp.square(small(new) - model(new)).mean())
    calibrated = nn.gptq(model, [x], scheme, group_size=group_size)
    assert error(calibrated) < 0.6 * error(nn.quantize(model, scheme, group_size=group_size))
    assert vf.tree.structure(calibrated) == vf.tree.structure(nn.quantize(model, scheme, group_size=group_size))


def gram_of(model: Any, batches: list[Any], call: Any = lambda model, x: model(x)) -> Any:
    """Return the Gram matrix of a model's one weight (in, out)."""
    observe = lambda model, zeros: vf.tree.map(
        lambda layer: layer.replace(weight=ObservedArray(layer.weight.T, zeros["w"], True)) if isinstance(layer, nn.Linear) else layer,
        model,
        is_leaf=lambda node: isinstance(node, nn.Linear),
    )
    return np.asarray(gram_matrices(observe, model, {"w": (6, 6)}, batches, call)["w"])


CALLS: dict[str, Any] = {
    "plain": lambda model, x: model(x),
    "jit": lambda model, x: vf.jit(model)(x),
    "vmap": lambda model, x: vf.vmap(model)(x),
    "checkpoint": lambda model, x: vf.checkpoint(model)(x),
    "scan": lambda model, x: lax.scan(lambda c, row: (c, model(row)), 0.0, x)[1],
    "cond": lambda model, x: lax.cond(x.sum() > -1e9, model, lambda x: x[:, :3], x),
}


@pytest.mark.parametrize("name", CALLS)
def test_gram_matrices_through_transforms(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(2, 9, 6)).astype(np.float32)
    gram = gram_of(nn.Linear.init(vf.random.key(0), 6, 3), [vnp.asarray(b) for b in x], CALLS[name])
    np.testing.assert_allclose(gram, np.einsum("bni,bnj->ij", x, x), rtol=1e-4, atol=1e-5)


def test_gram_matrices_of_16_bits_are_summed_in_float32() -> None:
    x = vnp.ones((5000, 6), "bfloat16")
    np.testing.assert_array_equal(gram_of(nn.Linear.init(vf.random.key(0), 6, 3, dtype="bfloat16"), [x]), np.full((6, 6), 5000, np.float32))


SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_language_models_stacked_or_not(kind: str) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2} if kind == "mixtral" else {}
    config = nn.CausalLMConfig(model_type=kind, initializer_range=0.1, **SIZES, **experts)
    model = nn.CausalLM.init(vf.random.key(0), config)
    batches = [vf.random.randint(vf.random.key(i), (4, 32), 0, 96) for i in range(3)]
    small = nn.gptq(model, batches, group_size=32)
    assert small.model.embed_tokens.weight.scheme == "int8"
    text = vf.random.randint(vf.random.key(9), (4, 32), 0, 96)
    error = lambda other: float(vnp.square(other(text) - model(text)).mean())
    assert error(small) < 0.8 * error(nn.quantize(model, "int4", group_size=32))
    stacked = nn.gptq(model.stack(), batches, group_size=32)
    assert error(stacked) < 1.2 * error(small)
    np.testing.assert_allclose(stacked(text), stacked.unstack()(text), rtol=1e-4, atol=1e-4)


def test_a_weight_without_inputs_is_rounded_by_itself() -> None:
    model = {"used": nn.Linear.init(vf.random.key(0), 32, 4), "other": nn.Linear.init(vf.random.key(1), 32, 4)}
    small = nn.gptq(model, [vnp.asarray(inputs_of(32))], call=lambda model, x: model["used"](x))
    step = np.asarray(small["other"].weight.scales).max()
    assert np.abs(np.asarray(small["other"].weight.dequantize() - model["other"].weight)).max() < 1.5 * abs(step)


def test_threads_calibrate_at_once() -> None:
    model = nn.MLP.init(vf.random.key(0), 32, 4, 16, 1)
    batches = [vnp.asarray(inputs_of(32, seed=i)) for i in range(4)]
    expected = [nn.gptq(model, [batch], group_size=16) for batch in batches]
    results: list[Any] = [None] * 4
    threads = [threading.Thread(target=lambda i=i: results.__setitem__(i, nn.gptq(model, [batches[i]], group_size=16))) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(nn.tree_equal(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_layers(shape: tuple[int, int]) -> None:
    small = nn.gptq(nn.Linear(vnp.zeros(shape)), [vnp.zeros((2, shape[0]))])
    assert small.weight.shape == shape and small(vnp.zeros((2, shape[0]))).shape == (2, shape[1])


def test_bad_arguments() -> None:
    model, x = nn.Linear.init(vf.random.key(0), 8, 4), vnp.ones((2, 8))
    for options, message in [
        ({"damping": 0}, "damping"), ({"damping": True}, "damping"), ({"scheme": "int3"}, "int3"),
        ({"where": lambda *_: False}, "no layer"), ({"call": lambda model, x: model(x) > 0}, "no floats"),
        ({"group_size": 0}, "group_size"),
    ]:  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            nn.gptq(model, [x], **options)
    with pytest.raises(ArgumentError, match="at least one batch"):
        nn.gptq(model, [])
    with pytest.raises(ArgumentError, match="not finite"):
        nn.gptq(model, [x * np.inf])


def test_solves_under_vmap() -> None:
    layout = QuantizedLayout("int4", 64, 32)
    rows = vnp.asarray(np.stack([weight_of(3, 64, seed) for seed in (0, 1)]))
    grams = vnp.asarray(np.stack([(x := inputs_of(64, seed=seed)).T @ x for seed in (2, 3)]))
    both = _solve(rows, grams, 0.01, layout, True, np.dtype(np.float32), False)
    for i in range(2):
        one = _solve(rows[i], grams[i], 0.01, layout, True, np.dtype(np.float32), False)
        np.testing.assert_allclose(both[1].scales[i], one[1].scales, rtol=1e-5)
        assert (np.asarray(both[0][i]) == np.asarray(one[0])).mean() > 0.9
