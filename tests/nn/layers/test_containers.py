"""Sequential, Lambda, Identity and Flatten."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, ImmutableError, OutOfBoundsError, ShapeError

KEY, OTHER = vf.random.split(vf.random.key(0))
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_positions_and_names():
    first, second = nn.Linear.init(KEY, 3, 4), nn.Linear.init(OTHER, 4, 2)
    by_position, by_name = nn.Sequential(first, nn.relu, second), nn.Sequential(encoder=first, act=nn.relu, decoder=second)
    expected = second(nn.relu(first(X)))
    for model in (by_position, by_name):
        np.testing.assert_array_equal(model(X), expected)
        assert len(model) == 3
        assert model[0] is next(iter(model)) is first
        assert model[-1] is second
        np.testing.assert_array_equal(model[:2](X), nn.relu(first(X)))
    assert by_name["encoder"] is by_name.encoder is first
    assert by_position["2"] is second
    assert (by_position.names, by_name.names) == (("0", "1", "2"), ("encoder", "act", "decoder"))
    paths = [vf.tree.keystr(path, simple=True, separator=".") for path, _ in vf.tree.leaves_with_path(by_name)]
    assert paths == ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]


def test_replace_by_name():
    model = nn.Sequential(encoder=nn.Linear.init(KEY, 3, 4), act=nn.relu)
    changed = model.replace(act=nn.tanh)
    np.testing.assert_array_equal(changed(X), nn.tanh(model.encoder(X)))
    assert model.act.function is nn.relu
    with pytest.raises(ArgumentError, match=r"no layers \['head'\]; it has \['encoder', 'act'\]"):
        model.replace(head=nn.relu)
    with pytest.raises(ImmutableError):
        model.encoder = nn.relu


def test_state_and_keys_reach_the_layers_that_take_them():
    model, state = nn.Sequential.init(
        nn.Linear.init(KEY, 3, 4), nn.Dropout.init(0.5), nn.BatchNorm1d.init(4), nn.Dropout.init(0.5), nn.BatchNorm1d.init(4)
    )
    assert model.takes == {"state", "key", "training"}
    assert list(state) == ["2", "4"]
    out, new = model(X, state, key=KEY, training=True)
    keys = vf.random.split(KEY, 2)
    expected = model[1](model[0](X), key=keys[0], training=True)
    expected, second = model[2](expected, state["2"], training=True)
    expected, fourth = model[4](model[3](expected, key=keys[1], training=True), state["4"], training=True)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(new["2"].mean, second.mean)
    np.testing.assert_array_equal(new["4"].var, fourth.var)
    assert int(state["2"].batches) == 0
    again, same = model(X, new)
    assert again.shape == (5, 4)
    np.testing.assert_array_equal(same["2"].mean, new["2"].mean)


def test_nested_models_with_state():
    inner = nn.Sequential.init(linear=nn.Linear.init(KEY, 3, 3), norm=nn.BatchNorm1d.init(3), drop=nn.Dropout.init(0.3))
    model, state = nn.Sequential.init(first=inner, act=nn.relu, second=inner, plain=nn.Sequential(nn.tanh))
    assert list(state) == ["first", "second"]
    assert list(state["first"]) == ["norm"]

    def loss(model, state, x, key):
        out, state = model(x, state, key=key, training=True)
        return (out**2).sum(), state

    eager = vf.value_and_grad(loss, has_aux=True)(model, state, X, KEY)
    jitted = vf.jit(vf.value_and_grad(loss, has_aux=True))(model, state, X, KEY)
    for ours, theirs in zip(vf.tree.leaves(eager), vf.tree.leaves(jitted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-4)
    assert vf.tree.structure(eager[0][1]) == vf.tree.structure(state)
    per_example = vf.vmap(lambda x: model(x, state)[0])(np.stack([X, 2 * X]))
    np.testing.assert_allclose(per_example[1], model(2 * X, state)[0], rtol=1e-5, atol=1e-6)


def test_without_state_the_result_is_the_output_alone():
    model = nn.Sequential.init(nn.Linear.init(KEY, 3, 4), nn.Dropout.init(0.5))
    assert model.takes == {"key", "training"}
    assert model(X).shape == (5, 4)
    assert nn.Sequential()(X) is X
    assert nn.Sequential.init(nn.relu).takes == frozenset()


def test_bad_arguments():
    bn = nn.BatchNorm1d.init(3)
    with pytest.raises(ArgumentError, match="by position or by name"):
        nn.Sequential(nn.relu, act=nn.relu)
    with pytest.raises(ArgumentTypeError, match=r"Sequential\.init takes pairs"):
        nn.Sequential(bn)
    with pytest.raises(ArgumentTypeError, match="no layer or function, got str 'relu'"):
        nn.Sequential("relu")
    model, _ = nn.Sequential.init(nn.relu, bn)
    with pytest.raises(ArgumentTypeError, match=r"layers \['1'\] have state"):
        model(X)
    with pytest.raises(ArgumentTypeError, match="has state"):
        model(X, {})
    with pytest.raises(ArgumentTypeError, match="draws random numbers"):
        nn.Sequential(nn.Dropout.init(0.5))(X, training=True)
    with pytest.raises(OutOfBoundsError, match="layer 2 of 2"):
        model[2]
    with pytest.raises(AttributeError, match=r"no layer 'head'; its layers are \['0', '1'\]"):
        model["head"]
    assert not hasattr(model, "head")


def test_identity_and_lambda():
    assert nn.Identity()(X) is X
    layer = nn.Lambda(nn.relu)
    np.testing.assert_array_equal(layer(X), np.maximum(X, 0))
    assert vf.tree.leaves(layer) == []


FLATTENED = [
    ((), (2, 3, 4), (2, 12)),
    ((0,), (2, 3, 4), (24,)),
    ((1, 2), (2, 3, 4, 5), (2, 12, 5)),
    ((-2,), (2, 3, 4), (2, 12)),
    ((), (0, 3, 4), (0, 12)),
    ((), (2, 3), (2, 3)),
]


@pytest.mark.parametrize(("axes", "shape", "expected"), FLATTENED)
def test_flatten(axes, shape, expected):
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    np.testing.assert_array_equal(nn.Flatten(*axes)(x), x.reshape(expected))


@pytest.mark.parametrize(("axes", "shape"), [((), (2,)), ((2, 1), (2, 3, 4)), ((0, 5), (2, 3)), ((-3,), (2, 3))])
def test_flatten_of_axes_that_are_not_there(axes, shape):
    with pytest.raises(ShapeError, match="Flatten: axes"):
        nn.Flatten(*axes)(np.ones(shape, np.float32))
