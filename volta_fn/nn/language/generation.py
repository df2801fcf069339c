"""Continuing prompts, and choosing tokens by their logits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from volta_fn import advice, lax, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import BOOL, FLOATS, accumulator
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.jit import jit
from volta_fn.nn.language.config import CausalLMConfig
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.nn.language.layers import CausalLMCache
from volta_fn.nn.layers.arguments import is_integer
from volta_fn.scipy.special.exponential import log_softmax, softmax

__all__ = [
    "Beams", "Sampler", "SpeculativeTokens", "TokenStream", "beam_search", "generate", "greedy", "min_p_filter", "penalize_repetition",
    "prefill", "speculative_accept", "speculative_generate", "top_k_filter", "top_p_filter",
]  # fmt: skip


# Choosing tokens by their logits: pure functions that compose.
#
# A *sampler* is a function from logits (…, V) and a key to tokens (…,). A *filter* returns logits with -inf for tokens that must not be
# chosen, so that ``lambda logits, key: random.categorical(key, nn.top_p_filter(logits / 0.7, 0.9))`` is a sampler, too.


def _logits(name: str, logits: Any) -> Array:
    value = as_value(logits)
    if value.dtype not in FLOATS:
        raise DTypeError(f"{name}: logits are real floats, got {value.aval}")
    if value.ndim == 0 or value.shape[-1] == 0:
        raise ShapeError(f"{name}: logits have shape (…, V) with at least one token, got {value.shape}")
    return value.astype(accumulator(value.dtype))


def greedy(logits: Any, key: Any = None) -> Array:
    """Return the tokens of the greatest logits, int32 of shape (…,); no key is used.

    Raises `ShapeError`, `DTypeError` for logits that are not floats (…, V).

    >>> nn.greedy(jnp.array([0.0, 2.0, 1.0]))
    Array(1, dtype=int32)
    """
    del key
    return vnp.argmax(_logits("greedy", logits), -1).astype("int32")


def top_k_filter(logits: Any, k: int) -> Array:
    """Keep the k greatest logits (Fan et al. 2018); of equal ones the first.

    A k above V keeps all. Raises `ArgumentError` unless k is an integer of at least 1, and as `greedy`.

    >>> nn.top_k_filter(jnp.array([0.0, 2.0, 1.0]), 2)
    Array([-inf,   2.,   1.], dtype=float32)
    """
    value = _logits("top_k_filter", logits)
    if not is_integer(k, 1):
        raise ArgumentError(f"top_k_filter: k is an integer of at least 1, got {k!r}")
    if k >= value.shape[-1]:
        return value
    _, indices = lax.top_k(value, k)
    chosen = vnp.put_along_axis(vnp.zeros(value.shape, bool), indices, True, -1, inplace=False)
    return vnp.where(chosen, value, -vnp.inf)


def top_p_filter(logits: Any, p: float) -> Array:
    """Keep the most probable tokens whose probabilities reach p.

    See Holtzman et al. (2020). A token stays if those that are more probable together have less than p, so at least one stays. Raises
    `ArgumentError` unless 0 ≤ p ≤ 1, and as `greedy`.

    >>> nn.top_p_filter(jnp.log(jnp.array([0.2, 0.5, 0.3])), 0.6).round(2)
    Array([ -inf, -0.69, -1.2 ], dtype=float32)
    """
    value = _logits("top_p_filter", logits)
    _check_probability("top_p_filter", p)
    order = vnp.argsort(-value, -1, stable=True)
    retained = _top_p_mask(vnp.take_along_axis(value, order, -1), p)
    return vnp.where(vnp.take_along_axis(retained, vnp.argsort(order, -1), -1), value, -vnp.inf)


def _top_p_mask(sorted_logits: Array, p: float) -> Array:
    """Return which of descending logits come before their probabilities reach p."""
    if p == 1:  # which sums of many probabilities reach by rounding before the last one
        return vnp.ones(sorted_logits.shape, bool)
    probabilities = softmax(sorted_logits, -1)
    before = vnp.cumsum(probabilities, -1) - probabilities
    return (before < p).at[..., 0].set(True)


def min_p_filter(logits: Any, p: float) -> Array:
    """Keep tokens of at least p times the greatest probability (Nguyen et al. 2024).

    Raises `ArgumentError` unless 0 ≤ p ≤ 1, and as `greedy`.

    >>> nn.min_p_filter(jnp.log(jnp.array([0.1, 0.5, 0.4])), 0.5).round(2)
    Array([ -inf, -0.69, -0.92], dtype=float32)
    """
    value = _logits("min_p_filter", logits)
    _check_probability("min_p_filter", p)
    probabilities = softmax(value, -1)
    return vnp.where(probabilities >= p * probabilities.max(-1, keepdims=True), value, -vnp.inf)


def _check_probability(name: str, p: float) -> None:
    if not 0 <= p <= 1:
        raise ArgumentError(f"{name}: p is between 0 and 1, got {p!r}")


def penalize_repetition(logits: Any, seen: Any, penalty: float) -> Array:
    """Divide the logits of seen tokens by the penalty, multiply negative ones.

    Tokens that were used become less probable if the penalty is above 1 (Keskar et al. 2019).

    Args:
        logits: shape (…, V).
        seen: bool of the same shape.
        penalty: a number above 0.

    Raises `ArgumentError` for another penalty, `ShapeError` or `DTypeError` for another mask, and as `greedy`.

    >>> nn.penalize_repetition(jnp.array([1.0, -1.0, 3.0]), jnp.array([True, True, False]), 2.0)
    Array([ 0.5, -2. ,  3. ], dtype=float32)
    """
    value, mask = _logits("penalize_repetition", logits), as_value(seen)
    if not penalty > 0:
        raise ArgumentError(f"penalize_repetition: the penalty is above 0, got {penalty!r}")
    if mask.dtype not in BOOL:
        raise DTypeError(f"penalize_repetition: seen is bool, got {mask.aval}")
    if mask.shape != value.shape:
        raise ShapeError(f"penalize_repetition: seen has the shape {value.shape} of the logits, got {mask.shape}")
    return vnp.where(mask, vnp.where(value > 0, value / penalty, value * penalty), value)


#: Logits divided by less may be infinite or NaN, and differ by so much that the greatest is the only choice.
_LEAST_TEMPERATURE = 1e-30


@dataclass(frozen=True, slots=True)
class Sampler:
    """The usual choices in their usual order, as one sampler.

    Repetitions are penalised, logits divided by the temperature, and `top_k`, `top_p` and `min_p` filter what remains, as in Hugging Face's
    `generate`. With `top_k` only the k greatest logits are sorted. Instances are hashable: there is a program for each.

    Attributes:
        temperature: 0 chooses the greatest logit, above 1 is more random.
        top_k, top_p, min_p: see `top_k_filter`, `top_p_filter`, `min_p_filter`; None for no filter.
        repetition_penalty: see `penalize_repetition`; 1 for none.

    Raises `ArgumentError` for numbers out of their range.

    >>> nn.Sampler(temperature=0.7, top_k=2)(jnp.array([0.0, 9.0, -1.0]), vf.random.key(0))
    Array(1, dtype=int32)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ArgumentError(f"Sampler: temperature is at least 0, got {self.temperature!r}")
        if not self.repetition_penalty > 0:
            raise ArgumentError(f"Sampler: repetition_penalty is above 0, got {self.repetition_penalty!r}")
        if self.top_k is not None and not is_integer(self.top_k, 1):
            raise ArgumentError(f"Sampler: top_k is an integer of at least 1, got {self.top_k!r}")
        for name in ("top_p", "min_p"):
            if (p := getattr(self, name)) is not None:
                _check_probability(f"Sampler.{name}", p)

    def _penalized(self, logits: Any, seen: Any) -> Array:
        value = _logits("Sampler", logits)
        return value if self.repetition_penalty == 1 or seen is None else penalize_repetition(value, seen, self.repetition_penalty)

    def filtered(self, logits: Any, seen: Any = None) -> Array:
        """Return the logits of which a token is drawn, -inf for those that are filtered.

        Arguments and errors are those of calls. Temperature 0 keeps the greatest logits alone.
        """
        value = self._penalized(logits, seen)
        if self.temperature < _LEAST_TEMPERATURE:
            return top_k_filter(value, 1)
        value = value / self.temperature
        value = value if self.top_k is None else top_k_filter(value, self.top_k)
        value = value if self.top_p is None else top_p_filter(value, self.top_p)
        return value if self.min_p is None else min_p_filter(value, self.min_p)

    def __call__(self, logits: Any, key: Any, seen: Any = None) -> Array:
        """Return a token for each row of logits, int32 of shape (…,).

        Args:
            logits: floats of shape (…, V).
            key: a random key; not used if the temperature is 0.
            seen: bool of the shape of `logits`, True for tokens that the text contains, for the penalty.

        Raises:
            ShapeError, DTypeError: the arrays do not fit.
        """
        value = self._penalized(logits, seen)
        if self.temperature < _LEAST_TEMPERATURE:
            return greedy(value)
        value = value / self.temperature
        if self.top_k is None or self.top_k >= value.shape[-1]:
            value = value if self.top_p is None else top_p_filter(value, self.top_p)
            value = value if self.min_p is None else min_p_filter(value, self.min_p)
            return random.categorical(key, value).astype("int32")
        best, tokens = lax.top_k(value, self.top_k)  # in descending order
        best = best if self.top_p is None else vnp.where(_top_p_mask(best, self.top_p), best, -vnp.inf)
        best = best if self.min_p is None else min_p_filter(best, self.min_p)
        chosen = random.categorical(key, best)
        return vnp.take_along_axis(tokens, chosen[..., None], -1)[..., 0].astype("int32")


