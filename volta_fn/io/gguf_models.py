"""Language models in GGUF files: configs by metadata, and arrays by name.

Keys and names of tensors are llama.cpp's (github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py; what its convert_hf_to_gguf.py changes
in a model is undone here). Quantised tensors stay quantised.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.errors import ArgumentError, CorruptFileError, StateDictError
from volta_fn.io.gguf import GGUFFile
from volta_fn.nn.language.config import CausalLMConfig

#: The `model_type` by "general.architecture". Llama is Mixtral, too, where there are experts.
_MODEL_TYPES: Mapping[str, str] = {
    "llama": "llama", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3": "gemma3_text", "phi3": "phi3", "smollm3": "smollm3",
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


def gguf_config(file: GGUFFile) -> CausalLMConfig:
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
    entries["partial_rotary_factor"] = _number(file, "rope.dimension_count", keys.get("rope.dimension_count", head_dim)) / head_dim
    if original := keys.get("rope.scaling.original_context_length"):
        entries["original_max_position_embeddings"] = original
    entries["rope_scaling"] = _rope_scaling(file, keys, entries)
    ends = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    entries["eos_token_id"] = sorted({int(token) for token in ends if token is not None})
    entries |= {
        f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in (("bos", "bos"), ("pad", "padding"))
    }
    return CausalLMConfig.from_json(entries)


def _number(file: GGUFFile, key: str, value: Any) -> Any:
    """Return a number, or that of all layers of a list."""
    values = value if isinstance(value, list) else [value]
    if any(isinstance(entry, bool) or not isinstance(entry, (int, float)) or entry < 0 for entry in values):
        raise CorruptFileError(f"{file.path}: {key} is a number of at least 0, got {value!r:.60}")
    numbers = set(values)
    if len(numbers) != 1:
        raise ArgumentError(f"{file.path}: layers of different sizes are not supported, got {key} = {value}")
    return numbers.pop()


def _rope_scaling(file: GGUFFile, keys: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any] | None:
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
