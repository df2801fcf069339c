"""GPT: as its layers by hand, causal, with a cache, and it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim
from volta_fn.errors import OutOfBoundsError, ShapeError

MODEL = nn.GPT.init(vf.random.key(0), 11, 8, num_layers=2, d_model=12, nhead=3, dropout=0.1)
TOKENS = vf.random.randint(vf.random.key(1), (2, 8), 0, 11)


def test_logits_are_those_of_its_layers() -> None:
    x = MODEL.tokens.weight[TOKENS] + MODEL.positions.weight
    expected = MODEL.layers(x, is_causal=True) @ MODEL.tokens.weight.T
    np.testing.assert_allclose(MODEL(TOKENS), expected, rtol=1e-5, atol=1e-6)
    assert MODEL(TOKENS).shape == (2, 8, 11)


def test_later_tokens_change_nothing() -> None:
    changed = TOKENS.at[:, 5:].set(0)
    np.testing.assert_allclose(MODEL(changed)[:, :5], MODEL(TOKENS)[:, :5], rtol=1e-5, atol=1e-6)
    assert not np.allclose(MODEL(changed)[:, 5:], MODEL(TOKENS)[:, 5:])


def test_a_cache_gives_the_same_logits() -> None:
    step = vf.jit(lambda tokens, cache: MODEL(tokens, cache=cache))
    cache, result = MODEL.init_cache(2), []
    for start, end in ((0, 3), (3, 4), (4, 8)):
        logits, cache = step(TOKENS[:, start:end], cache)
        result.append(logits)
    np.testing.assert_allclose(jnp.concatenate(result, 1), MODEL(TOKENS), rtol=1e-4, atol=1e-6)
    assert MODEL.init_cache((2,), 5)[0].max_length == 5


def test_it_learns_a_sequence() -> None:
    model, optimizer = nn.GPT.init(vf.random.key(2), 5, 8, num_layers=1, d_model=16, nhead=2), optim.adam(0.01)
    tokens = jnp.array([[0, 1, 2, 3, 4, 0, 1, 2, 3]])

    @vf.jit
    def step(model: Any, state: Any, key: Any) -> Any:
        def loss(model: Any) -> Any:
            return nn.cross_entropy(model(tokens[:, :-1], key=key, training=True), tokens[:, 1:], axis=-1)

        value, grads = vf.value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state, model)
        return optim.apply_updates(model, updates), state, value

    state = optimizer.init(model)
    for key in vf.random.split(vf.random.key(3), 60):
        model, state, value = step(model, state, key)
    assert float(value) < 0.5
    assert (jnp.argmax(model(tokens[:, :-1]), -1) == tokens[:, 1:]).all()


def test_wrong_tokens() -> None:
    with pytest.raises(ShapeError, match="9 positions, but the table has 8"):
        MODEL(jnp.zeros((1, 9), "int32"))
    with pytest.raises(OutOfBoundsError, match="index 11"):
        MODEL(jnp.array([[11]]))
    with pytest.raises(ShapeError, match="single one"):
        MODEL(jnp.int32(1))


def test_cross_entropy_tells_the_axis_of_classes() -> None:
    logits, labels = MODEL(TOKENS), TOKENS
    with pytest.raises(ShapeError, match=r"if classes are along axis 2, say axis=-1"):
        nn.cross_entropy(logits, labels)
    nn.cross_entropy(logits, labels, axis=-1)
