"""Language models and adapters in Hugging Face's folders, and in GGUF files."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.aval import ShapeDtypeStruct, Typed, check_option
from volta_fn.core.staging import eval_shape
from volta_fn.dtypes import as_dtype
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, SerializationError, ShapeError, StateDictError, TreeError
from volta_fn.io.files import open_safetensors, parse_json, save_safetensors, write_text
from volta_fn.io.gguf import GGUFFile, gguf_config, gguf_state, open_gguf
from volta_fn.io.state_dict import dotted, load_state_dict, on_host, sharing, state_dict
from volta_fn.nn.adapters import LoRA
from volta_fn.nn.language.config import CausalLMConfig
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.nn.language.layers import Projection
from volta_fn.nn.quantized_array import PermutedArray, QuantizedArray, WeightArray
from volta_fn.primitives.quantized import pack_nibbles

# Weights of 4 and 8 bits as GPTQ and AWQ pack them, as `nn.QuantizedArray`.
#
# Both pack codes of (in, out) matrices in int32, with a scale and a zero point for each group of rows: the weight is ``(code - zero) *
# scale``. GPTQ packs along in, the first code in the lowest bits, and stores zero points less 1 (version 1 of its format). AWQ packs along
# out, in the order 0, 2, 4, 6, 1, 3, 5, 7. (Formats: AutoGPTQ's `qlinear` modules, and AutoAWQ's `WQLinear_GEMM`.)

#: The position in the int32 of each of 8 neighbouring columns.
_AWQ_POSITIONS = [0, 4, 1, 5, 2, 6, 3, 7]


def from_gptq(
    qweight: Any, qzeros: Any, scales: Any, g_idx: Any = None, *, bits: Literal[4, 8] = 4, zero_shift: int = 1
) -> QuantizedArray | PermutedArray:
    """Return a weight that GPTQ has packed, of shape (in, out).

    It is an `nn.QuantizedArray` if the rows of a group are neighbours, else ("desc_act") an `nn.PermutedArray`, which multiplies its input
    in the order of the groups.

    Args:
        qweight: int32 of shape (in * bits / 32, out).
        qzeros: int32 of shape (groups, out * bits / 32).
        scales: floats of shape (groups, out).
        g_idx: the group of each row, of shape (in,); None: consecutive rows.
        bits: of a code.
        zero_shift: what is to be added to the stored zero points: 1, or 0 in version 2 of the format.

    Raises:
        ArgumentError: other bits.
        ShapeError: the shapes do not fit each other, or groups have different sizes.
    """
    check_option(bits, "from_gptq: bits", (4, 8))
    by_row = _unpacked_codes(_words("qweight", qweight).T, bits)  # (out, in)
    zeros = _unpacked_codes(_words("qzeros", qzeros), bits) + zero_shift
    if g_idx is None:
        return _packed_array("from_gptq", by_row, zeros, scales, bits)
    group = on_host(g_idx) if isinstance(g_idx, Typed) else np.asarray(g_idx)
    size = by_row.shape[1]
    if group.shape != (size,) or not np.array_equal(np.sort(group), np.arange(size) // max(size // max(len(zeros), 1), 1)):
        raise ShapeError(
            f"from_gptq: g_idx has the group of each of {size} rows, and {len(zeros)} groups as many rows each, got {group!r:.80} of shape "
            f"{group.shape}"
        )
    order = np.argsort(group, kind="stable").astype(np.int32)
    array = _packed_array("from_gptq", by_row[:, order], zeros, scales, bits)
    return array if np.array_equal(order, np.arange(size)) else PermutedArray(array, sharing(order))


def from_awq(qweight: Any, qzeros: Any, scales: Any) -> QuantizedArray:
    """Return a weight of 4 bits that AWQ has packed, of shape (in, out).

    Args:
        qweight: int32 of shape (in, out / 8).
        qzeros: int32 of shape (groups, out / 8).
        scales: floats of shape (groups, out).

    Raises `ShapeError` if the shapes do not fit each other.
    """
    codes, zeros = (_unpacked_codes(_words(name, words), 4) for name, words in (("qweight", qweight), ("qzeros", qzeros)))
    codes, zeros = (x.reshape(x.shape[0], -1, 8)[..., _AWQ_POSITIONS].reshape(x.shape) for x in (codes, zeros))
    return _packed_array("from_awq", codes.T, zeros, scales, 4)


def unpack_weights(state: Mapping[str, Any], method: Literal["gptq", "awq"], **options: Any) -> dict[str, Any]:
    """Return a state dict in which packed weights are quantised arrays.

    For each "NAME.qweight" it has "NAME.weight" instead of that and of "NAME.qzeros", "NAME.scales" and "NAME.g_idx". Everything else
    stays. Weights have shape (in, out), that of `nn.Linear`.

    Args:
        state: arrays by name, as `load_safetensors` gives them.
        method: "gptq" or "awq".
        options: those of `from_gptq`.

    Raises `StateDictError` if an array is missing, and what `from_gptq` and `from_awq` raise.
    """
    check_option(method, "unpack_weights: the method", ("gptq", "awq"))
    names = [name.removesuffix(".qweight") for name in state if name.endswith(".qweight")]
    parts = ("qweight", "qzeros", "scales", "g_idx")
    result = {name: value for name, value in state.items() if name.rpartition(".")[0] not in names or name.rpartition(".")[2] not in parts}
    for name in names:
        missing = [part for part in parts[:3] if f"{name}.{part}" not in state]
        if missing:
            raise StateDictError(f"unpack_weights: {name!r} has a qweight, but no {' and no '.join(missing)}")
        qweight, qzeros, scales = (state[f"{name}.{part}"] for part in parts[:3])
        if method == "gptq":
            result[f"{name}.weight"] = from_gptq(qweight, qzeros, scales, state.get(f"{name}.g_idx"), **options)
        else:
            result[f"{name}.weight"] = from_awq(qweight, qzeros, scales, **options)
    return result


def _words(name: str, value: Any) -> np.ndarray:
    array = on_host(value) if isinstance(value, Typed) else np.asarray(value)
    if array.dtype != np.int32 or array.ndim != 2:
        raise ShapeError(f"packed weights: {name} is an int32 matrix, got {array.dtype.name} of shape {array.shape}")
    return np.ascontiguousarray(array)


def _unpacked_codes(words: np.ndarray, bits: int) -> np.ndarray:
    """Return the codes of int32 words along the last axis, the lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts) & np.uint32(2**bits - 1)
    return codes.reshape(words.shape[0], -1).astype(np.int32)


