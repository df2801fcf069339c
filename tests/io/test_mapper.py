"""Mappers: what each rule does, what it refuses, and that chains compose."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta_fn as vf
from volta_fn import io
from volta_fn.errors import ArgumentError, ArgumentTypeError, StateDictError

M = io.StateDictMapper()
STATE = {
    "model.encoder.weight": np.arange(6.0).reshape(2, 3),
    "model.encoder.bias": np.zeros(2),
    "model.encoder2.weight": np.ones((2, 2)),
    "head.weight": np.ones((4, 2, 3)),
}


def names(mapper: io.StateDictMapper) -> list[str]:
    return list(mapper(STATE))


def test_names():
    rest = list(STATE)[1:]
    assert names(M.rename("model.encoder.weight", "w")) == ["w", *rest]
    assert names(M.rename_keys({"head.weight": "h"}))[-1] == "h"
    assert names(M.rename_prefix("model.encoder", "net")) == ["net.weight", "net.bias", "model.encoder2.weight", "head.weight"]
    assert names(M.rename_prefix("model.encoder.", "net.")) == names(M.rename_prefix("model.encoder", "net"))
    assert names(M.strip_prefix("model")) == ["encoder.weight", "encoder.bias", "encoder2.weight", "head.weight"]
    assert names(M.add_prefix("x"))[0] == "x.model.encoder.weight"
    assert names(M.rename_regex(r"encoder(\d?)\.", r"e\1_"))[:3] == ["model.e_weight", "model.e_bias", "model.e2_weight"]


def test_choice():
    assert names(M.select_keys("model.encoder.*", "head.weight")) == ["model.encoder.weight", "model.encoder.bias", "head.weight"]
    assert names(M.exclude_keys("*.weight")) == ["model.encoder.bias"]
    assert names(M.select_prefix("model.encoder")) == ["weight", "bias"]
    assert names(M.select_keys("head.weigh?")) == ["head.weight"]


def test_values():
    out = M.transpose("model.encoder.weight").transpose("head.weight", axes=(2, 0, 1))(STATE)
    np.testing.assert_array_equal(out["model.encoder.weight"], STATE["model.encoder.weight"].T)
    np.testing.assert_array_equal(out["head.weight"], STATE["head.weight"].transpose(2, 0, 1))
    out = M.transpose_pattern("model.*.weight")(STATE)
    assert out["model.encoder.weight"].shape == (3, 2) and out["head.weight"].shape == (4, 2, 3)
    out = M.transform(lambda name, x: x.astype(np.float32) if name.startswith("head") else x)(STATE)
    assert [value.dtype.itemsize for value in out.values()] == [8, 8, 8, 4]


@pytest.mark.parametrize("value", [vf.numpy.arange(6).reshape(2, 3), np.ones((2, 3), ml_dtypes.float8_e4m3fn)], ids=["array", "float8"])
def test_values_of_both_kinds_are_transposed(value):
    np.testing.assert_array_equal(np.asarray(M.transpose("w")({"w": value})["w"]), np.asarray(value).T)


def test_names_with_signs_of_patterns_are_names_where_names_are_meant():
    state = {"a[0]": np.ones((1, 2)), "a*": np.ones((1, 2)), "ab": np.ones((1, 2))}
    out = M.transpose("a[0]", "a*")(state)
    assert [value.shape for value in out.values()] == [(2, 1), (2, 1), (1, 2)]
    assert list(M.select_prefix("a[0]")({"a[0].w": np.ones(1), "a0.w": np.ones(1)})) == ["w"]


def test_names_may_be_exchanged():
    swapped = M.rename_keys({"a": "b", "b": "a"})({"a": 1, "b": 2})
    assert swapped == {"b": 1, "a": 2}


UNMATCHED = [
    M.rename("encoder", "x"),
    M.rename_keys({"head.weight": "h", "absent": "x"}),
    M.rename_prefix("enc", "x"),
    M.strip_prefix("mode"),
    M.rename_regex("decoder", "x"),
    M.select_keys("head.*", "decoder.*"),
    M.exclude_keys("decoder.*"),
    M.select_prefix("decoder"),
    M.transpose("weight"),
    M.transpose_pattern("*.kernel"),
    M.transform(lambda name, x: x, "*.kernel"),
]


@pytest.mark.parametrize("mapper", UNMATCHED, ids=repr)
def test_rules_that_find_nothing_are_refused(mapper):
    with pytest.raises(StateDictError, match="there is no array with") as caught:
        mapper(STATE)
    assert mapper.rules[0].description in caught.value.message


OPTIONAL = [
    M.rename("encoder", "x", optional=True),
    M.rename_keys({"absent": "x"}, optional=True),
    M.rename_keys({}),
    M.rename_prefix("enc", "x", optional=True),
    M.strip_prefix("mode", optional=True),
    M.add_prefix(""),
    M.rename_regex("decoder", "x", optional=True),
    M.exclude_keys("decoder.*", optional=True),
    M.transpose("weight", optional=True),
    M.transpose_pattern("*.kernel", optional=True),
    M.transform(lambda name, x: x, "*.kernel", optional=True),
    M.transform(lambda name, x: x),
]


@pytest.mark.parametrize("mapper", OPTIONAL, ids=repr)
def test_optional_rules_may_find_nothing(mapper):
    assert mapper(STATE) == STATE
    assert mapper({}) == {}


def test_optional_choice_of_nothing_is_nothing():
    assert M.select_keys("decoder.*", optional=True)(STATE) == {}
    assert M.select_prefix("decoder", optional=True)(STATE) == {}


def test_messages_name_what_is_close():
    with pytest.raises(StateDictError, match=r"names like 'model.encoder.wieght'; there are 4: model.encoder.weight"):
        M.rename("model.encoder.wieght", "w")(STATE)


@pytest.mark.parametrize(
    "mapper",
    [
        M.rename("head.weight", "model.encoder.bias"),
        M.rename_regex(r".*weight", "w"),
        M.strip_prefix("model").rename_prefix("encoder2", "encoder"),
        M.rename_keys({"head.weight": "x", "model.encoder.bias": "x"}),
    ],
    ids=repr,
)
def test_names_that_coincide_are_refused(mapper):
    with pytest.raises(StateDictError, match="two arrays get the name"):
        mapper(STATE)


@pytest.mark.parametrize(
    "mapper", [M.transpose("head.weight"), M.transpose("head.weight", axes=(0, 1)), M.transpose("head.weight", axes=(0, 0, 1))]
)
def test_axes_must_fit(mapper):
    with pytest.raises(StateDictError, match=r"shape \(4, 2, 3\)"):
        mapper(STATE)


def test_what_is_no_array_is_refused():
    with pytest.raises(ArgumentTypeError, match="'a' is not an array but float"):
        M.transpose("a")({"a": 1.0})
    with pytest.raises(ArgumentTypeError, match="'head.weight' became not an array but NoneType"):
        M.transform(lambda name, x: None, "head.*")(STATE)


@pytest.mark.parametrize(("pattern", "replacement"), [("(", "x"), ("a", r"\1"), ("(a)", r"\g<b>"), ("*", "x")])
def test_invalid_expressions_are_refused_when_they_are_given(pattern, replacement):
    with pytest.raises(ArgumentError, match="not a valid regular expression"):
        M.rename_regex(pattern, replacement)


def test_mappers_are_values():
    first, second = M.strip_prefix("model"), M.rename("head.weight", "h").transpose("encoder.weight")
    assert names(first | second) == list(second(first(STATE))) == names(io.StateDictMapper.compose(first, second))
    assert repr(first | second) == "StateDictMapper().strip_prefix('model').rename('head.weight', 'h').transpose('encoder.weight')"
    assert repr(M.transpose("a", axes=[1, 0])) == "StateDictMapper().transpose('a', axes=(1, 0))"
    assert len(M.rules) == 0 and len(first.rules) == 1
    before = dict(STATE)
    (first | second)(STATE)
    assert before == STATE
    with pytest.raises(TypeError):
        first | {"a": "b"}
    with pytest.raises(AttributeError):
        first.rules = ()


@given(st.permutations(["strip", "rename", "exclude"]), st.integers(0, 3))
def test_composition_is_associative(order, cut):
    rules = {"strip": M.strip_prefix("model", optional=True), "rename": M.rename_regex("enc", "e"), "exclude": M.exclude_keys("head.*")}
    chain = [rules[name] for name in order]
    joined = io.StateDictMapper.compose(*chain)
    groups = io.StateDictMapper.compose(*chain[:cut]) | io.StateDictMapper.compose(*chain[cut:])
    assert joined(STATE) == groups(STATE)


@pytest.mark.wide
def test_open_files_are_mapped(tmp_path):
    io.save_safetensors(tmp_path / "x.safetensors", STATE)
    out = M.select_prefix("model.encoder").transpose("weight")(io.open_safetensors(tmp_path / "x.safetensors"))
    assert {name: value.shape for name, value in out.items()} == {"weight": (3, 2), "bias": (2,)}
