"""Generated tokens beside a loop that reads the whole text for each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.nn.language import generation

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "eos_token_id": None,
}


def model_of(model_type: str = "llama", **entries: Any) -> nn.CausalLM:
    return nn.CausalLM.init(vf.random.key(1), nn.CausalLMConfig.from_json({"model_type": model_type, **SIZES, **entries}))


MODEL = model_of()
SLIDING = model_of("gemma2", sliding_window=6, head_dim=8)


def by_rereading(model: nn.CausalLM, prompt: Sequence[int], count: int, penalty: float = 1.0) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        logits = np.array(model(vnp.array([text]))[0, -1])
        for token in set(text):
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        text.append(int(logits.argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("model", [MODEL, SLIDING], ids=["full", "sliding"])
def test_greedy(model: nn.CausalLM) -> None:
    prompt = [3, 1, 4, 1, 5]
    out = nn.generate(model, prompt, 12)
    assert out.dtype.name == "int32"
    assert out.tolist() == by_rereading(model, prompt, 12)


@pytest.mark.parametrize("model", [MODEL, SLIDING], ids=["full", "sliding"])
def test_prompts_of_unequal_lengths(model: nn.CausalLM) -> None:
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1]]
    out = nn.generate(model, prompts, 8)
    assert out.tolist() == [by_rereading(model, prompt, 8) for prompt in prompts]


@pytest.mark.parametrize("model", [MODEL, SLIDING], ids=["full", "sliding"])
def test_long_prompts_in_chunks_and_growing_caches(model: nn.CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "CHUNK", 8)
    monkeypatch.setattr(generation, "LEAST_CHUNK", 2)
    monkeypatch.setattr(generation, "LEAST_SLOTS", 4)
    prompt = np.random.default_rng(0).integers(0, 40, 21)
    stream = nn.TokenStream(model, prompt, 10)
    first = int(next(stream)[0])
    assert stream.cache is not None
    slots = stream.cache.slots
    tokens = [first, *[int(row[0]) for row in stream]]
    assert tokens == by_rereading(model, prompt.tolist(), 10)
    assert slots is not None and stream.cache.slots is not None
    assert slots <= 32 and stream.cache.slots <= 32


def test_repetition_penalty() -> None:
    prompt = [3, 1, 4]
    assert nn.generate(MODEL, prompt, 10, repetition_penalty=1.7).tolist() == by_rereading(MODEL, prompt, 10, 1.7)


def test_stop_tokens() -> None:
    prompts = [[3, 1, 4], [7, 7, 2]]
    full = nn.generate(MODEL, prompts, 8).tolist()
    stop = full[0][2]
    ends = [row.index(stop) + 1 if stop in row else 8 for row in full]
    expected = [row[:end] + [39] * (max(ends) - end) for row, end in zip(full, ends, strict=True)]
    assert nn.generate(MODEL, prompts, 8, stop_tokens=[stop], pad_token=39).tolist() == expected
    ending = MODEL.replace(config=nn.CausalLMConfig.from_json({"model_type": "llama", **SIZES, "eos_token_id": stop}))
    assert nn.generate(ending, prompts[0], 8).tolist() == full[0][: full[0].index(stop) + 1]
    assert nn.generate(ending, prompts[0], 8, stop_tokens=()).tolist() == full[0]


def test_sampling_follows_the_key() -> None:
    run = lambda seed, **options: nn.generate(MODEL, [[3, 1], [4]], 6, key=vf.random.key(seed), **options).tolist()
    assert run(0, temperature=2.0) == run(0, temperature=2.0)
    assert run(0, temperature=2.0) != run(1, temperature=2.0)
    assert run(0, top_k=1) == nn.generate(MODEL, [[3, 1], [4]], 6).tolist()
    assert run(0, temperature=0.0) == nn.generate(MODEL, [[3, 1], [4]], 6).tolist()


def test_any_function_may_choose() -> None:
    def rarest(logits: Any, key: Any) -> Any:
        return vnp.argmin(logits, -1)

    out = nn.generate(MODEL, [3, 1], 3, sampler=rarest)
    assert int(out[0]) == int(np.asarray(MODEL(vnp.array([[3, 1]])))[0, -1].argmin())
    assert nn.generate(MODEL, [3, 1], 3, sampler=nn.greedy).tolist() == nn.generate(MODEL, [3, 1], 3).tolist()


def test_a_stream_continues_another() -> None:
    prompt = [3, 1, 4]
    stream = nn.TokenStream(MODEL, prompt, 4)
    first = [int(row[0]) for row in stream]
    again = nn.TokenStream(MODEL, [first[-1], 8, 9], 5, cache=stream.cache)
    assert [int(row[0]) for row in again] == by_rereading(MODEL, [*prompt, *first, 8, 9], 5)


def test_prefill_gives_logits_and_a_cache() -> None:
    tokens = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]])
    logits, cache = nn.prefill(MODEL, tokens[:, :3])
    logits, cache = nn.prefill(MODEL, tokens[:, 3:], cache)
    np.testing.assert_allclose(np.asarray(logits), np.asarray(MODEL(vnp.asarray(tokens)))[:, -1], rtol=1e-4, atol=1e-5)
    assert int(cache.length) == 5


def test_rings_grow_to_their_window_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "LEAST_CHUNK", 2)
    monkeypatch.setattr(generation, "LEAST_SLOTS", 4)
    model = model_of("mistral", sliding_window=11)
    stream = nn.TokenStream(model, [3, 1], 24)
    tokens, sizes = [], []
    for row in stream:
        assert stream.cache is not None
        tokens.append(int(row[0]))
        sizes.append(stream.cache.layers[0].keys.shape[2])
    assert tokens == by_rereading(model, [3, 1], 24)
    assert sizes[0] == 4
    assert sizes[-1] == 11
    assert all(size >= min(11, 2 + i) for i, size in enumerate(sizes))
    cache = model.init_cache(1, 4)
    for i in range(6):
        logits, cache = model(vnp.array([[i]]), cache=cache)
        assert np.isnan(np.asarray(logits)).all() == (i >= 4)


def test_nothing_to_generate() -> None:
    assert nn.generate(MODEL, [1], 0).shape == (0,)
    assert nn.generate(MODEL, [[1], [2]], 0).shape == (2, 0)


def test_too_many_tokens_for_a_cache() -> None:
    cache = MODEL.init_cache(1, 3)
    with pytest.raises(ShapeError, match="4 tokens do not fit 3 slots"):
        MODEL(vnp.zeros((1, 4), "int32"), cache=cache)
    _, cache = MODEL(vnp.zeros((1, 3), "int32"), cache=cache)
    logits, _ = MODEL(vnp.zeros((1, 1), "int32"), cache=cache)
    assert np.isnan(np.asarray(logits)).all()


def test_other_models_are_named() -> None:
    gpt = nn.GPT.init(vf.random.key(0), 20, 8, num_layers=1, d_model=8, nhead=2)
    calls: dict[str, Any] = {
        "generate": lambda model: nn.generate(model, [1, 2], 3),
        "prefill": lambda model: nn.prefill(model, [[1, 2]]),
        "beam_search": lambda model: nn.beam_search(model, [1, 2], 3, num_beams=2),
        "speculative_generate": lambda model: nn.speculative_generate(model, model, [1, 2], 3),
        "ContinuousBatch": lambda model: nn.ContinuousBatch(model, pages=4, page_size=4, rows=1),
    }
    for name, call in calls.items():
        with pytest.raises(ArgumentTypeError, match=rf"{name}: the model is a CausalLM, got GPT; .*model.init_cache\(1\)"):
            call(gpt)
        with pytest.raises(ArgumentTypeError, match=rf"{name}: the model is a CausalLM, got MLP\n"):
            call(nn.MLP.init(vf.random.key(0), 2, 2, width_size=2, depth=1))


@pytest.mark.parametrize(
    ("prompt", "count", "options", "error", "message"),
    [
        ([], 1, {}, ShapeError, "at least one token"),
        ([[1], []], 1, {}, ShapeError, "at least one token"),
        (np.zeros((1, 1, 1), int), 1, {}, ShapeError, "sequence"),
        ([1.5], 1, {}, DTypeError, "integers"),
        ([40], 1, {}, ArgumentError, "between 0 and 39"),
        ([-1], 1, {}, ArgumentError, "between 0 and 39"),
        ([1], -1, {}, ArgumentError, "max_new_tokens"),
        ([1], 1, {"temperature": 0.7}, ArgumentTypeError, "random key"),
        ([1], 1, {"top_k": 0, "key": 0}, ArgumentError, "top_k"),
        ([1], 1, {"sampler": nn.greedy, "top_k": 3}, ArgumentError, "leave out top_k"),
    ],
)
def test_bad_arguments(prompt: Any, count: int, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        nn.generate(MODEL, prompt, count, **options)


def test_calls_of_the_model_are_checked() -> None:
    tokens = vnp.zeros((2, 3), "int32")
    with pytest.raises(DTypeError, match="integers"):
        MODEL(vnp.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"\(batch, T\)"):
        MODEL(vnp.zeros(3, "int32"))
    with pytest.raises(ShapeError, match="key_mask"):
        MODEL(tokens, key_mask=vnp.ones((2, 2), bool))
    with pytest.raises(ArgumentError, match="leave key_mask out"):
        MODEL(tokens, key_mask=vnp.ones((2, 3), bool), cache=MODEL.init_cache(2, 4))
    with pytest.raises(ArgumentError, match="1 rows"):
        MODEL(tokens, cache=MODEL.init_cache(1, 4))
    with pytest.raises(ArgumentError, match="count"):
        MODEL(tokens, count=2)
    with pytest.raises(ShapeError, match="positions"):
        MODEL(tokens, positions=vnp.arange(2))
    with pytest.raises(ShapeError, match="start"):
        MODEL.init_cache(2, 4, start=vnp.zeros(3, "int32"))
    with pytest.raises(ArgumentError, match="slots"):
        MODEL.init_cache(2, -1)


def test_padding_without_a_cache() -> None:
    tokens = np.array([[1, 2, 3, 4, 5], [0, 0, 3, 4, 5]])
    mask = np.array([[True] * 5, [False] * 2 + [True] * 3])
    positions = np.array([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])
    logits = np.asarray(MODEL(vnp.asarray(tokens), key_mask=vnp.asarray(mask), positions=vnp.asarray(positions)))
    np.testing.assert_allclose(logits[1, 2:], np.asarray(MODEL(vnp.asarray(tokens[1:, 2:])))[0], rtol=1e-4, atol=1e-5)
    marked = vnp.asarray(np.where(mask, tokens, -1))  # what is masked may be no token
    call = vf.jit(lambda tokens: MODEL(tokens, key_mask=vnp.asarray(mask), positions=vnp.asarray(positions)))
    for result in (call(marked), MODEL(marked, key_mask=vnp.asarray(mask), positions=vnp.asarray(positions))):
        np.testing.assert_allclose(np.asarray(result)[mask], logits[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("model_type", ["llama", "gemma2", "mixtral", "phi"])
def test_dtypes(model_type: str, dtype: str) -> None:
    """Logits are as close to float64's as the dtype is precise; steps with a cache, to those without."""
    entries: dict[str, Any] = {
        "llama": {},
        "gemma2": {"head_dim": 4, "sliding_window": 3},
        "mixtral": {"num_local_experts": 3, "sliding_window": 3},
        "phi": {"num_key_value_heads": 4},
    }[model_type]
    tokens = vnp.array([[1, 2, 3, 4, 5]], "uint8")
    exact = model_of(model_type, dtype="float64", **entries)
    model = vf.tree.map(lambda leaf: leaf.astype(dtype), exact).replace(config=dataclasses.replace(exact.config, dtype=dtype))
    logits = model(tokens)
    assert logits.dtype.name == ("float64" if dtype == "float64" else "float32")
    precision = {"float16": 2e-2, "bfloat16": 2e-1, "float32": 2e-5, "float64": 1e-12}[dtype]
    expected = np.asarray(exact(tokens))
    np.testing.assert_allclose(np.asarray(logits), expected, atol=precision * np.abs(expected).max())
    _, cache = model(tokens[:, :4], cache=model.init_cache(1, 8))
    last, _ = model(tokens[:, 4:], cache=cache)
    np.testing.assert_allclose(np.asarray(last), np.asarray(logits)[:, 4:], atol=precision * np.abs(expected).max())
    assert nn.generate(model, tokens, 3).shape == (1, 3)


