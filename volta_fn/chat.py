"""Conversations with language models: `python -m volta_fn.chat MODEL`.

A `Conversation` writes messages as the text that a model was trained on, reads tokenizers, decodes tokens one by one, and keeps the model's
cache from turn to turn. The extra `language` installs what it needs: ``pip install 'volta-fn[language]'``.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from volta_fn import io, nn, random
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, CorruptFileError, MissingDependencyError, SerializationError, VoltaError
from volta_fn.io.gguf import GGUFFile
from volta_fn.lazy_imports import is_installed, load
from volta_fn.nn.language.config import read_json_object
from volta_fn.nn.language.layers import CausalLMCache, FullCache
from volta_fn.signals import run

__all__ = ["ChatTemplate", "Conversation", "TextDecoder", "load_tokenizer"]


# Templates.

#: A message: its "role" ("system", "user" or "assistant") and its "content".
Message = Mapping[str, str]


@dataclass(frozen=True)
class ChatTemplate:
    """A template of Jinja, as in the field `chat_template` of tokenizer_config.json.

    Without a source, messages are written as ``User: …`` and ``Assistant: …``, line by line.

    Attributes:
        source: the template, or None.
        tokens: the texts of special tokens by name, such as `bos_token`.

    >>> print(ChatTemplate(None).render([{"role": "user", "content": "Hello"}]))
    User: Hello
    Assistant:
    """

    source: str | None
    tokens: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> Self:
        """Return the template in a folder of a model.

        It is in chat_template.jinja or in tokenizer_config.json. Raises `CorruptFileError` if the latter is no JSON object.
        """
        path = Path(folder)
        config = path / "tokenizer_config.json"
        entries = read_json_object(config) if config.is_file() else {}
        tokens = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            value = entries.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[name] = text
        template = path / "chat_template.jinja"
        source = template.read_text(encoding="utf-8") if template.is_file() else entries.get("chat_template")
        if isinstance(source, list):  # several, by name
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        return cls(source, tokens)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of messages, up to where the model's answer begins.

        Args:
            messages: the conversation.
            add_generation_prompt: whether the text ends with what precedes an answer.

        Raises:
            MissingDependencyError: there is a template, and the package jinja2 is not installed.
            ArgumentError: the template is not valid, or refuses the messages.
        """
        if self.source is None:
            names = {"system": "System", "user": "User", "assistant": "Assistant"}
            lines = [f"{names.get(message['role'], message['role'])}: {message['content']}" for message in messages]
            return "\n".join([*lines, "Assistant:"] if add_generation_prompt else lines)
        if not is_installed("jinja2"):
            raise MissingDependencyError(
                "the model's chat template needs the package jinja2; install it by: pip install 'volta-fn[language]'"
            )
        jinja2 = load("jinja2")
        try:
            template = _environment().from_string(self.source)
            return str(template.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **self.tokens))
        except jinja2.exceptions.TemplateError as error:
            raise ArgumentError(f"the model's chat template refuses the messages: {error}") from error


def _environment() -> Any:
    """Return an environment in which templates can neither call into Python nor write."""
    sandbox, jinja2 = load("jinja2.sandbox"), load("jinja2")

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


# Tokenizers and templates in the metadata of GGUF files.
#
# Keys are llama.cpp's (github.com/ggml-org/ggml, docs/gguf.md). Its two kinds of byte-pair encoding are read: "gpt2", of bytes by a list of
# merges, and "llama", SentencePiece's by scores.

_PREFIX = "tokenizer.ggml."
#: Types of tokens that are found in texts before others: of control, and those that a user defined.
_CONTROL, _USER_DEFINED = 3, 4
#: Llama 3's split of texts, with the most digits of a number in place of {}.
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
#: How texts are split before they are encoded, by the entry "pre": a pattern, or GPT-2's, whose digits may be split one by one.
_PATTERNS: Mapping[str, str] = {"llama-bpe": _SPLIT.format("{1,3}"), "llama3": _SPLIT.format("{1,3}"), "qwen2": _SPLIT.format("")}
_GPT2_SPLITS: Mapping[str, bool] = {"gpt-2": False, "smollm": True}


