"""GGUF files, the format of llama.cpp's models, read by memory maps and written.

Quantised tensors become `nn.QuantizedArray` with the numbers of the file, so that nothing is expanded: blocks of 32 or 256 numbers become
groups of 32 or 16. Only the pairs of scales of the K formats (a float16 for 256 numbers times an integer for each group) become one float32
a group, and the 5 and 6 bits of Q5_K and Q6_K are stored in 8. (Formats: github.com/ggml-org/ggml, docs/gguf.md and src/ggml-quants.c.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from volta_fn.core.arrays.array import ConcreteArray
from volta_fn.errors import ArgumentError, CorruptFileError, DTypeError, MissingDependencyError, SerializationError
from volta_fn.io.files import replacing
from volta_fn.io.state_dict import on_host, sharing
from volta_fn.lazy_imports import is_installed, load
from volta_fn.nn.quantization.quantized_array import QuantizedArray
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
