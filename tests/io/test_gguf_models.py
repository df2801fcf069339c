"""Language models in GGUF files that the package gguf writes, beside the same models in Hugging Face's folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.language import families
from volta_fn import io, nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, SerializationError, StateDictError
from volta_fn.io import gguf as gguf_files

gguf = pytest.importorskip("gguf")

#: llama.cpp's architecture by the family's name in `families`.
ARCHITECTURES = {
    "llama": "llama", "llama_biased": "llama", "llama3": "llama", "llama_linear": "llama", "mixtral": "llama", "qwen2": "qwen2",
    "qwen2_yarn": "qwen2", "qwen3": "qwen3", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2",
    "gemma3": "gemma3", "phi2": "phi2", "phi3": "phi3", "phi3_longrope": "phi3",
}  # fmt: skip
#: What files cannot tell and llama.cpp fixes: entries of config.json that would differ from it.
FIXED: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"head_dim": 16},
    "qwen2_moe": {"mlp_only_layers": [], "head_dim": 8},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"sliding_window_pattern": 6, "num_hidden_layers": 6},
    "mixtral": {"norm_topk_prob": True},
}
#: Sizes that are multiples of the formats' 32.
SIZES = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "vocab_size": 64}


def entries_of(name: str) -> dict[str, Any]:
    entries = {**families.entries(name), **FIXED.get(name, {})}
    sizes = {key: size for key, size in SIZES.items() if key in entries}
    entries |= sizes
    if name == "phi3_longrope":
        entries["rope_scaling"] = {"rope_type": "longrope", "short_factor": [1 + i / 8 for i in range(8)], "long_factor": list(range(1, 9))}
    return entries


def folder_of(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Write a family's random model to a folder as Hugging Face does, and return its arrays."""
    entries = entries_of(name)
    io.save_pretrained(folder, nn.CausalLM.init(vf.random.key(0), nn.CausalLMConfig.from_json(entries)))
    (folder / "config.json").write_text(json.dumps(entries))
    arrays = families.weights({key: array.shape for key, array in io.load_safetensors(folder).items()})
    io.save_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})
    return arrays


def permuted(x: np.ndarray, heads: int) -> np.ndarray:
    """Order rows of queries or keys as llama.cpp's conversion does: pairs beside each other, not in halves."""
    rows = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:])
    return np.moveaxis(rows, 1, 2).reshape(x.shape)