# Continuing prompts: greedily, by sampling, by beam search, speculatively.

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
    text = next((row for row in (tokens if isinstance(tokens, (list, tuple)) else [tokens]) if isinstance(row, str)), None)
    if text is not None:
        raise DTypeError(
            f"{name}: a prompt is a sequence of tokens, got the text {text!r:.40}. The model's tokenizer makes tokens of it, and text "
            "of the new ones: tokenizers.Tokenizer.from_file(path).encode(text).ids, or volta_fn.chat.Conversation"
        )
    is_batch = any(np.ndim(row) > 0 for row in tokens) if isinstance(tokens, (list, tuple)) else np.ndim(tokens) > 1
    rows = [np.asarray(row) for row in tokens] if is_batch else [np.asarray(tokens)]
    if not rows:
        raise ShapeError(f"{name}: a batch has at least one prompt, got shape {np.shape(tokens)}")
    for row in rows:
        if row.ndim != 1 or row.size == 0:
            raise ShapeError(f"{name}: a prompt is a sequence of at least one token, got shape {row.shape}")
        if row.dtype.kind not in "iu":
            raise DTypeError(f"{name}: tokens are integers, got {row.dtype.name}")
        if row.min() < 0 or row.max() >= vocab_size:
            raise ArgumentError(f"{name}: tokens are between 0 and {vocab_size - 1}, got {row.min()} to {row.max()}")
    return [row.astype(np.int32) for row in rows], is_batch


