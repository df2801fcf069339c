"""BatchNorm1d, BatchNorm2d and BatchNorm3d against PyTorch's: outputs, gradients, states over several steps."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

LAYERS = {"1d": nn.BatchNorm1d, "2d": nn.BatchNorm2d, "3d": nn.BatchNorm3d}
SHAPES = [("1d", (4, 3)), ("1d", (4, 3, 5)), ("2d", (2, 3, 4, 5)), ("3d", (2, 3, 2, 3, 4))]
OPTIONS = [{}, {"momentum": 0.3, "eps": 0.01}, {"momentum": None}, {"affine": False}]


def assert_states_near(state: nn.BatchNormState, oracle: torch.nn.Module, dtype: str) -> None:
    """Check that the running statistics are those of PyTorch's layer."""
    assert_near(state.mean, oracle.running_mean, dtype, "mean")
    assert_near(state.var, oracle.running_var, dtype, "variance")
    assert int(state.batches) == int(oracle.num_batches_tracked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_agrees_with_torch_over_several_steps(name, shape, options, dtype):
    layer, state = LAYERS[name].init(3, **options, dtype=dtype)
    layer = vf.tree.map(lambda leaf: vf.numpy.asarray(numbers(leaf.shape, dtype)), layer)
    oracle = getattr(torch.nn, f"BatchNorm{name}")(3, **options, dtype=getattr(torch, dtype))
    parameters = [torch.tensor(np.asarray(leaf), requires_grad=True) for leaf in vf.tree.leaves(layer)]
    torch_parameters = dict(zip(["weight", "bias"], parameters, strict=False))

    def loss(layer, x, state, training):
        out, new = layer(x, state, training=training)
        return (out * numbers(shape, dtype, 9)).sum(), (out, new)

    for step, training in enumerate([True, True, True, False, True]):
        x = 2 * numbers(shape, dtype, step) + step
        tensor = torch.tensor(x, requires_grad=True)
        oracle.train(training)
        expected = torch.func.functional_call(oracle, torch_parameters, (tensor,))
        gradients = torch.autograd.grad((expected * torch.tensor(numbers(shape, dtype, 9))).sum(), [tensor, *parameters])
        (_, (out, state)), (by_layer, by_x) = vf.value_and_grad(loss, (0, 1), has_aux=True)(layer, x, state, training)
        assert_near(out, expected, dtype, "output")
        assert_states_near(state, oracle, dtype)
        for ours, theirs in zip([by_x, *vf.tree.leaves(by_layer)], gradients, strict=True):
            assert_near(ours, theirs, dtype, "gradient")


def test_evaluation_leaves_the_state_alone():
    layer, state = nn.BatchNorm1d.init(3)
    _, new = layer(np.ones((4, 3), np.float32), state)
    assert new is state


def test_no_gradient_flows_through_the_new_state():
    layer, state = nn.BatchNorm1d.init(3)
    gradient = vf.grad(lambda x: sum(leaf.sum() for leaf in layer(x, state, training=True)[1][:2]))(numbers((4, 3), "float32"))
    assert not gradient.any()


@pytest.mark.wide
@pytest.mark.parametrize("affine", [True, False])
def test_statistics_shared_over_a_named_axis_are_those_of_the_full_batch(affine):
    """Four chunks of a batch under vmap, as on four devices, behave as the full batch."""
    full, state = nn.BatchNorm2d.init(3, affine=affine, dtype="float64")
    shared, _ = nn.BatchNorm2d.init(3, affine=affine, axis_name="chunks", dtype="float64")
    x = 2 * numbers((8, 3, 4, 5), "float64") + 1
    chunks, weights = x.reshape(4, 2, 3, 4, 5), numbers(x.shape, "float64", 1)

    def by_chunks(x, training):
        call = vf.vmap(lambda chunk: shared(chunk, state, training=training), axis_name="chunks")
        out, states = call(x)
        return out.reshape(weights.shape), states

    for training in (True, False):
        out, states = by_chunks(chunks, training)
        expected, new = full(x, state, training=training)
        assert_near(out, expected, "float64")
        for chunk in range(4):
            for ours, theirs in zip(vf.tree.leaves(states), vf.tree.leaves(new), strict=True):
                np.testing.assert_allclose(ours[chunk], theirs, rtol=1e-12)
        gradient = vf.grad(lambda x, training=training: (by_chunks(x, training)[0] * weights).sum())(chunks)
        wanted = vf.grad(lambda x, training=training: (full(x, state, training=training)[0] * weights).sum())(x)
        assert_near(gradient.reshape(x.shape), wanted, "float64")


def test_one_value_per_feature_and_chunk_is_enough_if_statistics_are_shared():
    layer, state = nn.BatchNorm1d.init(3, axis_name="chunks")
    x = numbers((5, 1, 3), "float32")
    out, _ = vf.vmap(lambda chunk: layer(chunk, state, training=True), axis_name="chunks")(x)
    np.testing.assert_allclose(np.asarray(out).mean((0, 1)), 0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_computes_in_float32(dtype):
    x = vf.numpy.asarray(300 * numbers((8, 3, 4), "float32")).astype(dtype)  # squares overflow in float16
    layer, state = nn.BatchNorm1d.init(3)
    out, new = layer(x, state, training=True)
    expected, wide = layer(x.astype("float32"), state, training=True)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, expected.astype(dtype))
    np.testing.assert_array_equal(new.var, wide.var)
    half, state = nn.BatchNorm1d.init(3, dtype=dtype)
    out, new = half(x, state, training=True)
    assert {leaf.dtype.name for leaf in (out, new.mean, new.var)} == {dtype}


def test_under_jit_scan_and_vmap():
    layer, state = nn.BatchNorm1d.init(3)
    batches = numbers((4, 6, 3), "float32")
    expected = state
    for x in batches:
        _, expected = layer(x, expected, training=True)
    call = vf.jit(lambda layer, x, state: layer(x, state, training=True))
    stepped = state
    for x in batches:
        _, stepped = call(layer, x, stepped)
    scanned, _ = vf.lax.scan(lambda state, x: layer(x, state, training=True)[::-1], state, batches)
    many = vf.vmap(lambda x: layer(x, state, training=True)[1])(batches)
    for ours in (stepped, scanned):
        for leaf, wanted in zip(ours, expected, strict=True):
            np.testing.assert_allclose(leaf, wanted, rtol=1e-6)
    np.testing.assert_allclose(many.mean[2], layer(batches[2], state, training=True)[1].mean, rtol=1e-6)


def test_an_empty_batch_changes_nothing():
    layer, state = nn.BatchNorm2d.init(3)
    for training in (True, False):
        out, new = layer(np.zeros((0, 3, 2, 2), np.float32), state, training=training)
        assert out.shape == (0, 3, 2, 2)
        assert all(bool((ours == theirs).all()) for ours, theirs in zip(new, state, strict=True))
    none, state = nn.BatchNorm1d.init(0)
    assert none(np.zeros((4, 0), np.float32), state, training=True)[0].shape == (4, 0)


def test_bad_arguments():
    layer, state = nn.BatchNorm2d.init(3)
    with pytest.raises(ArgumentError, match="num_features"):
        nn.BatchNorm1d.init(-1)
    with pytest.raises(ShapeError, match=r"\(N, C, H, W\), got shape \(3, 4, 4\); a single example needs a batch axis"):
        layer(np.ones((3, 4, 4), np.float32), state)
    with pytest.raises(ShapeError, match="size 3 along axis 1"):
        layer(np.ones((2, 4, 4, 4), np.float32), state)
    with pytest.raises(ShapeError, match="more than one value per feature"):
        layer(np.ones((1, 3, 1, 1), np.float32), state, training=True)
    with pytest.raises(DTypeError, match="got i32"):
        layer(np.ones((1, 3, 2, 2), np.int32), state)
    with pytest.raises(ShapeError, match=r"\(N, C\) or \(N, C, L\)"):
        nn.BatchNorm1d.init(3)[0](np.ones(3, np.float32), state)
