"""Continuing prompts token by token: greedily, by sampling, streamed, in batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.jit import jit
from volta_fn.nn.language.caches import CausalLMCache
from volta_fn.nn.language.config import CausalLMConfig
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.nn.language.samplers import Sampler
from volta_fn.nn.layers.arguments import is_integer

__all__ = ["TokenStream", "generate", "prefill"]

#: The most tokens of a prompt that are read at once, which bounds the memory of attention.
CHUNK = 512
#: The fewest slots of a cache, and tokens of a chunk: few programs serve all lengths.
LEAST_SLOTS, LEAST_CHUNK = 128, 16


def rounded_size(count: int, least: int) -> int:
    """Return the next power of two, or one and a half times one, from `least` on.

    A cache of such a size has at most half as many slots again as there are tokens, so that attention reads little else.
    """
    power = max(1 << max(count - 1, 1).bit_length(), least)
    return power * 3 // 4 if power > least and count <= power * 3 // 4 else power


# Prompts.


def config_of(name: str, model: Any) -> CausalLMConfig:
    """Return a model's config; raise `ArgumentTypeError` if it is no `CausalLM`."""
    if isinstance(model, CausalLM):
        return model.config
    loop = "; with its cache a loop continues texts: `logits, cache = model(tokens, cache=cache)`, from `model.init_cache(1)`"
    raise ArgumentTypeError(f"{name}: the model is a CausalLM, got {type(model).__name__}{loop if hasattr(model, 'init_cache') else ''}")


def as_prompts(name: str, tokens: Any, vocab_size: int) -> tuple[list[np.ndarray], bool]:
    """Return prompts as arrays of tokens, and whether there is a batch of them.

    Raises `ShapeError`, `DTypeError` or `ArgumentError` for other tokens or none.
    """
    is_batch = any(np.ndim(row) > 0 for row in tokens) if isinstance(tokens, (list, tuple)) else np.ndim(tokens) > 1
    rows = [np.asarray(row) for row in tokens] if is_batch else [np.asarray(tokens)]
    for row in rows:
        if row.ndim != 1 or row.size == 0:
            raise ShapeError(f"{name}: a prompt is a sequence of at least one token, got shape {row.shape}")
        if row.dtype.kind not in "iu":
            raise DTypeError(f"{name}: tokens are integers, got {row.dtype.name}")
        if row.min() < 0 or row.max() >= vocab_size:
            raise ArgumentError(f"{name}: tokens are between 0 and {vocab_size - 1}, got {row.min()} to {row.max()}")
    return [row.astype(np.int32) for row in rows], is_batch


