"""Tokenizers of models, and decoding token by token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from volta_fn.chat.gguf_tokenizer import gguf_tokenizer
from volta_fn.errors import CorruptFileError, MissingDependencyError, SerializationError
from volta_fn.io.gguf import GGUFFile
from volta_fn.lazy_imports import is_installed, load

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