def write_gguf(path: Path, name: str, arrays: dict[str, np.ndarray], kind: str | None, leave_out: str = "") -> dict[str, np.ndarray]:
    """Write a model as llama.cpp's conversion does; return arrays by Hugging Face's names, rounded as in the file."""
    entries, architecture = entries_of(name), ARCHITECTURES[name]
    writer = gguf.GGUFWriter(path, architecture)
    config = nn.CausalLMConfig.from_json(entries)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    (writer.add_layer_norm_eps if name == "phi2" else writer.add_layer_norm_rms_eps)(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters.rope_theta)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters.partial_rotary_factor))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    if config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
    if config.attn_logit_softcapping:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.num_experts:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size or config.intermediate_size)
        if config.shared_expert_intermediate_size:
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    rope = config.rope_parameters
    if rope.rope_type in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope.rope_type))
        writer.add_rope_scaling_factor(rope.factor)
    if rope.rope_type == "yarn":
        writer.add_rope_scaling_attn_factors(1.0)  # times YaRN's
    if rope.original_max_position_embeddings and rope.rope_type != "llama3":
        writer.add_rope_scaling_orig_ctx_len(rope.original_max_position_embeddings)
    if rope.rope_type == "longrope":
        writer.add_tensor("rope_factors_short.weight", np.asarray(rope.short_factor, np.float32))
        writer.add_tensor("rope_factors_long.weight", np.asarray(rope.long_factor, np.float32))
    if rope.rope_type == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    names = gguf.get_tensor_name_map(next(key for key, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture), 8)
    rounded = dict(arrays)
    expert_parts = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
    for key, array in arrays.items():
        stored = array
        if "q_proj" in key or "k_proj" in key:
            if architecture == "llama":
                stored = permuted(array, config.num_attention_heads if "q_proj" in key else config.num_key_value_heads)
        elif architecture.startswith("gemma") and key.endswith("norm.weight"):
            stored = array + 1
        theirs = names.get_name(key, try_suffixes=(".weight", ".bias"))
        expert, part = ["", *key.split(".")][-3:-1]
        if expert.isdigit() and "experts" in key:
            if expert != "0":
                continue
            each = [arrays[key.replace("experts.0", f"experts.{e}")] for e in range(config.num_experts)]
            stored, theirs = np.stack(each), f"blk.{key.split('.')[2]}.ffn_{expert_parts[part]}_exps.weight"
        if theirs == leave_out:
            continue
        assert theirs is not None, key
        if kind and stored.ndim > 1 and "ffn_gate_inp" not in theirs:
            quantization = gguf.GGMLQuantizationType[kind]
            raw = gguf.quants.quantize(stored, quantization)
            writer.add_tensor(theirs, raw, raw_dtype=quantization)
            for e, original in enumerate([array] if stored.ndim == 2 else stored):
                at = key if stored.ndim == 2 else key.replace("experts.0", f"experts.{e}")
                rounded[at] = gguf.quants.dequantize(gguf.quants.quantize(original, quantization), quantization)
        else:
            writer.add_tensor(theirs, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rounded


def llama3_factors(config: nn.CausalLMConfig) -> np.ndarray:
    """Return the factors of wavelengths that llama.cpp's conversion of Llama 3.1 writes."""
    rope = config.rope_parameters
    assert rope.factor is not None and rope.original_max_position_embeddings is not None
    low, high = (rope.original_max_position_embeddings / x for x in (rope.low_freq_factor, rope.high_freq_factor))
    factors = []
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * np.pi * rope.rope_theta ** (i / config.head_dim)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope.factor)
        else:
            smooth = (rope.original_max_position_embeddings / wavelength - rope.low_freq_factor) / (
                rope.high_freq_factor - rope.low_freq_factor
            )
            factors.append(1 / ((1 - smooth) / rope.factor + smooth))
    return np.asarray(factors, np.float32)