def gguf_tokenizer(file: GGUFFile) -> Any:
    """Return the tokenizer in a file's metadata.

    Raises `ArgumentError` for one that is not supported, `CorruptFileError` if a part is missing.
    """
    kind = file.metadata.get(f"{_PREFIX}model")
    if kind not in ("gpt2", "llama"):
        raise ArgumentError(
            f"{file.path}: the tokenizer {kind!r} is not supported; supported are 'gpt2' and 'llama'. Put the model's tokenizer.json "
            "beside the file"
        )
    tokens = _entry(file, "tokens")
    tokenizer = _by_merges(file, tokens) if kind == "gpt2" else _by_scores(file, tokens)
    library = load("tokenizers")
    types = file.metadata.get(f"{_PREFIX}token_type", [])
    for special, token_type in ((True, _CONTROL), (False, _USER_DEFINED)):
        texts = [token for token, entry in zip(tokens, types, strict=False) if entry == token_type]
        added = [library.AddedToken(text, normalized=False, special=special) for text in texts]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    return tokenizer


def gguf_template(file: GGUFFile) -> ChatTemplate:
    """Return the template in a file's metadata, and the texts of its special tokens."""
    tokens = file.metadata.get(f"{_PREFIX}tokens", [])
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    numbers = {name: file.metadata.get(f"{_PREFIX}{key}_token_id") for name, key in names.items()}
    texts = {name: tokens[number] for name, number in numbers.items() if number is not None and number < len(tokens)}
    return ChatTemplate(file.metadata.get("tokenizer.chat_template"), texts)


def _entry(file: GGUFFile, name: str) -> Any:
    if f"{_PREFIX}{name}" not in file.metadata:
        raise CorruptFileError(f"{file.path}: the tokenizer has no {_PREFIX}{name}")
    return file.metadata[f"{_PREFIX}{name}"]


