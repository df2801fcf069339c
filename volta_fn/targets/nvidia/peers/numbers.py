"""Words of an array as numbers, which reductions combine.

A word has up to 16 bytes. Floats of 16 bits are added and compared as float32, and rounded once, as the host does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from volta_fn import dtypes
from volta_fn.runtime.llvm.text import Value, vector_of
from volta_fn.targets.nvidia.function import KernelFunction

#: LLVM's types of numbers in memory, by dtype.
_STORED = {
    "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double", "complex64": "float", "complex128": "double",
    "bool": "i8",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip

_BFLOAT16 = np.dtype(dtypes.bfloat16)


def word_type(size: int) -> str:
    """Return the type as which a word of so many bytes is loaded and stored."""
    return "<4 x i32>" if size == 16 else f"i{8 * size}"


def combines(step: str, dtype: np.dtype) -> bool:
    """Return whether numbers of a dtype are combined by "sum", "max" or "min" here."""
    return dtype.name in _STORED and (step == "sum" or dtype.kind != "c") and (step != "sum" or dtype.kind != "b")


class Numbers:
    """The numbers of a dtype in words of `size` bytes, under construction.

    Those that are combined may be of another dtype, `source`, of 16 bits: they travel as they are. With `compression` all travel as that
    dtype, also results.
    """

    def __init__(
        self, f: KernelFunction, dtype: np.dtype, size: int, compression: np.dtype | None = None, source: np.dtype | None = None
    ) -> None:
        self.f, self.dtype, self.size = f, dtype, size
        self.lanes = size // (dtype.itemsize if dtype.kind != "c" else dtype.itemsize // 2)
        self.source = source or dtype
        #: The dtypes of operands and of results on their way.
        self.wire, self.result_wire = compression or self.source, compression or dtype
        #: Bytes of a word that is combined, and of operands' and results' words on their way.
        self.source_size, self.wire_size, self.result_size = [
            size * each.itemsize // dtype.itemsize for each in (self.source, self.wire, self.result_wire)
        ]

    def decoded(self, word: Value) -> Value:
        """Emit the numbers of a word that is combined."""
        return self._decoded(word, self.source)

    def encoded(self, numbers: Value) -> Value:
        """Emit the word of numbers."""
        return self._encoded(numbers, self.dtype)

    def sent(self, word: Value) -> Value:
        """Emit a word that is combined as it travels."""
        return word if self.wire == self.source else self._encoded(self.decoded(word), self.wire)

    def arrived(self, word: Value) -> Value:
        """Emit the numbers of a word that has arrived."""
        return self._decoded(word, self.wire)

    def sent_result(self, numbers: Value) -> Value:
        """Emit the word of a result as it travels."""
        return self._encoded(numbers, self.result_wire)

    def arrived_result(self, word: Value) -> Value:
        """Emit the word of a result that has travelled."""
        return word if self.result_wire == self.dtype else self.encoded(self._decoded(word, self.result_wire))

    def _decoded(self, word: Value, dtype: np.dtype) -> Value:
        f, lanes = self.f, self.lanes
        numbers = f.cast("bitcast", word, vector_of(_STORED[dtype.name], lanes))
        if dtype == _BFLOAT16:
            wide = f.cast("zext", numbers, vector_of("i32", lanes))
            shifted = f.binary("shl", wide, f.splat(Value("i32", "16"), lanes))
            return f.cast("bitcast", shifted, vector_of("float", lanes))
        return f.cast("fpext", numbers, vector_of("float", lanes)) if dtype == np.float16 else numbers

    def _encoded(self, numbers: Value, dtype: np.dtype) -> Value:
        f, type_ = self.f, word_type(self.lanes * dtype.itemsize if dtype.kind != "c" else self.size)
        if dtype in (_BFLOAT16, np.dtype(np.float16)):
            numbers = f.cast("fptrunc", numbers, vector_of("bfloat" if dtype == _BFLOAT16 else "half", self.lanes))
        return f.cast("bitcast", numbers, type_)

    def combined(self, step: str, parts: Sequence[Value]) -> Value:
        """Emit the sum, maximum or minimum of numbers, from the first to the last."""
        total = parts[0]
        for part in parts[1:]:
            total = self._pair(step, total, part)
        return total

    def _pair(self, step: str, x: Value, y: Value) -> Value:
        f, is_float = self.f, self.dtype.kind in "fcV"  # bfloat16 is of the kind V
        if step == "sum":
            return f.binary("fadd" if is_float else "add", x, y)
        if is_float:  # NaN stays
            first = f.compare(f"fcmp {'ogt' if step == 'max' else 'olt'}", x, y)
            return f.select(f.binary("or", first, f.compare("fcmp uno", x, x)), x, y)
        sign = "s" if self.dtype.kind == "i" else "u"
        return f.select(f.compare(f"icmp {sign}{'gt' if step == 'max' else 'lt'}", x, y), x, y)