@pytest.mark.parametrize("kind", [None, "Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_those_of_the_folder(tmp_path: Path, name: str, kind: str | None) -> None:
    arrays = folder_of(name, tmp_path)
    rounded = write_gguf(tmp_path / "model.gguf", name, arrays, kind)
    io.save_safetensors(tmp_path / "model.safetensors", rounded, {"format": "pt"})
    expected, model = io.load_pretrained(tmp_path), io.load_pretrained(tmp_path / "model.gguf")
    assert model.config.eos_token_id == (2,) and model.config.tie_word_embeddings == expected.config.tie_word_embeddings
    leaves = vf.tree.leaves(model, is_leaf=lambda x: isinstance(x, nn.QuantizedArray))
    assert all(isinstance(x, nn.QuantizedArray) == bool(kind) for x in leaves if x.ndim > 1 and x.shape[0] > 6)
    tokens = vnp.asarray(families.TOKENS)
    logits = np.asarray(expected(tokens))
    np.testing.assert_allclose(model(tokens), logits, rtol=2e-4, atol=2e-4 * np.abs(logits).max())
    np.testing.assert_array_equal(nn.generate(model, [5, 6], 3), nn.generate(expected, [5, 6], 3))


def test_phi_2_with_projections_in_one_matrix(tmp_path: Path) -> None:
    arrays = folder_of("phi2", tmp_path)
    write_gguf(tmp_path / "three.gguf", "phi2", arrays, "Q8_0")
    file = io.open_gguf(tmp_path / "three.gguf")
    tensors = {name: x.dequantize() if isinstance(x, nn.QuantizedArray) else x for name, x in file.items()}
    for layer, part in [(i, part) for i in range(file.metadata["phi2.block_count"]) for part in ("weight", "bias")]:
        tensors[f"blk.{layer}.attn_qkv.{part}"] = vnp.concatenate([tensors.pop(f"blk.{layer}.attn_{x}.{part}") for x in "qkv"])
    matrices = {name: "Q8_0" for name, x in tensors.items() if x.ndim > 1}
    io.save_gguf(tmp_path / "one.gguf", tensors, file.metadata, formats=matrices)
    models = [io.load_pretrained(tmp_path / f"{name}.gguf") for name in ("three", "one")]
    logits = [np.asarray(model(vnp.asarray(families.TOKENS))) for model in models]
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-5, atol=1e-4)
    assert isinstance(models[1].model.layers[0].self_attn.k_proj.weight, nn.QuantizedArray)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_files_are_written_as_by_llama_cpp(tmp_path: Path, name: str) -> None:
    arrays = folder_of(name, tmp_path)
    write_gguf(tmp_path / "theirs.gguf", name, arrays, None)
    model = io.load_pretrained(tmp_path)
    tokenizer = {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    io.save_gguf_model(tmp_path / "ours.gguf", model, metadata=tokenizer)
    ours, theirs = (io.open_gguf(tmp_path / f"{x}.gguf") for x in ("ours", "theirs"))
    assert set(ours) == set(theirs)
    for key in theirs:
        assert ours[key].dtype == theirs[key].dtype == np.float32
        np.testing.assert_allclose(ours[key].reshape(theirs[key].shape), theirs[key], rtol=1e-6, err_msg=key)
    left_out = ("attn_factor", "original_context_length", "expert_feed_forward_length")  # where they are what is the default
    for key, value in theirs.metadata.items():
        if not key.endswith(left_out) or key in ours.metadata:
            assert ours.metadata[key] == (pytest.approx(value) if isinstance(value, float) else value), key
    tokens = vnp.asarray(families.TOKENS)
    logits = np.asarray(model(tokens))
    again = io.load_pretrained(tmp_path / "ours.gguf")
    np.testing.assert_allclose(again(tokens), logits, rtol=2e-4, atol=2e-4 * np.abs(logits).max())
    np.testing.assert_allclose(io.load_pretrained(tmp_path / "theirs.gguf")(tokens), again(tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mixtral", "phi2"])
def test_quantised_models_are_written(tmp_path: Path, name: str) -> None:
    folder_of(name, tmp_path)
    model = io.load_pretrained(tmp_path)
    tokens = vnp.asarray(families.TOKENS)
    for scheme, groups in (("int4", 32), ("int8", None), ("int4", 64)):
        small: Any = nn.quantize(
            model, scheme, group_size=groups, scale_dtype="float16", where=lambda path, _: not path.endswith("mlp.gate")
        )
        io.save_gguf_model(tmp_path / "small.gguf", small)
        again = io.load_pretrained(tmp_path / "small.gguf")
        weight = again.model.layers[0].self_attn.q_proj.weight
        assert isinstance(weight, nn.QuantizedArray) and (weight.scheme, weight.group_size) == (scheme, 32)
        np.testing.assert_allclose(again(tokens), small(tokens), rtol=1e-4, atol=1e-4 * float(vnp.abs(small(tokens)).max()))
    io.save_gguf_model(tmp_path / "rounded.gguf", model.stack() if name == "llama" else model, format="Q4_K")
    formats = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "rounded.gguf").tensors}
    assert formats["token_embd.weight"] == "Q8_0" and formats["output_norm.weight"] == "F32"  # 64 numbers are no block of Q4_K
    for one, other in zip(
        io.state_dict(model).values(), io.state_dict(nn.dequantize(io.load_pretrained(tmp_path / "rounded.gguf"))).values(), strict=True
    ):
        assert vnp.abs(one - other).max() <= 0.005 * vnp.abs(one).max()


def test_models_that_files_cannot_hold(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 32, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    }  # fmt: skip
    path = tmp_path / "model.gguf"

    def model_of(**options: Any) -> nn.CausalLM:
        return nn.CausalLM.init(vf.random.key(0), nn.CausalLMConfig.from_json({**sizes, **options}))

    with pytest.raises(ArgumentError, match=r"cannot tell query_pre_attn_scalar = 99"):
        io.save_gguf_model(path, model_of(model_type="gemma2", head_dim=16, query_pre_attn_scalar=99))
    with pytest.raises(ArgumentError, match="dynamic"):
        io.save_gguf_model(path, model_of(model_type="llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0}))
    with pytest.raises(ArgumentError, match="groups of a multiple of 32"):
        io.save_gguf_model(path, nn.quantize(model_of(model_type="llama"), "nf4", scale_dtype="float16"))
    with pytest.raises(ArgumentTypeError, match="CausalLM"):
        io.save_gguf_model(path, {"w": vnp.ones((2, 32))})  # type: ignore[arg-type]  # to be refused
    assert not path.exists()


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_models_of_files_are_saved_to_folders(tmp_path: Path, name: str) -> None:
    write_gguf(tmp_path / "model.gguf", name, folder_of(name, tmp_path), "Q4_0")
    model = io.load_pretrained(tmp_path / "model.gguf")
    io.save_pretrained(tmp_path / "folder", model)
    again = io.load_pretrained(tmp_path / "folder")
    assert nn.tree_equal(again, model)
    half = io.load_pretrained(tmp_path / "model.gguf", dtype="bfloat16")
    layer = half.model.layers[0]
    assert {half.config.dtype, layer.self_attn.q_proj.weight.dtype.name, layer.input_layernorm.weight.dtype.name} == {"bfloat16"}
    assert half(vnp.asarray(families.TOKENS)).dtype == np.float32


def test_norms_take_the_dtype_of_embeddings(tmp_path: Path) -> None:
    arrays = folder_of("llama", tmp_path)
    halves = {key: x.astype(np.float16) if x.ndim > 1 else x for key, x in arrays.items()}
    write_gguf(tmp_path / "model.gguf", "llama", halves, None)
    model = io.load_pretrained(tmp_path / "model.gguf")
    assert {x.dtype.name for x in vf.tree.leaves(model)} == {"float16"} == {model.config.dtype}


def test_files_that_are_refused(tmp_path: Path) -> None:
    arrays = folder_of("llama", tmp_path)
    with pytest.raises(SerializationError, match="gguf"):
        io.load_pretrained(tmp_path / "model.safetensors")
    with pytest.raises(SerializationError, match="exist"):
        io.load_pretrained(tmp_path / "none.gguf")
    write_gguf(tmp_path / "a.gguf", "llama", arrays, None, leave_out="blk.1.attn_q.weight")
    with pytest.raises(StateDictError, match=r"model\.layers\.1\.self_attn\.q_proj\.weight"):
        io.load_pretrained(tmp_path / "a.gguf")
    experts = folder_of("mixtral", tmp_path / "experts")
    write_gguf(tmp_path / "b.gguf", "mixtral", experts, None, leave_out="blk.1.ffn_up_exps.weight")
    with pytest.raises(StateDictError, match="ffn_up_exps"):
        io.load_pretrained(tmp_path / "b.gguf")
    io.save_gguf(tmp_path / "c.gguf", {}, {"general.architecture": "mamba"})
    with pytest.raises(ArgumentError, match="'mamba' is not supported; supported are llama"):
        io.load_pretrained(tmp_path / "c.gguf")
    io.save_gguf(tmp_path / "d.gguf", {}, {"general.architecture": "llama", "llama.block_count": 2})
    with pytest.raises(CorruptFileError, match="hidden_size"):
        io.load_pretrained(tmp_path / "d.gguf")
    io.save_gguf(tmp_path / "d.gguf", {}, {"general.architecture": "llama", "llama.block_count": "2"})
    with pytest.raises(CorruptFileError, match="block_count is a number"):
        io.load_pretrained(tmp_path / "d.gguf")
    sizes = {"block_count": 2, "embedding_length": 64, "feed_forward_length": [64, 96], "attention.head_count": 4}
    io.save_gguf(tmp_path / "e.gguf", {}, {"general.architecture": "llama", **{f"llama.{key}": value for key, value in sizes.items()}})
    with pytest.raises(ArgumentError, match="different sizes"):
        io.load_pretrained(tmp_path / "e.gguf")


@pytest.mark.parametrize(("count", "size"), [(2, 98), (30, 88), (60, 208), (32, 80), (80, 80)])
def test_the_part_of_a_head_that_is_rotated(count: int, size: int) -> None:
    """Its factor times the head's features, rounded down, is the number of the file."""
    metadata = {"general.architecture": "phi2", **{f"phi2.{key}": value for key, value in {
        "block_count": 1, "embedding_length": 2 * size, "feed_forward_length": 8, "attention.head_count": 2,
        "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": count,
    }.items()}}  # fmt: skip
    config = gguf_files.gguf_config(gguf_files._Contents(Path("model.gguf"), {"token_embd.weight": vnp.zeros((4, 2 * size))}, metadata))
    assert int(config.head_dim * config.rope_parameters.partial_rotary_factor) == count
