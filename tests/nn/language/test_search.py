"""Beam search beside all texts there are, and speculative decoding beside the target's distribution."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.language import families
from volta_fn import nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError

SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "eos_token_id": None}


def model_of(seed: int, vocab_size: int = 6, **entries: Any) -> nn.CausalLM:
    config = nn.CausalLMConfig.from_json({"model_type": "llama", "vocab_size": vocab_size, "initializer_range": 0.5, **SIZES, **entries})
    return nn.CausalLM.init(vf.random.key(seed), config)


def all_texts(model: nn.CausalLM, prompt: list[int], count: int, stop: int | None, power: float) -> list[tuple[float, list[int]]]:
    """Return every continuation with its score, the best first."""
    texts: list[tuple[float, list[int]]] = []
    endings = itertools.product(range(6), repeat=count)
    rows = [list(text) for text in endings]
    logits = np.asarray(model(vnp.array([[*prompt, *row] for row in rows])), np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    seen = set()
    for row, scores in zip(rows, logs, strict=True):
        length = row.index(stop) + 1 if stop in row else count
        text = tuple(row[:length])
        if text not in seen:
            seen.add(text)
            total = sum(scores[len(prompt) - 1 + i, token] for i, token in enumerate(text))
            texts.append((total / length**power, list(text)))
    return sorted(texts, key=lambda item: -item[0])


@pytest.mark.parametrize(("stop", "power"), [(None, 1.0), (2, 1.0), (2, 0.0), (4, 2.0)])
def test_many_beams_find_the_best_of_all(stop: int | None, power: float) -> None:
    model = model_of(0)
    prompts = [[1, 2, 3], [5]]
    stops = () if stop is None else (stop,)
    beams = nn.beam_search(model, prompts, 3, num_beams=216, length_penalty=power, stop_tokens=stops, pad_token=0)
    for row, prompt in enumerate(prompts):
        expected = all_texts(model, prompt, 3, stop, power)
        for rank in range(5):
            score, text = expected[rank]
            assert np.asarray(beams.tokens)[row, rank].tolist() == text + [0] * (3 - len(text))
            np.testing.assert_allclose(float(beams.scores[row, rank]), score, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pad", [-1, 6])
def test_padding_that_is_no_token(pad: int) -> None:
    """The first steps have fewer texts than beams; the model reads something for the others, too."""
    model = model_of(0)
    options: dict[str, Any] = {"num_beams": 12, "stop_tokens": (2,)}
    beams, expected = (nn.beam_search(model, [[1, 2, 3], [5]], 3, pad_token=p, **options) for p in (pad, 0))
    np.testing.assert_array_equal(beams.scores, expected.scores)
    tokens = np.asarray(expected.tokens)
    ended = np.cumsum(tokens == 2, -1) - (tokens == 2) > 0
    np.testing.assert_array_equal(beams.tokens, np.where(ended, pad, tokens))


def test_one_beam_is_greedy() -> None:
    model = model_of(1, 30)
    prompts = [[3, 1, 4], [5]]
    beams = nn.beam_search(model, prompts, 9, num_beams=1)
    assert beams.tokens[:, 0].tolist() == nn.generate(model, prompts, 9).tolist()


def test_beams_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    model = families.model_of("llama", tmp_path)
    other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for stop, power in itertools.product((None, 7, 23), (1.0, 0.3)):
        options: dict[str, Any] = {"eos_token_id": stop, "pad_token_id": 1, "length_penalty": power, "do_sample": False}
        out = other.generate(torch.from_numpy(families.TOKENS).long(), max_new_tokens=10, num_beams=4, num_return_sequences=3, **options)
        expected = out[:, families.TOKENS.shape[1] :].reshape(2, 3, -1).numpy()
        stops = () if stop is None else (stop,)
        beams = nn.beam_search(model, families.TOKENS, 10, num_beams=4, length_penalty=power, stop_tokens=stops, pad_token=1)
        np.testing.assert_array_equal(np.asarray(beams.tokens)[:, :3, : expected.shape[2]], expected)


def test_bad_arguments_of_beam_search() -> None:
    with pytest.raises(ArgumentError, match="positive"):
        nn.beam_search(model_of(0), [1], 0)
    with pytest.raises(ArgumentError, match="positive"):
        nn.beam_search(model_of(0), [1], 1, num_beams=0)


def test_accepted_tokens_have_the_targets_distribution() -> None:
    """Of the first token, and of the second one given the first, where the draft's distribution is far from the target's."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(5, 0.5), 3).astype(np.float32), rng.dirichlet(np.full(5, 0.5), 2).astype(np.float32)
    trials = 40000

    @vf.jit
    @vf.vmap
    def run(key: Any) -> Any:
        for_draft, for_rule = vf.random.split(key)
        draft = vf.random.categorical(for_draft, vnp.log(vnp.asarray(q)))
        count, following = nn.speculative_accept(for_rule, draft, vnp.asarray(q), vnp.asarray(p))
        positions = vnp.arange(3)
        padded = vnp.concatenate([draft.astype("int32"), vnp.zeros(1, "int32")])
        return vnp.where(positions < count, padded, vnp.where(positions == count, following, -1))

    tokens = np.asarray(run(vf.random.split(vf.random.key(1), trials)))
    for position in range(3):
        reached = tokens[:, position] >= 0
        counts, total = np.bincount(tokens[reached, position], minlength=5), reached.sum()
        spread = np.sqrt(total * p[position] * (1 - p[position]))
        assert (np.abs(counts - total * p[position]) <= 5 * spread + 1).all()
    rates = np.minimum(p[:2], q).sum(-1)  # of acceptance: the overlap of the distributions
    first = (tokens[:, 1] >= 0).mean()
    assert abs(first - rates[0]) < 5 * np.sqrt(rates[0] * (1 - rates[0]) / trials)


