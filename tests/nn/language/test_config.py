"""Configs of language models: older and newer files, defaults, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.nn.language import families
from volta_fn import nn
from volta_fn.errors import ArgumentError, CorruptFileError, SerializationError

SIZES = {
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


def config(**entries: Any) -> nn.CausalLMConfig:
    return nn.CausalLMConfig.from_json({"model_type": "llama", **SIZES, **entries})


@pytest.mark.parametrize("name", families.CONFIGS)
def test_json_round_trip(name: str) -> None:
    first = nn.CausalLMConfig.from_json(families.entries(name))
    assert nn.CausalLMConfig.from_json(json.loads(json.dumps(first.to_json()))) == first
    assert hash(first) == hash(nn.CausalLMConfig.from_json(families.entries(name)))


def test_older_and_newer_files_are_the_same() -> None:
    scaling = {"factor": 2.0, "original_max_position_embeddings": 32}
    old = config(rope_theta=5e5, rope_scaling={"type": "yarn", **scaling}, torch_dtype="bfloat16")
    new = config(rope_parameters={"rope_type": "yarn", "rope_theta": 5e5, **scaling}, dtype="bfloat16")
    assert old == new
    assert old.rope_parameters == nn.RopeParameters(5e5, "yarn", factor=2.0, original_max_position_embeddings=32)
    nested = {"full_attention": {"rope_type": "default", "rope_theta": 7.0}, "sliding_attention": {"rope_theta": 3.0}}
    gemma = config(model_type="gemma3_text", rope_parameters=nested, sliding_window_pattern=2)
    assert gemma.layer_types == ("sliding_attention", "full_attention") * 2
    assert [gemma.rope_of(i).rope_theta for i in range(2)] == [3.0, 7.0]  # type: ignore[union-attr]


def test_families_derive_what_files_leave_out() -> None:
    assert config(model_type="mistral").layer_types == ("sliding_attention",) * 4
    assert config(model_type="mistral", sliding_window=None).layer_types == ("full_attention",) * 4
    assert config(model_type="qwen2", sliding_window=8, max_window_layers=3).layer_types == ("full_attention",) * 4
    qwen = config(model_type="qwen2", sliding_window=8, max_window_layers=3, use_sliding_window=True)
    assert qwen.layer_types == ("full_attention",) * 3 + ("sliding_attention",)
    assert config(model_type="gemma2").layer_types == ("sliding_attention", "full_attention") * 2
    assert config(model_type="smollm3").no_rope_layers == (1, 1, 1, 0)
    assert config(model_type="smollm3").rope_of(3) is None
    assert config(model_type="gemma", hidden_activation="gelu_new").hidden_act == "gelu_new"
    assert config(model_type="mixtral", num_local_experts=5).num_experts == 5
    moe = config(model_type="qwen2_moe", decoder_sparse_step=2, mlp_only_layers=[3])
    assert [moe.is_sparse(i) for i in range(4)] == [False, True, False, False]
    assert config(eos_token_id=[3, 4]).eos_token_id == (3, 4)
    assert config(num_attention_heads=8, num_key_value_heads=None).num_key_value_heads == 8


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "bert"}, "'bert' is not supported; supported are llama"),
        ({"rope_scaling": {"type": "other"}}, "rope_type must be 'default', 'linear'"),
        ({"rope_scaling": {"type": "linear"}}, "needs a factor"),
        ({"rope_theta": 0.0}, "above 0"),
        ({"partial_rotary_factor": 1.5}, "at most 1"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "short_factor"),
        ({"num_key_value_heads": 3}, "divides"),
        ({"layer_types": ["full_attention"]}, "for each of 4 layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "need a sliding_window"),
        ({"vocab_size": 0}, "positive integer"),
        ({"vocab_size": None}, "vocab_size"),
        ({"dtype": "int8"}, "floats"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "between 1 and num_experts"),
    ],
)
def test_what_is_refused(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        config(**entries)


def test_missing_entries_and_files(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="hidden_size, intermediate_size"):
        nn.CausalLMConfig.from_json({"model_type": "llama", "vocab_size": 3})
    with pytest.raises(SerializationError, match="no config.json"):
        nn.CausalLMConfig.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CorruptFileError, match="JSON object"):
        nn.CausalLMConfig.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CorruptFileError, match="not JSON"):
        nn.CausalLMConfig.from_pretrained(tmp_path)


def test_generation_config_adds_tokens_that_end_a_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    assert nn.CausalLMConfig.from_pretrained(tmp_path).eos_token_id == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert nn.CausalLMConfig.from_pretrained(tmp_path).eos_token_id == (5, 6)


def test_activations_are_checked() -> None:
    import volta_fn as vf

    with pytest.raises(ArgumentError, match="hidden_act"):
        nn.CausalLM.init(vf.random.key(0), config(hidden_act="cubic"))


def test_null_heads_of_keys_are_those_of_queries() -> None:
    """Whatever the family's default, as in Hugging Face's."""
    sizes = {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 16}
    for kind in ("mistral", "mixtral", "qwen3_moe", "llama"):
        assert nn.CausalLMConfig.from_json({"model_type": kind, **sizes, "num_key_value_heads": None}).num_key_value_heads == 16
    assert nn.CausalLMConfig.from_json({"model_type": "mistral", **sizes}).num_key_value_heads == 8
