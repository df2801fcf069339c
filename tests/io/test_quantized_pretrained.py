"""Language models with quantised weights in folders: those written here, and those that GPTQ and AWQ packed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.io.test_packed_weights import packed
from volta_fn import io, nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, CorruptFileError, StateDictError

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
TOKENS = vnp.array([[5, 6, 7, 8]])
GROUP = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def model_of(**options: Any) -> nn.CausalLM:
    return nn.CausalLM.init(vf.random.key(0), nn.CausalLMConfig(**{"model_type": "llama", "initializer_range": 0.1, **SIZES, **options}))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi", "mixtral"])
@pytest.mark.parametrize("scheme", ["int8", "int4", "nf4", "fp8"])
def test_folders_keep_quantised_weights(tmp_path: Path, kind: str, scheme: Any) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2} if kind == "mixtral" else {}
    model = nn.quantize(model_of(model_type=kind, dtype="bfloat16", **experts), scheme, symmetric=scheme != "int8")
    io.save_pretrained(tmp_path, model)
    again = io.load_pretrained(tmp_path)
    assert nn.tree_equal(again, model)
    wide = io.load_pretrained(tmp_path, dtype="float32")
    assert wide.model.layers[0].self_attn.q_proj.weight.dtype == np.float32
    np.testing.assert_allclose(wide(TOKENS), nn.dequantize(model, "float32")(TOKENS), atol=0.05)


def test_folders_keep_activations_and_a_selection_of_layers(tmp_path: Path) -> None:
    model = nn.quantize(model_of(), "int8", activations="int8", where=lambda name, layer: "mlp" in name)
    io.save_pretrained(tmp_path, model.stack())
    assert nn.tree_equal(io.load_pretrained(tmp_path), model)


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_over_quantised_weights_are_saved_alone(tmp_path: Path, dora: bool) -> None:
    model = nn.quantize(model_of(), "nf4")
    adapted = nn.lora(model, vf.random.key(1), rank=2, dora=dora, where="*.[qv]_proj")
    trained, frozen = nn.partition(adapted, nn.lora_filter(adapted))
    adapted = nn.combine(vf.tree.map(lambda x: x + 0.1, trained), frozen)
    io.save_adapter(tmp_path, adapted)
    assert nn.tree_equal(io.load_adapter(tmp_path, model), adapted)


def write_packed(folder: Path, method: str, bits: int = 4, model_type: str = "llama", **options: Any) -> nn.CausalLM:
    """Write a folder as GPTQ's or AWQ's tools do; return the model of the numbers that it stands for."""
    model = model_of(model_type=model_type, **({"num_experts": 4, "num_experts_per_tok": 2} if model_type == "mixtral" else {}))
    io.save_pretrained(folder, model)
    state = {name: np.asarray(x) for name, x in io.load_safetensors(folder).items()}
    plain, rng = dict(state), np.random.default_rng(0)
    for key in [name for name in state if name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))]:
        out, size = state[key].shape
        codes, zeros = rng.integers(0, 2**bits, (size, out)), rng.integers(1, 2**bits, (size // GROUP, out))
        scales = rng.uniform(0.01, 0.02, zeros.shape).astype(np.float16)
        group = np.arange(size) // GROUP
        group = rng.permutation(group) if options.get("desc_act") else group
        plain[key] = ((codes - zeros[group]) * scales[group].astype(np.float32)).T.astype(np.float32)
        name = key.removesuffix(".weight")
        del state[key]
        if method == "gptq":
            shift = 0 if options.get("checkpoint_format") == "gptq_v2" else 1
            state |= {f"{name}.qweight": packed(codes, 0, bits), f"{name}.qzeros": packed(zeros - shift, 1, bits)}
            state[f"{name}.g_idx"] = group.astype(np.int32)
        else:
            state |= {f"{name}.qweight": packed(codes, 1, 4, AWQ_ORDER), f"{name}.qzeros": packed(zeros, 1, 4, AWQ_ORDER)}
        state[f"{name}.scales"] = scales
    io.save_safetensors(folder / "model.safetensors", plain)
    expected = io.load_pretrained(folder)
    expected = vf.tree.map(vnp.array, expected)
    io.save_safetensors(folder / "model.safetensors", state)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": bits, "group_size": GROUP, **options}
    (folder / "config.json").write_text(json.dumps(config))
    return expected


@pytest.mark.parametrize(
    ("method", "bits", "options"),
    [
        ("gptq", 4, {"checkpoint_format": "gptq", "desc_act": False}),
        ("gptq", 8, {}),
        ("gptq", 4, {"checkpoint_format": "gptq_v2"}),
        ("gptq", 4, {"model_type": "mixtral"}),
        ("awq", 4, {"version": "gemm", "zero_point": True}),
        ("awq", 4, {"model_type": "qwen2"}),
        ("awq", 4, {"model_type": "mixtral"}),
    ],
)
def test_packed_weights_are_those_of_the_numbers_that_they_stand_for(tmp_path: Path, method: str, bits: int, options: Any) -> None:
    expected = write_packed(tmp_path, method, bits, **options)
    model = io.load_pretrained(tmp_path)
    mlp = model.model.layers[1].mlp
    weight = mlp.experts.down_proj if options.get("model_type") == "mixtral" else mlp.down_proj.weight
    assert isinstance(weight, nn.QuantizedArray) and weight.shape[-2:] == (64, 128) and weight.group_size == GROUP
    logits = np.asarray(expected(TOKENS))
    np.testing.assert_allclose(model(TOKENS), logits, rtol=1e-4, atol=1e-4 * np.abs(logits).max())
    np.testing.assert_array_equal(nn.generate(model, [5, 6, 7], 5), nn.generate(expected, [5, 6, 7], 5))


def test_groups_of_activations_order(tmp_path: Path) -> None:
    expected = write_packed(tmp_path, "gptq", desc_act=True)
    model = io.load_pretrained(tmp_path)
    weight = model.model.layers[1].mlp.down_proj.weight
    assert isinstance(weight, nn.PermutedArray) and weight.shape == (64, 128)
    logits = np.asarray(expected(TOKENS))
    np.testing.assert_allclose(model(TOKENS), logits, rtol=1e-4, atol=1e-4 * np.abs(logits).max())
    np.testing.assert_array_equal(nn.generate(model, [5, 6, 7], 5), nn.generate(expected, [5, 6, 7], 5))
    io.save_pretrained(tmp_path / "again", model)
    again = io.load_pretrained(tmp_path / "again")
    assert isinstance(again.model.layers[1].mlp.down_proj.weight, nn.PermutedArray)
    np.testing.assert_array_equal(again(TOKENS), model(TOKENS))
    assert io.load_pretrained(tmp_path, dtype="bfloat16").model.layers[0].self_attn.q_proj.weight.dtype == "bfloat16"
    experts = tmp_path / "experts"
    write_packed(experts, "gptq", model_type="mixtral", desc_act=True)
    with pytest.raises(ArgumentError, match="desc_act"):
        io.load_pretrained(experts)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("bitsandbytes", {}, "'bitsandbytes' are not supported; supported are 'gptq'"),
        ("awq", {"version": "gemv"}, "'awq' of the version 'gemv'"),
        ("awq", {"bits": 8}, "4 bits, got 8"),
    ],
)
def test_other_ways_to_quantise_are_refused(tmp_path: Path, method: str, options: Any, message: str) -> None:
    write_packed(tmp_path, "awq")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, **options}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArgumentError, match=message):
        io.load_pretrained(tmp_path)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = nn.quantize(model_of(), "int4")
    io.save_pretrained(tmp_path, model)
    path, text = tmp_path / "config.json", (tmp_path / "config.json").read_text()
    name = "model.layers.0.mlp.up_proj.weight"

    def rewrite(change: Any) -> None:
        config = json.loads(text)
        change(config)
        path.write_text(json.dumps(config))

    rewrite(lambda config: config["quantization_config"].pop("weights"))
    with pytest.raises(CorruptFileError, match="weights"):
        io.load_pretrained(tmp_path)
    rewrite(lambda config: config["quantization_config"]["weights"][name].pop("scheme"))
    with pytest.raises(StateDictError, match=r"up_proj.*scheme"):
        io.load_pretrained(tmp_path)
    rewrite(lambda config: config["quantization_config"]["weights"][name].update(group_size="many"))
    with pytest.raises(StateDictError, match="not complete"):
        io.load_pretrained(tmp_path)
    rewrite(lambda config: config["quantization_config"]["weights"].update({"other": {}}))
    with pytest.raises(StateDictError, match="'other' is not complete"):
        io.load_pretrained(tmp_path)
    rewrite(lambda config: config.update(intermediate_size=96))
    with pytest.raises(StateDictError, match=r"has shape \(\d+, \d+\), the file has QuantizedArray"):
        io.load_pretrained(tmp_path)
