"""Texts that are generated together, each from when it is added until it ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.jit import jit
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.nn.language.generation import CHUNK, LEAST_CHUNK, as_prompts, config_of, ends_of, greedy, rounded_size
from volta_fn.nn.language.layers import CausalLMCache, PagedCache
from volta_fn.nn.layers.arguments import check_sizes, is_integer

__all__ = ["ContinuousBatch", "NewToken"]


class NewToken(NamedTuple):
    """A token of one of the texts.

    Attributes:
        text: the number that `ContinuousBatch.add` returned.
        token: an int.
        is_last: whether the text ended with it.
    """

    text: int
    token: int
    is_last: bool


@dataclass
class _Row:
    """A text under way: its number, pages, last token, and how many tokens remain."""

    text: int
    pages: list[int]
    length: int
    token: int
    remaining: int


@functools.partial(jit, static_argnames=("sampler", "is_first"), donate_argnames=("layers",))
def _read(
    model: CausalLM,
    tokens: Array,
    layers: tuple[PagedCache, ...],
    table: Array,
    lengths: Array,
    counts: Array,
    key: Any,
    sampler: Any,
    is_first: bool,
) -> tuple[Array, tuple[PagedCache, ...]]:
    """Read tokens of each row, and choose the ones that follow."""
    cache = CausalLMCache(layers, lengths, None, table)
    hidden, new, _ = model.hidden(tokens, cache=cache, count=counts, prefill=is_first)
    assert new is not None
    last = vnp.take_along_axis(hidden, vnp.maximum(counts - 1, 0)[:, None, None], 1)[:, 0]
    return sampler(model.logits(last), key).astype("int32"), new.layers  # type: ignore[return-value]  # of the same kind


class ContinuousBatch:
    """Texts that a model continues together, each from when it is added until it ends.

    Keys and values are in pages of a common pool (Kwon et al. 2023): a text takes pages as it grows, and gives them back at its end. So
    many texts of unequal lengths share a fixed amount of memory, and each step of the model serves all of them.

    >>> config = nn.CausalLMConfig(model_type="llama", vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                            num_attention_heads=4)
    >>> batch = nn.ContinuousBatch(nn.CausalLM.init(vf.random.key(0), config), pages=8, page_size=4, rows=2)
    >>> first = batch.add([1, 2, 3], max_new_tokens=4)
    >>> tokens = batch.step()  # of the first text
    >>> second = batch.add([4], max_new_tokens=3)
    >>> [(new.text, new.is_last) for new in batch.step()]
    [(0, False), (1, False)]
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        pages: int,
        page_size: int = 16,
        rows: int = 8,
        sampler: Callable[[Array, Any], Array] = greedy,
        key: Any = None,
        stop_tokens: Sequence[int] | None = None,
    ) -> None:
        """Create an empty batch.

        Args:
            model: the language model, whose layers are not stacked.
            pages: how many pages the pool has.
            page_size: how many tokens a page holds.
            rows: how many texts are read in a step at most.
            sampler: a function of logits (rows, V) and a key to tokens; hashable.
            key: a random key, if the sampler needs one.
            stop_tokens: as in `generate`.

        Raises `ArgumentError` for sizes that are no positive integers, `ArgumentTypeError` for another model.
        """
        check_sizes("ContinuousBatch", pages=pages, page_size=page_size, rows=rows)
        if not pages or not page_size or not rows:
            raise ArgumentError(f"ContinuousBatch: pages, page_size and rows are positive, got {pages}, {page_size}, {rows}")
        config = config_of("ContinuousBatch", model)
        self.model, self.page_size, self.sampler = model, page_size, sampler
        sizes = (pages, config.num_key_value_heads, page_size, config.head_dim, config.dtype)
        self._layers = tuple([PagedCache.empty(*sizes) for _ in config.layer_types])
        self._free = list(range(pages))[::-1]
        self._rows: list[_Row | None] = [None] * rows
        self._stop = set(ends_of("ContinuousBatch", stop_tokens, config))
        self._key, self._texts = key, 0
        self._new: list[NewToken] = []

    def __len__(self) -> int:
        """Return the number of texts under way."""
        return sum(row is not None for row in self._rows)

    @property
    def free_pages(self) -> int:
        """How many pages no text has."""
        return len(self._free)

    def has_room(self, prompt_tokens: Any, max_new_tokens: int) -> bool:
        """Return True if a text can be added now, with pages to its greatest length."""
        reserved = sum(self._pages_of(row.length + row.remaining) - len(row.pages) for row in self._rows if row is not None)
        return len(self) < len(self._rows) and self._pages_of(len(prompt_tokens) + max_new_tokens) <= len(self._free) - reserved

    def add(self, prompt_tokens: Any, max_new_tokens: int) -> int:
        """Read a prompt, and return the number of its text.

        Its first token comes with the next `step`.

        Args:
            prompt_tokens: integers of shape (T,).
            max_new_tokens: how many tokens to generate at most, at least 1.

        Raises:
            ArgumentError: there is no room for the text, see `has_room`, or it is a batch. ShapeError, DTypeError: no integers.
        """
        prompts, is_batch = as_prompts("ContinuousBatch.add", prompt_tokens, self.model.config.vocab_size)
        if is_batch or not is_integer(max_new_tokens, 1):
            raise ArgumentError(f"ContinuousBatch.add: one prompt and a positive max_new_tokens are needed, got {max_new_tokens!r}")
        prompt = prompts[0]
        if not self.has_room(prompt, max_new_tokens):
            raise ArgumentError(
                f"ContinuousBatch.add: there is no room for {len(prompt)} + {max_new_tokens} tokens: {len(self)} of {len(self._rows)} rows "
                f"are taken, {self.free_pages} pages of {self.page_size} tokens are free, some of which texts under way may need"
            )
        row = _Row(self._texts, [], 0, 0, max_new_tokens)
        self._texts += 1
        for begin in range(0, len(prompt), CHUNK):
            chunk = prompt[begin : begin + CHUNK]
            self._take_pages(row, len(chunk))
            padded = np.pad(chunk, (0, rounded_size(len(chunk), LEAST_CHUNK) - len(chunk)))
            tokens = self._run(padded[None], [row], np.array([len(chunk)]), begin == 0)
            row.length += len(chunk)
        self._rows[self._rows.index(None)] = row
        self._accept(row, int(tokens[0]))
        return row.text

    def step(self) -> list[NewToken]:
        """Return a new token of each text under way, in the order of their rows.

        Texts that were added since the last step give their first one.
        """
        new, self._new = self._new, []
        fresh = {token.text for token in new}
        rows = [row for row in self._rows if row is not None and row.text not in fresh]
        if rows:
            for row in rows:
                self._take_pages(row, 1)
            listed: list[_Row | None] = [row if row in rows else None for row in self._rows]
            tokens = np.array([[0 if row is None else row.token] for row in listed], np.int32)
            chosen = self._run(tokens, listed, np.array([row is not None for row in listed], np.int32), False)
            for place, token in zip(listed, chosen.tolist(), strict=True):
                if place is not None:
                    place.length += 1
                    self._accept(place, token)
        older, self._new = self._new, []
        return sorted([*new, *older], key=lambda token: token.text)

    def __iter__(self) -> Iterator[NewToken]:
        """Step until all texts have ended, and yield their tokens."""
        while len(self) or self._new:
            yield from self.step()

    def _pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _take_pages(self, row: _Row, added: int) -> None:
        while len(row.pages) * self.page_size < row.length + added:
            row.pages.append(self._free.pop())

    def _run(self, tokens: np.ndarray, rows: Sequence[_Row | None], counts: np.ndarray, is_first: bool) -> np.ndarray:
        """Read tokens of rows, and return the ones that follow."""
        width = rounded_size(max(len(row.pages) for row in rows if row is not None), 4)
        table = np.full((len(rows), width), -1, np.int32)
        lengths = np.zeros(len(rows), np.int32)
        for i, row in enumerate(rows):
            if row is not None:
                table[i, : len(row.pages)], lengths[i] = row.pages, row.length
        subkey = None
        if self._key is not None:
            self._key, subkey = random.split(self._key)
        arrays = [vnp.asarray(x.astype(np.int32)) for x in (tokens, table, lengths, counts)]
        layers, self._layers = self._layers, ()
        chosen, self._layers = _read(self.model, arrays[0], layers, *arrays[1:], subkey, self.sampler, is_first)
        return np.asarray(chosen)

    def _accept(self, row: _Row, token: int) -> None:
        """Record a new token, and give back the pages of a text that ends with it."""
        row.token, row.remaining = token, row.remaining - 1
        is_last = row.remaining == 0 or token in self._stop
        self._new.append(NewToken(row.text, token, is_last))
        if is_last:
            self._free += row.pages[::-1]
            self._rows[self._rows.index(row)] = None
