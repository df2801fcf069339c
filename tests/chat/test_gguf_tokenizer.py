"""Tokenizers and templates of GGUF files, beside those that they were written from, and a chat with such a file."""

from __future__ import annotations

import io as streams
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from volta_fn import io
from volta_fn.chat import Conversation, TextDecoder, load_tokenizer, main
from volta_fn.errors import ArgumentError, CorruptFileError

gguf = pytest.importorskip("gguf")
tokenizers = pytest.importorskip("tokenizers")

TEXT = [
    "Hello there, how are you?",
    "I am well, thank you: 1, 23, 456. Üñî ✓ 🙂",
    "user assistant\n" * 3,
    "  spaces   don't\tcount\n\n\nhere ",
]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}assistant:"
SIZES = {
    "block_count": 1, "context_length": 256, "embedding_length": 32, "feed_forward_length": 32, "attention.head_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
#: Llama 3's and Qwen 2's splits of texts, as their tokenizer.json files have them.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def trained(split: str) -> Any:
    """Train a tokenizer of bytes on a few texts, with the split of a family."""
    splits = tokenizers.pre_tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    pattern = LLAMA3 if split == "llama-bpe" else LLAMA3.replace("{1,3}", "")
    tokenizer.pre_tokenizer = {
        "gpt-2": splits.ByteLevel(add_prefix_space=False),
        "smollm": splits.Sequence([splits.Digits(individual_digits=True), splits.ByteLevel(add_prefix_space=False)]),
    }.get(split) or splits.Sequence(
        [splits.Split(tokenizers.Regex(pattern), "isolated"), splits.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<s>", "</s>"], initial_alphabet=splits.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def metadata_of(tokenizer: Any, split: str) -> dict[str, Any]:
    """Return what llama.cpp's conversion writes of a tokenizer of bytes."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    saved = tokenizer.to_str()
    merges = [" ".join(pair) for pair in json.loads(saved)["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": split, "tokenizer.ggml.tokens": [token for token, _ in vocabulary],
        "tokenizer.ggml.token_type": [3 if token in ("<s>", "</s>") else 1 for token, _ in vocabulary],
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip


@pytest.mark.parametrize("split", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_tokenizers_of_bytes(tmp_path: Path, split: str) -> None:
    expected = trained(split)
    io.save_gguf(tmp_path / "a.gguf", {}, metadata_of(expected, split))
    tokenizer = load_tokenizer(tmp_path / "a.gguf")
    for text in [*TEXT, "<s>user</s> 1234567 ok", "日本語"]:
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokens == expected.encode(text, add_special_tokens=False).ids
        decoder = TextDecoder(tokenizer)
        assert "".join([*map(decoder.decode, tokens), decoder.rest()]) == expected.decode(tokens)


def merged(text: str, scores: dict[str, float]) -> list[str]:
    """Encode as SentencePiece does: of all neighbours the pair merges whose token has the best score, the first one of equals."""
    pieces = list(text)
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        at = -max(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@pytest.mark.parametrize("has_prefix", [True, False])
def test_tokenizers_by_scores(tmp_path: Path, has_prefix: bool) -> None:
    words = ["he", "ell", "lo", "hello", "▁h", "▁hello", "▁w", "or", "ld", "▁wor", "▁world", "llo", "▁▁", "el"]
    letters = sorted({letter for word in words for letter in word})
    control = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    tokens = [*control, *byte_tokens, *words, *letters]
    order = np.random.default_rng(3).permutation(len(words))
    scores = [0.0] * (3 + 256) + [-float(i) for i in order] + [-1000.0 - i for i in range(len(letters))]
    entries = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(words) + len(letters)),
        "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_space_prefix": has_prefix,
    }  # fmt: skip
    io.save_gguf(tmp_path / "a.gguf", {}, entries)
    tokenizer = load_tokenizer(tmp_path / "a.gguf")
    table = dict(zip(words, scores[259:], strict=False))
    for text in ("hello world", "hellohelloworld", "hold  or held", "lollo wrel"):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        assert encoding.tokens == merged(("▁" if has_prefix else "") + text.replace(" ", "▁"), table)
        assert tokenizer.decode(encoding.ids) == text
    accented = tokenizer.encode("é", add_special_tokens=False).tokens
    assert accented[-2:] == ["<0xC3>", "<0xA9>"]
    assert tokenizer.encode("hello</s>hello", add_special_tokens=False).tokens.count("</s>") == 1


def test_what_is_refused(tmp_path: Path) -> None:
    entries = metadata_of(trained("gpt-2"), "gpt-2")
    for change, error, message in (
        ({"tokenizer.ggml.model": "bert"}, ArgumentError, "'bert' is not supported"),
        ({"tokenizer.ggml.pre": "other"}, ArgumentError, "'other' are not supported"),
        ({"tokenizer.ggml.model": "llama"}, CorruptFileError, "no tokenizer.ggml.scores"),
    ):
        io.save_gguf(tmp_path / "a.gguf", {}, {**entries, **change})
        with pytest.raises(error, match=message):
            load_tokenizer(tmp_path / "a.gguf")
    expected = trained("gpt-2")
    expected.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path / "a.gguf").encode(TEXT[0]).ids == expected.encode(TEXT[0]).ids


def test_a_chat_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    tokenizer = trained("gpt-2")
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (tokenizer.get_vocab_size(), 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {f"blk.0.{name}": (32, 32) for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    tensors = {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    entries = {
        "general.architecture": "llama",
        **{f"llama.{key}": value for key, value in SIZES.items()},
        **metadata_of(tokenizer, "gpt-2"),
    }
    formats = {name: "Q8_0" for name, x in tensors.items() if x.ndim > 1}
    io.save_gguf(tmp_path / "model.gguf", tensors, entries, formats=formats)
    conversation = Conversation.from_pretrained(tmp_path / "model.gguf", max_new_tokens=6)
    answer = "".join(conversation.ask("Hello"))
    assert conversation.template.tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert conversation.messages[-1] == {"role": "assistant", "content": answer}
    monkeypatch.setattr(sys, "stdin", streams.StringIO("Hello\n"))
    assert main([str(tmp_path / "model.gguf"), "--temperature", "0", "--max-new-tokens", "6"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == answer.rstrip("\n")
