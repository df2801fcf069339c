"""Modules: pytrees of arrays under every transformation, immutable, copied, pickled, printed; `apply` and `join`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, ImmutableError
from volta_fn.jit.cache import generate_match

KEY = vf.random.key(0)


class Scale(nn.Module):
    """One array and two hyper-parameters."""

    factor: vf.Array
    power: int = nn.static(default=1)
    name: str = nn.static(default="scale")

    def __call__(self, x):
        """Multiply the input by the factor's power."""
        return x * self.factor**self.power


class Network(nn.Module):
    """Modules in lists and dicts, next to arrays and None."""

    first: nn.Linear
    rest: list[nn.Linear]
    heads: dict[str, nn.Linear]
    shift: vf.Array
    nothing: nn.Linear | None = None

    def __call__(self, x):
        """Return the sum of the heads."""
        x = nn.tanh(self.first(x))
        for layer in self.rest:
            x = nn.tanh(layer(x))
        return sum(head(x) for head in self.heads.values()) + self.shift


def make_network(key: Any = KEY) -> Network:
    """Return a small network."""
    a, b, c, d, e = vf.random.split(key, 5)
    heads = {"right": nn.Linear.init(d, 4, 2), "left": nn.Linear.init(e, 4, 2)}
    return Network(nn.Linear.init(a, 3, 4), [nn.Linear.init(b, 4, 4), nn.Linear.init(c, 4, 4)], heads, vf.numpy.zeros(2))


X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


# as pytrees


def test_paths_of_leaves_are_readable():
    paths = [vf.tree.keystr(path, simple=True, separator=".") for path, _ in vf.tree.leaves_with_path(make_network())]
    linear = ["weight", "bias"]
    expected = [f"{layer}.{name}" for layer in ("first", "rest.0", "rest.1", "heads.left", "heads.right") for name in linear]
    assert paths == [*expected, "shift"]


def test_hyper_parameters_are_structure():
    one, other = Scale(vf.numpy.ones(2), 2), Scale(vf.numpy.zeros(2), 2)
    assert vf.tree.structure(one) == vf.tree.structure(other)
    assert vf.tree.structure(one) != vf.tree.structure(one.replace(power=3))
    assert vf.tree.map(lambda leaf: leaf + 1, one).power == 2
    assert len(vf.tree.leaves(one)) == 1


def test_gradient_of_a_model_is_a_model():
    network = make_network()
    gradient = vf.grad(lambda network: (network(X) ** 2).sum())(network)
    assert type(gradient) is Network
    assert vf.tree.structure(gradient) == vf.tree.structure(network)
    step = 1e-3
    moved = network.replace(shift=network.shift + step)
    difference = ((moved(X) ** 2).sum() - (network(X) ** 2).sum()) / step
    assert float(gradient.shift.sum()) == pytest.approx(float(difference), rel=1e-2)


def test_jit_traces_once_per_structure():
    traces = []

    @vf.jit
    def call(layer, x):
        traces.append(layer.power)
        return layer(x)

    for factor in (1.0, 2.0):
        np.testing.assert_allclose(call(Scale(vf.numpy.full(3, factor)), X), factor * X)
    call(Scale(vf.numpy.ones(3), 2), X)
    assert traces == [1, 2]


def test_vmap_makes_and_calls_ensembles():
    keys = vf.random.split(KEY, 3)
    networks = vf.vmap(make_network)(keys)
    out = vf.vmap(lambda network: network(X))(networks)
    for i, key in enumerate(keys):
        np.testing.assert_allclose(out[i], make_network(key)(X), rtol=1e-5, atol=1e-6)
    weighed = vf.vmap(lambda network, x: network(x), in_axes=(None, 0))(make_network(), X)
    np.testing.assert_allclose(weighed, make_network()(X), rtol=1e-5, atol=1e-6)


