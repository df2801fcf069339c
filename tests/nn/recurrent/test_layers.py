"""Recurrent layers against PyTorch's: outputs, carries and gradients, with sequences of several lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import FLOAT
from tests.nn.recurrent.oracle import check_against_torch, of_layer, random_carry, torch_twin
from tests.nn.torch_oracle import DTYPES, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

LAYERS = [nn.RNN, nn.LSTM, nn.GRU]
layers = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
FORMS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "bias": False, "batch_first": False},
]
LENGTHS = [4, 1, 6]


@layers
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS, ids=["one", "bidirectional", "three"])
def test_agrees_with_torch(layer, dtype, form):
    ours = layer.init(vf.random.key(0), 3, 4, **form, dtype=dtype)
    theirs = torch_twin(ours)
    x = numbers((3, 6, 3) if ours.batch_first else (6, 3, 3), dtype)
    carry = random_carry(ours, (len(ours.cells) + len(ours.reverse_cells), 3, 4), dtype)
    check_against_torch(ours, theirs, theirs, x, carry, of_layer)


@layers
@pytest.mark.parametrize("form", FORMS, ids=["one", "bidirectional", "three"])
@pytest.mark.parametrize("with_carry", [False, True], ids=["from zeros", "from a carry"])
def test_padding_is_as_in_packed_sequences(layer, form, with_carry):
    ours = layer.init(vf.random.key(0), 3, 4, **form, dtype=FLOAT)
    theirs = torch_twin(ours)
    first = ours.batch_first
    x = numbers((3, 6, 3) if first else (6, 3, 3), FLOAT)
    carry = random_carry(ours, (len(ours.cells) + len(ours.reverse_cells), 3, 4), FLOAT) if with_carry else None

    def packed(x: Any, carry: Any) -> Any:
        rows = torch.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=first, enforce_sorted=False)
        out, last = theirs(rows, carry)
        return torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=first)[0], last

    def padded(layer: Any, x: Any, carry: Any) -> Any:
        return layer(x, carry, np.int32(LENGTHS))

    check_against_torch(With(ours, padded), theirs, packed, x, carry, lambda g: of_layer(g.layer))


class With(nn.Module):
    """A layer with a way to call it."""

    layer: Any
    call: Any = nn.static()

    def __call__(self, x, carry):
        return self.call(self.layer, x, carry)


@layers
def test_padding_may_hold_anything(layer):
    ours = layer.init(vf.random.key(0), 3, 4, num_layers=2, bidirectional=True)
    x = numbers((2, 6, 3), "float32")
    dirty = x.copy()
    dirty[1, 3:] = np.nan
    lengths = np.int32([6, 3])
    clean = ours(x, lengths=lengths)
    for a, b in zip(vf.tree.leaves(clean), vf.tree.leaves(ours(dirty, lengths=lengths)), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(clean[0][1, 3:], 0)
    slope = vf.grad(lambda layer, x: layer(x, lengths=lengths)[0].sum())
    for a, b in zip(vf.tree.leaves(slope(ours, x)), vf.tree.leaves(slope(ours, dirty)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.wide
@layers
def test_sequences_without_steps(layer):
    ours = layer.init(vf.random.key(0), 3, 4, bidirectional=True)
    carry = random_carry(ours, (2, 2, 4), "float32")
    y, last = ours(numbers((2, 5, 3), "float32"), carry, np.array([0, 5]))
    for mine, start in zip(vf.tree.leaves(last), vf.tree.leaves(carry), strict=True):
        np.testing.assert_array_equal(mine[:, 0], start[:, 0])
    np.testing.assert_array_equal(y[0], 0)
    y, last = ours(np.zeros((2, 0, 3), np.float32), carry)
    assert y.shape == (2, 0, 8)
    np.testing.assert_array_equal(vf.tree.leaves(last)[0], vf.tree.leaves(carry)[0])
    y, last = ours(np.zeros((0, 5, 3), np.float32))
    assert y.shape == (0, 5, 8) and vf.tree.leaves(last)[0].shape == (2, 0, 4)


@pytest.mark.wide
@layers
def test_one_sequence_needs_no_batch(layer):
    ours = layer.init(vf.random.key(0), 3, 4, num_layers=2)
    x = numbers((1, 6, 3), "float32")
    carry = random_carry(ours, (2, 1, 4), "float32")
    alone = ours(x[0], vf.tree.map(lambda c: c[:, 0], carry), np.int32(5))
    batched = ours(x, carry, np.array([5]))
    np.testing.assert_allclose(alone[0], batched[0][0], rtol=1e-6, atol=1e-7)
    for a, b in zip(vf.tree.leaves(alone[1]), vf.tree.leaves(batched[1]), strict=True):
        np.testing.assert_allclose(a, b[:, 0], rtol=1e-6, atol=1e-7)


@layers
def test_chunks_agree_with_the_full_sequence(layer):
    ours = layer.init(vf.random.key(0), 3, 4, num_layers=2)
    x = numbers((2, 6, 3), "float32")
    full, last = ours(x)
    first, carry = ours(x[:, :4])
    second, end = ours(x[:, 4:], carry)
    np.testing.assert_allclose(vf.numpy.concatenate([first, second], 1), full, rtol=1e-6, atol=1e-7)
    for a, b in zip(vf.tree.leaves(end), vf.tree.leaves(last), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@layers
def test_jit_vmap_and_their_gradients(layer):
    ours = layer.init(vf.random.key(0), 3, 4, num_layers=2, bidirectional=True)
    x, lengths = numbers((3, 6, 3), "float32"), np.int32(LENGTHS)
    loss = lambda layer, x, lengths: (layer(x, lengths=lengths)[0] ** 2).sum()
    value, gradient = vf.value_and_grad(loss)(ours, x, lengths)
    compiled = vf.jit(vf.value_and_grad(loss))(ours, x, lengths)
    np.testing.assert_allclose(compiled[0], value, rtol=1e-5)
    mapped = vf.vmap(vf.grad(loss), (None, 0, 0))(ours, x, lengths)
    for eager, staged, each in zip(*map(vf.tree.leaves, (gradient, compiled[1], mapped)), strict=True):
        np.testing.assert_allclose(staged, eager, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(each.sum(0), eager, rtol=1e-4, atol=1e-6)


@layers
def test_many_models_at_once(layer):
    keys, x = vf.random.split(vf.random.key(0), 3), numbers((6, 2, 3), "float32")
    make = lambda key: layer.init(key, 3, 4, num_layers=2, bidirectional=True)
    result = vf.vmap(lambda model: model(x)[0])(vf.vmap(make)(keys))
    np.testing.assert_allclose(result[1], make(keys[1])(x)[0], rtol=1e-5, atol=1e-6)


@layers
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(layer, dtype):
    exact = layer.init(vf.random.key(0), 3, 4, bidirectional=True)
    half = vf.tree.map(lambda w: w.astype(dtype), exact)
    x = numbers((2, 5, 3), "float32")
    y, carry = half(vf.numpy.asarray(x, dtype), lengths=np.int32([5, 3]))
    assert {a.dtype.name for a in vf.tree.leaves((y, carry))} == {dtype}
    np.testing.assert_allclose(y.astype("float32"), exact(x, lengths=np.int32([5, 3]))[0], atol=3e-2)


def test_dropout_acts_between_layers_in_training():
    key, x = vf.random.key(1), numbers((2, 5, 3), "float32")
    lstm = nn.LSTM.init(vf.random.key(0), 3, 16, num_layers=2, dropout=0.5)
    plain = lstm.replace(dropout=nn.Dropout.init(0.0))
    np.testing.assert_array_equal(lstm(x)[0], plain(x)[0])
    dropped, (h, _) = lstm(x, key=key, training=True)
    assert not np.allclose(dropped, plain(x)[0])
    np.testing.assert_array_equal(h[0], plain(x)[1][0][0])  # the first layer is not touched
    np.testing.assert_array_equal(dropped, lstm(x, key=key, training=True)[0])
    all_gone, _ = lstm.replace(dropout=nn.Dropout.init(1.0))(x, key=key, training=True)
    np.testing.assert_allclose(all_gone, nn.LSTM((lstm.cells[1],))(np.zeros((2, 5, 16), np.float32))[0], rtol=1e-6)
    with pytest.raises(ArgumentTypeError, match="key"):
        lstm(x, training=True)


def test_a_module_around_it_sits_in_a_sequential():
    class Outputs(nn.Module):
        layer: nn.LSTM

        def __call__(self, x, *, key=None, training=False):
            return self.layer(x, key=key, training=training)[0]

    lstm = nn.LSTM.init(vf.random.key(0), 3, 4, num_layers=2, dropout=0.5)
    model = nn.Sequential(Outputs(lstm), nn.Linear.init(vf.random.key(1), 4, 2))
    assert model(np.ones((2, 5, 3), np.float32), key=vf.random.key(2), training=True).shape == (2, 5, 2)


def test_paths_are_readable():
    layer = nn.LSTM.init(vf.random.key(0), 3, 4, num_layers=2, bidirectional=True)
    paths = [vf.tree.keystr(path) for path, _ in vf.tree.leaves_with_path(layer)]
    assert paths[4] == ".cells[1].weight_ih" and paths[-1] == ".reverse_cells[1].bias_hh"


def test_bad_arguments():
    key, x = vf.random.key(0), np.ones((2, 5, 3), np.float32)
    gru = nn.GRU.init(key, 3, 4)
    for bad in (x[0, 0], x[None]):
        with pytest.raises(ShapeError, match="GRU: sequences have 3 axes, batch and time and features"):
            gru(bad)
    with pytest.raises(ShapeError, match="size 3 along axis -1"):
        gru(x[..., :2])
    with pytest.raises(ShapeError, match="the carry needs shape"):
        gru(x, np.ones((2, 4), np.float32))
    with pytest.raises(ShapeError, match=r"lengths need shape \(2,\)"):
        gru(x, lengths=np.int32([1, 2, 3]))
    with pytest.raises(DTypeError, match="lengths are integers"):
        gru(x, lengths=np.float32([1.0, 2.0]))
    for options in ({"num_layers": 0}, {"dropout": 0.5}, {"num_layers": 2, "dropout": 1.5}, {"num_layers": -1}):
        with pytest.raises(ArgumentError):
            nn.GRU.init(key, 3, 4, **options)
