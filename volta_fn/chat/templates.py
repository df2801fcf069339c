"""Templates that write the messages of a conversation as one text."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from volta_fn.errors import ArgumentError, CorruptFileError, MissingDependencyError
from volta_fn.lazy_imports import is_installed, load

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
        entries = _read(path / "tokenizer_config.json")
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


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        entries = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise CorruptFileError(f"{path}: a JSON object is needed, got {type(entries).__name__}")
    return entries
