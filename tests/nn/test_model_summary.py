"""`nn.summary`: outputs and parameters of all kinds of models, found without computing."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn
from volta_fn.errors import ArgumentTypeError, ShapeError

KEY = vf.random.key(0)


def shaped(*shape: int) -> vf.ShapeDtypeStruct:
    """Return an input that is only a shape."""
    return vf.ShapeDtypeStruct(shape, "float32")


def outputs(summary: nn.Summary) -> dict[str, tuple[int, ...] | None]:
    """Return the shapes of the layers' outputs, by path."""
    return {row.path: row.output and row.output.shape for row in summary.rows}


def test_of_a_sequential_with_state_and_keys():
    model, state = nn.Sequential.init(
        nn.Conv2d.init(KEY, 3, 8, 3), nn.BatchNorm2d.init(8), nn.relu, nn.Flatten(), nn.Dropout.init(0.5), nn.Linear.init(KEY, 288, 10)
    )
    for options in ({}, {"key": KEY, "training": True}):
        result = nn.summary(model, shaped(4, 3, 8, 8), state, **options)
        assert list(outputs(result).values()) == [(4, 8, 6, 6)] * 3 + [(4, 288)] * 2 + [(4, 10)]
        assert [row.layer for row in result.rows] == ["Conv2d", "BatchNorm2d", "Lambda(relu)", "Flatten", "Dropout", "Linear"]
        assert [row.parameters for row in result.rows] == [224, 16, 0, 0, 0, 2890]
        assert (result.parameters, result.parameter_bytes, result.state_bytes) == (3130, 4 * 3130, 4 * 17)
        assert (result.output.shape, result.output.dtype) == ((4, 10), np.float32)


class Block(nn.Module):
    """A user's module: lists and dicts of layers, a layer used twice, one by another method than its call, one not at all."""

    linears: list[nn.Linear]
    heads: dict[str, nn.Linear]
    table: nn.Embedding
    spare: nn.Linear | None

    def __call__(self, x):
        """Return two outputs."""
        assert isinstance(self.linears[0], nn.Linear)
        for linear in [*self.linears, self.linears[1]]:
            x = linear(x)
        return {name: head(x) for name, head in self.heads.items()}, self.table.attend(x)


def make_block() -> Block:
    """Return an instance of the block."""
    a, b, c = (nn.Linear.init(KEY, i, o) for i, o in ((3, 4), (4, 4), (4, 2)))
    return Block([a, b], {"left": c, "right": c}, nn.Embedding.init(KEY, 10, 4), c)


def test_of_a_users_module():
    result = nn.summary(make_block(), shaped(5, 3))
    shapes = {"linears.0": (5, 4), "linears.1": (5, 4), "heads.left": (5, 2), "heads.right": (5, 2), "table": None, "spare": None}
    assert outputs(result) == shapes
    assert vf.tree.map(lambda leaf: leaf.shape, result.output) == ({"left": (5, 2), "right": (5, 2)}, (5, 10))


def test_prints_a_table():
    text = str(nn.summary(make_block(), shaped(5, 3)))
    assert text == repr(nn.summary(make_block(), np.ones((5, 3), np.float32)))
    first, _, *rows, _, last = text.splitlines()
    assert first.split() == ["path", "layer", "output", "parameters", "FLOPs", "bytes"]
    assert rows[0].split() == ["linears.0", "Linear", "f32[5,4]", "16", str(2 * 5 * 3 * 4 + 5 * 4), str(4 * 16 + 4 * 5 * 4)]
    assert rows[-1].split() == ["spare", "Linear", "not", "called", "10", "0", "40"]
    assert last == "Block: ({'left': f32[5,2], 'right': f32[5,2]}, f32[5,10]); 106 parameters in 424 bytes; 1,080 FLOPs"
    assert len({len(row) for row in rows}) == 1


class Transformed(nn.Module):
    """Layers inside jit, vmap, scan, grad and checkpoint."""

    jitted: nn.Linear
    mapped: nn.Linear
    stacked: nn.Linear

    def __call__(self, x):
        """Apply all layers, one after the other."""
        x = vf.jit(lambda layer, x: layer(x))(self.jitted, x)
        x = vf.vmap(self.mapped)(x)
        return vf.lax.scan(lambda x, layer: (layer(x), None), x, self.stacked)[0]


def test_layers_inside_transformations():
    stacked = vf.vmap(lambda key: nn.Linear.init(key, 4, 4))(vf.random.split(KEY, 3))
    model = Transformed(nn.Linear.init(KEY, 2, 4), nn.Linear.init(KEY, 4, 4), stacked)
    for _ in range(2):  # the second time nothing comes from a cache
        assert outputs(nn.summary(model, shaped(5, 2))) == {"jitted": (5, 4), "mapped": (4,), "stacked": (5, 4)}


def test_of_wrappers_and_subclasses():
    class Doubled(nn.Sequential):
        def __call__(self, x):
            return 2 * super().__call__(x)

    model, state = Doubled(nn.WeightNorm.init(nn.Linear.init(KEY, 2, 3))), None
    assert outputs(nn.summary(model, shaped(5, 2), state=state)) == {"0": (5, 3), "0.layer": (5, 3)}
    model, state = nn.SpectralNorm.init(KEY, nn.Linear.init(KEY, 2, 3))
    assert outputs(nn.summary(model, shaped(5, 2), state, training=True)) == {"layer": (5, 3)}


