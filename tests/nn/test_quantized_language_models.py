"""Language models with quantised weights: logits, plans, generation, adapters and files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn, optim
from volta_fn import numpy as vnp
from volta_fn.errors import DTypeError, ShapeError

SCHEMES = ("int8", "int4", "nf4", "fp8")
SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "tied": {"model_type": "llama", "tie_word_embeddings": True},
    "biased": {"model_type": "qwen2"},
    "packed": {"model_type": "phi3"},
    "experts": {"model_type": "mixtral", "num_experts": 4, "num_experts_per_tok": 2},
}
TOKENS = vnp.array([[5, 6, 7, 8], [9, 10, 11, 12]])


def model_of(kind: str, dtype: str = "float32", **options: Any) -> nn.CausalLM:
    """Return a random model whose logits differ enough to have a clear order."""
    config = nn.CausalLMConfig(**{**SIZES, **KINDS[kind], "dtype": dtype, "initializer_range": 0.1, **options})
    return nn.CausalLM.init(vf.random.key(0), config)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_dequantised_model(kind: str, scheme: Any) -> None:
    model = model_of(kind)
    small = nn.quantize(model, scheme)
    matrices = [x for x in vf.tree.leaves(small) if x.ndim > 1 and x.shape[-1] > 2 and x.dtype == np.float32]
    assert not matrices  # only codes, scales and vectors
    logits = np.asarray(small(TOKENS))
    np.testing.assert_allclose(logits, nn.dequantize(small)(TOKENS), rtol=1e-5, atol=1e-5)
    error = np.abs(logits - np.asarray(model(TOKENS)))
    assert error.max() > 0
    assert np.sqrt((error**2).mean()) < {"int8": 0.03, "fp8": 0.15}.get(scheme, 0.4) * float(vnp.std(model(TOKENS)))
    np.testing.assert_allclose(small.stack()(TOKENS), logits, rtol=1e-5, atol=1e-5)


def test_heads_of_16_bits_sum_in_float32() -> None:
    """A tied head multiplies by the embedding's codes, and its logits are not rounded to bfloat16."""
    small = nn.quantize(model_of("tied", "bfloat16"), "int4")
    logits = small(TOKENS)
    assert logits.dtype == np.float32
    assert (logits != logits.astype("bfloat16").astype("float32")).any()
    hidden, _, _ = small.hidden(TOKENS)
    table = small.model.embed_tokens.weight
    assert isinstance(table, nn.QuantizedArray)
    expected = np.asarray(hidden.astype("float32")) @ np.asarray(table.dequantize("float32")).T
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(logits, nn.dequantize(small)(TOKENS), atol=0.05 * float(vnp.abs(logits).max()))


@pytest.mark.parametrize(("source", "dtype"), [("float32", None), ("bfloat16", None), ("bfloat16", "float32"), ("float16", "float32")])
def test_projections_have_the_dtype_of_their_sums(source: str, dtype: Any) -> None:
    layer = nn.Projection.init(vf.random.key(0), 64, 24, bias=True, std=1.0, dtype=source)
    small, x = nn.quantize(layer, "int8"), vf.random.normal(vf.random.key(1), (2, 3, 64)).astype(source)
    result = small(x, preferred_element_type=dtype)
    assert result.dtype == layer(x, preferred_element_type=dtype).dtype
    exact = np.asarray(x, np.float64) @ np.asarray(small.weight.dequantize("float32"), np.float64).T
    np.testing.assert_allclose(result.astype("float32"), exact, rtol=1e-2 if result.dtype != np.float32 else 1e-5, atol=1e-4)


def test_projections_raise_for_narrower_sums_and_integers() -> None:
    small = nn.quantize(nn.Projection.init(vf.random.key(0), 64, 24), "int8")
    with pytest.raises(DTypeError, match="narrower"):
        small(vnp.ones((2, 64)), preferred_element_type="bfloat16")
    with pytest.raises(DTypeError, match="floats"):
        small(vnp.ones((2, 64), "int32"))
    with pytest.raises(ShapeError, match="Projection"):
        small(vnp.ones((2, 63)))


@pytest.mark.parametrize("kind", KINDS)
def test_activations_of_8_bits(kind: str) -> None:
    model = model_of(kind)
    integers = nn.quantize(model, "int8", activations="int8")
    layer = integers.model.layers[0]
    assert layer.self_attn.o_proj.weight.activations == "int8"
    assert integers.model.embed_tokens.weight.activations is None
    expected = np.asarray(model(TOKENS))
    error = np.abs(np.asarray(integers(TOKENS)) - expected)
    assert np.sqrt((error**2).mean()) < 0.05 * expected.std()
    assert not np.array_equal(integers(TOKENS), nn.quantize(model, "int8")(TOKENS))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_is_that_of_the_dequantised_model(scheme: Any) -> None:
    small = nn.quantize(model_of("tied"), scheme)
    whole = nn.dequantize(small)
    prompts = [[5, 6, 7], [8]]
    tokens = np.asarray(nn.generate(small, prompts, 6))
    np.testing.assert_array_equal(tokens, nn.generate(whole, prompts, 6))
    np.testing.assert_array_equal(nn.generate(small.stack(), prompts, 6), tokens)
    np.testing.assert_array_equal([int(t[0]) for t in nn.TokenStream(small, prompts[0], 6)], tokens[0])