def ends_of(name: str, stop_tokens: Any, config: CausalLMConfig) -> tuple[int, ...]:
    """Return the tokens that end a text; raise `ArgumentTypeError` for a single one."""
    if stop_tokens is None:
        return config.eos_token_id
    if np.ndim(stop_tokens) == 0 and not isinstance(stop_tokens, (set, frozenset)):
        raise ArgumentTypeError(f"{name}: stop_tokens is a sequence of tokens, got {stop_tokens!r}; ({stop_tokens!r},) has one")
    return tuple(stop_tokens)


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

    @advice.explained
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
        self._stop = np.array(ends_of("generate", stop_tokens, config), np.int32)
        self.pad_token = pad_token if pad_token is not None else 0 if config.pad_token_id is None else config.pad_token_id
        self._seen = self._mask_of_seen(prompts) if self._penalized else None
        self._last: Array | None = None
        self._has_begun = False
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
        if self._has_begun and self.cache is None:
            raise ArgumentError("TokenStream: the last step failed or was interrupted, and its cache with it; begin another stream")
        # Programs take the cache, so that there is none after an interrupt.
        self._has_begun, self.cache, cache = True, None, self.cache
        if self._last is None:
            if cache is None:
                slots = rounded_size(self.tokens.shape[1] + LEAST_CHUNK, LEAST_SLOTS)
                cache = self.model.init_cache(len(self.tokens), slots, start=vnp.asarray(self._starts) if self._starts.any() else None)
            logits, cache = prefill(self.model, self.tokens, cache)
            self._length += self.tokens.shape[1]
            self._last, self._key, self._seen = _sample(logits, self._key, self._seen, self._sampler, self._penalized)
        else:
            assert cache is not None
            self._length += 1
            cache = cache.grow(rounded_size(self._length, LEAST_SLOTS), self.model.config.sliding_window)
            options = (self._key, self._seen, self._sampler, self._penalized)
            self._last, cache, self._key, self._seen = _step(self.model, self._last, cache, *options)
        self.cache = cache
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


