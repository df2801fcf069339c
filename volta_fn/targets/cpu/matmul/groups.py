"""Products by instructions that sum groups of products: which ones have them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from volta_fn.compiler.contractions import Operand, Problem
from volta_fn.runtime.llvm.host import host
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType

# Groups of narrow numbers, adjacent along k, which an instruction multiplies and sums to a lane of 32 bits.
#
# x86's `vdpbf16ps` sums the products of two pairs of bfloat16 in float32, twice as many as a multiplication of float32; `vpdpbusd` those of
# four unsigned and four signed bytes in int32, four times as many. ARM has `bfdot` and `sdot` (of signed bytes).
#
# `vdpbf16ps` takes subnormal numbers for 0, in operands and sums: an operand below 1.2e-38 contributes nothing. It rounds to nearest,
# whatever the environment says.
#
# Sums of bytes are exact, and wrap around as those of int32 do. Where both operands are signed, 128 is added to the left one's (their top
# bit is flipped), and the sums begin with -128 times those of the right one's columns.

_BFLOAT16, _INT8, _UINT8 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.int8), np.dtype(np.uint8)


def grouped_type(problem: Problem) -> ComputeType | None:
    """Return the compute type of groups in which to multiply; None if there is none.

    Both operands have to be contiguous along k, or along m and n.
    """
    if not (_is_contiguous(problem.lhs) and _is_contiguous(problem.rhs)):
        return None
    return type_of_groups((problem.lhs.dtype, problem.rhs.dtype), problem.dtype)


def type_of_groups(dtypes: tuple[np.dtype, np.dtype], result: np.dtype) -> ComputeType | None:
    """Return the compute type of groups for operands and a result.

    None if there is none for these dtypes.
    """
    cpu, lanes = host(), host().lanes(4)
    on_x86 = cpu.triple.startswith("x86")
    if dtypes == (_BFLOAT16, _BFLOAT16) and result in (_BFLOAT16, np.float32):
        has_pairs = cpu.vector_bytes == 64 and cpu.has("avx512bf16") if on_x86 else cpu.has("bf16")
        return ComputeType("float", 4, lanes, group=2) if has_pairs else None
    if not set(dtypes) <= {_INT8, _UINT8} or result.kind not in "iu" or result.itemsize > 4:
        return None
    unsigned = [side for side, dtype in enumerate(dtypes) if dtype == _UINT8]
    if not on_x86:
        return ComputeType("i32", 4, lanes, group=4) if not unsigned and cpu.has("dotprod") else None
    feature = {64: "avx512vnni", 32: "avxvnni"}.get(cpu.vector_bytes)
    if feature is None or not cpu.has(feature) or len(unsigned) == 2:
        return None
    return ComputeType("i32", 4, lanes, group=4, unsigned=unsigned[0] if unsigned else 0, biased=not unsigned)


def _is_contiguous(operand: Operand) -> bool:
    return operand.inner.stride == 1 or (operand.outer.stride == 1 and operand.inner.stride is not None)