def test_searches_and_batches() -> None:
    model = model_of("biased")
    small = nn.quantize(model, "int4")
    whole = nn.dequantize(small)
    beams, expected = (nn.beam_search(m, [5, 6, 7], 4, num_beams=3) for m in (small, whole))
    np.testing.assert_array_equal(beams.tokens, expected.tokens)
    np.testing.assert_allclose(beams.scores, expected.scores, rtol=1e-4, atol=1e-4)
    drafted = nn.speculative_generate(model, small, [5, 6, 7], 6)
    np.testing.assert_array_equal(drafted.tokens, nn.generate(model, [5, 6, 7], 6))
    np.testing.assert_array_equal(nn.speculative_generate(small, model, [5, 6, 7], 6).tokens, nn.generate(small, [5, 6, 7], 6))
    batch = nn.ContinuousBatch(small, pages=16, page_size=4, rows=2)
    batch.add([5, 6, 7], max_new_tokens=4)
    assert [new.token for new in batch] == nn.generate(small, [5, 6, 7], 4).tolist()


@pytest.mark.parametrize("kind", ["tied", "experts"])
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_no_plan_of_a_step_stores_a_matrix(kind: str, scheme: Any) -> None:
    config = nn.CausalLMConfig(
        **SIZES | KINDS[kind] | {"dtype": "bfloat16", "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 8192}
    )
    small = vf.eval_shape(lambda: nn.quantize(nn.CausalLM.init(vf.random.key(0), config), scheme))
    cache = vf.eval_shape(lambda: nn.CausalLM.init(vf.random.key(0), config).init_cache(1, 32))
    step = vf.jit(lambda m, tokens, cache: m(tokens, cache=cache), donate_argnums=2)
    memory = step.lower(small, vf.ShapeDtypeStruct((1, 1), "int32"), cache).memory()
    expert = 0  # the scan over tokens' experts copies the codes of one
    if kind == "experts":
        expert = sum(x.nbytes // 4 for x in vars(small.model.layers[0].mlp.experts).values() if isinstance(x, nn.QuantizedArray))
    assert memory.temporaries - expert < 1024 * 1024  # bytes; the least matrix of a layer has 2 MiB in bfloat16


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_over_quantised_weights_learn(dora: bool) -> None:
    small = nn.quantize(model_of("tied"), "nf4")
    adapted = nn.lora(small, vf.random.key(1), rank=4, dora=dora, where="*.self_attn.*")
    np.testing.assert_allclose(adapted(TOKENS), small(TOKENS), rtol=1e-4, atol=1e-4)
    whole = nn.dequantize(adapted)
    trained, frozen = nn.partition(adapted, nn.lora_filter(adapted))
    assert {x.dtype for x in vf.tree.leaves(trained)} == {np.dtype(np.float32)}
    assert all(isinstance(x, nn.QuantizedArray) or x.ndim == 1 for x in _weights(frozen))
    optimizer = optim.adamw(3e-2)
    state = optimizer.init(trained)

    def loss(trained: Any, frozen: Any) -> Any:
        return nn.cross_entropy(nn.combine(trained, frozen)(TOKENS[:, :-1]), TOKENS[:, 1:], axis=-1)

    @vf.jit
    def update(trained: Any, state: Any, frozen: Any) -> Any:
        value, gradient = vf.value_and_grad(loss)(trained, frozen)
        updates, state = optimizer.update(gradient, state, trained)
        return optim.apply_updates(trained, updates), state, value

    expected = vf.grad(loss)(*nn.partition(whole, nn.lora_filter(whole)))
    for a, b in zip(vf.tree.leaves(vf.grad(loss)(trained, frozen)), vf.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    losses = []
    for _ in range(30):
        trained, state, value = update(trained, state, frozen)
        losses.append(float(value))
    assert losses[-1] < 0.5 * losses[0]
    adapted = nn.combine(trained, frozen)
    np.testing.assert_allclose(nn.merge_lora(adapted)(TOKENS), adapted(TOKENS), rtol=1e-3, atol=1e-3)


def _weights(model: Any) -> list[Any]:
    return vf.tree.leaves(model, is_leaf=lambda x: isinstance(x, nn.QuantizedArray))


@pytest.mark.parametrize("kind", ["tied", "experts"])
def test_stacked_layers_and_adapted_ones_are_quantised(kind: str) -> None:
    model = model_of(kind)
    assert nn.tree_equal(nn.quantize(model.stack(), "int4"), nn.quantize(model, "int4").stack())
    adapted = nn.lora(model, vf.random.key(1), rank=2, where="*.self_attn.*")
    small = nn.quantize(adapted, "int8", where=lambda name, layer: "self_attn" in name)
    assert isinstance(small.model.layers[0].self_attn.q_proj.layer.weight, nn.QuantizedArray)
    assert nn.tree_equal(small.model.layers[0].self_attn.q_proj.lora_A, adapted.model.layers[0].self_attn.q_proj.lora_A)


def test_routers_stay_floats_by_where() -> None:
    small = nn.quantize(model_of("experts"), "int8", where=lambda name, layer: not name.endswith("mlp.gate"))
    mlp = small.model.layers[0].mlp
    assert isinstance(mlp.experts.down_proj, nn.QuantizedArray) and mlp.experts.down_proj.shape == (4, 64, 128)
    assert not isinstance(mlp.gate.weight, nn.QuantizedArray)
