"""Foreign functions of XLA: each name raises `UnsupportedError`."""

from __future__ import annotations

from typing import Any, NoReturn

from volta_fn.errors import UnsupportedError


def _refuse(name: str) -> Any:
    def refuse(*args: Any, **options: Any) -> NoReturn:
        raise UnsupportedError(
            f"ffi.{name}: functions compiled for XLA cannot be called, as there is no XLA; "
            "call host code by pure_callback, or write the function in volta_fn.numpy, which is compiled for every target"
        )

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Raise `UnsupportedError`: there is no XLA."
    return refuse


ffi_call = _refuse("ffi_call")
ffi_lowering = _refuse("ffi_lowering")
build_ffi_lowering_function = _refuse("build_ffi_lowering_function")
include_dir = _refuse("include_dir")
pycapsule = _refuse("pycapsule")
register_ffi_target = _refuse("register_ffi_target")
register_ffi_target_as_batch_partitionable = _refuse("register_ffi_target_as_batch_partitionable")
register_ffi_type = _refuse("register_ffi_type")
register_ffi_type_id = _refuse("register_ffi_type_id")
