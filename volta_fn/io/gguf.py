"""GGUF files, the format of llama.cpp's models, and the models in them.

Quantised tensors become `nn.QuantizedArray` with the numbers of the file, so that nothing is expanded: blocks of 32 or 256 numbers become
groups of 32 or 16. Only the pairs of scales of the K formats (a float16 for 256 numbers times an integer for each group) become one float32
a group, and the 5 and 6 bits of Q5_K and Q6_K are stored in 8. (Formats: github.com/ggml-org/ggml, docs/gguf.md and src/ggml-quants.c.)
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.arrays.array import ConcreteArray
from volta_fn.core.aval import check_option
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    CorruptFileError,
    DTypeError,
    MissingDependencyError,
    SerializationError,
    StateDictError,
)
from volta_fn.io.files import replacing
from volta_fn.io.state_dict import dotted, on_host, sharing
from volta_fn.lazy_imports import is_installed, load
from volta_fn.nn.language.config import CausalLMConfig
from volta_fn.nn.language.decoder import CausalLM
from volta_fn.nn.language.layers import llama3_factors
from volta_fn.nn.quantized_array import PermutedArray, QuantizedArray, WeightArray
from volta_fn.primitives.quantized import pack_nibbles

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT16 = np.dtype(np.float16)
#: Numbers of a super-block of the K formats.
_SUPER = 256


def _library() -> Any:
    """Return the package `gguf`; raise `MissingDependencyError` without it."""
    if not is_installed("gguf"):
        raise MissingDependencyError("GGUF files need the package gguf; install it by: pip install 'volta-fn[gguf]'")
    return load("gguf")


class GGUFFile(Mapping[str, Any]):
    """A GGUF file: a mapping from names of tensors to arrays, and its metadata.

    Tensors are read when they are asked for. Floats share the file's memory; F32, F16 and BF16 become arrays of their dtype, and Q8_0,
    Q4_0, Q4_1, Q4_K, Q5_K and Q6_K `nn.QuantizedArray` of shape (out, in), whose transpose is the weight of `nn.Linear`:
    ``nn.Linear(file["blk.0.attn_q.weight"].T)``.

    Attributes:
        metadata: keys such as "general.architecture" with numbers, texts and lists.

    Raises `CorruptFileError` for a file that is none, `MissingDependencyError` without the package gguf, and when a tensor is asked for
    `DTypeError` for another format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        library = _library()
        self.path = Path(path)
        if not self.path.is_file():
            raise SerializationError(f"{path} does not exist, or is no file")
        try:
            reader = library.GGUFReader(self.path)
            # "GGUF.version" and the like are of the file's header, which a writer computes.
            self.metadata = {name: entry.contents() for name, entry in reader.fields.items() if not name.startswith("GGUF.")}
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, MemoryError) as error:
            raise CorruptFileError(f"{path} is not a GGUF file, or truncated: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def __getitem__(self, name: str) -> Any:
        tensor = self._tensors[name]
        shape = tuple(int(n) for n in reversed(tensor.shape))
        kind = tensor.tensor_type.name
        if kind in ("F32", "F16"):
            return sharing(np.asarray(tensor.data).reshape(shape))
        raw = np.asarray(tensor.data).view(np.uint8)
        if kind == "BF16":
            return sharing(raw.reshape(-1).view(_BFLOAT16).reshape(shape))
        if kind not in _READERS:
            raise DTypeError(f"{self.path}: {name!r} has the format {kind}; read here are F32, F16, BF16, {', '.join(_READERS)}")
        scheme, group_size, block_bytes, read = _READERS[kind]
        block = 32 if kind in ("Q8_0", "Q4_0", "Q4_1") else _SUPER
        blocks = raw.reshape(*shape[:-1], shape[-1] // block, block_bytes)
        data, scales, offsets = [None if x is None else sharing(np.ascontiguousarray(x)) for x in read(blocks)]
        return QuantizedArray(data, scales, offsets, scheme, shape[-1:], group_size, dtype=np.dtype(np.float32))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, {len(self)} tensors)"


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file; see `GGUFFile`."""
    return GGUFFile(path)


# From blocks (…, blocks, bytes) to codes, scales and offsets by rows.

_Rows = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _halves(blocks: np.ndarray, *places: int) -> list[np.ndarray]:
    """Return float16 numbers of blocks, by the bytes at which they begin."""
    return [np.ascontiguousarray(blocks[..., at : at + 2]).view(_FLOAT16)[..., 0] for at in places]


def _joined(x: np.ndarray) -> np.ndarray:
    """Return what blocks hold as rows."""
    return x.reshape(*x.shape[:-2], -1)


def _read_q8_0(blocks: np.ndarray) -> _Rows:
    (scales,) = _halves(blocks, 0)
    return _joined(blocks[..., 2:]).view(np.int8), scales, None


def _read_q4_0(blocks: np.ndarray) -> _Rows:
    (scales,) = _halves(blocks, 0)
    return _joined(blocks[..., 2:]), scales, None


def _read_q4_1(blocks: np.ndarray) -> _Rows:
    scales, least = _halves(blocks, 0, 2)
    # code * scale + least, where codes stand for themselves minus 8
    return _joined(blocks[..., 4:]), scales, least.astype(np.float32) + 8 * scales.astype(np.float32)


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scales and minima of the 8 groups of super-blocks.

    They are two float16 numbers times integers of 6 bits, which are packed in 12 bytes.
    """
    scale, least = [x.astype(np.float32)[..., None] for x in _halves(blocks, 0, 2)]
    first, second, third = (blocks[..., at : at + 4] for at in (4, 8, 12))
    factors = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], -1)
    minima = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], -1)
    return scale * factors, least * minima


