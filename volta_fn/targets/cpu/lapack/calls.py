"""Calls of LAPACK and BLAS, whose arguments are all pointers, in machine code."""

from __future__ import annotations

import numpy as np

from volta_fn.runtime.llvm.lapack import PREFIX
from volta_fn.runtime.llvm.text import Function, Value, i64

#: The first letter of functions that compute in a dtype.
LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}

#: An argument: an array, or a letter or an integer to point to.
Argument = Value | str | int


def lapack_name(dtype: np.dtype, name: str) -> str:
    """Return the name of a function of a dtype.

    Those for orthogonal and symmetric matrices have other names for complex dtypes.
    """
    if dtype.kind == "c":
        name = {"or": "un", "sy": "he"}.get(name[:2], name[:2]) + name[2:]
    return LETTERS[dtype.name] + name


def call(f: Function, dtype: np.dtype, name: str, *arguments: Argument) -> None:
    """Emit a call of a function, as ``potrf``."""
    symbol = PREFIX + lapack_name(dtype, name)
    f.module.declare(symbol, f"declare void @{symbol}({', '.join(['ptr'] * len(arguments))})")
    f.run(symbol, *[argument if isinstance(argument, Value) else _constant(f, argument) for argument in arguments])


def call_with_status(f: Function, dtype: np.dtype, name: str, *arguments: Argument) -> Value:
    """Emit a call of a function whose last argument is its status.

    Return whether it failed.
    """
    status = f.alloca("i32", align=8)
    call(f, dtype, name, *arguments, status)
    return f.compare("icmp ne", f.load("i32", status, 4), Value("i32", "0"))


def number(f: Function, dtype: np.dtype, x: float) -> Value:
    """Return the address of a constant number of a dtype."""
    data = ", ".join(f"i8 {byte}" for byte in np.asarray(x, dtype).tobytes())
    name = f"{dtype.name}_{int(x)}"
    f.module.declare(name, f"@{name} = internal constant [{dtype.itemsize} x i8] [{data}], align 16")
    return Value("ptr", f"@{name}")


def _constant(f: Function, argument: str | int) -> Value:
    if isinstance(argument, str):
        name, content = f"letter_{argument}", f"i8 {ord(argument)}"
    else:
        name, content = f"integer_{argument}".replace("-", "minus_"), f"i32 {argument}"
    f.module.declare(name, f"@{name} = internal constant {content}")
    return Value("ptr", f"@{name}")


def bytes_at(f: Function, pointer: Value, offset: int) -> Value:
    """Emit a pointer so many bytes on."""
    return f.at(pointer, "i8", i64(offset)) if offset else pointer
