"""Foreign functions, which are not supported: programs call Python instead."""

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}: "
        "volta_fn's programs call no foreign functions. "
        "Call the library from Python, in pure_callback or experimental.io_callback"
    )