def _by_merges(file: GGUFFile, tokens: Sequence[str]) -> Any:
    """Return a tokenizer of bytes by a list of merges, as of GPT-2."""
    library = load("tokenizers")
    models, splits, decoders, normalizers = (getattr(library, name) for name in ("models", "pre_tokenizers", "decoders", "normalizers"))
    split = str(file.metadata.get(f"{_PREFIX}pre"))
    if split not in _PATTERNS and split not in _GPT2_SPLITS:
        raise ArgumentError(
            f"{file.path}: tokenizers that split texts as {split!r} are not supported; supported are "
            f"{', '.join([*_PATTERNS, *_GPT2_SPLITS])}. Put the model's tokenizer.json beside the file"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in _entry(file, "merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = library.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split in ("llama-bpe", "llama3")))
    if split in _PATTERNS:
        pattern = splits.Split(library.Regex(_PATTERNS[split]), "isolated")
        tokenizer.pre_tokenizer = splits.Sequence([pattern, splits.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        digits = [splits.Digits(individual_digits=True)] if _GPT2_SPLITS[split] else []
        tokenizer.pre_tokenizer = splits.Sequence([*digits, splits.ByteLevel(add_prefix_space=False)])
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _by_scores(file: GGUFFile, tokens: Sequence[str]) -> Any:
    """Return SentencePiece's tokenizer: the neighbours of the best score merge.

    Each token's score becomes the rank of all pairs of tokens that it consists of.
    """
    library = load("tokenizers")
    models, decoders, normalizers = (getattr(library, name) for name in ("models", "decoders", "normalizers"))
    scores = _entry(file, "scores")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = []
    for token, score in zip(tokens, scores, strict=True):
        halves = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs += [(-score, pair) for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
    merges = [pair for _, pair in sorted(pairs, key=lambda entry: entry[0])]
    unknown = tokens[file.metadata.get(f"{_PREFIX}unknown_token_id", 0)]
    tokenizer = library.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    has_prefix = file.metadata.get(f"{_PREFIX}add_space_prefix", True)
    prefix = [normalizers.Prepend("▁")] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return tokenizer


# Tokenizers of models, and decoding token by token.

#: What decoders write for bytes that are no complete character.
_REPLACEMENT = "\ufffd"


def load_tokenizer(source: str | os.PathLike[str] | GGUFFile) -> Any:
    """Return a model's tokenizer, of the package tokenizers.

    Args:
        source: a folder with tokenizer.json, or a GGUF file. A tokenizer.json beside a GGUF file is used instead of the file's tokens.

    Raises:
        MissingDependencyError: the package is not installed. SerializationError: there is no tokenizer.json.
        CorruptFileError: it is invalid. ArgumentError: the tokenizer of a GGUF file is not supported.
    """
    if not is_installed("tokenizers"):
        raise MissingDependencyError("tokenizer.json needs the package tokenizers; install it by: pip install 'volta-fn[language]'")
    file: GGUFFile | None = None
    if isinstance(source, GGUFFile) or Path(source).suffix == ".gguf":
        file = source if isinstance(source, GGUFFile) else GGUFFile(source)
        folder = file.path.parent
    else:
        folder = Path(source)
    path = folder / "tokenizer.json"
    if file is not None and not path.is_file():
        return gguf_tokenizer(file)
    if not path.is_file():
        raise SerializationError(f"{folder}: there is no tokenizer.json; a folder of a model as Hugging Face saves it is needed")
    try:
        return load("tokenizers").Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more specific
        raise CorruptFileError(f"{path}: not a tokenizer: {error}") from error


class TextDecoder:
    """Decodes tokens one by one, so that their pieces join to the whole text.

    A token may be a part of a character, or its text depend on the token before: such a piece waits until it is complete.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Begin a text that `tokenizer` decodes."""
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = 0  # of the tokens that are decoded again, as context for the next
        self._end = 0  # of those whose text was returned

    def decode(self, token: int) -> str:
        """Return the text that a token adds, which may be empty."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._start : self._end])
        text = self._tokenizer.decode(self._tokens[self._start :])
        if len(text) <= len(before) or text.endswith(_REPLACEMENT):
            return ""
        self._start, self._end = self._end, len(self._tokens)
        return str(text[len(before) :])

    def rest(self) -> str:
        """Return the text of what waits: bytes that were never completed."""
        before = self._tokenizer.decode(self._tokens[self._start : self._end])
        text = self._tokenizer.decode(self._tokens[self._start :])
        self._start = self._end = len(self._tokens)
        return str(text[len(before) :])


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


# The command.


_HELP = "/reset forgets the conversation, /exit ends; Ctrl-C stops an answer"


def main(arguments: Sequence[str] | None = None) -> int:
    """Talk until the end of the input; return 1 if the model cannot be loaded."""
    parser = argparse.ArgumentParser(prog="python -m volta_fn.chat", description=f"Talk with a language model. {_HELP}.")
    parser.add_argument("model", help="a folder as Hugging Face saves it, or a GGUF file")
    parser.add_argument("--system", help="instructions for the model")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="the longest answer (default: 512)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 chooses the most probable tokens (default: 0.7)")
    parser.add_argument("--top-k", type=int, default=50, help="sample from so many tokens (default: 50)")
    parser.add_argument("--top-p", type=float, default=0.9, help="and from the most probable of them that reach it (default: 0.9)")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="above 1 avoids repetitions (default: 1)")
    parser.add_argument("--seed", type=int, default=None, help="for the same answers again")
    parser.add_argument("--dtype", help="convert the weights, for example to float32")
    parser.add_argument("--speed", action="store_true", help="print the tokens per second")
    options = parser.parse_args(arguments)
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    choices = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    try:
        conversation = Conversation.from_pretrained(
            options.model, dtype=options.dtype, system=options.system, max_new_tokens=options.max_new_tokens, seed=seed,
            repetition_penalty=options.repetition_penalty, **choices,
        )  # fmt: skip
    except VoltaError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    if sys.stdin.isatty():
        print(_HELP)
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return 0
        if text == "/exit":
            return 0
        if text == "/reset":
            conversation.reset()
        elif text:
            _answer(conversation, text, options.speed)


def _answer(conversation: Conversation, text: str, speed: bool) -> None:
    """Print an answer as it comes."""
    start, pieces = time.perf_counter(), 0
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(conversation.ask(text)) as answer:  # type: ignore[type-var]
        for piece in answer:
            print(piece, end="", flush=True)
            pieces += 1
    seconds = time.perf_counter() - start
    print(f"\n({pieces / max(seconds, 1e-9):.1f} pieces a second)" if speed else "", flush=True)


if __name__ == "__main__":
    run(main)
