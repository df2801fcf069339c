"""Pallas, which is not supported: kernels are generated from programs."""

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}: "
        "volta_fn has no Pallas: it generates kernels from programs itself. "
        "Write the function with volta_fn.numpy and volta_fn.lax"
    )
