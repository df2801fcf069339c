"""Weights of 4 and 8 bits as GPTQ and AWQ pack them, as `nn.QuantizedArray`.

Both pack codes of (in, out) matrices in int32, with a scale and a zero point for each group of rows: the weight is ``(code - zero) *
scale``. GPTQ packs along in, the first code in the lowest bits, and stores zero points less 1 (version 1 of its format). AWQ packs along
out, in the order 0, 2, 4, 6, 1, 3, 5, 7. (Formats: AutoGPTQ's `qlinear` modules, and AutoAWQ's `WQLinear_GEMM`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from volta_fn.core.aval import Typed
from volta_fn.errors import ArgumentError, ShapeError, StateDictError
from volta_fn.io.state_dict import on_host, sharing
from volta_fn.nn.quantization.quantized_array import PermutedArray, QuantizedArray
from volta_fn.primitives.quantized import pack_nibbles

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
    if bits not in (4, 8):
        raise ArgumentError(f"from_gptq: bits are 4 or 8, got {bits!r}")
    by_row = _unpacked(_words("qweight", qweight).T, bits)  # (out, in)
    zeros = _unpacked(_words("qzeros", qzeros), bits) + zero_shift
    if g_idx is None:
        return _quantized("from_gptq", by_row, zeros, scales, bits)
    group = on_host(g_idx) if isinstance(g_idx, Typed) else np.asarray(g_idx)
    size = by_row.shape[1]
    if group.shape != (size,) or not np.array_equal(np.sort(group), np.arange(size) // max(size // max(len(zeros), 1), 1)):
        raise ShapeError(
            f"from_gptq: g_idx has the group of each of {size} rows, and {len(zeros)} groups as many rows each, got {group!r:.80} of shape "
            f"{group.shape}"
        )
    order = np.argsort(group, kind="stable").astype(np.int32)
    array = _quantized("from_gptq", by_row[:, order], zeros, scales, bits)
    return array if np.array_equal(order, np.arange(size)) else PermutedArray(array, sharing(order))


def from_awq(qweight: Any, qzeros: Any, scales: Any) -> QuantizedArray:
    """Return a weight of 4 bits that AWQ has packed, of shape (in, out).

    Args:
        qweight: int32 of shape (in, out / 8).
        qzeros: int32 of shape (groups, out / 8).
        scales: floats of shape (groups, out).

    Raises `ShapeError` if the shapes do not fit each other.
    """
    codes, zeros = (_unpacked(_words(name, words), 4) for name, words in (("qweight", qweight), ("qzeros", qzeros)))
    codes, zeros = (x.reshape(x.shape[0], -1, 8)[..., _AWQ_POSITIONS].reshape(x.shape) for x in (codes, zeros))
    return _quantized("from_awq", codes.T, zeros, scales, 4)


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
    if method not in ("gptq", "awq"):
        raise ArgumentError(f"unpack_weights: the method is 'gptq' or 'awq', got {method!r}")
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


def _unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Return the codes of int32 words along the last axis, the lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts) & np.uint32(2**bits - 1)
    return codes.reshape(words.shape[0], -1).astype(np.int32)


def _quantized(caller: str, codes: np.ndarray, zeros: np.ndarray, scales: Any, bits: int) -> QuantizedArray:
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
