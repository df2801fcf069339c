"""Language models in GGUF files: configs by metadata, and arrays by name.

Keys and names of tensors are llama.cpp's (github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py; what its convert_hf_to_gguf.py changes
in a model is undone on reading, and done on writing). Quantised tensors stay quantised.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, StateDictError
from volta_fn.io.gguf import GGUFFile, save_gguf
from volta_fn.io.state_dict import dotted
from volta_fn.nn.language.config import CausalLMConfig
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.nn.language.layers import llama3_factors
from volta_fn.nn.quantization.quantized_array import PermutedArray, QuantizedArray, WeightArray

#: The `model_type` by "general.architecture". Llama is Mixtral, too, where there are experts.
_MODEL_TYPES: Mapping[str, str] = {
    "llama": "llama", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3": "gemma3_text", "phi2": "phi", "phi3": "phi3", "smollm3": "smollm3",
}  # fmt: skip
#: Entries of a config by keys, which follow the architecture and a dot.
_ENTRIES: Mapping[str, str] = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}
#: Entries of `rope_scaling` by keys.
_SCALING: Mapping[str, str] = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
#: The entries that no file may lack.
_REQUIRED = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps")
#: The models whose logits of attention are divided by √(hidden_size / heads) and not √head_dim, by their number of layers: files do not
#: tell, and llama.cpp does the same.
_WIDE_MODELS = {"gemma2": 46, "gemma3_text": 62}

#: Names here of names in files, those of layers without their prefixes ``model.layers.N.`` and ``blk.N.``.
_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
#: Factors of rotary wavelengths, which are tensors.
_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_LAYER = re.compile(r"^blk\.(\d+)\.")


def gguf_config(file: GGUFFile | _Contents) -> CausalLMConfig:
    """Return the config that a file's metadata describe.

    Raises `ArgumentError` for an architecture or a value that is not supported, `CorruptFileError` if an entry is missing.
    """
    architecture = str(file.metadata.get("general.architecture"))
    if architecture not in _MODEL_TYPES:
        raise ArgumentError(
            f"{file.path}: the architecture {architecture!r} is not supported; supported are {', '.join(_MODEL_TYPES)}. "
            "io.open_gguf reads the tensors of any"
        )
    keys = {key.removeprefix(f"{architecture}."): value for key, value in file.metadata.items() if key.startswith(f"{architecture}.")}
    entries: dict[str, Any] = {entry: _number(file, key, keys[key]) for key, entry in _ENTRIES.items() if key in keys}
    absent = [entry for entry in _REQUIRED if not entries.get(entry)]
    if absent or "token_embd.weight" not in file:
        raise CorruptFileError(f"{file.path}: the file tells of no {', '.join(absent) or 'token_embd.weight'}; a whole model is needed")
    kind = _MODEL_TYPES[architecture]
    entries["model_type"] = kind = "mixtral" if kind == "llama" and entries.get("num_experts") else kind
    entries["vocab_size"] = file["token_embd.weight"].shape[0]
    entries["tie_word_embeddings"] = "output.weight" not in file
    entries["attention_bias"], entries["mlp_bias"] = (f"blk.0.{name}.bias" in file for name in ("attn_q", "ffn_gate"))
    entries["sliding_window"] = entries.get("sliding_window") or None
    heads = entries["num_attention_heads"]
    head_dim = entries["head_dim"] = entries.get("head_dim") or max(entries["hidden_size"] // heads, 1)
    if kind in _WIDE_MODELS:
        is_wide = entries["num_hidden_layers"] == _WIDE_MODELS[kind]
        entries["query_pre_attn_scalar"] = entries["hidden_size"] / heads if is_wide else head_dim
    entries["norm_topk_prob"] = bool(entries.get("num_experts")) and kind != "qwen2_moe"
    entries["partial_rotary_factor"] = _part(_number(file, "rope.dimension_count", keys.get("rope.dimension_count", head_dim)), head_dim)
    if original := keys.get("rope.scaling.original_context_length"):
        entries["original_max_position_embeddings"] = original
    entries["rope_scaling"] = _rope_scaling(file, keys, entries)
    ends = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    entries["eos_token_id"] = sorted({int(token) for token in ends if token is not None})
    entries |= {
        f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in (("bos", "bos"), ("pad", "padding"))
    }
    return CausalLMConfig.from_json(entries)


def _part(count: int, size: int) -> float:
    """Return the factor of `size` that is `count`, rounded down."""
    part = count / size
    return part if int(size * part) == count else math.nextafter(part, math.inf)


def _number(file: GGUFFile | _Contents, key: str, value: Any) -> Any:
    """Return a number, or that of all layers of a list."""
    values = value if isinstance(value, list) else [value]
    if any(isinstance(entry, bool) or not isinstance(entry, (int, float)) or entry < 0 for entry in values):
        raise CorruptFileError(f"{file.path}: {key} is a number of at least 0, got {value!r:.60}")
    numbers = set(values)
    if len(numbers) != 1:
        raise ArgumentError(f"{file.path}: layers of different sizes are not supported, got {key} = {value}")
    return numbers.pop()


def _rope_scaling(file: GGUFFile | _Contents, keys: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the entry `rope_scaling`, None for the usual positions."""
    lists = [tuple(np.asarray(file[name], np.float64).tolist()) if name in file else None for name in _FACTORS]
    scaling: dict[str, Any] = {entry: keys[key] for key, entry in _SCALING.items() if key in keys}
    if lists[0] is not None:  # of Llama 3.1: the quotients of its wavelengths, whatever the text's length
        length = entries.get("max_position_embeddings", 1)
        options = {"factor": 1.0, "attention_factor": 1.0, "original_max_position_embeddings": length}
        return {"rope_type": "longrope", "short_factor": lists[0], "long_factor": lists[0], **options}
    if lists[1] is not None and lists[2] is not None:
        return {"rope_type": "longrope", "short_factor": lists[1], "long_factor": lists[2], **scaling}
    kind = keys.get("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise ArgumentError(f"{file.path}: rope.scaling.type is none, linear or yarn, or there are factors as tensors; got {kind!r}")
    if kind == "yarn" and "attention_factor" in scaling:  # here it replaces the paper's factor, which files' multiplies
        scaling["attention_factor"] *= 0.1 * math.log(max(scaling.get("factor", 1.0), 1.0)) + 1
    return None if kind == "none" else {"rope_type": kind, **scaling}


def gguf_state(file: GGUFFile, config: CausalLMConfig) -> dict[str, Any]:
    """Return a file's arrays by their names in `CausalLM`, quantised ones as they are.

    Biases and the weights of norms, which files have in float32, take the dtype of the embeddings. Raises `StateDictError` if experts'
    matrices are missing or have different formats, and `DTypeError` for formats that `GGUFFile` does not read.
    """
    state = {_name(name, config): file[name] for name in file if name not in _FACTORS}
    for name in [name for name in state if name.endswith(".ffn_down_exps.weight")]:
        prefix = name.removesuffix("ffn_down_exps.weight")
        parts = [state.pop(f"{prefix}ffn_{part}_exps.weight", None) for part in ("gate", "up", "down")]
        state[f"{prefix}mlp.experts.gate_up_proj"] = _stacked(prefix, parts[0], parts[1])
        state[f"{prefix}mlp.experts.down_proj"] = parts[2]
    if config.family.parallel:  # Phi-2: three projections, which files may have in one
        for name in [name for name in state if ".self_attn.qkv_proj." in name]:
            rows, sizes = state.pop(name), [config.num_attention_heads, *[config.num_key_value_heads] * 2]
            ends = [0, *np.cumsum(sizes) * config.head_dim]
            for letter, first, last in zip("qkv", ends, ends[1:], strict=False):
                state[name.replace("qkv_proj", f"{letter}_proj")] = tree.map(lambda part, i=int(first), j=int(last): part[i:j], rows)
    dtype = state["model.embed_tokens.weight"].dtype
    for name, value in state.items():
        if config.model_type in ("llama", "mixtral", "smollm3") and re.search(r"\.self_attn\.[qk]_proj\.", name):
            state[name] = _unpermuted(value, config.head_dim)
        elif name.endswith("norm.weight") and config.family.norm == "rms_plus_one":
            state[name] = (value - 1).astype(dtype)
        elif name.endswith("mlp.shared_expert_gate.weight"):
            state[name] = value.reshape(1, config.hidden_size)
        if value.ndim == 1:
            state[name] = state[name].astype(dtype)
    return state


def _name(name: str, config: CausalLMConfig) -> str:
    """Return the name here of a tensor; others stay, so that they are reported."""
    layer = _LAYER.match(name)
    stem, _, last = name[layer.end() if layer else 0 :].rpartition(".")
    names = dict(_NAMES)
    if config.family.post_norms:
        names["ffn_norm"] = "pre_feedforward_layernorm"
    if config.family.packed:
        names["ffn_up"] = "mlp.gate_up_proj"
    return f"{f'model.layers.{layer[1]}.' if layer else ''}{names.get(stem, stem)}.{last}"


def _unpermuted(x: Any, head_dim: int) -> Any:
    """Return rows of queries or keys in halves, of which files have them in pairs."""

    def unpermute(rows: Any) -> Any:
        pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
        return pairs.swapaxes(1, 2).reshape(rows.shape)

    return tree.map(unpermute, x)  # codes and scales of quantised rows alike


def _stacked(prefix: str, gate: Any, up: Any) -> Any:
    """Return gate and up projections of all experts in one array."""
    if gate is None or up is None:
        raise StateDictError(f"the file has ffn_down_exps, but no ffn_gate_exps or no ffn_up_exps, in {prefix.rstrip('.')}")
    if tree.structure(gate) != tree.structure(up):
        raise StateDictError(f"experts' gate and up projections have one format, got {gate!r:.80} and {up!r:.80} in {prefix.rstrip('.')}")
    return tree.map(lambda a, b: vnp.concatenate([a, b], 1), gate, up)


# Writing.

#: Architectures by `model_type`, where they differ.
_ARCHITECTURES = {kind: architecture for architecture, kind in _MODEL_TYPES.items()} | {"mixtral": "llama", "mistral": "llama"}
#: Fields of a config that do not change what its model computes, or that are compared otherwise.
_NOT_COMPARED = frozenset(
    [
        "model_type",
        "rope_parameters",
        "sliding_rope_parameters",
        "initializer_range",
        "dtype",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    ]
)


class _Contents(dict[str, Any]):
    """What a file will have, for `gguf_config`."""

    def __init__(self, path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        super().__init__(tensors)
        self.path, self.metadata = path, metadata


def save_gguf_model(
    path: str | os.PathLike[str], model: CausalLM, *, format: str | None = None, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a language model to a GGUF file, for llama.cpp and `load_pretrained`.

    Quantised weights are written as `save_gguf` does: "int8" and "int4" in groups of a multiple of 32, whose scales are float16 numbers.
    Vectors and routers are written in float32, as llama.cpp needs them, and other floats in their dtype.

    Args:
        path: of the file.
        model: the model, of an architecture that `load_pretrained` reads from GGUF files.
        format: what matrices of floats are rounded to: "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K" or "Q6_K". A matrix whose rows are not whole
            blocks of a K format is rounded to Q8_0, and one that is no multiple of 32 stays as it is.
        metadata: more entries. llama.cpp needs a tokenizer's; those of another file are the entries of its ``metadata`` whose names begin
            with "tokenizer.".

    Raises:
        ArgumentTypeError: the model is no `CausalLM`.
        ArgumentError: the architecture, or something about the model that such files cannot tell, or a quantised weight of another kind.
        DTypeError: scales are not float16 numbers; see `save_gguf`.
        MissingDependencyError, SerializationError: the package gguf is not installed, or the file cannot be written.

    >>> import tempfile, volta_fn as vf
    >>> config = vf.nn.CausalLMConfig(model_type="llama", vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=1,
    ...                               num_attention_heads=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vf.io.save_gguf_model(f"{folder}/model.gguf", vf.nn.CausalLM.init(vf.random.key(0), config))
    ...     model = vf.io.load_pretrained(f"{folder}/model.gguf")
    >>> model.config.hidden_size
    4
    """
    if not isinstance(model, CausalLM):
        raise ArgumentTypeError(f"save_gguf_model: a CausalLM is needed, got {type(model).__name__}; save_gguf writes any arrays")
    config = model.config
    if config.model_type not in _ARCHITECTURES:
        raise ArgumentError(f"save_gguf_model: the model_type is one of {', '.join(_ARCHITECTURES)}, got {config.model_type!r}")
    tensors = {**_tensors(model.unstack()), **_factor_tensors(config)}
    entries = {**_metadata(config), **(metadata or {})}
    _check(_Contents(Path(path), tensors, entries), config)
    formats: dict[str, str] = {}
    for name, value in tensors.items():
        if format is not None and value.ndim > 1 and not isinstance(value, QuantizedArray) and "ffn_gate_inp" not in name:
            block = 256 if format.endswith("_K") else 32
            if value.shape[-1] % 32 == 0:
                formats[name] = format if value.shape[-1] % block == 0 else "Q8_0"
    save_gguf(path, tensors, entries, formats=formats)


def _check(contents: _Contents, config: CausalLMConfig) -> None:
    """Raise `ArgumentError` if a file would be read as another model."""
    read = gguf_config(contents)
    ignored = _NOT_COMPARED | ({"attention_bias"} if config.family.qkv_bias is not None else set())
    names = [field.name for field in dataclasses.fields(config) if field.name not in ignored]
    different = [name for name in names if getattr(read, name) != getattr(config, name)]
    if different:
        shown = ", ".join(f"{name} = {getattr(config, name)!r:.60}, which is read as {getattr(read, name)!r:.60}" for name in different)
        raise ArgumentError(f"save_gguf_model: files of llama.cpp's cannot tell {shown}")


def _metadata(config: CausalLMConfig) -> dict[str, Any]:
    """Return the entries of a config."""
    architecture, rope = _ARCHITECTURES[config.model_type], config.rope_parameters
    values: dict[str, Any] = {key: getattr(config, entry, None) for key, entry in _ENTRIES.items()}
    values["attention.value_length"] = config.head_dim
    values["rope.freq_base"] = rope.rope_theta
    values["rope.dimension_count"] = int(config.head_dim * rope.partial_rotary_factor)
    values["vocab_size"] = config.vocab_size
    if config.sliding_rope_parameters is not None:
        values["rope.freq_base_swa"] = config.sliding_rope_parameters.rope_theta
    del values["attention.layer_norm_rms_epsilon" if config.family.norm == "layer" else "attention.layer_norm_epsilon"]
    if rope.rope_type in ("linear", "yarn"):
        values["rope.scaling.type"] = rope.rope_type
    if rope.rope_type in ("linear", "yarn", "longrope"):
        scaling = {key: getattr(rope, entry) for key, entry in _SCALING.items() if rope.rope_type != "linear" or entry == "factor"}
        if rope.rope_type == "yarn" and rope.attention_factor is not None:  # files have what multiplies the paper's factor
            scaling["rope.scaling.attn_factor"] = rope.attention_factor / (0.1 * math.log(max(rope.factor or 1.0, 1.0)) + 1)
        values |= scaling
    elif rope.rope_type not in ("default", "llama3"):
        raise ArgumentError(f"save_gguf_model: files of llama.cpp's have no positions of the kind {rope.rope_type!r}")
    elif rope.original_max_position_embeddings and rope.rope_type == "default":
        values["rope.scaling.original_context_length"] = rope.original_max_position_embeddings
    entries = {f"{architecture}.{key}": value for key, value in values.items() if value is not None and value is not False}
    for key in [key for key in entries if "expert" in key and not config.num_experts]:
        del entries[key]
    ends = dict(zip(("eos", "eot", "eom"), config.eos_token_id or (), strict=False))
    tokens = {"bos": config.bos_token_id, "padding": config.pad_token_id, **ends}
    entries |= {f"tokenizer.ggml.{name}_token_id": token for name, token in tokens.items() if token is not None}
    return {"general.architecture": architecture, "general.quantization_version": 2, **entries}


def _factor_tensors(config: CausalLMConfig) -> dict[str, np.ndarray]:
    """Return the factors of rotary wavelengths by the names of their tensors."""
    rope = config.rope_parameters
    if rope.rope_type == "llama3":
        return {_FACTORS[0]: llama3_factors(rope, int(config.head_dim * rope.partial_rotary_factor)).astype(np.float32)}
    if rope.rope_type == "longrope":
        return {name: np.asarray(x, np.float32) for name, x in zip(_FACTORS[1:], (rope.short_factor, rope.long_factor), strict=True)}
    return {}


def _tensors(model: CausalLM) -> dict[str, Any]:
    """Return a model's arrays by their names in files."""
    config, names = model.config, {ours: theirs for theirs, ours in _NAMES.items()}
    names["post_attention_layernorm"] = "post_attention_norm" if config.family.post_norms else "ffn_norm"
    names |= {"pre_feedforward_layernorm": "ffn_norm", "mlp.gate_up_proj": "ffn_up"}
    leaves = tree.leaves_with_path(model, is_leaf=lambda node: isinstance(node, WeightArray))
    result: dict[str, Any] = {}
    for path, value in leaves:
        if isinstance(value, PermutedArray):
            raise ArgumentError(f"save_gguf_model: groups of {dotted(path)} are no neighbours, which files need; dequantize() the model")
        layer = re.match(r"^model\.layers\.(\d+)\.", dotted(path))
        prefix, name = (f"blk.{layer[1]}.", dotted(path)[layer.end() :]) if layer else ("", dotted(path))
        if name.startswith("mlp.experts."):
            parts = _halves_of(value) if name.endswith("gate_up_proj") else {"down": value}
            result |= {f"{prefix}ffn_{part}_exps.weight": rows for part, rows in parts.items()}
            continue
        stem, _, last = name.rpartition(".")
        if config.model_type in ("llama", "mistral", "mixtral", "smollm3") and stem in ("self_attn.q_proj", "self_attn.k_proj"):
            value = _permuted(value, config.head_dim)
        if stem.endswith("norm") and config.family.norm == "rms_plus_one":
            value = value.astype("float32") + 1
        if value.ndim == 1 or names.get(stem, "").startswith("ffn_gate_inp"):
            value = (value.dequantize() if isinstance(value, QuantizedArray) else value).astype("float32")
        result[f"{prefix}{names[stem]}.{last}"] = value.reshape(-1) if stem == "mlp.shared_expert_gate" else value
    return result


def _permuted(x: Any, head_dim: int) -> Any:
    """Return rows of queries or keys in pairs, which models here have in halves."""
    return tree.map(lambda rows: rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape), x)


def _halves_of(value: Any) -> dict[str, Any]:
    """Return gate and up projections of experts."""
    half = value.shape[1] // 2
    return {part: tree.map(lambda x, i=i: x[:, i * half : (i + 1) * half], value) for i, part in enumerate(("gate", "up"))}