def _packed_array(caller: str, codes: np.ndarray, zeros: np.ndarray, scales: Any, bits: int) -> QuantizedArray:
    """Return the array of codes (out, in) with zero points and scales (groups, out)."""
    by_group = on_host(scales) if isinstance(scales, Typed) else np.asarray(scales)
    out, size = codes.shape
    groups = by_group.shape[0] if by_group.ndim == 2 else 0
    if by_group.shape != (groups, out) or zeros.shape != by_group.shape or not groups or size % groups:
        raise ShapeError(
            f"{caller}: {size} rows of {out} columns need scales and zero points of shape (groups, {out}), with groups that divide {size}; "
            f"got scales {by_group.shape} and zero points {zeros.shape}"
        )
    group_size = size // groups
    middle = 8 if bits == 4 else 128
    offsets = by_group.T.astype(np.float32) * (middle - zeros.T)
    data = pack_nibbles(codes) if bits == 4 else (codes - 128).astype(np.int8)
    arrays = dict(zip(("data", "scales", "offsets"), [sharing(np.ascontiguousarray(x)) for x in (data, by_group.T, offsets)], strict=True))
    scheme = "int4" if bits == 4 else "int8"
    return QuantizedArray(**arrays, scheme=scheme, inner=(size,), group_size=group_size, rows_last=True, dtype=by_group.dtype)


# Folders of models.

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


#: The entry of config.json that tells of quantised weights, and its `quant_method` of those that `save_pretrained` writes.
_QUANTIZATION, _METHOD = "quantization_config", "volta_fn"
#: What it says of each, besides the arrays.
_OPTIONS = ("scheme", "group_size", "activations")


def load_pretrained(source: str | os.PathLike[str] | GGUFFile, *, dtype: Any = None) -> CausalLM:
    """Load a language model from a folder with config.json and safetensors files.

    On the CPU weights are views of the files, single or in shards: nothing is copied, and pages are read on first use. Experts of sparse
    layers are the exception, which files hold one by one: they are copied into arrays of all. Of a Gemma 3 with vision the language model
    is loaded.

    Quantised weights stay quantised, as `nn.QuantizedArray`: those of `save_pretrained`, those of 4 and 8 bits that GPTQ or AWQ packed
    (which are unpacked on loading), and those of GGUF files.

    Args:
        source: a folder as Hugging Face's `save_pretrained` writes, or a GGUF file of llama.cpp's, by its path (needs the package gguf) or
            as `open_gguf` returns it.
        dtype: to convert all weights to (default: each has the file's); quantised ones stand for it.

    Raises:
        SerializationError: the config or the weights are missing. CorruptFileError: a file is damaged.
        ArgumentError: the config, the architecture of a GGUF file, or another way to quantise is not supported.
        DTypeError: a tensor of a GGUF file has a format that `GGUFFile` does not read.
        MissingDependencyError: a GGUF file without the package gguf.
        StateDictError: the weights do not fit the config; the message has the full report.

    >>> import tempfile
    >>> config = vf.nn.CausalLMConfig(model_type="llama", vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=1,
    ...                               num_attention_heads=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vf.io.save_pretrained(folder, vf.nn.CausalLM.init(vf.random.key(0), config))
    ...     model = vf.io.load_pretrained(folder)
    >>> model.config == config
    True
    """
    path = source.path if isinstance(source, GGUFFile) else Path(source)
    if isinstance(source, GGUFFile) or path.suffix == ".gguf":
        file = source if isinstance(source, GGUFFile) else open_gguf(path)
        config = gguf_config(file)
        state = gguf_state(file, config)
    elif path.is_file():
        raise SerializationError(f"{path} is neither a folder of a model as Hugging Face saves it nor a .gguf file")
    else:
        config = CausalLMConfig.from_pretrained(path)
        state = _from_file(config, _unpacked(path, open_safetensors(_weights(path))))
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    if dtype is not None:
        state = {name: _converted(value, as_dtype(dtype)) for name, value in state.items()}
    table = state.get("model.embed_tokens.weight")
    if table is not None:
        config = replace(config, dtype=np.dtype(table.dtype).name)
    template = eval_shape(lambda: CausalLM.init(random.key(0), config))
    return load_state_dict(_with_kinds_of(state, template), _flat(state))