def test_scan_over_stacked_layers_and_training_steps():
    layers = vf.vmap(lambda key: nn.Linear.init(key, 3, 3))(vf.random.split(KEY, 4))
    out, _ = vf.lax.scan(lambda x, layer: (nn.tanh(layer(x)), None), vf.numpy.asarray(X), layers)
    expected = X
    for i in range(4):
        expected = nn.tanh(vf.tree.map(lambda leaf, i=i: leaf[i], layers)(expected))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)

    def step(network, x):
        loss, gradient = vf.value_and_grad(lambda network: ((network(x) - 1) ** 2).mean())(network)
        return vf.tree.map(lambda p, g: p - 0.1 * g, network, gradient), loss

    _, losses = vf.lax.scan(step, make_network(), np.broadcast_to(X, (30, *X.shape)))
    assert float(losses[-1]) < 0.2 * float(losses[0])


class Block(nn.Module):
    """A user's module that takes everything, by the rule."""

    linear: nn.Linear
    norm: nn.BatchNorm1d
    drop: nn.Dropout

    def __call__(self, x, state, *, key=None, training=False):
        """Linear, norm, dropout."""
        x, norm = self.norm(self.linear(x), state["norm"], training=training)
        return self.drop(x, key=key, training=training), {"norm": norm}


