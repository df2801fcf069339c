"""LoRA adapters in the folders that Hugging Face's PEFT saves."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.errors import ArgumentError, SerializationError, StateDictError
from volta_fn.io.files import open_safetensors, parse_json, save_safetensors, write_text
from volta_fn.io.pretrained import names_in_files
from volta_fn.nn.adapters import LoRA
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.nn.language.layers import Projection

_PREFIX = "base_model.model."
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: Names in files of an adapter's arrays.
_ARRAYS = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight", "magnitude": "lora_magnitude_vector"}


def _adapters(model: CausalLM) -> dict[str, LoRA]:
    """Return a model's adapters by their names in files."""
    leaves = tree.leaves_with_path(model, is_leaf=lambda node: isinstance(node, LoRA))
    nodes = {tree.keystr(path, simple=True, separator="."): node for path, node in leaves if isinstance(node, LoRA)}
    return dict(zip(names_in_files(model.config, nodes), nodes.values(), strict=True))


def save_adapter(folder: str | os.PathLike[str], model: CausalLM) -> None:
    """Write the adapters of a language model, without the model, as PEFT does.

    Args:
        folder: is created if it does not exist; it gets adapter_config.json and adapter_model.safetensors.
        model: a model of `nn.lora`, of one rank and scale.

    Raises:
        ArgumentError: there are no adapters, or they differ in rank or scale. SerializationError: a file cannot be written.

    >>> import tempfile, volta_fn as vf
    >>> config = vf.nn.CausalLMConfig(model_type="llama", vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=1,
    ...                               num_attention_heads=2)
    >>> model = vf.nn.CausalLM.init(vf.random.key(0), config)
    >>> adapted = vf.nn.lora(model, vf.random.key(1), rank=2, where="*.[qv]_proj")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vf.io.save_adapter(folder, adapted)
    ...     same = vf.io.load_adapter(folder, model)
    >>> vf.nn.tree_equal(same, adapted)
    True
    """
    adapters = _adapters(model)
    kinds = {(node.lora_A.shape[0], node.scale, node.magnitude is not None) for node in adapters.values()}
    if len(kinds) != 1:
        raise ArgumentError(f"save_adapter: adapters of one rank, scale and kind are needed, got {len(kinds)} kinds of {len(adapters)}")
    ((rank, scale, dora),) = kinds
    arrays: dict[str, Any] = {}
    for name, node in adapters.items():
        parts = {"lora_A": node.lora_A, "lora_B": node.lora_B, "magnitude": node.magnitude}
        arrays |= {f"{_PREFIX}{name}.{_ARRAYS[part]}": value for part, value in parts.items() if value is not None}
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_safetensors(path / _WEIGHTS, arrays, {"format": "pt"})
    entries: dict[str, Any] = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": scale * rank, "lora_dropout": 0.0, "bias": "none",
        "use_dora": dora, "use_rslora": False, "fan_in_fan_out": False, "target_modules": sorted({n.rpartition(".")[2] for n in adapters}),
    }  # fmt: skip
    layers = {name for name, node in _linear_layers(model).items() if name.rpartition(".")[2] in entries["target_modules"]}
    if layers != set(adapters):  # names' ends are ambiguous
        entries["target_modules"] = sorted(adapters)
    write_text(path / _CONFIG, json.dumps(entries, indent=2) + "\n")


def _linear_layers(model: CausalLM) -> dict[str, Any]:
    """Return a model's projections and adapters by their names in files."""
    kinds = (LoRA, Projection)
    leaves = tree.leaves_with_path(model, is_leaf=lambda node: isinstance(node, kinds))
    nodes = {tree.keystr(path, simple=True, separator="."): node for path, node in leaves if isinstance(node, kinds)}
    return dict(zip(names_in_files(model.config, nodes), nodes.values(), strict=True))


def load_adapter(folder: str | os.PathLike[str], model: CausalLM) -> CausalLM:
    """Return a language model with the LoRA or DoRA adapters in a folder of PEFT's.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.
        model: the model that the adapters were trained on.

    Raises:
        SerializationError: a file is missing. CorruptFileError: a file is damaged.
        ArgumentError: adapters of another kind, or with biases or whole layers. StateDictError: the adapters do not fit the model.
    """
    path = Path(folder)
    for name in (_CONFIG, _WEIGHTS):
        if not (path / name).is_file():
            raise SerializationError(f"{path}: there is no {name}; a folder as PEFT's save_pretrained writes is needed")
    entries = parse_json((path / _CONFIG).read_bytes(), str(path / _CONFIG), naturals=False)
    _check(entries)
    arrays = dict(open_safetensors(path / _WEIGHTS))
    layers = _linear_layers(model)
    adapters: dict[int, LoRA] = {}
    for name, layer in layers.items():
        parts = {part: arrays.pop(f"{_PREFIX}{name}.{theirs}", None) for part, theirs in _ARRAYS.items()}
        if parts["lora_A"] is None and parts["lora_B"] is None:
            continue
        if isinstance(layer, LoRA):
            raise ArgumentError(f"load_adapter: {name} is an adapter already; nn.merge_lora(model) makes it a plain layer")
        adapters[id(layer)] = _adapter(name, layer, parts, entries)
    if arrays or not adapters:
        raise StateDictError(
            f"load_adapter: the model has no layers for {sorted(arrays)[:4] or 'any adapter'}, {len(arrays)} arrays in all"
        )
    changed: CausalLM = tree.map(lambda node: adapters.get(id(node), node), model, is_leaf=lambda node: isinstance(node, Projection))
    return changed


def _check(entries: dict[str, Any]) -> None:
    if entries.get("peft_type") != "LORA":
        raise ArgumentError(f"load_adapter: peft_type is 'LORA', got {entries.get('peft_type')!r}")
    if entries.get("bias", "none") != "none" or entries.get("modules_to_save") or entries.get("fan_in_fan_out"):
        raise ArgumentError("load_adapter: adapters with biases, fan_in_fan_out or modules_to_save are not supported")


def _adapter(name: str, layer: Projection, parts: dict[str, Any], entries: dict[str, Any]) -> LoRA:
    a, b, magnitude = parts["lora_A"], parts["lora_B"], parts["magnitude"]
    out, size = layer.weight.shape
    shapes = {} if a is None or b is None else {"lora_A": (a.shape, (a.shape[0], size)), "lora_B": (b.shape, (out, a.shape[0]))}
    if not shapes or any(actual != expected for actual, expected in shapes.values()):
        raise StateDictError(f"load_adapter: {name} needs lora_A (rank, {size}) and lora_B ({out}, rank), got {shapes or 'one of them'}")
    rank = a.shape[0]
    alpha = next(
        (alpha for pattern, alpha in (entries.get("alpha_pattern") or {}).items() if _names(pattern, name)), entries.get("lora_alpha", rank)
    )
    scale = alpha / (math.sqrt(rank) if entries.get("use_rslora") else rank)
    return LoRA(layer, a, b, None if magnitude is None else vnp.reshape(magnitude, (out,)), float(scale))


def _names(pattern: str, name: str) -> bool:
    """Return True if a regular expression matches a layer's name, or its end after a dot, as in PEFT."""
    try:
        return re.match(rf"(.*\.)?({pattern})$", name) is not None
    except re.error as error:
        raise ArgumentError(f"load_adapter: {pattern!r} in alpha_pattern is no regular expression: {error}") from error
