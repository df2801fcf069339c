"""How operands of different dtypes may combine: silently, with a warning, or not.

By default the first float32 array that becomes float64 because it meets float64 data gives a warning: it makes a network twice as large
and several times slower. Functions that promote operands call `check_promotion`, while they are traced or run.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Literal, get_args

import numpy as np

from volta_fn import dtypes
from volta_fn.errors import ArgumentError, PromotionWarning, TypePromotionError
from volta_fn.source import is_called_by_user, user_location

Mode = Literal["standard", "strict"]

#: A variable of the environment with the mode of the process.
_VARIABLE = "VOLTA_NUMPY_DTYPE_PROMOTION"
_WIDE = frozenset({np.dtype(np.float64), np.dtype(np.complex128)})
_NARROW = (dtypes.FLOATS | dtypes.COMPLEX) - _WIDE

#: Packages whose own operations are checked, too: they apply operators to the arrays that they are given. Others convert as they need.
_CHECKED = frozenset({"core", "primitives", "jit", "numpy", "nn", "optim"})

_scoped_mode: ContextVar[Mode | None] = ContextVar("numpy_dtype_promotion", default=None)
_process_mode: Mode | None = None
_warned = False


def numpy_dtype_promotion(new_val: Mode) -> contextlib.AbstractContextManager[None]:
    """Choose in a ``with`` block how arrays of different dtypes combine.

    "standard" promotes as JAX does, without a warning; "strict" raises `TypePromotionError` where arrays (not Python's numbers) would
    change their dtype. It holds for operations of the program, of `volta_fn.numpy`, layers and optimizers; not for those that solvers,
    samplers and the like consist of. Without a choice, the first promotion of a float32 array by float64 data gives a
    `PromotionWarning` with the line.
    Programs that were traced before keep the mode of their tracing.

    Raises `ArgumentError` for another mode.

    >>> import numpy as np, volta_fn as vf
    >>> w, data = vf.numpy.ones(2), np.ones(2)
    >>> with vf.numpy_dtype_promotion("strict"):
    ...     w * 2.0, w * data
    Traceback (most recent call last):
    volta_fn.errors.TypePromotionError: mul: float32[2] and float64[2] would combine to float64...
    """
    return _scope(_checked(new_val))


@contextlib.contextmanager
def _scope(mode: Mode) -> Iterator[None]:
    token = _scoped_mode.set(mode)
    try:
        yield
    finally:
        _scoped_mode.reset(token)


def set_numpy_dtype_promotion(new_val: Mode | None) -> None:
    """Choose for the process what `numpy_dtype_promotion` chooses for a block.

    None goes back to the default, which warns once. The variable VOLTA_NUMPY_DTYPE_PROMOTION chooses for a process, too.

    >>> import volta_fn as vf
    >>> vf.set_numpy_dtype_promotion("standard")
    """
    global _process_mode, _warned
    _process_mode = None if new_val is None else _checked(new_val)
    _warned = False


def _checked(mode: str) -> Mode:
    if mode not in get_args(Mode):
        raise ArgumentError(f"numpy_dtype_promotion: the mode is 'standard' or 'strict', got {mode!r}")
    return mode  # type: ignore[return-value]  # it is one of these


def _mode() -> Mode | None:
    mode = _scoped_mode.get() or _process_mode
    if mode is None and (setting := os.environ.get(_VARIABLE)):
        return _checked(setting)
    return mode


def check_promotion(name: str, operands: Sequence[Any], dtype: np.dtype) -> None:
    """Warn or raise if operands promote to a dtype that not all arrays have.

    Operands are arrays of any kind, or Python's numbers. Raises `TypePromotionError` in the mode "strict".
    """
    for operand in operands:
        operand_dtype = getattr(operand, "dtype", None)
        if operand_dtype is None or operand_dtype is dtype or getattr(operand, "weak_type", False):
            continue
        if dtypes.canonical(operand_dtype) != dtype:
            _tell(name, [x for x in operands if hasattr(x, "dtype")], dtype)
            return


def _tell(name: str, arrays: Sequence[Any], dtype: np.dtype) -> None:
    global _warned
    mode = _mode()
    listed = " and ".join(f"{x.dtype.name}[{','.join(map(str, x.shape))}]" for x in arrays)
    if mode == "strict" and not is_called_by_user(_CHECKED):
        return
    if mode == "strict":
        raise TypePromotionError(
            f"{name}: {listed} would combine to {dtype.name}, which numpy_dtype_promotion('strict') forbids. "
            "Convert one of them with x.astype(...)."
        )
    if mode is not None or _warned or not (any(map(_is_wide, arrays)) and any(map(_is_widened, arrays))):
        return
    _warned = True
    message = (
        f"{name}: {listed} combine to {dtype.name}, and so does all that follows: twice the memory, and slower. NumPy's arrays and "
        "scalars are float64 unless you convert them: x.astype('float32'). If you want float64, say "
        "set_numpy_dtype_promotion('standard'); for an error instead, 'strict'. This warning is given once."
    )
    where = user_location()
    warnings.warn_explicit(message, PromotionWarning, where.file if where else "", where.lineno if where else 0)


def _is_wide(x: Any) -> bool:
    """Return True for float64 data; 64-bit integers that need it are another matter."""
    return x.dtype in _WIDE and not getattr(x, "weak_type", False)


def _is_widened(x: Any) -> bool:
    """Return True for arrays of 32 bits and less; a single number costs nothing."""
    return x.ndim > 0 and x.dtype in _NARROW and not getattr(x, "weak_type", False)
