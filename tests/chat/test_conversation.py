"""Conversations with a tiny random model: turns, caches, interrupted answers, and the command."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.chat import Conversation, TextDecoder, load_tokenizer, main
from volta_fn.errors import CorruptFileError, MissingDependencyError, SerializationError
from volta_fn.nn.language import generation

tokenizers = pytest.importorskip("tokenizers")
TEXT = ["Hello there, how are you?", "I am well, thank you: 1, 2, 3. Üñî ✓ 🙂", "user assistant\n" * 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a random model, a tokenizer of bytes, and a template."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}assistant:"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}))
    config = nn.CausalLMConfig(
        model_type="mistral", vocab_size=tokenizer.get_vocab_size(), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, initializer_range=0.4, sliding_window=8, layer_types=("sliding_attention", "full_attention"),
    )  # fmt: skip
    vf.io.save_pretrained(path, nn.CausalLM.init(vf.random.key(0), config))
    return path


def answer_without_cache(conversation: Conversation, count: int) -> str:
    """Return the answer to the last message by one generation from the whole text."""
    messages = conversation.messages[:-1]
    tokens = conversation.tokenizer.encode(conversation.template.render(messages), add_special_tokens=False).ids
    stop = conversation.tokenizer.token_to_id("</s>")
    new = nn.generate(conversation.model, tokens, count, stop_tokens=[stop]).tolist()
    return str(conversation.tokenizer.decode(new))


def test_turns_reuse_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    lengths = []
    original = nn.TokenStream.__init__

    def recorded(self: Any, model: Any, tokens: Any, *args: Any, **options: Any) -> None:
        lengths.append(len(tokens))
        original(self, model, tokens, *args, **options)

    conversation = Conversation.from_pretrained(folder, system="Be kind.", max_new_tokens=8)
    monkeypatch.setattr(nn.TokenStream, "__init__", recorded)
    for content in ("Hello", "how are you?", "✓ 🙂"):
        answer = "".join(conversation.ask(content))
        assert conversation.messages[-2:] == [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
        with monkeypatch.context() as unchanged:
            unchanged.setattr(nn.TokenStream, "__init__", original)
            assert answer == answer_without_cache(conversation, 8)
    assert conversation.messages[0] == {"role": "system", "content": "Be kind."}
    whole = len(conversation.tokenizer.encode(conversation.template.render(conversation.messages[:-1]), add_special_tokens=False).ids)
    assert lengths[2] < whole
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "Be kind."}]


def test_an_answer_that_is_not_finished(folder: Path) -> None:
    pytest.importorskip("jinja2")
    conversation = Conversation.from_pretrained(folder, max_new_tokens=20, stop_tokens=())
    answer = conversation.ask("Hello")
    pieces = [next(answer), next(answer)]
    answer.close()  # type: ignore[attr-defined]
    assert conversation.messages[-1] == {"role": "assistant", "content": "".join(pieces)}
    again = "".join(conversation.ask("Go on"))
    tokens = conversation.tokenizer.encode(conversation.template.render(conversation.messages[:-1]), add_special_tokens=False).ids
    assert again == conversation.tokenizer.decode(nn.generate(conversation.model, tokens, 20, stop_tokens=()).tolist())


def test_an_answer_that_is_interrupted_in_a_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has taken the cache, so the next answer reads the whole text."""
    pytest.importorskip("jinja2")
    conversation = Conversation.from_pretrained(folder, max_new_tokens=8, stop_tokens=())
    step, calls = generation._step, []

    def interrupted(*args: Any) -> Any:
        results = step(*args)
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return results

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(generation, "_step", interrupted)
        list(conversation.ask("Hello"))
    again = "".join(conversation.ask("Go on"))
    tokens = conversation.tokenizer.encode(conversation.template.render(conversation.messages[:-1]), add_special_tokens=False).ids
    assert again == conversation.tokenizer.decode(nn.generate(conversation.model, tokens, 8, stop_tokens=()).tolist())


def test_sampling_follows_the_seed(folder: Path) -> None:
    pytest.importorskip("jinja2")
    run = lambda seed: "".join(Conversation.from_pretrained(folder, seed=seed, temperature=2.0, max_new_tokens=12).ask("Hello"))
    assert run(1) == run(1)
    assert len({run(seed) for seed in range(3)}) > 1


def test_pieces_join_to_the_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    for text in [*TEXT, "日本語 and ✓🙂"]:
        decoder = TextDecoder(tokenizer)
        pieces = [decoder.decode(token) for token in tokenizer.encode(text, add_special_tokens=False).ids]
        assert all("\ufffd" not in piece for piece in pieces)
        assert "".join(pieces) + decoder.rest() == text
    decoder = TextDecoder(tokenizer)
    half = tokenizer.encode("🙂", add_special_tokens=False).ids[0]
    assert decoder.decode(half) == ""
    assert "\ufffd" in decoder.rest()


def test_tokenizers_are_checked(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SerializationError, match=r"no tokenizer.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptFileError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
    monkeypatch.setattr("volta_fn.chat.is_installed", lambda name: False)
    with pytest.raises(MissingDependencyError, match=r"volta-fn\[language\]"):
        load_tokenizer(folder)


def test_command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n\n/reset\nHello\n/exit\nnot read\n"))
    assert main([str(folder), "--temperature", "0", "--max-new-tokens", "5"]) == 0
    first, second = capsys.readouterr().out.rstrip("\n").split("\n")[:2]
    assert first == second
    assert main([str(folder / "absent")]) == 1
    assert "no tokenizer.json" in capsys.readouterr().err


def test_command_in_a_process(folder: Path) -> None:
    pytest.importorskip("jinja2")
    command = [sys.executable, "-m", "volta_fn.chat", str(folder), "--seed", "3", "--max-new-tokens", "4", "--speed"]
    result = subprocess.run(
        command, input="Hello\n", text=True, capture_output=True, env=os.environ, cwd=Path(__file__).parents[2], check=True
    )
    assert "pieces a second" in result.stdout
    assert "Traceback" not in result.stderr
