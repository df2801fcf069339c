"""Tokenizers and templates in the metadata of GGUF files.

Keys are llama.cpp's (github.com/ggml-org/ggml, docs/gguf.md). Its two kinds of byte-pair encoding are read: "gpt2", of bytes by a list of
merges, and "llama", SentencePiece's by scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from volta_fn.chat.templates import ChatTemplate
from volta_fn.errors import ArgumentError, CorruptFileError
from volta_fn.io.gguf import GGUFFile
from volta_fn.lazy_imports import load

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
