"""A character-level language model: a small transformer learns to continue a text.

    python examples/char_transformer.py               # the text is Python's own standard library
    python examples/char_transformer.py --text FILE   # another text, such as tiny Shakespeare; see README.md for results

It has rotary positions (Su et al. 2021), root-mean-square norms (Zhang & Sennrich 2019) before each sublayer, squared rectifiers
(So et al. 2021) and no biases; Muon (Jordan et al. 2024) trains it. It writes with a cache of keys and values. See also `char_lstm.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import char_lstm
import common

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn, optim, random


def squared_relu(x: vf.Array) -> vf.Array:
    """Return max(x, 0)², which is faster than a GELU and learns as well."""
    return jnp.square(nn.relu(x))


class CharTransformer(nn.Module):
    """Logits of the next character at each position of a text.

    The text has at most `length` characters.
    """

    embed: nn.Embedding
    layers: nn.TransformerEncoder
    out: nn.Linear
    length: int = nn.static()

    @classmethod
    def init(cls, key: vf.Array, symbols: int, *, width: int, layers: int, heads: int, length: int) -> CharTransformer:
        """Create `layers` layers of `width` features and `heads` heads."""
        first, second, third = random.split(key, 3)
        style: dict[str, Any] = {
            "activation": squared_relu,
            "norm": nn.RMSNorm.init,
            "norm_first": True,
            "rotary_base": 10000.0,
            "bias": False,
        }
        stack = nn.TransformerEncoder.init(second, layers, width, heads, 4 * width, dropout=0.0, **style)
        return cls(nn.Embedding.init(first, symbols, width), stack, nn.Linear.init(third, width, symbols, bias=False), length)

    def __call__(self, numbers: vf.Array) -> vf.Array:
        """Return logits (batch, time, symbols) for texts (batch, time)."""
        return self.out(self.layers(self.embed(numbers), is_causal=True))

    def sample(self, prompt: vf.Array, count: int, key: vf.Array) -> vf.Array:
        """Draw `count` characters after the prompt.

        When the window is full, a new one starts with its second half.
        """
        text, half = jnp.asarray(prompt), self.length // 2
        rounds = -(-count // half)
        for k in random.split(key, rounds):
            text = jnp.concatenate([text, self._continued(text[-half:], k)])
        return text[len(prompt) :][:count]

    @vf.jit
    def _continued(self, prompt: vf.Array, key: vf.Array) -> vf.Array:
        """Draw characters one by one, with a cache of keys and values, until it is full."""

        def draw(hidden: vf.Array, key: vf.Array) -> vf.Array:
            return random.categorical(key, self.out(hidden[0, -1]) / char_lstm.TEMPERATURE)

        def step(state: Any, key: vf.Array) -> tuple[Any, vf.Array]:
            number, cache = state
            hidden, cache = self.layers(self.embed(number[None, None]), cache=cache)
            return (draw(hidden, key), cache), number

        hidden, cache = self.layers(self.embed(prompt[None]), cache=self.layers.init_cache(1, self.length))
        first, rest = random.split(key)
        return lax.scan(step, (draw(hidden, first), cache), random.split(rest, self.length - len(prompt)))[1]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, write a sample, and return both the validation loss and the sample."""
    options = common.arguments(__doc__, argv, **char_lstm.OPTIONS)
    steps = options.steps or (40 if options.quick else 1900)
    width, layers, batch, length = (64, 2, 16, 32) if options.quick else (128, 4, 32, 128)
    schedule = optim.warmup_cosine_decay_schedule(0.0, 0.016, steps // 20, steps, 0.0003)
    optimizer = optim.muon(schedule, weight_decay=0.3, adam_b2=0.99, consistent_rms=0.2)
    model_of = functools.partial(CharTransformer.init, width=width, layers=layers, heads=4, length=length)
    return char_lstm.run(options, "char_transformer", model_of, optimizer, length=length, batch=batch, steps=steps, threads=2)


if __name__ == "__main__":
    main()