def test_speculative_text_is_the_targets() -> None:
    target, other = model_of(0, 30), model_of(1, 30)
    prompt = [3, 1, 4, 1, 5]
    expected = nn.generate(target, prompt, 25).tolist()
    for draft in (other, target):
        out = nn.speculative_generate(target, draft, prompt, 25, num_draft_tokens=3)
        assert out.tokens.tolist() == expected
    assert out.accepted == out.proposed
    stopped = nn.speculative_generate(target, target, prompt, 25, stop_tokens=[expected[4]]).tokens.tolist()
    assert stopped == expected[: expected.index(expected[4]) + 1]
    assert nn.speculative_generate(target, other, [3], 4).tokens.tolist() == nn.generate(target, [3], 4).tolist()
    assert nn.speculative_generate(target, other, [3], 0).tokens.shape == (0,)


def test_speculative_samples_have_the_targets_distribution() -> None:
    """Of pairs of tokens, which come from one or several rounds."""
    target, draft = model_of(2, 4, num_hidden_layers=1), model_of(3, 4, num_hidden_layers=1)
    logits = np.asarray(target(vnp.array([[1, token] for token in range(4)])), np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = (probabilities[0, 0][:, None] * probabilities[:, 1]).reshape(-1)
    trials = 150
    counts = np.zeros(16)
    for seed in range(trials):
        first, second = nn.speculative_generate(target, draft, [1], 2, key=vf.random.key(seed), num_draft_tokens=1).tokens.tolist()
        counts[4 * first + second] += 1
    assert (np.abs(counts - trials * expected) <= 5 * np.sqrt(trials * expected * (1 - expected)) + 1).all()


def test_bad_arguments_of_speculative_decoding() -> None:
    model = model_of(0)
    with pytest.raises(ArgumentError, match="vocabularies of 6 and 7"):
        nn.speculative_generate(model, model_of(0, 7), [1], 2)
    with pytest.raises(ArgumentError, match="one prompt"):
        nn.speculative_generate(model, model, [[1], [2]], 2)
    with pytest.raises(ArgumentError, match="integers"):
        nn.speculative_generate(model, model, [1], 2, num_draft_tokens=0)
    with pytest.raises(ArgumentTypeError, match="random key"):
        nn.speculative_generate(model, model, [1], 2, top_p=0.5)
    with pytest.raises(ShapeError, match=r"\(n \+ 1, V\)"):
        nn.speculative_accept(vf.random.key(0), vnp.zeros(2, "int32"), vnp.zeros((2, 4)), vnp.zeros((2, 4)))
