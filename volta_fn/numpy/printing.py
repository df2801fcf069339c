"""How arrays are printed: NumPy's options apply."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.core.array import Array

get_printoptions = np.get_printoptions
printoptions = np.printoptions
set_printoptions = np.set_printoptions


def array_repr(arr: Array, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None) -> str:
    """The text that `repr` gives, with other options for once."""
    with _options(max_line_width, precision, suppress_small):
        return repr(arr)


def array_str(a: Array, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None) -> str:
    """The text that `str` gives, with other options for once.

    >>> import volta_fn.numpy as jnp
    >>> jnp.array_str(jnp.array([1.23456]), precision=2)
    '[1.23]'
    """
    with _options(max_line_width, precision, suppress_small):
        return str(a)


def _options(width: int | None, precision: int | None, suppress: bool | None) -> Any:
    given: dict[str, Any] = {"linewidth": width, "precision": precision, "suppress": suppress}
    return np.printoptions(**{name: value for name, value in given.items() if value is not None})
