"""Speculative decoding: a small model proposes, a large one accepts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.jit import jit
from volta_fn.nn.language.caches import CausalLMCache
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.nn.language.generation import LEAST_CHUNK, LEAST_SLOTS, as_prompts, config_of, prefill, rounded_size
from volta_fn.nn.language.samplers import Sampler
from volta_fn.nn.layers.arguments import is_integer
from volta_fn.scipy.special.exponential import softmax

__all__ = ["SpeculativeTokens", "speculative_accept", "speculative_generate"]


def speculative_accept(key: Any, draft_tokens: Any, draft_probs: Any, target_probs: Any) -> tuple[Array, Array]:
    """Return how many proposed tokens are accepted, and the token that follows them.

    Token x of probability q(x) is accepted with the probability min(1, p(x) / q(x)); the first one that is not is replaced by one of the
    distribution max(0, p - q), normalised; after all were accepted follows one of p (Leviathan et al. 2023, algorithm 1). Tokens are then
    distributed exactly as those of the target.

    Args:
        key: a random key.
        draft_tokens: the proposed tokens, integers of shape (n,).
        draft_probs: the distribution q of each, of shape (n, V).
        target_probs: the distributions p, of shape (n + 1, V).

    Returns:
        The count, from 0 to n, and the token, int32 scalars.

    Raises:
        ShapeError: the shapes do not fit.

    >>> p, q = jnp.array([[1.0, 0.0], [0.5, 0.5]]), jnp.array([[0.0, 1.0]])
    >>> nn.speculative_accept(vf.random.key(0), jnp.array([1]), q, p)
    (Array(0, dtype=int32), Array(0, dtype=int32))
    """
    tokens, q, p = as_value(draft_tokens), as_value(draft_probs), as_value(target_probs)
    if tokens.ndim != 1 or q.ndim != 2 or q.shape[0] != tokens.shape[0] or p.shape != (tokens.shape[0] + 1, q.shape[1]):
        raise ShapeError(
            f"speculative_accept: tokens (n,), draft_probs (n, V) and target_probs (n + 1, V) are needed, got {tokens.shape}, "
            f"{q.shape} and {p.shape}"
        )
    for_coins, for_token = random.split(key)
    n = tokens.shape[0]
    coins = random.uniform(for_coins, (n,))
    chosen_p, chosen_q = (vnp.take_along_axis(x[:n], tokens[:, None], 1)[:, 0] for x in (p, q))
    accepted = coins * chosen_q < chosen_p
    count = vnp.cumprod(accepted.astype("int32")).sum().astype("int32")
    row = lax.dynamic_index_in_dim(p, count, 0, keepdims=False)
    padded = vnp.concatenate([q, vnp.zeros((1, q.shape[1]), q.dtype)])  # nothing is taken from the last one
    rest = vnp.maximum(row - lax.dynamic_index_in_dim(padded, count, 0, keepdims=False), 0)
    rest = vnp.where(rest.sum() > 0, rest, row)  # p equals q up to rounding
    return count, random.categorical(for_token, vnp.log(rest)).astype("int32")


class SpeculativeTokens(NamedTuple):
    """The new tokens, and how many of the proposed ones were accepted.

    Attributes:
        tokens: int32 of shape (n,).
        proposed, accepted: counts; their ratio tells how well the draft model knows the target.
    """

    tokens: Array
    proposed: int
    accepted: int


@functools.partial(jit, static_argnames=("sampler",), donate_argnames=("cache",))
def _propose(draft: CausalLM, token: Array, cache: CausalLMCache, key: Any, sampler: Sampler) -> tuple[Array, Array, CausalLMCache]:
    """Read a token, and return the next one, its distribution and the cache."""
    hidden, new, _ = draft.hidden(token[None, None], cache=cache)
    assert new is not None
    filtered = sampler.filtered(draft.logits(hidden[0, 0]))
    return random.categorical(key, filtered).astype("int32"), softmax(filtered, -1), new


@functools.partial(jit, static_argnames=("sampler",), donate_argnames=("cache",))
def _verify(
    target: CausalLM, tokens: Array, draft_probs: Array, cache: CausalLMCache, key: Any, sampler: Sampler
) -> tuple[Array, Array, CausalLMCache]:
    """Read the last token and those proposed after it; accept and continue."""
    hidden, new, _ = target.hidden(tokens[None], cache=cache)
    assert new is not None
    probabilities = softmax(sampler.filtered(target.logits(hidden[0])), -1)
    count, following = speculative_accept(key, tokens[1:], draft_probs, probabilities)
    return count, following, new


def speculative_generate(
    model: CausalLM,
    draft: CausalLM,
    prompt_tokens: Any,
    max_new_tokens: int,
    *,
    key: Any = None,
    num_draft_tokens: int = 4,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    stop_tokens: Sequence[int] | None = None,
) -> SpeculativeTokens:
    """Continue a prompt as `generate` does, with fewer steps of the model.

    In each round the draft proposes some tokens, which the model reads at once; see `speculative_accept`. The tokens have the distribution
    of the model's, and without a key they are its most probable ones.

    Args:
        model: the language model.
        draft: a faster one of the same vocabulary.
        prompt_tokens: integers of shape (T,).
        max_new_tokens: how many tokens to generate at most.
        key: a random key, to sample.
        num_draft_tokens: how many tokens are proposed in a round.
        temperature, top_k, top_p, min_p: those of `Sampler`, for both models.
        stop_tokens: as in `generate`.

    Raises:
        ArgumentError: numbers out of their range, a batch, or vocabularies that differ.
        ArgumentTypeError: the key is missing, or another model.
        ShapeError, DTypeError: the prompt is not a sequence of integers.

    >>> config = nn.CausalLMConfig(model_type="llama", vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                            num_attention_heads=4)
    >>> model, draft = (nn.CausalLM.init(vf.random.key(i), config) for i in range(2))
    >>> nn.speculative_generate(model, draft, [1, 2, 3], 5).tokens.shape
    (5,)
    """
    name = "speculative_generate"
    if not is_integer(max_new_tokens) or not is_integer(num_draft_tokens, 1):
        raise ArgumentError(f"{name}: max_new_tokens and num_draft_tokens are integers, got {max_new_tokens!r} and {num_draft_tokens!r}")
    config, vocabulary = config_of(name, model), config_of(name, draft).vocab_size
    if config.vocab_size != vocabulary:
        raise ArgumentError(f"{name}: the models have vocabularies of {config.vocab_size} and {vocabulary} tokens")
    prompts, is_batch = as_prompts(name, prompt_tokens, config.vocab_size)
    if is_batch:
        raise ArgumentError(f"{name}: one prompt is needed, of shape (T,), got a batch of {len(prompts)}")
    filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    chosen: dict[str, Any] = {option: value for option, value in filters.items() if value is not None}
    if key is None and any(value != 0 for value in chosen.values()):
        raise ArgumentTypeError(f"{name}: {', '.join(chosen)} need a random key: {name}(…, key=vf.random.key(0))")
    sampler = Sampler(**(chosen if key is not None else {"temperature": 0.0}))
    stop = set(config.eos_token_id if stop_tokens is None else stop_tokens)
    key = random.key(0) if key is None else key  # whose numbers decide nothing: all distributions are certain
    return _speculate(model, draft, prompts[0], max_new_tokens, key, num_draft_tokens, sampler, stop)


def _speculate(
    model: CausalLM, draft: CausalLM, prompt: np.ndarray, limit: int, key: Any, ahead: int, sampler: Sampler, stop: set[int]
) -> SpeculativeTokens:
    text = prompt.tolist()
    tokens: list[int] = []
    caches = [m.init_cache(1, rounded_size(len(text) + LEAST_CHUNK, LEAST_SLOTS), rolling=False) for m in (model, draft)]
    if len(text) > 1:  # all but the last token, with which a round begins
        caches = [prefill(m, [text[:-1]], cache)[1] for m, cache in zip((model, draft), caches, strict=True)]
    length, proposed, accepted = len(text) - 1, 0, 0
    last = vnp.asarray(text[-1], "int32")
    while len(tokens) < limit and not (tokens and tokens[-1] in stop):
        key, for_target, *for_draft = random.split(key, ahead + 2)
        slots = rounded_size(length + ahead + 1, LEAST_SLOTS)
        caches = [cache.grow(slots)._replace(length=vnp.asarray(length, "int32")) for cache in caches]
        token, proposals, probabilities = last, [], []
        for k in for_draft:
            token, probs, caches[1] = _propose(draft, token, caches[1], k, sampler)
            proposals.append(token)
            probabilities.append(probs)
        # The last proposal is read too, lest its keys and values be missing if all are accepted.
        _, _, caches[1] = _propose(draft, token, caches[1], for_target, sampler)
        run = vnp.stack([last, *proposals])
        count, last, caches[0] = _verify(model, run, vnp.stack(probabilities), caches[0], for_target, sampler)
        new = [*np.asarray(run)[1 : 1 + int(count)].tolist(), int(last)]
        ends = [i for i, token in enumerate(new) if token in stop]
        tokens += new[: ends[0] + 1] if ends else new
        length += 1 + int(count)
        proposed, accepted = proposed + ahead, accepted + int(count)
    return SpeculativeTokens(vnp.asarray(np.array(tokens[:limit], np.int32)), proposed, accepted)
