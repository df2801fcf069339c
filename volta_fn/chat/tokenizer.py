"""Tokenizers of models, and decoding token by token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from volta_fn.errors import CorruptFileError, MissingDependencyError, SerializationError
from volta_fn.lazy_imports import is_installed, load

#: What decoders write for bytes that are no complete character.
_REPLACEMENT = "\ufffd"


def load_tokenizer(folder: str | os.PathLike[str]) -> Any:
    """Return the tokenizer in ``folder/tokenizer.json``, of the package tokenizers.

    Raises `MissingDependencyError` without the package, `SerializationError` without the file, `CorruptFileError` if it is invalid.
    """
    if not is_installed("tokenizers"):
        raise MissingDependencyError("tokenizer.json needs the package tokenizers; install it by: pip install 'volta-fn[language]'")
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise SerializationError(f"{os.fspath(folder)}: there is no tokenizer.json; a folder of a model as Hugging Face saves it is needed")
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