def _k_codes(low: np.ndarray) -> np.ndarray:
    """Return codes (…, blocks, 8, 32) of 4 bits.

    Each 32 bytes have a group in the lower halves and the next one in the upper halves.
    """
    pairs = low.reshape(*low.shape[:-1], 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], -2).reshape(*low.shape[:-1], 8, 32)


def _read_q4_k(blocks: np.ndarray) -> _Rows:
    scales, minima = _k_scales(blocks)
    codes = _k_codes(blocks[..., 16:])
    return pack_nibbles(codes.reshape(*codes.shape[:-3], -1)), _joined(scales), _joined(8 * scales - minima)


def _read_q5_k(blocks: np.ndarray) -> _Rows:
    scales, minima = _k_scales(blocks)
    upper = (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    codes = _k_codes(blocks[..., 48:]) | (upper << 4)
    return codes.reshape(*codes.shape[:-3], -1).astype(np.int8), _joined(scales), _joined(-minima)


def _read_q6_k(blocks: np.ndarray) -> _Rows:
    low = blocks[..., :128].reshape(*blocks.shape[:-1], 2, 1, 64)
    lower = np.concatenate([low & 15, low >> 4], -2).reshape(*blocks.shape[:-1], 8, 32)
    high = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 1, 32)
    upper = ((high >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3).reshape(*blocks.shape[:-1], 8, 32)
    codes = (lower | (upper << 4)).astype(np.int8) - np.int8(32)
    factors = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    (scale,) = _halves(blocks, 208)
    return codes.reshape(*codes.shape[:-3], -1), _joined(scale.astype(np.float32)[..., None] * factors), None


#: By format: the scheme, the numbers of a group, the bytes of a block, and the function.
_READERS: dict[str, tuple[str, int, int, Callable[[np.ndarray], _Rows]]] = {
    "Q8_0": ("int8", 32, 34, _read_q8_0),
    "Q4_0": ("int4", 32, 18, _read_q4_0),
    "Q4_1": ("int4", 32, 20, _read_q4_1),
    "Q4_K": ("int4", 32, 144, _read_q4_k),
    "Q5_K": ("int8", 32, 176, _read_q5_k),
    "Q6_K": ("int8", 16, 210, _read_q6_k),
}


# Writing.


def save_gguf(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    *,
    formats: Mapping[str, str] | None = None,
) -> None:
    """Write arrays to a GGUF file, which replaces an earlier one when it is complete.

    Floats of 16 and 32 bits are written as F32, F16 and BF16. Quantised arrays with groups of 32, or of a multiple, are written as Q8_0
    ("int8" without offsets), Q4_0 ("int4" without offsets) and Q4_1 ("int4" with offsets), whose scales are float16: quantise with
    ``group_size=32, scale_dtype="float16"``. Floats are rounded to a format that `formats` names for them.

    Args:
        path: of the file.
        tensors: arrays by name, of shape (out, in) where they are quantised.
        metadata: numbers, texts, booleans and lists of them by name; "general.architecture" is "volta_fn" unless given.
        formats: "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K" or "Q6_K" by the names of arrays of floats, whose last axis is a multiple of 32, or
            for the K formats of 256.

    Raises:
        ArgumentError: a quantised array has other groups or a transposed layout, a format is unknown or does not fit its array, or a value
            of the metadata has another type.
        DTypeError: an array's dtype has no format, or scales are not exactly those of float16.
        MissingDependencyError, SerializationError: the package gguf is not installed, or the file cannot be written.
    """
    library = _library()
    entries = {"general.architecture": "volta_fn", **(metadata or {})}
    kinds = dict(formats or {})
    if unknown := sorted(kinds.keys() - tensors.keys()):
        raise ArgumentError(f"save_gguf: formats are given for {unknown}, which are no tensors")
    written = {
        name: _rounded(name, value, kinds[name], library) if name in kinds else _tensor(name, value, library)
        for name, value in tensors.items()
    }
    with replacing(Path(path)) as temporary:
        writer = library.GGUFWriter(temporary, str(entries.pop("general.architecture")))
        for name, value in entries.items():
            _add_metadata(writer, name, value)
        for name, (array, kind) in written.items():
            writer.add_tensor(name, array, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _add_metadata(writer: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, int):
        (writer.add_uint32 if 0 <= value < 1 << 32 else writer.add_int64)(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, (list, tuple)) and value:
        writer.add_array(name, list(value))
    else:
        raise ArgumentError(
            f"save_gguf: metadata {name!r} is a number, text, boolean or list of them, got {type(value).__name__} {value!r:.60}"
        )


def _tensor(name: str, value: Any, library: Any) -> tuple[np.ndarray, Any]:
    """Return a tensor's numbers or bytes, and its format where they are bytes."""
    kinds = library.GGMLQuantizationType
    if not isinstance(value, QuantizedArray):
        array = on_host(value if isinstance(value, ConcreteArray) else np.asarray(value))
        if array.dtype == _BFLOAT16:
            return array.view(np.uint8), kinds.BF16
        if array.dtype not in (np.dtype(np.float32), _FLOAT16):
            raise DTypeError(f"save_gguf: {name!r} is {array.dtype.name}; floats are written as float32, float16 or bfloat16")
        return array, None
    offsets = None if value.offsets is None else on_host(value.offsets)
    kind = {("int8", True): "Q8_0", ("int4", True): "Q4_0", ("int4", False): "Q4_1"}.get((value.scheme, offsets is None))
    if (
        kind is None
        or len(value.inner) != 1
        or value.inner[0] % 32
        or value.rows_last
        or (value.layout.groups > 1 and value.group_size % 32)
    ):
        raise ArgumentError(
            f"save_gguf: {name!r} is {value!r}; written are 'int8' without offsets and 'int4', along the last axis (w.T transposes) in "
            "groups of a multiple of 32: quantize_array(x, 'int4', group_size=32, scale_dtype='float16')"
        )

    def of_blocks(numbers: np.ndarray) -> np.ndarray:
        """Repeat a group's number for each of its blocks."""
        return np.repeat(numbers, -(-value.group_size // 32), -1)[..., : value.inner[0] // 32]

    scales = of_blocks(on_host(value.scales))
    halves = scales.astype(_FLOAT16)
    if (halves.astype(scales.dtype) != scales).any():
        raise DTypeError(f"save_gguf: scales of {name!r} are no float16 numbers, which {kind} has; quantise with scale_dtype='float16'")
    parts = [halves]
    if offsets is not None:
        parts.append((of_blocks(offsets).astype(np.float32) - 8 * scales.astype(np.float32)).astype(_FLOAT16))
    codes = on_host(value.data).view(np.uint8)
    codes = codes.reshape(*codes.shape[:-1], halves.shape[-1], codes.shape[-1] // halves.shape[-1])
    blocks = np.concatenate([*[part[..., None].view(np.uint8) for part in parts], codes], -1)
    return blocks.reshape(*blocks.shape[:-2], -1), kinds[kind]


# From floats to blocks. Scales divide the range of a group's numbers by that of codes; no search for better ones follows.


def _rounded(name: str, value: Any, kind: str, library: Any) -> tuple[np.ndarray, Any]:
    """Return floats rounded to a format, as bytes by rows, and the format."""
    if kind not in _WRITERS:
        raise ArgumentError(f"save_gguf: {name!r} is to have the format {kind!r}; formats are {', '.join(_WRITERS)}")
    block = _SUPER if kind.endswith("K") else 32
    if isinstance(value, QuantizedArray):
        raise ArgumentError(
            f"save_gguf: {name!r} is quantised already, so it has no other format; leave it out of formats, or dequantize() it"
        )
    array = on_host(value if isinstance(value, ConcreteArray) else np.asarray(value))
    if array.dtype not in (np.dtype(np.float32), _FLOAT16, _BFLOAT16) or not array.ndim or array.shape[-1] % block:
        raise ArgumentError(
            f"save_gguf: {kind} takes floats whose last axis is a multiple of {block}; {name!r} is {array.dtype.name} {array.shape}"
        )
    blocks = array.astype(np.float32).reshape(*array.shape[:-1], -1, block)
    data = _WRITERS[kind](blocks)
    return data.reshape(*array.shape[:-1], -1), library.GGMLQuantizationType[kind]


def _divided(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return x / step, and 0 where the step is 0."""
    return np.divide(x, step, out=np.zeros(np.broadcast_shapes(x.shape, step.shape), np.float32), where=step != 0)


def _half_bytes(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.astype(_FLOAT16)).view(np.uint8)


def _write_q8_0(x: np.ndarray) -> np.ndarray:
    scale = (np.abs(x).max(-1, keepdims=True) / 127).astype(_FLOAT16)
    codes = np.clip(np.round(_divided(x, scale.astype(np.float32))), -127, 127).astype(np.int8)
    return np.concatenate([_half_bytes(scale), codes.view(np.uint8)], -1)


def _write_q4_0(x: np.ndarray) -> np.ndarray:
    extreme = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)
    scale = (extreme / -8).astype(_FLOAT16)
    codes = np.clip(np.round(_divided(x, scale.astype(np.float32))) + 8, 0, 15)
    return np.concatenate([_half_bytes(scale), pack_nibbles(codes)], -1)


def _write_q4_1(x: np.ndarray) -> np.ndarray:
    least = x.min(-1, keepdims=True).astype(_FLOAT16)
    scale = ((x.max(-1, keepdims=True) - least) / 15).astype(_FLOAT16)
    codes = np.clip(np.round(_divided(x - least.astype(np.float32), scale.astype(np.float32))), 0, 15)
    return np.concatenate([_half_bytes(scale), _half_bytes(least), pack_nibbles(codes)], -1)


def _k_parts(x: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the heads of super-blocks, 16 bytes each, and codes up to `largest`.

    Codes have shape (…, blocks, 8, 32).
    """
    groups = x.reshape(*x.shape[:-1], 8, 32)
    minima = np.maximum(-groups.min(-1), 0)
    scales = np.maximum(groups.max(-1) + minima, 0) / largest
    units = [(v.max(-1, keepdims=True) / 63).astype(_FLOAT16) for v in (scales, minima)]
    wide = [unit.astype(np.float32) for unit in units]
    factors, shifts = (np.clip(np.round(_divided(v, unit)), 0, 63).astype(np.uint8) for v, unit in zip((scales, minima), wide, strict=True))
    steps, offsets = (wide[0] * factors)[..., None], (wide[1] * shifts)[..., None]
    codes = np.clip(np.round(_divided(groups + offsets, steps)), 0, largest).astype(np.uint8)
    first = factors[..., :4] | ((factors[..., 4:] >> 4) << 6)
    second = shifts[..., :4] | ((shifts[..., 4:] >> 4) << 6)
    third = (factors[..., 4:] & 15) | ((shifts[..., 4:] & 15) << 4)
    return np.concatenate([*map(_half_bytes, units), first, second, third], -1), codes


def _write_q4_k(x: np.ndarray) -> np.ndarray:
    head, codes = _k_parts(x, 15)
    low = codes[..., ::2, :] | (codes[..., 1::2, :] << 4)
    return np.concatenate([head, low.reshape(*low.shape[:-2], -1)], -1)


def _write_q5_k(x: np.ndarray) -> np.ndarray:
    head, codes = _k_parts(x, 31)
    upper = ((codes >> 4) << np.arange(8, dtype=np.uint8)[:, None]).sum(-2, dtype=np.uint8)
    low = (codes[..., ::2, :] & 15) | ((codes[..., 1::2, :] & 15) << 4)
    return np.concatenate([head, upper, low.reshape(*low.shape[:-2], -1)], -1)


def _write_q6_k(x: np.ndarray) -> np.ndarray:
    groups = x.reshape(*x.shape[:-1], 16, 16)
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)[..., 0] / -32
    unit = (np.abs(extreme).max(-1, keepdims=True) / 127).astype(_FLOAT16)
    factors = np.clip(np.round(_divided(extreme, unit.astype(np.float32))), -127, 127).astype(np.int8)
    steps = (unit.astype(np.float32) * factors)[..., None]
    codes = (np.clip(np.round(_divided(groups, steps)), -32, 31) + 32).astype(np.uint8).reshape(*x.shape[:-1], 2, 4, 32)
    low = ((codes[..., :2, :] & 15) | ((codes[..., 2:, :] & 15) << 4)).reshape(*x.shape[:-1], 128)
    high = ((codes >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(-2, dtype=np.uint8).reshape(*x.shape[:-1], 64)
    return np.concatenate([low, high, factors.view(np.uint8), _half_bytes(unit)], -1)


_WRITERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Q8_0": _write_q8_0,
    "Q4_0": _write_q4_0,
    "Q4_1": _write_q4_1,
    "Q4_K": _write_q4_k,
    "Q5_K": _write_q5_k,
    "Q6_K": _write_q6_k,
}


# Language models: configs by metadata, and arrays by name.
#
# Keys and names of tensors are llama.cpp's (github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py; what its convert_hf_to_gguf.py
# changes in a model is undone on reading, and done on writing). Quantised tensors stay quantised.

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


# Writing of models.

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

    >>> import tempfile
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
    check_option(config.model_type, "save_gguf_model: the model_type", _ARCHITECTURES)
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