def _converted(value: Any, dtype: np.dtype) -> Any:
    if isinstance(value, PermutedArray):
        return replace(value, array=_converted(value.array, dtype))
    return replace(value, dtype=dtype) if isinstance(value, QuantizedArray) else value.astype(dtype)


def _weights(folder: Path) -> Path:
    """Return the usual file of weights if it exists, else the folder."""
    usual = [folder / "model.safetensors.index.json", folder / "model.safetensors"]
    return next((path for path in usual if path.is_file()), folder)


def _with_kinds_of(state: Mapping[str, Any], template: Any) -> Any:
    """Return a template whose arrays have the dtypes of a state dict.

    It has quantised arrays where the state dict has some of the shape of the template's.
    """

    def changed(path: tree.KeyPath, leaf: Any) -> Any:
        value = state.get(dotted(path))
        if not isinstance(value, WeightArray):
            return ShapeDtypeStruct(leaf.shape, leaf.dtype if value is None else value.dtype)
        if value.shape != leaf.shape:
            raise StateDictError(f"load_pretrained: {dotted(path)} has shape {leaf.shape}, the file has {value!r}")
        return tree.map(lambda part: ShapeDtypeStruct(part.shape, part.dtype), value)

    return tree.map_with_path(changed, template)


def _flat(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict with the parts of quantised arrays in their place."""
    pairs = [(name, tree.leaves_with_path(value)) for name, value in state.items()]
    return {f"{name}.{dotted(path)}" if path else name: leaf for name, leaves in pairs for path, leaf in leaves}


# Quantised weights in folders.


def _unpacked(folder: Path, files: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a folder's arrays by their names, quantised as its config.json says."""
    path = folder / "config.json"
    how = parse_json(path.read_bytes(), str(path), naturals=False).get(_QUANTIZATION)
    if how is None:
        return files
    method = how.get("quant_method") if isinstance(how, dict) else None
    if method == _METHOD:
        return _quantized(path, files, how.get("weights"))
    if method not in ("gptq", "awq") or (method == "awq" and how.get("version", "gemm") != "gemm"):
        kind = repr(method) if method != "awq" else f"'awq' of the version {how['version']!r}"
        raise ArgumentError(
            f"{path}: weights quantised by {kind} are not supported; supported are 'gptq', 'awq' of the version 'gemm', and what "
            "io.save_pretrained writes. Load the model's unquantised weights, and use nn.quantize"
        )
    bits = how.get("bits", how.get("w_bit", 4))
    if method == "awq" and bits != 4:
        raise ArgumentError(f"{path}: AWQ's weights have 4 bits, got {bits!r}")
    shift = 0 if how.get("checkpoint_format") == "gptq_v2" else 1
    unpacked = unpack_weights(files, method, **({"bits": bits, "zero_shift": shift} if method == "gptq" else {}))
    return {name: value.T if isinstance(value, WeightArray) else value for name, value in unpacked.items()}


def _quantized(path: Path, files: Mapping[str, Any], weights: Any) -> dict[str, Any]:
    """Return arrays of a file in which `save_pretrained` wrote quantised ones.

    `weights` are the options of each by name.
    """
    if not isinstance(weights, dict):
        raise CorruptFileError(f"{path}: {_QUANTIZATION} has no weights")
    parts = {f"{name}.{part}" for name in weights for part in ("data", "scales", "offsets")}
    arrays = {name: files[name] for name in files if name not in parts}
    for name, options in weights.items():
        try:
            data, scales = (files[f"{name}.{part}"] for part in ("data", "scales"))
            chosen: dict[str, Any] = {key: options[key] for key in _OPTIONS}
            chosen |= {"inner": (int(options["size"]),), "dtype": as_dtype(options["dtype"])}
            arrays[name] = QuantizedArray(data, scales, files.get(f"{name}.offsets"), **chosen)
        except (KeyError, TypeError, ValueError) as error:
            raise StateDictError(f"{path}: the quantised array {name!r} is not complete: {error}") from error
    for name in [name for name in weights if f"{name.removesuffix('.array')}.order" in arrays]:
        prefix = name.removesuffix(".array")
        arrays[prefix] = PermutedArray(arrays.pop(name), arrays.pop(f"{prefix}.order"))
    return arrays


def _options_of(config: CausalLMConfig, model: CausalLM) -> dict[str, dict[str, Any]]:
    """Return the options of a model's quantised arrays by their names in files."""
    leaves = tree.leaves_with_path(model, is_leaf=lambda node: isinstance(node, QuantizedArray))
    arrays = {dotted(path): value for path, value in leaves if isinstance(value, QuantizedArray)}
    return {
        name: {key: getattr(value, key) for key in _OPTIONS} | {"size": value.inner[0], "dtype": value.dtype.name}
        for name, value in zip(names_in_files(config, arrays), arrays.values(), strict=True)
    }


def save_pretrained(folder: str | os.PathLike[str], model: CausalLM, *, max_shard_size: int | str = "5GB") -> None:
    """Write a language model to a folder that `load_pretrained` and Hugging Face read.

    It writes config.json and model.safetensors, or shards and their index; other files of the folder, such as a tokenizer's, stay.
    Quantised weights are written as they are, which `load_pretrained` alone reads: `nn.dequantize` the model for Hugging Face.

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
    entries, quantized = model.config.to_json(), _options_of(model.config, model.unstack())
    if quantized:
        entries[_QUANTIZATION] = {"quant_method": _METHOD, "weights": quantized}
    write_text(path / "config.json", json.dumps(entries, indent=2) + "\n")


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
        if any(isinstance(x, PermutedArray) for row in rows for x in row):
            raise ArgumentError(f"load_pretrained: groups of {prefix} are no neighbours (desc_act=True), which experts do not support")
        try:
            halves = [tree.map(lambda *parts: vnp.concatenate(parts), *row[:2]) for row in rows]
            arrays[f"{prefix}.gate_up_proj"] = tree.map(lambda *parts: vnp.stack(parts), *halves)
            arrays[f"{prefix}.down_proj"] = tree.map(lambda *parts: vnp.stack(parts), *[row[2] for row in rows])
        except TreeError as error:
            raise StateDictError(f"load_pretrained: experts of {prefix} are quantised in different ways") from error
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


# LoRA adapters in the folders that Hugging Face's PEFT saves.

_PREFIX = "base_model.model."
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: Names in files of an adapter's arrays.
_ARRAYS = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight", "magnitude": "lora_magnitude_vector"}


def save_adapter(folder: str | os.PathLike[str], model: CausalLM) -> None:
    """Write the adapters of a language model, without the model, as PEFT does.

    Args:
        folder: is created if it does not exist; it gets adapter_config.json and adapter_model.safetensors.
        model: a model of `nn.lora`, of one rank and scale.

    Raises:
        ArgumentError: there are no adapters, or they differ in rank or scale. SerializationError: a file cannot be written.

    >>> import tempfile
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
    _check_order("save_adapter", folder)
    layers = _linear_layers(model)
    adapters = {name: node for name, node in layers.items() if isinstance(node, LoRA)}
    if not adapters:
        raise ArgumentError("save_adapter: the model has no adapters; nn.lora(model, key, rank) adds them, nn.merge_lora takes them away")
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
    if {name for name in layers if name.rpartition(".")[2] in entries["target_modules"]} != set(adapters):  # names' ends are ambiguous
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
    _check_order("load_adapter", folder)
    path = Path(folder)
    for name in (_CONFIG, _WEIGHTS):
        if not (path / name).is_file():
            raise SerializationError(f"{path}: there is no {name}; a folder as PEFT's save_pretrained writes is needed")
    entries = parse_json((path / _CONFIG).read_bytes(), str(path / _CONFIG), naturals=False)
    _check_adapter(entries)
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


def _check_order(name: str, folder: Any) -> None:
    if isinstance(folder, CausalLM):
        raise ArgumentTypeError(f"{name}: the folder comes first: {name}(folder, model)")


def _check_adapter(entries: dict[str, Any]) -> None:
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
    """Return True if a pattern matches a name, or its end after a dot, as in PEFT."""
    try:
        return re.match(rf"(.*\.)?({pattern})$", name) is not None
    except re.error as error:
        raise ArgumentError(f"load_adapter: {pattern!r} in alpha_pattern is no regular expression: {error}") from error
