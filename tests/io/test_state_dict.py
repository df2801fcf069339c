"""State dicts: names, loading by name and by position, the report."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import io, nn
from volta_fn.core.arrays.array import as_value
from volta_fn.errors import ArgumentTypeError, StateDictError

KEY = vf.random.key(0)


class Pair(NamedTuple):
    left: object
    right: object


class Model(nn.Module):
    encoder: nn.Linear
    layers: tuple[nn.Linear, ...]
    tables: dict[str, nn.Embedding]


def model() -> Model:
    return Model(
        nn.Linear.init(KEY, 3, 4),
        (nn.Linear.init(KEY, 4, 4), nn.Linear.init(KEY, 4, 2, bias=False)),
        {"words": nn.Embedding.init(KEY, 5, 3)},
    )


@pytest.mark.wide
def test_names_follow_attributes_positions_and_keys():
    names = ["encoder.weight", "encoder.bias", "layers.0.weight", "layers.0.bias", "layers.1.weight", "tables.words.weight"]
    assert list(io.state_dict(model())) == names
    assert list(io.state_dict(Pair([np.ones(1)], {3: np.ones(1)}))) == ["left.0", "right.3"]
    assert list(io.state_dict({"a.b": np.ones(1)})) == ["a.b"]
    assert io.state_dict((None, [], {})) == {}


@pytest.mark.wide
def test_values_are_the_arrays_themselves():
    weight = vf.numpy.ones((2, 3))
    assert io.state_dict({"w": weight})["w"] is weight
    values = io.state_dict({"a": np.ones(2, np.float64), "s": np.float16(1), "f": np.ones(2, ml_dtypes.float8_e5m2)})
    assert [value.dtype.name for value in values.values()] == ["float64", "float8_e5m2", "float16"]
    assert all(isinstance(value, vf.Array) for value in values.values())


def test_names_that_coincide_are_refused():
    with pytest.raises(StateDictError, match=r"'a\.b'"):
        io.state_dict({"a": {"b": np.ones(1)}, "a.b": np.ones(1)})


@pytest.mark.parametrize("leaf", [1.0, 3, True, "text", len])
def test_leaves_that_are_no_arrays_are_refused(leaf):
    with pytest.raises(ArgumentTypeError, match="'a'"):
        io.state_dict({"a": leaf})
    with pytest.raises(ArgumentTypeError, match="'a'"):
        io.load_state_dict({"a": np.ones(1)}, {"a": leaf})
    with pytest.raises(ArgumentTypeError, match="'a'"):
        io.load_state_dict({"a": leaf}, {"a": np.ones(1)})


def test_loading_gives_a_new_tree_and_leaves_the_old():
    old = model()
    state = {name: value + 1 for name, value in io.state_dict(old).items()}
    new = io.load_state_dict(old, state)
    assert type(new) is Model and vf.tree.structure(new) == vf.tree.structure(old)
    for before, after in zip(vf.tree.leaves(old), vf.tree.leaves(new), strict=True):
        np.testing.assert_array_equal(before + 1, after)


def test_templates_need_no_numbers():
    shapes = vf.eval_shape(lambda key: nn.Linear.init(key, 3, 4), KEY)
    linear = nn.Linear.init(KEY, 3, 4)
    np.testing.assert_array_equal(io.load_state_dict(shapes, io.state_dict(linear)).weight, linear.weight)
    with pytest.raises(StateDictError, match=r"1 missing:\n  bias"):
        io.load_state_dict(shapes, {"weight": linear.weight})
    with pytest.raises(StateDictError, match="neither has the template"):
        io.load_state_dict(shapes, {"weight": linear.weight}, strict=False)


def test_the_report_is_complete():
    state = io.state_dict(model())
    del state["encoder.weight"], state["layers.1.weight"]
    state |= {"extra": np.ones(1), "encoder.bias": np.ones(5, np.float32), "layers.0.bias": np.ones(4, np.int32)}
    diff = io.diff_state_dict(model(), state)
    assert (diff.missing, diff.unexpected) == (("encoder.weight", "layers.1.weight"), ("extra",))
    assert diff.mismatched == (io.Mismatch("encoder.bias", "f32[4]", "f32[5]"), io.Mismatch("layers.0.bias", "f32[4]", "i32[4]"))
    with pytest.raises(StateDictError) as caught:
        io.load_state_dict(model(), state)
    assert str(diff) in caught.value.message
    assert str(diff).splitlines()[:3] == ["2 missing:", "  encoder.weight", "  layers.1.weight"]
    assert not io.StateDictDiff() and str(io.StateDictDiff()) == "no differences"


def test_lenient_loading_keeps_what_does_not_fit():
    old = model()
    new, diff = io.load_state_dict(old, {"encoder.bias": np.full(4, 7, np.float32), "encoder.weight": np.ones((9, 9))}, strict=False)
    assert new.encoder.bias.tolist() == [7] * 4
    assert new.encoder.weight is old.encoder.weight
    assert len(diff.missing) == 4 and [m.name for m in diff.mismatched] == ["encoder.weight"]
    assert not io.load_state_dict(old, io.state_dict(old), strict=False)[1]


def test_dtypes_are_kept_unless_a_cast_is_asked_for():
    template = {"a": vf.numpy.zeros(2, "float16"), "n": vf.numpy.zeros((), "int32"), "c": vf.numpy.zeros(1, "complex64")}
    state = {"a": np.array([1.5, 2]), "n": np.int64(7).reshape(()), "c": np.ones(1, np.float32)}
    with pytest.raises(StateDictError, match=r"3 mismatched:[\s\S]*f64\[2\]"):
        io.load_state_dict(template, state)
    loaded = io.load_state_dict(template, state, cast=True)
    assert [(v.dtype.name, v.tolist()) for v in loaded.values()] == [("float16", [1.5, 2.0]), ("int32", 7), ("complex64", [1 + 0j])]
    float8 = {"a": np.array([1.5, 2], ml_dtypes.float8_e4m3fn)}
    assert io.load_state_dict({"a": template["a"]}, float8, cast=True)["a"].tolist() == [1.5, 2]
    same = io.load_state_dict(float8, float8)["a"]
    assert isinstance(same, vf.Array) and same.dtype == float8["a"].dtype and same.tolist() == [1.5, 2]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.ones(1, np.complex64), "float32"),
        (np.ones(1), "int32"),
        (np.int64([2**40]), "int32"),
        (np.int32([-1]), "uint32"),
        (np.int8([1]), "bool"),
        (np.float32([0.5]), "int4"),
        (np.array([0.5], ml_dtypes.float8_e4m3fn), "int8"),
        (np.int8([8]), "int4"),
        (np.array([-1], ml_dtypes.int4), "uint8"),
    ],
)
def test_casts_that_lose_the_number_are_refused(value, dtype):
    with pytest.raises(StateDictError, match="1 mismatched"):
        io.load_state_dict({"a": vf.numpy.zeros(1, dtype)}, {"a": value}, cast=True)


@pytest.mark.parametrize(("value", "dtype"), [(np.int32([-8, 7]), "int4"), (np.array([-8, 7], ml_dtypes.int4), "int8")])
def test_integers_that_fit_are_cast(value, dtype):
    loaded = io.load_state_dict({"a": vf.numpy.zeros(2, dtype)}, {"a": value}, cast=True)["a"]
    assert loaded.dtype.name == dtype and np.asarray(loaded).astype(np.int32).tolist() == [-8, 7]


def test_casts_of_no_numbers():
    assert io.load_state_dict({"a": vf.numpy.zeros(0, "int8")}, {"a": np.zeros(0, np.int64)}, cast=True)["a"].shape == (0,)


def test_types_come_back_exactly():
    weak = as_value(1.0)
    assert weak.weak_type
    assert io.load_state_dict({"a": weak}, {"a": np.float32(2).reshape(())})["a"].aval == weak.aval


def autoencoder(**names: str) -> nn.Sequential:
    first, second = nn.Linear.init(KEY, 3, 2), nn.Linear.init(vf.random.key(1), 2, 3)
    if names:
        return nn.Sequential(encoder=first, act=nn.relu, decoder=second)
    return nn.Sequential(first, nn.relu, second)


def test_numbers_stand_for_the_names_of_a_sequential():
    """Count the activation between the layers, though it has no parameters."""
    numbered = {name: value + 1 for name, value in io.state_dict(autoencoder()).items()}
    assert list(numbered) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    named = io.load_state_dict(autoencoder(named="yes"), numbered)
    np.testing.assert_array_equal(named.decoder.weight, numbered["2.weight"])
    nested = io.load_state_dict({"net": autoencoder(named="yes")}, {f"net.{name}": value for name, value in numbered.items()})
    np.testing.assert_array_equal(nested["net"].decoder.weight, numbered["2.weight"])


def test_names_go_before_positions():
    swapped = {"1": np.float32([0]), "0": np.float32([1])}
    assert [v.item() for v in io.load_state_dict(swapped, swapped).values()] == [0, 1]
    template = {"a": np.float32([0]), "0": np.float32([0])}  # "a" comes second in order, "0" is its sibling's name
    with pytest.raises(StateDictError, match=r"1 missing:\n  a"):
        io.load_state_dict(template, {"0": np.float32([1])})
    groups = io.state_dict(autoencoder())
    both = {name.replace("0.", "encoder."): value for name, value in groups.items()}
    mixed = io.load_state_dict(autoencoder(named="yes"), both)
    np.testing.assert_array_equal(mixed.decoder.bias, autoencoder()[2].bias)


def test_a_missing_number_is_reported_by_the_name_that_was_sought():
    state = io.state_dict(autoencoder())
    del state["2.bias"]
    assert io.diff_state_dict(autoencoder(named="yes"), state).missing == ("2.bias",)


def test_a_prefix_of_all_names_is_told():
    model = nn.Sequential(nn.Linear.init(KEY, 2, 3), nn.relu, nn.Linear.init(KEY, 3, 1))
    state = {f"module.{name}": value for name, value in io.state_dict(model).items()}
    with pytest.raises(StateDictError, match=r"its names begin with 'module': .*StateDictMapper\(\).strip_prefix\('module'\)\(state\)"):
        io.load_state_dict(model, state | {"epoch": vf.numpy.array(3)})
    assert nn.tree_equal(io.load_state_dict(model, io.StateDictMapper().strip_prefix("module")(state)), model)
    with pytest.raises(StateDictError, match="rename its arrays"):
        io.load_state_dict(model, {name: value for name, value in state.items() if name != "module.0.bias"})


def test_what_is_no_state_dict_is_named(tmp_path):
    torch = pytest.importorskip("torch")
    layer, other = nn.Linear.init(KEY, 2, 3), torch.nn.Linear(2, 3)
    with pytest.raises(
        ArgumentTypeError, match=r"'weight' is not an array but torch\..*; PyTorch's pass through io.from_torch\(model\) before"
    ):
        io.load_state_dict(layer, other.state_dict())
    with pytest.raises(ArgumentTypeError, match=r"got Linear: call its state_dict\(\)"):
        io.from_torch(layer)(other)
    with pytest.raises(ArgumentTypeError, match="arrays by name, got list"):
        io.from_torch(layer)([1])
    with pytest.raises(ArgumentTypeError, match="the path comes first"):
        io.save_safetensors(layer, str(tmp_path / "file.safetensors"))


def test_nan_and_negative_zero_come_back():
    values = np.array([np.nan, -0.0, np.inf], np.float32)
    assert np.asarray(io.load_state_dict({"a": values}, {"a": values})["a"]).tobytes() == values.tobytes()


def test_optimizer_states_have_readable_names():
    params = {"w": vf.numpy.ones(2)}
    state = vf.optim.adam(1e-3).init(params)
    names = io.state_dict(state)
    assert any(name.endswith("mu.w") for name in names)
    same = io.load_state_dict(state, names)
    assert vf.tree.structure(same) == vf.tree.structure(state)
