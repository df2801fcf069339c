"""The buffer of arrays that were donated or deleted: any use of it raises."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from volta_fn.errors import DonatedBufferError

# ------------------------------------------------------------------------------
# The buffer of arrays that were donated or deleted: any use of it raises.
#
# A thread may find an array's program by its type, and take the array's buffer only after another thread has donated the array. It then
# gets `GONE`, an array of NumPy's (so that machine code can read its flags) whose elements do not lie one after another (so that
# machine code refuses it) and whose attributes, ufuncs and functions raise.
# ------------------------------------------------------------------------------


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise DonatedBufferError(
        "an array was donated to a jitted function (donate_argnums or donate_argnames), or deleted, by another thread while this call "
        "began to use it. Use the function's result instead, or do not donate an array that other threads use."
    )


#: What debuggers and documentation tools ask any object for.
_OF_ANY_OBJECT = frozenset({"__class__", "__dict__", "__doc__", "__module__", "__name__", "__qualname__", "__wrapped__"})


class _Gone(np.ndarray):
    """Elements that nothing may read."""

    __array_ufunc__ = __array_function__ = _refuse

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name in _OF_ANY_OBJECT else _refuse()


#: The buffer of all arrays that were donated or deleted.
GONE: Any = np.full((2, 2), np.nan)[:, :1].view(_Gone)