def test_empty_texts_and_batches() -> None:
    assert MODEL(vnp.zeros((2, 0), "int32")).shape == (2, 0, 40)
    assert MODEL(vnp.zeros((0, 3), "int32")).shape == (0, 3, 40)


def test_training_with_and_without_remat() -> None:
    tokens = vnp.asarray(np.random.default_rng(0).integers(0, 40, (2, 6)))
    loss = lambda m: nn.cross_entropy(m(tokens[:, :-1]), tokens[:, 1:], axis=-1)
    plain, again = vf.grad(loss)(MODEL), vf.grad(loss)(MODEL.replace(remat=True))
    for a, b in zip(vf.tree.leaves(plain), vf.tree.leaves(again), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)
    step = 1e-2
    direction = vf.tree.map(lambda g: g, plain)
    moved = [float(loss(vf.tree.map(lambda w, g, s=s: w + s * g, MODEL, direction))) for s in (step, -step)]
    slope = sum(float(vnp.sum(g * g)) for g in vf.tree.leaves(plain))
    np.testing.assert_allclose((moved[0] - moved[1]) / (2 * step), slope, rtol=2e-2)


def test_a_batch_without_prompts_is_told() -> None:
    with pytest.raises(ShapeError, match=r"generate: a batch has at least one prompt, got shape \(0, 3\)"):
        nn.generate(MODEL, np.zeros((0, 3), np.int32), 2)


def test_a_stream_does_not_go_on_after_an_interrupted_step(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = nn.TokenStream(MODEL, [1, 2, 3], 9)
    next(stream)
    step = generation._step

    def interrupted(*args: Any) -> Any:
        step(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(generation, "_step", interrupted)
        next(stream)
    assert stream.cache is None
    with pytest.raises(ArgumentError, match="the last step failed or was interrupted"):
        next(stream)


def test_one_stop_token_by_itself_is_told() -> None:
    for call in (
        lambda: nn.generate(MODEL, [1], 2, stop_tokens=3),
        lambda: nn.beam_search(MODEL, [1], 2, stop_tokens=3),
        lambda: nn.speculative_generate(MODEL, MODEL, [1], 2, stop_tokens=3),
        lambda: nn.ContinuousBatch(MODEL, pages=2, stop_tokens=3),
    ):
        with pytest.raises(ArgumentTypeError, match=r"stop_tokens is a sequence of tokens, got 3; \(3,\) has one"):
            call()