@advice.explained
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


# Beam search.


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


class _PromptSearch:
    """The running beams of one prompt, and its finished continuations."""

    def __init__(self, num_beams: int, power: float, stop: set[int], vocabulary: int) -> None:
        self.num_beams, self.stop, self.vocabulary = num_beams, stop, vocabulary
        #: Beams are the same at first: only the first one counts.
        self.scores = np.where(np.arange(num_beams) == 0, 0.0, -np.inf).astype(np.float32)
        self.texts: list[list[int]] = [[] for _ in range(num_beams)]
        self.finished = _Hypotheses(num_beams, power)
        self.done = False

    def advance(self, totals: np.ndarray, indices: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Choose the next beams, of that length; return their parents and tokens.

        The best candidates come first. An index is that of a token among those of all beams.
        """
        parents, tokens = np.zeros((2, self.num_beams), np.int32)  # beams without a text read any token
        if self.done:
            return parents, tokens
        old, self.texts, self.scores[:] = self.texts, [], -np.inf
        for rank, (total, index) in enumerate(zip(totals.tolist(), indices.tolist(), strict=True)):
            (beam, token), slot = divmod(index, self.vocabulary), len(self.texts)
            if total == -np.inf or slot == self.num_beams:
                continue
            if token in self.stop:
                if rank < self.num_beams:
                    self.finished.add(total, [*old[beam], token])
                continue
            parents[slot], tokens[slot], self.scores[slot] = beam, token, total
            self.texts.append([*old[beam], token])
        self.texts += [[] for _ in range(self.num_beams - len(self.texts))]
        self.done = self.finished.complete(float(self.scores[0]), length)
        return parents, tokens

    def finish(self) -> _Hypotheses:
        """Return the finished continuations; unless done, running ones are finished."""
        if not self.done:
            for total, text in zip(self.scores.tolist(), self.texts, strict=True):
                if total > -np.inf:
                    self.finished.add(total, text)
        return self.finished


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
    stop = set(ends_of("beam_search", stop_tokens, config))
    pad = pad_token if pad_token is not None else 0 if config.pad_token_id is None else config.pad_token_id
    tokens, starts = left_padded(prompts)
    batch, length = tokens.shape
    cache = model.init_cache(batch, rounded_size(length + LEAST_CHUNK, LEAST_SLOTS), start=vnp.asarray(starts) if starts.any() else None)
    logits, cache = prefill(model, tokens, cache)
    repeated = vnp.repeat(vnp.arange(batch), num_beams)
    logits, cache = logits[repeated], _reordered(cache, repeated)
    searches = [_PromptSearch(num_beams, length_penalty, stop, vocabulary) for _ in range(batch)]
    # As many candidates end as there are tokens that end, in each beam; so many more are enough.
    count = min((1 + max(len(stop), 1)) * num_beams, num_beams * vocabulary)
    for step in range(1, max_new_tokens + 1):
        rows = zip(searches, *map(np.asarray, _candidates(logits, np.stack([search.scores for search in searches]), count)), strict=True)
        parents, chosen = np.stack([search.advance(totals, indices, step) for search, totals, indices in rows], 1)
        if all(search.done for search in searches) or step == max_new_tokens:
            break
        cache = cache.grow(rounded_size(length + step, LEAST_SLOTS), config.sliding_window)
        first = np.arange(batch, dtype=np.int32)[:, None] * num_beams
        logits, cache = _advance(model, vnp.asarray(chosen.reshape(-1)), vnp.asarray((first + parents).reshape(-1)), cache)
    return _collected([search.finish() for search in searches], num_beams, pad)


def _collected(finished: Sequence[_Hypotheses], num_beams: int, pad: int) -> Beams:
    longest = max((len(text) for row in finished for _, text in row.items), default=0)
    tokens = np.full((len(finished), num_beams, longest), pad, np.int32)
    scores = np.full((len(finished), num_beams), -np.inf, np.float32)
    for i, row in enumerate(finished):
        for j, (score, text) in enumerate(row.items):
            tokens[i, j, : len(text)], scores[i, j] = text, score
    return Beams(vnp.asarray(tokens), vnp.asarray(scores))


# Speculative decoding.


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
    stop = set(ends_of(name, stop_tokens, config))
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