def test_stateful_and_keyed_models_under_all_transformations():
    block, state = Block.join(linear=nn.Linear.init(KEY, 3, 4), norm=nn.BatchNorm1d.init(4), drop=nn.Dropout.init(0.5))
    assert block.takes == {"state", "key", "training"}

    def loss(block, state, key, x):
        out, state = block(x, state, key=key, training=True)
        return (out**2).mean(), state

    @vf.jit
    def step(carry, inputs):
        block, state = carry
        key, x = inputs
        (value, state), gradient = vf.value_and_grad(loss, has_aux=True)(block, state, key, x)
        return (vf.tree.map(lambda p, g: p - 0.01 * g, block, gradient), state), value

    keys, xs = vf.random.split(KEY, 3), np.random.default_rng(1).normal(size=(3, 5, 3)).astype(np.float32)
    (scanned, last), values = vf.lax.scan(step, (block, state), (keys, xs))
    carry = block, state
    for i in range(3):
        carry, value = step(carry, (keys[i], xs[i]))
        np.testing.assert_allclose(value, values[i], rtol=1e-5)
    for ours, theirs in zip(vf.tree.leaves((scanned, last)), vf.tree.leaves(carry), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert int(last["norm"].batches) == 3
    outs, states = vf.vmap(lambda key, x: block(x, state, key=key, training=True))(keys, xs)
    assert outs.shape == (3, 5, 4)
    assert states["norm"].mean.shape == (3, 4)


# apply and join


def test_apply_passes_the_arguments_that_a_layer_takes():
    bn, state = nn.BatchNorm1d.init(3)
    drop = nn.Dropout.init(0.5)
    assert nn.apply(nn.Linear.init(KEY, 3, 2), X, key=KEY, training=True)[1] is None
    _, new = nn.apply(bn, X, state, key=KEY, training=True)
    assert int(new.batches) == 1
    out, none = nn.apply(drop, X, key=KEY, training=True)
    np.testing.assert_array_equal(out, drop(X, key=KEY, training=True))
    assert none is None
    np.testing.assert_array_equal(nn.apply(lambda x: x + 1, X)[0], X + 1)
    with pytest.raises(ArgumentTypeError, match="BatchNorm1d has state"):
        nn.apply(bn, X)


def test_join_of_containers_of_pairs():
    class Model(nn.Module):
        blocks: list[nn.Module]
        named: dict[str, nn.Module]
        last: nn.Module

    pair = nn.BatchNorm1d.init(3)
    linear = nn.Linear.init(KEY, 3, 3)
    model, state = Model.join(blocks=[linear, pair], named={"a": pair, "b": linear}, last=linear)
    assert model.blocks == [linear, pair[0]]
    assert state == {"blocks": [None, pair[1]], "named": {"a": pair[1]}}
    assert isinstance(Model.join(blocks=[linear], named={}, last=linear), Model)


# as objects


def test_immutable():
    layer = Scale(vf.numpy.ones(2))
    with pytest.raises(ImmutableError, match=r"module\.replace\(factor=\.\.\.\)"):
        layer.factor = vf.numpy.zeros(2)
    with pytest.raises(ImmutableError, match="deleted"):
        del layer.factor
    with pytest.raises(ArgumentError, match=r"no fields \['colour'\]; it has \['factor', 'power', 'name'\]"):
        layer.replace(colour=1)
    assert layer.replace(power=2, factor=vf.numpy.zeros(2)).power == 2
    assert layer.power == 1


def test_compares_and_hashes_by_identity():
    layer = Scale(vf.numpy.ones(2))
    assert layer == layer
    assert layer != Scale(layer.factor)
    assert {layer: 1}[layer] == 1


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_and_pickles(again):
    sequential, state = nn.Sequential.init(nn.Linear.init(KEY, 3, 4), nn.BatchNorm1d.init(4), nn.relu)
    for model in (make_network(), Scale(vf.numpy.ones(2), 3, "x"), sequential, state, nn.Conv2d.init(KEY, 1, 1, 3, padding="same")):
        other = again(model)
        assert type(other) is type(model)
        assert vf.tree.structure(other) == vf.tree.structure(model)
        for ours, theirs in zip(vf.tree.leaves(other), vf.tree.leaves(model), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_fields_are_checked_when_made():
    with pytest.raises(
        ArgumentTypeError, match=r"Scale\.factor: .* got str 'abc'; declare a hyper-parameter as `factor: \.\.\. = nn\.static"
    ):
        Scale("abc")
    for bad in (1.0, nn.relu, [vf.numpy.ones(1), 2]):
        with pytest.raises(ArgumentTypeError, match=r"Scale\.factor"):
            Scale(bad)
    with pytest.raises(ArgumentTypeError, match=r"Scale\.power: a static field must be hashable, got list"):
        Scale(vf.numpy.ones(1), [1])
    with pytest.raises(TypeError):
        Scale()


def test_trees_of_anything_have_a_models_shape():
    shapes = vf.tree.map(lambda leaf: leaf.shape, make_network(), is_leaf=None)
    assert shapes.first.weight == (3, 4)
    axes = vf.tree.map(lambda _: 0, Scale(vf.numpy.ones((2, 3))))
    np.testing.assert_array_equal(vf.vmap(lambda layer: layer.factor, in_axes=(axes,))(Scale(vf.numpy.ones((2, 3)))), np.ones((2, 3)))
    assert vf.eval_shape(make_network, KEY).rest[1].weight.shape == (4, 4)


# inheritance


class Shifted(Scale):
    """A field more."""

    shift: vf.Array | None = None

    def __call__(self, x):
        """Scaled, then shifted."""
        return super().__call__(x) + self.shift


class Renamed(nn.Sequential):
    """No field of its own."""


def test_inheritance():
    layer = Shifted(vf.numpy.full(3, 2.0), shift=vf.numpy.ones(3))
    np.testing.assert_allclose(layer(X), 2 * X + 1, rtol=1e-6)
    assert list(layer.children()) == ["factor", "shift"]
    assert layer.hyper_parameters() == {"power": 1, "name": "scale"}
    assert isinstance(vf.tree.map(lambda leaf: leaf, layer), Shifted)
    renamed = Renamed(nn.relu, nn.tanh)
    np.testing.assert_allclose(vf.jit(lambda model, x: model(x))(renamed, X), np.tanh(np.maximum(X, 0)), rtol=1e-5, atol=1e-6)
    assert type(renamed[:1]) is Renamed


def test_a_custom_init():
    class Table(nn.Module):
        rows: vf.Array
        count: int = nn.static()

        def __init__(self, count):
            self.__dict__.update(rows=vf.numpy.zeros((count, 2)), count=count)

    table = Table(3)
    assert vf.tree.map(lambda leaf: leaf + 1, table).rows.sum() == 6


# printing


def test_prints_a_readable_tree():
    assert repr(make_network()) == (
        "Network(  # 78 parameters\n"
        "  first: Linear(weight: f32[3,4], bias: f32[4])  # 16\n"
        "  rest: [\n"
        "    0: Linear(weight: f32[4,4], bias: f32[4])  # 20\n"
        "    1: Linear(weight: f32[4,4], bias: f32[4])  # 20\n"
        "  ]\n"
        "  heads: {\n"
        "    right: Linear(weight: f32[4,2], bias: f32[2])  # 10\n"
        "    left: Linear(weight: f32[4,2], bias: f32[2])  # 10\n"
        "  }\n"
        "  shift: f32[2]\n"
        ")"
    )
    assert repr(Scale(vf.numpy.ones((2, 3), "bfloat16"), 2)) == "Scale(factor: bf16[2,3], power=2, name='scale')"
    assert nn.parameter_count(make_network()) == 78


def test_prints_under_tracing_and_with_other_leaves():
    seen = []
    vf.jit(lambda layer: seen.append(repr(layer)) or layer.factor)(Scale(vf.numpy.ones(2)))
    assert seen == ["Scale(factor: f32[2], power=1, name='scale')"]
    assert repr(vf.tree.map(lambda _: 0, Scale(vf.numpy.ones(2), 3))) == "Scale(factor: 0, power=3, name='scale')"


def test_prints_every_hyper_parameter_but_none():
    """A default that changes what a layer computes, such as the order of axes, is to be seen."""

    class Several(nn.Module):
        size: int = nn.static()
        stride: Any = nn.static(default=1)
        dtype: str | None = nn.static(default=None)

    assert repr(Several(1)) == "Several(size=1, stride=1)"
    assert repr(Several(1, (1, 2), "float32")) == "Several(size=1, stride=(1, 2), dtype='float32')"
    assert "batch_first=True" in repr(nn.GRU.init(KEY, 2, 3))
    assert "batch_first=False" in repr(nn.GRU.init(KEY, 2, 3, batch_first=False))
    assert "axis_name='data'" in repr(nn.BatchNorm2d.init(3, axis_name="data")[0])
    conv = nn.Conv2d.init(KEY, 1, 1, 2)
    options = "stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1, padding_mode='zeros'"
    assert repr(conv) == f"Conv2d(weight: f32[1,1,2,2], bias: f32[1], {options})"


def test_generated_code_reads_the_leaves_of_modules() -> None:
    """Jitted functions find their program by code that reads the fields; a module of another structure does not pass for this one."""
    network = make_network()
    model = {"network": network, "scale": Scale(vf.numpy.ones(2), 3), "quantised": nn.quantize(network, "int8")}
    match = generate_match(vf.tree.structure(model), model)
    assert match is not None
    leaves = match(model)
    assert leaves is not None and all(x is y for x, y in zip(leaves, vf.tree.leaves(model), strict=True))
    for name, other in (("scale", Scale(vf.numpy.ones(2), 2)), ("quantised", network), ("network", network.replace(nothing=network.first))):
        assert match(model | {name: other}) is None


def test_jit_distinguishes_modules_by_hyper_parameters() -> None:
    call = vf.jit(lambda layer, x: layer(x))
    for _ in range(3):
        for power in (1, 2, 3):
            np.testing.assert_array_equal(call(Scale(vf.numpy.full(2, 3.0), power), np.ones(2, np.float32)), np.full(2, 3.0**power))


START = 3


def test_an_init_that_is_inherited_reads_the_globals_of_its_own_module() -> None:
    class Start:
        def __init__(self) -> None:
            object.__setattr__(self, "start", START)

    class Model(Start, nn.Module):
        pass

    assert Model().start == START


@pytest.mark.parametrize("default", [0.5, nn.initializers.zeros])
def test_a_field_named_init_is_no_function_that_draws_parameters(default: Any) -> None:
    class Initialised(nn.Module):
        weight: vf.Array
        init: Any = nn.static(default=default)

    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'weight'"):
        Initialised()  # type: ignore[call-arg]
    with pytest.raises(ArgumentTypeError, match="children of a module are arrays"):
        Initialised(3)


def test_static_fields_take_the_options_of_fields() -> None:
    @vf.tree.register_dataclass
    @dataclasses.dataclass
    class Scale:
        factor: float
        names: tuple[str, ...] = nn.static(default_factory=lambda: ("x",), metadata={"unit": "m"})
        traced: float = nn.static(default=2.0, metadata={"static": False})

    scale = Scale(3.0)
    assert scale.names == ("x",)
    assert vf.tree.leaves(scale) == [3.0, 2.0]
    assert Scale.__dataclass_fields__["names"].metadata == {"static": True, "unit": "m"}
