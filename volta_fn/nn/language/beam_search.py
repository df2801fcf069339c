"""Beam search: the most probable of many parallel continuations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.jit import jit
from volta_fn.nn.language.caches import CausalLMCache
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.nn.language.generation import LEAST_CHUNK, LEAST_SLOTS, as_prompts, config_of, left_padded, prefill, rounded_size
from volta_fn.nn.layers.arguments import is_integer
from volta_fn.scipy.special.exponential import log_softmax

__all__ = ["Beams", "beam_search"]


class Beams(NamedTuple):
    """The best continuations of each prompt, the best first.

    Attributes:
        tokens: int32 of shape (batch, beams, n), padded after the end.
        scores: log-probabilities divided by a power of their lengths, float32 of shape (batch, beams).
    """

    tokens: Array
    scores: Array


def _reordered(cache: CausalLMCache, parents: Array) -> CausalLMCache:
    """Return the cache whose rows are those of `parents`."""
    layers, start = tree.map(lambda x: vnp.take(x, parents, axis=0), (cache.layers, cache.start))
    return cache._replace(layers=layers, start=start)


@functools.partial(jit, static_argnames=("count",))
def _candidates(logits: Array, scores: Array, count: int) -> tuple[Array, Array]:
    """Return the best continuations of all beams of a prompt, by sum of logarithms.

    Args:
        logits: shape (batch * beams, V).
        scores: sums so far, of shape (batch, beams).
        count: how many to return.
    """
    batch, beams = scores.shape
    totals = scores[..., None] + log_softmax(logits, -1).reshape(batch, beams, -1)
    return lax.top_k(totals.reshape(batch, -1), count)


@functools.partial(jit, donate_argnames=("cache",))
def _advance(model: CausalLM, tokens: Array, parents: Array, cache: CausalLMCache) -> tuple[Array, CausalLMCache]:
    """Read the last token of each beam after those of its parent."""
    hidden, new, _ = model.hidden(tokens[:, None], cache=_reordered(cache, parents))
    assert new is not None
    return model.logits(hidden[:, 0]), new


class _Hypotheses:
    """The best finished continuations of one prompt."""

    def __init__(self, limit: int, power: float) -> None:
        self.limit, self.power = limit, power
        self.items: list[tuple[float, list[int]]] = []

    def add(self, total: float, tokens: list[int]) -> None:
        self.items.append((total / len(tokens) ** self.power, tokens))
        self.items.sort(key=lambda item: -item[0])
        del self.items[self.limit :]

    def complete(self, best: float, length: int) -> bool:
        """Return True if no running beam can become one of them.

        `best` is the greatest log-probability of those, `length` their length.
        """
        return len(self.items) >= self.limit and self.items[-1][0] >= best / length**self.power


def beam_search(
    model: CausalLM,
    prompt_tokens: Any,
    max_new_tokens: int,
    *,
    num_beams: int = 4,
    length_penalty: float = 1.0,
    stop_tokens: Sequence[int] | None = None,
    pad_token: int | None = None,
) -> Beams:
    """Search for the most probable continuations of prompts.

    In each step every beam is continued by all tokens, and the `num_beams` best of all continuations go on. Those that end compete by their
    log-probability divided by the length to the power of `length_penalty`; the search stops when none that goes on can win, judged by its
    present length, as Hugging Face's with ``early_stopping=False``.

    Args:
        model: a language model.
        prompt_tokens: as in `generate`.
        max_new_tokens: how many tokens to generate at most.
        num_beams: how many continuations go on in parallel.
        length_penalty: above 0 favours long continuations, below 0 short ones.
        stop_tokens, pad_token: as in `generate`.

    Returns:
        The beams, with a batch of 1 for a single prompt.

    Raises:
        ArgumentError: numbers out of their range. ArgumentTypeError: another model.
        ShapeError, DTypeError: the prompts are not sequences of integers.

    >>> config = nn.CausalLMConfig(model_type="llama", vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                            num_attention_heads=4)
    >>> beams = nn.beam_search(nn.CausalLM.init(vf.random.key(0), config), [1, 2, 3], 5, num_beams=3)
    >>> beams.tokens.shape, beams.scores.shape
    ((1, 3, 5), (1, 3))
    """
    if not is_integer(max_new_tokens, 1) or not is_integer(num_beams, 1):
        raise ArgumentError(f"beam_search: max_new_tokens and num_beams are positive integers, got {max_new_tokens!r} and {num_beams!r}")
    config = config_of("beam_search", model)
    vocabulary = config.vocab_size
    prompts, _ = as_prompts("beam_search", prompt_tokens, vocabulary)
    stop = set(config.eos_token_id if stop_tokens is None else stop_tokens)
    pad = pad_token if pad_token is not None else 0 if config.pad_token_id is None else config.pad_token_id
    tokens, starts = left_padded(prompts)
    batch, length = tokens.shape
    cache = model.init_cache(batch, rounded_size(length + LEAST_CHUNK, LEAST_SLOTS), start=vnp.asarray(starts) if starts.any() else None)
    logits, cache = prefill(model, tokens, cache)
    repeated = vnp.repeat(vnp.arange(batch), num_beams)
    logits, cache = logits[repeated], _reordered(cache, repeated)
    # All beams of a prompt are the same at first: only the first one counts.
    scores = np.tile(np.where(np.arange(num_beams) == 0, 0.0, -np.inf).astype(np.float32), (batch, 1))
    texts: list[list[list[int]]] = [[[] for _ in range(num_beams)] for _ in range(batch)]
    finished = [_Hypotheses(num_beams, length_penalty) for _ in range(batch)]
    done = [False] * batch
    # As many candidates end as there are tokens that end, in each beam; so many more are enough.
    count = min((1 + max(len(stop), 1)) * num_beams, num_beams * vocabulary)
    for step in range(1, max_new_tokens + 1):
        totals, flat = (np.asarray(x) for x in _candidates(logits, vnp.asarray(scores), count))
        parents, chosen = np.zeros((batch, num_beams), np.int32), np.full((batch, num_beams), pad, np.int32)
        for row in range(batch):
            if done[row]:
                continue
            old, texts[row], scores[row] = texts[row], [], -np.inf
            for rank, (total, index) in enumerate(zip(totals[row].tolist(), flat[row].tolist(), strict=True)):
                beam, token = divmod(index, vocabulary)
                if total == -np.inf or len(texts[row]) == num_beams:
                    continue
                if token in stop:
                    if rank < num_beams:
                        finished[row].add(total, [*old[beam], token])
                    continue
                slot = len(texts[row])
                parents[row, slot], chosen[row, slot], scores[row, slot] = beam, token, total
                texts[row].append([*old[beam], token])
            texts[row] += [[] for _ in range(num_beams - len(texts[row]))]
            done[row] = finished[row].complete(float(scores[row, 0]), step)
        if all(done) or step == max_new_tokens:
            break
        cache = cache.grow(rounded_size(length + step, LEAST_SLOTS), config.sliding_window)
        rows = vnp.asarray((parents + np.arange(batch)[:, None] * num_beams).reshape(-1))
        logits, cache = _advance(model, vnp.asarray(chosen.reshape(-1)), rows, cache)
    for row in range(batch):
        if not done[row]:
            for total, text in zip(scores[row].tolist(), texts[row], strict=True):
                if total > -np.inf:
                    finished[row].add(total, text)
    return _collected(finished, num_beams, pad)


def _collected(finished: Sequence[_Hypotheses], num_beams: int, pad: int) -> Beams:
    longest = max((len(text) for row in finished for _, text in row.items), default=0)
    tokens = np.full((len(finished), num_beams, longest), pad, np.int32)
    scores = np.full((len(finished), num_beams), -np.inf, np.float32)
    for i, row in enumerate(finished):
        for j, (score, text) in enumerate(row.items):
            tokens[i, j, : len(text)], scores[i, j] = text, score
    return Beams(vnp.asarray(tokens), vnp.asarray(scores))
