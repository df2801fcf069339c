"""Foreign functions of XLA: `UnsupportedError` where one would run.

A function that calls some can be traced, and so looked at; its program raises when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import UnsupportedError
from volta_fn.primitives.callbacks import pure_callback


def _refuse(name: str) -> Any:
    def refuse(*args: Any, **options: Any) -> NoReturn:
        raise UnsupportedError(
            f"ffi.{name}: functions compiled for XLA cannot be called, as there is no XLA; "
            "call host code by pure_callback, or write the function in volta_fn.numpy, which is compiled for every target"
        )

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Raise `UnsupportedError`: there is no XLA."
    return refuse


_refuse_call = _refuse("ffi_call")


def ffi_call(target_name: str, result_shape_dtypes: Any, *, vmap_method: str | None = None, **options: Any) -> Callable[..., Any]:
    """Return the function that would call a foreign function.

    Traced, a call is part of the program, with results of the types in `result_shape_dtypes`, and `vmap` treats it as `pure_callback`
    does. Raises `UnsupportedError` when the call would run.
    """

    def call(*args: Any, **attributes: Any) -> Any:
        if current_trace() is EVAL:
            _refuse_call()
        return pure_callback(_refuse_call, result_shape_dtypes, *args, vmap_method=vmap_method)

    return call


ffi_lowering = _refuse("ffi_lowering")
build_ffi_lowering_function = _refuse("build_ffi_lowering_function")
include_dir = _refuse("include_dir")
pycapsule = _refuse("pycapsule")
register_ffi_target = _refuse("register_ffi_target")
register_ffi_target_as_batch_partitionable = _refuse("register_ffi_target_as_batch_partitionable")
register_ffi_type = _refuse("register_ffi_type")
register_ffi_type_id = _refuse("register_ffi_type_id")
