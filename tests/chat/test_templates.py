"""Templates of conversations: the usual features of Jinja, what they may not do, and messages without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from volta_fn.chat import ChatTemplate
from volta_fn.errors import ArgumentError, CorruptFileError, MissingDependencyError

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_without_a_template() -> None:
    template = ChatTemplate(None)
    assert template.render(MESSAGES) == "System: Be brief.\nUser: Hello\nAssistant:"
    assert template.render(MESSAGES, add_generation_prompt=False) == "System: Be brief.\nUser: Hello"


def test_jinja() -> None:
    pytest.importorskip("jinja2")
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    assert ChatTemplate(CHATML).render(MESSAGES, add_generation_prompt=False) == expected
    assert ChatTemplate(CHATML).render(MESSAGES) == expected + "<|im_start|>assistant\n"
    blocks = (
        "{{ bos_token }}\n{% for m in messages %}\n    {%- if m.role == 'user' %}\n{{ m | tojson }}\n{% break %}\n{% endif %}\n{% endfor %}"
    )
    assert ChatTemplate(blocks, {"bos_token": "<s>"}).render(MESSAGES) == '<s>\n{"role": "user", "content": "Hello"}\n'
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]).isdigit()


def test_what_templates_refuse_and_what_they_may_not_do() -> None:
    pytest.importorskip("jinja2")
    with pytest.raises(ArgumentError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(MESSAGES)
    with pytest.raises(ArgumentError, match="refuses"):
        ChatTemplate("{% if %}").render(MESSAGES)
    with pytest.raises(ArgumentError, match="refuses"):
        ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}").render(MESSAGES)
    with pytest.raises(ArgumentError, match="refuses"):
        ChatTemplate("{{ messages.append(1) }}").render(MESSAGES)


def test_files(tmp_path: Path) -> None:
    assert ChatTemplate.from_pretrained(tmp_path) == ChatTemplate(None)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "a", "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}))
    assert ChatTemplate.from_pretrained(tmp_path) == ChatTemplate("a", {"bos_token": "<s>", "eos_token": "</s>"})
    config.write_text(json.dumps({"chat_template": [{"name": "tools", "template": "b"}, {"name": "default", "template": "c"}]}))
    assert ChatTemplate.from_pretrained(tmp_path).source == "c"
    (tmp_path / "chat_template.jinja").write_text("d")
    assert ChatTemplate.from_pretrained(tmp_path).source == "d"
    for text in ("[]", "{"):
        config.write_text(text)
        with pytest.raises(CorruptFileError):
            ChatTemplate.from_pretrained(tmp_path)


def test_a_template_needs_jinja(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volta_fn.chat.is_installed", lambda name: False)
    with pytest.raises(MissingDependencyError, match=r"volta-fn\[language\]"):
        ChatTemplate(CHATML).render(MESSAGES)
    assert "volta_fn.chat" in sys.modules
