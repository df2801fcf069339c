"""A conversation with a language model, whose cache lasts from turn to turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from volta_fn import io, nn, random
from volta_fn import numpy as vnp
from volta_fn.chat.gguf_tokenizer import gguf_template
from volta_fn.chat.templates import ChatTemplate
from volta_fn.chat.tokenizer import TextDecoder, load_tokenizer
from volta_fn.nn.language.caches import CausalLMCache, FullCache


class Conversation:
    """Messages between a user and a language model.

    `messages` are those so far. An answer reads only what follows the part of the text that the model's cache already has.
    """

    def __init__(
        self,
        model: nn.CausalLM,
        tokenizer: Any,
        template: ChatTemplate,
        *,
        system: str | None = None,
        max_new_tokens: int = 512,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """Begin a conversation.

        Args:
            model: the language model.
            tokenizer: one of the package tokenizers, see `load_tokenizer`.
            template: how messages are written.
            system: the content of a first message with the role "system".
            max_new_tokens: the most tokens of an answer.
            seed: of the random choices; None for the most probable tokens.
            options: other options of `nn.generate`, such as `temperature`.
        """
        self.model, self.tokenizer, self.template = model, tokenizer, template
        self.max_new_tokens, self.options = max_new_tokens, options
        self._key = None if seed is None else random.key(seed)
        self._system = system
        self._stop = {*model.config.eos_token_id, tokenizer.token_to_id(template.tokens.get("eos_token", ""))} - {None}
        self.reset()

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike[str], *, dtype: Any = None, **options: Any) -> Self:
        """Begin a conversation with the model in a folder or in a GGUF file.

        Args:
            source: a folder with config.json, weights, tokenizer.json, and maybe a template; or a GGUF file, see `load_tokenizer`.
            dtype: that of weights, see `io.load_pretrained`.
            options: those of a conversation.

        Raises:
            MissingDependencyError: a package of the extra `language` is not installed, or of `gguf` for such a file.
            SerializationError: a file is missing. CorruptFileError: one is damaged. ArgumentError: the model is not supported.
        """
        model: Any = io.open_gguf(source) if Path(source).suffix == ".gguf" else source
        template = gguf_template(model) if isinstance(model, io.GGUFFile) else ChatTemplate.from_pretrained(model)
        tokenizer = load_tokenizer(model)
        return cls(io.load_pretrained(model, dtype=dtype), tokenizer, template, **options)

    def reset(self) -> None:
        """Forget all messages but the first one of the system."""
        self.messages: list[dict[str, str]] = [] if self._system is None else [{"role": "system", "content": self._system}]
        self._cache: CausalLMCache | None = None
        self._read: list[int] = []  # the tokens that the cache has

    def ask(self, content: str) -> Iterator[str]:
        """Add a user's message, and yield the answer piece by piece.

        An iteration that is not finished leaves what was yielded as the answer. Raises the errors of `ChatTemplate.render`.
        """
        messages = [*self.messages, {"role": "user", "content": content}]
        tokens = self.tokenizer.encode(self.template.render(messages), add_special_tokens=False).ids
        self.messages = messages
        common = self._rewind(tokens)
        key = None
        if self._key is not None:
            self._key, key = random.split(self._key)
        cache = self._cache if common else self.model.init_cache(1, 1, rolling=False)
        options: dict[str, Any] = {"stop_tokens": sorted(self._stop), "key": key, **self.options}
        stream = nn.TokenStream(self.model, tokens[common:], self.max_new_tokens, cache=cache, **options)
        self._cache = None  # which the stream updates in place
        decoder, answer, chosen = TextDecoder(self.tokenizer), "", []
        try:
            for row in stream:
                chosen.append(int(row[0]))
                if chosen[-1] not in self._stop:
                    piece = decoder.decode(chosen[-1])
                    answer += piece
                    if piece:
                        yield piece
            rest = decoder.rest()
            answer += rest
            if rest:
                yield rest
        finally:
            self.messages = [*messages, {"role": "assistant", "content": answer}]
            if stream.cache is not None and chosen:
                self._cache, self._read = stream.cache, [*tokens, *chosen[:-1]]

    def _rewind(self, tokens: list[int]) -> int:
        """Shorten the cache to what it has in common with a text; return its length."""
        if self._cache is None:
            return 0
        least = min(len(self._read), len(tokens) - 1)  # one token is read anew, for its logits
        differ = np.flatnonzero(np.array(self._read[:least]) != np.array(tokens[:least]))
        common = int(differ[0]) if differ.size else least
        if not all(isinstance(layer, FullCache) for layer in self._cache.layers):
            return 0
        self._cache = self._cache._replace(length=vnp.asarray(common, "int32"))
        return common