def test_computes_nothing():
    size = 10**7
    model = vf.eval_shape(lambda key: nn.Sequential(nn.Linear.init(key, size, size), nn.tanh), KEY)
    result = nn.summary(model, shaped(size, size))
    assert outputs(result) == {"0": (size, size), "1": (size, size)}
    assert result.parameters == size**2 + size


def test_the_model_stays_unchanged():
    model = make_block()
    before = vf.tree.structure(model)
    nn.summary(model, shaped(5, 3))
    assert vf.tree.structure(model) == before
    assert type(model.linears[0]) is nn.Linear


def test_errors():
    with pytest.raises(ArgumentTypeError, match=r"wrap a function in nn\.Lambda"):
        nn.summary(nn.relu, shaped(3))
    with pytest.raises(ArgumentTypeError, match="has state"):
        nn.summary(nn.BatchNorm1d.init(3)[0], shaped(2, 3))
    with pytest.raises(ShapeError, match="size 3"):
        nn.summary(nn.Linear.init(KEY, 3, 2), shaped(2, 4))


def flops(summary: nn.Summary) -> dict[str, int]:
    """Return the operations of the layers, by path."""
    return {row.path: row.flops for row in summary.rows}


def product(rows: int, inputs: int, outputs: int) -> int:
    """Return the operations of a linear layer with its bias."""
    return 2 * rows * inputs * outputs + rows * outputs


def test_operations_of_each_layer():
    actual = nn.summary(make_block(), shaped(5, 3))
    expected = {
        "linears.0": product(5, 3, 4),
        "linears.1": 2 * product(5, 4, 4),
        "heads.left": product(5, 4, 2),
        "heads.right": product(5, 4, 2),
    }
    assert flops(actual) == expected | {"table": 0, "spare": 0}
    assert actual.flops == sum(expected.values()) + 2 * 5 * 4 * 10  # attend is no call of the table


def test_operations_inside_transformations():
    stacked = vf.vmap(lambda key: nn.Linear.init(key, 4, 4))(vf.random.split(KEY, 3))
    model = Transformed(nn.Linear.init(KEY, 2, 4), nn.Linear.init(KEY, 4, 4), stacked)
    for _ in range(2):
        result = nn.summary(model, shaped(5, 2))
        assert flops(result) == {"jitted": product(5, 2, 4), "mapped": product(5, 4, 4), "stacked": 3 * product(5, 4, 4)}
        assert result.flops == sum(flops(result).values())


def test_operations_are_those_of_the_cost_analysis_and_layers_hold_their_inner_ones():
    inner = nn.Sequential(nn.Linear.init(KEY, 3, 4), nn.relu)
    model = nn.Sequential(inner, nn.relu, nn.softmax, nn.Linear.init(KEY, 4, 2))
    result = nn.summary(model, shaped(5, 3))
    by_path = flops(result)
    assert by_path["0"] == by_path["0.0"] + by_path["0.1"] == product(5, 3, 4) + by_path["1"]
    assert by_path["1"] >= 5 * 4
    assert result.flops == vf.jit(lambda x: model(x)).lower(shaped(5, 3)).cost_analysis()["flops"]
    assert result.flops == sum(by_path[path] for path in "0123")


def test_memory_of_each_layer():
    model = nn.Sequential(nn.Linear.init(KEY, 3, 4), nn.relu)
    assert [row.bytes for row in nn.summary(model, shaped(5, 3)).rows] == [4 * (16 + 20), 4 * 20]


class Pair(nn.Module):
    left: nn.Linear
    right: nn.Linear

    def __call__(self, x, y, scale=None, *, mode="sum", mask=None):
        a, b = self.left(x), self.right(y)
        out = a + b if mode == "sum" else a * b
        out = out if scale is None else out * scale
        return out if mask is None else jnp.where(mask, out, 0)


def make_pair() -> Pair:
    return Pair(nn.Linear.init(KEY, 3, 4), nn.Linear.init(KEY, 5, 4))


def test_a_model_may_have_several_inputs_and_options() -> None:
    pair = make_pair()
    result = nn.summary(pair, shaped(2, 3), shaped(2, 5), 2.0, mode="product", mask=vf.ShapeDtypeStruct((2, 4), "bool"))
    assert outputs(result) == {"left": (2, 4), "right": (2, 4)}
    assert result.output.shape == (2, 4)
    assert result.flops == nn.summary(pair, shaped(2, 3), shaped(2, 5)).flops + 2 * 4  # the scale


def test_several_inputs_of_a_model_with_state() -> None:
    class Normed(nn.Module):
        pair: Pair
        norm: nn.BatchNorm1d

        def __call__(self, x, y, state, *, training=False):
            return self.norm(self.pair(x, y), state, training=training)

    norm, state = nn.BatchNorm1d.init(4)
    model = Normed(make_pair(), norm)
    by_position, by_name = nn.summary(model, shaped(2, 3), shaped(2, 5), state), nn.summary(model, shaped(2, 3), shaped(2, 5), state=state)
    assert str(by_position) == str(by_name) and by_name.state_bytes > 0


def test_missing_inputs_and_shapes_are_named() -> None:
    with pytest.raises(
        ArgumentTypeError, match="missing a required argument: 'y', for the call of Pair, whose arguments are x, y, scale, mode, mask"
    ):
        nn.summary(make_pair(), shaped(2, 3))
    with pytest.raises(ArgumentTypeError, match=r"ShapeDtypeStruct\(\(2, 3\), 'float32'\)"):
        nn.summary(nn.Linear.init(KEY, 3, 2), (2, 3))
