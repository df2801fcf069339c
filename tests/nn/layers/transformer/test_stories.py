"""A trained language model of Llama's kind: logits and texts as its makers' program gives them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.data_files import data_dir
from volta_fn import nn

STEPS = 200
#: The token with which a text starts.
START = 1
#: Logits reach 20; the reference adds up in another order.
CLOSE = 1e-4


class Llama(nn.Module):
    """A causal encoder between an embedding and its transpose."""

    embedding: nn.Embedding
    body: nn.TransformerEncoder

    def __call__(self, tokens, *, cache=None):
        x = self.embedding(tokens)
        if cache is None:
            return self.embedding.attend(self.body(x, is_causal=True))
        y, cache = self.body(x, cache=cache)
        return self.embedding.attend(y), cache


def read_model(path: Path) -> Llama:
    """Return the model from seven integers and the parameters after them, one kind after the other, each for all layers."""
    dim, hidden, layers, heads, groups, vocabulary, length = (int(n) for n in np.fromfile(path, "<i4", 7))
    narrow = dim // heads * groups
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (vocabulary, dim),
        "norm1": (layers, dim),
        "q": (layers, dim, dim),
        "k": (layers, narrow, dim),
        "v": (layers, narrow, dim),
        "out": (layers, dim, dim),
        "norm2": (layers, dim),
        "gate": (layers, hidden, dim),
        "down": (layers, dim, hidden),
        "up": (layers, hidden, dim),
        "norm": (dim,),
        "angles": (2, length, dim // heads // 2),
    }
    numbers = np.fromfile(path, "<f4", offset=28)
    ends = np.cumsum([np.prod(shape) for shape in shapes.values()])
    assert ends[-1] == len(numbers)
    weights = {name: weight.reshape(shape) for (name, shape), weight in zip(shapes.items(), np.split(numbers, ends[:-1]), strict=True)}
    norm = lambda weight: nn.RMSNorm(vf.numpy.asarray(weight), (dim,), 1e-5)
    linear = lambda name, i: nn.Linear(vf.numpy.asarray(weights[name][i].T))

    def layer(i: int) -> nn.TransformerEncoderLayer:
        projections = [linear(name, i) for name in ("q", "k", "v", "out")]
        attention = nn.MultiHeadAttention(*projections, heads, groups, rotary_base=10000.0, rotary_interleaved=True)
        feed_forward = nn.FeedForward(linear("up", i), linear("down", i), linear("gate", i), nn.silu)
        return nn.TransformerEncoderLayer(attention, feed_forward, norm(weights["norm1"][i]), norm(weights["norm2"][i]), norm_first=True)

    body = nn.TransformerEncoder(tuple([layer(i) for i in range(layers)]), norm(weights["norm"]))
    return Llama(nn.Embedding(vf.numpy.asarray(weights["embedding"])), body)


def read_tokens(path: Path) -> list[bytes]:
    """Return the vocabulary: after the longest token's length, for each token a score, its length and its bytes."""
    raw, at, tokens = path.read_bytes(), 4, []
    while at < len(raw):
        size = int.from_bytes(raw[at + 4 : at + 8], "little")
        tokens.append(raw[at + 8 : at + 8 + size])
        at += 8 + size
    return tokens


def text_of(numbers: Any, tokens: list[bytes]) -> str:
    """Tokens as text; the space with which a text starts is not part of it."""
    result = b"".join(bytes([int(t[3:5], 16)]) if t[:3] == b"<0x" else t for t in (tokens[int(n)] for n in numbers))
    return result.decode().removeprefix(" ")


@vf.jit
def greedy(model: Llama, start: Any) -> Any:
    """Return the likeliest token after each, one after the other, and the logits that say so."""

    def step(carry, _):
        token, cache = carry
        logits, cache = model(token[None], cache=cache)
        token = vf.numpy.argmax(logits[-1]).astype("int32")
        return (token, cache), (token, logits[-1])

    return vf.lax.scan(step, (start, model.body.init_cache((), STEPS)), length=STEPS)[1]


@functools.cache
def folder() -> Path:
    """Return the folder with the model."""
    return data_dir("models/stories260k")


@pytest.fixture(scope="module")
def model():
    return read_model(folder() / "stories260K.bin")


@pytest.fixture(scope="module")
def reference():
    return np.load(folder() / "reference.npz")


def test_logits_of_a_text(model, reference):
    tokens, wanted = reference["ids"], reference["logits"]
    actual = vf.jit(lambda model, tokens: model(tokens))(model, tokens)
    np.testing.assert_allclose(actual, wanted, atol=CLOSE)
    batched = model(np.stack([tokens, tokens[::-1]]))
    np.testing.assert_allclose(batched[0], wanted, atol=CLOSE)


def test_greedy_text(model, reference):
    tokens, wanted = reference["ids"], reference["logits"]
    actual, logits = greedy(model, np.int32(START))
    np.testing.assert_array_equal(actual, tokens[1 : STEPS + 1])
    np.testing.assert_allclose(logits, wanted[:STEPS], atol=CLOSE)
    expected = (folder() / "greedy200_expected.txt").read_text()
    assert text_of(actual, read_tokens(folder() / "tok512.bin")).strip() == expected.strip()