def left_padded(prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return prompts padded on the left to one length, and the padding of each."""
    longest = max(len(row) for row in prompts)
    starts = np.array([longest - len(row) for row in prompts], np.int32)
    return np.stack([np.pad(row, (start, 0)) for row, start in zip(prompts, starts, strict=True)]), starts


@functools.partial(jit, static_argnames=("is_first",), donate_argnames=("cache",))
def _prefill(model: CausalLM, tokens: Array, cache: CausalLMCache, count: Array, is_first: bool) -> tuple[Array, CausalLMCache]:
    """Return the logits after the last token that counts, and the new cache."""
    hidden, new, _ = model.hidden(tokens, cache=cache, count=count, prefill=is_first)
    assert new is not None
    return model.logits(lax.dynamic_index_in_dim(hidden, count - 1, 1, keepdims=False)), new


def prefill(model: CausalLM, tokens: Any, cache: CausalLMCache | None = None) -> tuple[Array, CausalLMCache]:
    """Read tokens, and return the logits of the next one and the new cache.

    Tokens are read in chunks of a few sizes, so that prompts of all lengths share some programs. The cache grows as it needs to.

    Args:
        model: the language model.
        tokens: integers of shape (batch, T), at least one.
        cache: of the tokens before, which is given up; None for none.

    Returns:
        Logits of shape (batch, V), and the cache.

    Raises `ShapeError` for other tokens, `ArgumentTypeError` for another model.

    >>> config = nn.CausalLMConfig(model_type="llama", vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                            num_attention_heads=4)
    >>> logits, cache = nn.prefill(nn.CausalLM.init(vf.random.key(0), config), jnp.array([[1, 2, 3]]))
    >>> logits.shape, cache.length
    ((1, 50), Array(3, dtype=int32))
    """
    config = config_of("prefill", model)
    numbers = np.asarray(tokens)
    if numbers.ndim != 2 or numbers.shape[1] == 0:
        raise ShapeError(f"prefill: tokens have shape (batch, T) with at least one token, got {numbers.shape}")
    length = 0 if cache is None else int(cache.length)
    if cache is None:
        cache = model.init_cache(numbers.shape[0], rounded_size(numbers.shape[1] + LEAST_CHUNK, LEAST_SLOTS))
    logits = None
    for begin in range(0, numbers.shape[1], CHUNK):
        chunk = numbers[:, begin : begin + CHUNK]
        count = chunk.shape[1]
        padded = rounded_size(count, LEAST_CHUNK)
        cache = cache.grow(rounded_size(length + padded, LEAST_SLOTS), config.sliding_window)
        rows = vnp.asarray(np.pad(chunk, ((0, 0), (0, padded - count))), "int32")
        logits, cache = _prefill(model, rows, cache, vnp.asarray(count, "int32"), is_first=length == 0)
        length += count
    assert logits is not None
    return logits, cache


# Continuations.


@functools.partial(jit, static_argnames=("sampler", "penalized"), donate_argnames=("seen",))
def _sample(logits: Array, key: Any, seen: Array | None, sampler: Any, penalized: bool) -> tuple[Array, Any, Array | None]:
    """Return a token for each row, the next key, and the tokens seen so far."""
    subkey, key = (None, None) if key is None else random.split(key)
    tokens = sampler(logits, subkey, seen) if penalized else sampler(logits, subkey)
    if seen is not None:
        seen = seen.at[vnp.arange(seen.shape[0]), tokens].set(True)
    return tokens.astype("int32"), key, seen


@functools.partial(jit, static_argnames=("sampler", "penalized"), donate_argnames=("cache", "seen"))
def _step(
    model: CausalLM, tokens: Array, cache: CausalLMCache, key: Any, seen: Array | None, sampler: Any, penalized: bool
) -> tuple[Array, CausalLMCache, Any, Array | None]:
    """Read one token of each row, and choose the next ones."""
    hidden, new, _ = model.hidden(tokens[:, None], cache=cache)
    assert new is not None
    chosen, key, seen = _sample(model.logits(hidden[:, 0]), key, seen, sampler, penalized)
    return chosen, new, key, seen


class TokenStream(Iterator[np.ndarray]):
    """An iterator over the tokens that continue prompts, one of each row at a time.

    Each is int32 of shape (batch,). Rows that ended give `pad_token`. It ends when all rows did, or after `max_new_tokens`. `cache` holds
    what was read so far: the prompts and all tokens but the last, so that another stream may go on from there.

    >>> config = nn.CausalLMConfig(model_type="llama", vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                            num_attention_heads=4)
    >>> model = nn.CausalLM.init(vf.random.key(0), config)
    >>> len(list(nn.TokenStream(model, [1, 2, 3], 5)))
    5
    """

    def __init__(
        self,
        model: CausalLM,
        prompt_tokens: Any,
        max_new_tokens: int,
        *,
        key: Any = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        sampler: Callable[[Array, Any], Array] | None = None,
        stop_tokens: Sequence[int] | None = None,
        pad_token: int | None = None,
        cache: CausalLMCache | None = None,
    ) -> None:
        """Prepare to continue prompts; see `generate` for the arguments and errors.

        `cache`, which is given up, is that of tokens before the prompts, which then have one length.
        """
        if not is_integer(max_new_tokens):
            raise ArgumentError(f"generate: max_new_tokens is an integer of at least 0, got {max_new_tokens!r}")
        config = config_of("generate", model)
        prompts, self.is_batch = as_prompts("generate", prompt_tokens, config.vocab_size)
        self.model, self.max_new_tokens = model, max_new_tokens
        self.tokens, self._starts = left_padded(prompts)
        self.cache = cache
        if cache is not None and self._starts.any():
            raise ShapeError(f"generate: prompts that follow a cache have one length, got {[len(row) for row in prompts]}")
        filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        self._sampler, self._penalized = _sampler(sampler, key, filters, repetition_penalty)
        self._key = key
        self._stop = np.array(config.eos_token_id if stop_tokens is None else list(stop_tokens), np.int32)
        self.pad_token = pad_token if pad_token is not None else 0 if config.pad_token_id is None else config.pad_token_id
        self._seen = self._mask_of_seen(prompts) if self._penalized else None
        self._last: Array | None = None
        self._length = 0 if cache is None else int(cache.length)
        self._count = 0
        self.finished = np.zeros(len(prompts), bool)

    def _mask_of_seen(self, prompts: Sequence[np.ndarray]) -> Array:
        seen = np.zeros((len(prompts), self.model.config.vocab_size), bool)
        for mask, row in zip(seen, prompts, strict=True):
            mask[row] = True
        return vnp.asarray(seen)

    def __next__(self) -> np.ndarray:
        """Return the next token of each row."""
        if self._count >= self.max_new_tokens or self.finished.all():
            raise StopIteration
        if self._last is None:
            if self.cache is None:
                slots = rounded_size(self.tokens.shape[1] + LEAST_CHUNK, LEAST_SLOTS)
                self.cache = self.model.init_cache(len(self.tokens), slots, start=vnp.asarray(self._starts) if self._starts.any() else None)
            logits, self.cache = prefill(self.model, self.tokens, self.cache)
            self._length += self.tokens.shape[1]
            self._last, self._key, self._seen = _sample(logits, self._key, self._seen, self._sampler, self._penalized)
        else:
            assert self.cache is not None
            self._length += 1
            cache = self.cache.grow(rounded_size(self._length, LEAST_SLOTS), self.model.config.sliding_window)
            options = (self._key, self._seen, self._sampler, self._penalized)
            self._last, self.cache, self._key, self._seen = _step(self.model, self._last, cache, *options)
        self._count += 1
        tokens = np.where(self.finished, np.int32(self.pad_token), np.asarray(self._last))
        self.finished |= np.isin(tokens, self._stop)
        return tokens


def _sampler(sampler: Any, key: Any, filters: dict[str, Any], penalty: float) -> tuple[Any, bool]:
    """Return the function that chooses tokens, and whether it takes those seen so far."""
    chosen = {name: value for name, value in filters.items() if value is not None}
    if sampler is not None:
        if chosen or penalty != 1:
            raise ArgumentError(
                f"generate: a sampler is given, so leave out {', '.join([*chosen, *['repetition_penalty'] * (penalty != 1)])}"
            )
        return sampler, False
    if key is None and any(value != 0 for value in chosen.values()):
        raise ArgumentTypeError(f"generate: {', '.join(chosen)} need a random key: generate(…, key=vf.random.key(0))")
    if key is None:
        chosen["temperature"] = 0.0
    return Sampler(**chosen, repetition_penalty=penalty), penalty != 1


def generate(model: CausalLM, prompt_tokens: Any, max_new_tokens: int, **options: Any) -> Array:
    """Continue prompts, and return the new tokens.

    Without a key each token is the most probable one. Steps are compiled programs that update the cache in place; the cache grows with the
    text, so that attention does not read slots for tokens to come.

    Args:
        model: a language model.
        prompt_tokens: integers of shape (T,), or a batch: (batch, T) or a list of sequences of unequal lengths.
        max_new_tokens: how many tokens to generate at most.
        key: a random key, to sample.
        temperature, top_k, top_p, min_p, repetition_penalty: those of `Sampler`.
        sampler: instead of these, a function of logits (batch, V) and a key to tokens (batch,); hashable.
        stop_tokens: tokens that end a row; they belong to it (default: the config's `eos_token_id`; ``()`` for none).
        pad_token: follows the end of rows (default: the config's `pad_token_id`, or 0).

    Returns:
        int32 of shape (n,) or (batch, n), without the prompts; n is `max_new_tokens`, or fewer if all rows ended.

    Raises:
        ArgumentError: numbers out of their range, or options that exclude each other. ArgumentTypeError: the key is missing, or another
            model.
        ShapeError, DTypeError: the prompts are not sequences of integers.

    >>> config = nn.CausalLMConfig(model_type="llama", vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                            num_attention_heads=4)
    >>> model = nn.CausalLM.init(vf.random.key(0), config)
    >>> nn.generate(model, [1, 2, 3], 5).shape
    (5,)
    >>> nn.generate(model, [[1, 2, 3], [4]], 5, key=vf.random.key(1), temperature=0.8, top_p=0.9).shape
    (2, 5)
    """
    stream = TokenStream(model, prompt_tokens, max_new_tokens, **options)
    tokens = list(stream)
    rows = np.stack(tokens, 1) if tokens else np.zeros((len(stream.finished), 0), np.int32)
    return vnp.asarray(rows if stream.is_batch else rows[0])
