"""Language models in the folders that Hugging Face saves: config.json and weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.dtypes import as_dtype
from volta_fn.errors import ArgumentTypeError, StateDictError
from volta_fn.io.files import open_safetensors, save_safetensors, write_text
from volta_fn.io.state_dict import dotted, load_state_dict, state_dict
from volta_fn.nn.language.config import CausalLMConfig
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.transforms.make_jaxpr import eval_shape

#: Names in files of parts of names here, where they differ, by `model_type`.
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "phi": {
        "self_attn.o_proj": "self_attn.dense",
        "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2",
        "model.norm": "model.final_layernorm",
    },
    "mixtral": {"mlp.gate": "block_sparse_moe.gate", "mlp.experts": "block_sparse_moe.experts"},
}
#: Names in files of an expert's gate, up and down projections, by `model_type`.
_EXPERT: Mapping[str, tuple[str, str, str]] = {"mixtral": ("w1", "w3", "w2")}
_QWEN_EXPERT = ("gate_proj", "up_proj", "down_proj")
#: Prefixes of a multimodal Gemma 3: of the language model, and of what is left out.
_LANGUAGE_MODEL = re.compile(r"^(language_model\.model|model\.language_model)\.")
_VISION = re.compile(r"^(model\.)?(vision_tower|multi_modal_projector)\.")
#: Arrays that old files hold, and that follow from the config.
_DERIVED = re.compile(r"\.rotary_emb\.inv_freq$|\.self_attn\.bias$|\.masked_bias$")


def load_pretrained(folder: str | os.PathLike[str], *, dtype: Any = None) -> CausalLM:
    """Load a language model from a folder with config.json and safetensors files.

    On the CPU weights are views of the files, single or in shards: nothing is copied, and pages are read on first use. Experts of sparse
    layers
    are the exception, which files hold one by one: they are copied into arrays of all. Of a Gemma 3 with vision the language model is
    loaded.

    Args:
        folder: a folder as Hugging Face's `save_pretrained` writes.
        dtype: to convert all weights to (default: each has the file's).

    Raises:
        SerializationError: the config or the weights are missing. CorruptFileError: a file is damaged.
        ArgumentError: the config is not supported. StateDictError: the weights do not fit the config; the message has the full report.

    >>> import tempfile, volta_fn as vf
    >>> config = vf.nn.CausalLMConfig(model_type="llama", vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=1,
    ...                               num_attention_heads=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vf.io.save_pretrained(folder, vf.nn.CausalLM.init(vf.random.key(0), config))
    ...     model = vf.io.load_pretrained(folder)
    >>> model.config == config
    True
    """
    config = CausalLMConfig.from_pretrained(folder)
    files = open_safetensors(_weights(Path(folder)))
    state = _from_file(config, files)
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    if dtype is not None:
        state = {name: value.astype(dtype) for name, value in state.items()}
    table = state.get("model.embed_tokens.weight")
    if table is not None:
        config = replace(config, dtype=np.dtype(table.dtype).name if dtype is None else as_dtype(dtype).name)
    template = eval_shape(lambda: CausalLM.init(random.key(0), config))
    return load_state_dict(_with_dtypes_of(state, template), state)


def _weights(folder: Path) -> Path:
    """Return the usual file of weights if it exists, else the folder."""
    usual = [folder / "model.safetensors.index.json", folder / "model.safetensors"]
    return next((path for path in usual if path.is_file()), folder)


def _with_dtypes_of(state: Mapping[str, Any], template: Any) -> Any:
    """Return a template whose arrays have the dtypes of a state dict."""

    def changed(path: tree.KeyPath, leaf: Any) -> ShapeDtypeStruct:
        value = state.get(dotted(path))
        return ShapeDtypeStruct(leaf.shape, leaf.dtype if value is None else value.dtype)

    return tree.map_with_path(changed, template)


def save_pretrained(folder: str | os.PathLike[str], model: CausalLM, *, max_shard_size: int | str = "5GB") -> None:
    """Write a language model to a folder that `load_pretrained` and Hugging Face read.

    It writes config.json and model.safetensors, or shards and their index; other files of the folder, such as a tokenizer's, stay.

    Args:
        folder: is created if it does not exist.
        model: the model.
        max_shard_size: the most bytes of one file, see `save_safetensors`.

    Raises:
        ArgumentTypeError: the model is no `CausalLM`. SerializationError: a file cannot be written.
    """
    if not isinstance(model, CausalLM):
        raise ArgumentTypeError(f"save_pretrained: a CausalLM is needed, got {type(model).__name__}; save_safetensors saves any model")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    state = _to_file(model.config, state_dict(model.unstack()))
    save_safetensors(path / "model.safetensors", state, {"format": "pt"}, max_shard_size=max_shard_size)
    write_text(path / "config.json", json.dumps(model.config.to_json(), indent=2) + "\n")


# Names.


def _from_file(config: CausalLMConfig, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a file by their names here."""
    names = {theirs: ours for ours, theirs in _RENAMED.get(config.model_type, {}).items()}
    state = {_renamed(name, names): name for name in files if not _DERIVED.search(name)}
    if config.model_type == "gemma3_text":
        state = {_LANGUAGE_MODEL.sub("model.", name): theirs for name, theirs in state.items() if not _VISION.search(name)}
        state = {name.replace("language_model.lm_head.", "lm_head."): theirs for name, theirs in state.items()}
    experts = {name: theirs for name, theirs in state.items() if re.search(r"\.mlp\.experts\.\d+\.", name)}
    arrays = {name: files[theirs] for name, theirs in state.items() if name not in experts}
    gate, up, down = _EXPERT.get(config.model_type, _QWEN_EXPERT)
    for prefix in dict.fromkeys(re.sub(r"\.\d+\.[^.]+\.weight$", "", name) for name in experts):
        used = [f"{prefix}.{e}.{part}.weight" for e in range(config.num_experts) for part in (gate, up, down)]
        absent = [name for name in used if name not in experts]
        if absent:
            raise StateDictError(f"load_pretrained: the file has no {absent[0]}, one of {len(absent)} missing arrays of experts")
        rows = [[files[experts[f"{prefix}.{e}.{part}.weight"]] for part in (gate, up, down)] for e in range(config.num_experts)]
        arrays[f"{prefix}.gate_up_proj"] = vnp.stack([vnp.concatenate(row[:2]) for row in rows])
        arrays[f"{prefix}.down_proj"] = vnp.stack([row[2] for row in rows])
        for name in used:
            del experts[name]
    return arrays | {name: files[theirs] for name, theirs in experts.items()}


def _to_file(config: CausalLMConfig, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by their names in files."""
    gate, up, down = _EXPERT.get(config.model_type, _QWEN_EXPERT)
    arrays: dict[str, Any] = {}
    for name, value in state.items():
        theirs = _renamed(name, _RENAMED.get(config.model_type, {}))
        prefix, _, last = theirs.rpartition(".")
        if not prefix.endswith(".experts"):
            arrays[theirs] = value
            continue
        for e in range(config.num_experts):
            if last == "down_proj":
                arrays[f"{prefix}.{e}.{down}.weight"] = value[e]
            else:
                halves = vnp.split(value[e], 2)
                arrays |= {f"{prefix}.{e}.{part}.weight": half for part, half in zip((gate, up), halves, strict=True)}
    return arrays


def names_in_files(config: CausalLMConfig, names: Iterable[str]) -> list[str]:
    """Return the names in files of layers."""
    parts = _RENAMED.get(config.model_type, {})
    return [_renamed(f"{name}.", parts)[:-1] for name in names]


def _renamed(name: str, parts: Mapping[str, str]) -> str:
    for old, new in parts.items():
        pattern = rf"(^|\.){re.escape(old)}(?=\.)"
        name = re.sub(pattern, lambda match, new=new: match[1] + new, name)  # type: ignore[misc]  # bound for each part
    return name
