"""NumPy's files, and arrays as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.errors import CorruptFileError, OutOfMemoryError
from volta_fn.numpy.creation import array


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Load an .npy file's array or an .npz archive; arguments as of `numpy.load`.

    Raises `CorruptFileError` for a file that NumPy cannot read, and for pickles, unless the caller passes `allow_pickle`;
    `OutOfMemoryError` for an array without room. NumPy reads the arrays of an archive when they are asked for, with its own errors.
    """
    try:
        loaded = np.load(file, *args, **kwargs)
    except MemoryError as error:
        raise OutOfMemoryError(f"numpy.load: there is no room for what {file!r:.200} says that it holds: {error}") from error
    except Exception as error:
        if (isinstance(error, OSError) and error.errno is not None) or isinstance(error, TypeError):  # no file, or a mistake in the call
            raise
        raise CorruptFileError(f"numpy.load cannot read {file!r:.200}: {error}") from error
    if isinstance(loaded, np.ndarray) and loaded.dtype == np.dtype("V2"):  # what NumPy's files make of bfloat16
        loaded = loaded.view(dtypes.bfloat16)
    return array(loaded) if isinstance(loaded, np.ndarray) else loaded


def save(file: Any, arr: Any, allow_pickle: bool = False) -> None:
    """Write an array to an .npy file."""
    np.save(file, np.asarray(arr), allow_pickle=allow_pickle)


def savez(file: Any, *args: Any, **kwds: Any) -> None:
    """Write arrays, by position or by name, to an .npz archive."""
    named: dict[str, Any] = {name: np.asarray(a) for name, a in kwds.items()}
    np.savez(file, *[np.asarray(a) for a in args], **named)


def fromfile(file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0) -> Array:
    """Read an array from the bytes (with `sep`, the text) of a file."""
    return array(np.fromfile(file, dtypes.as_dtype(dtype), count, sep, offset))


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Array:
    """Read an array from the numbers in a text, separated by `sep`.

    >>> jnp.fromstring("1 2 3", dtype=int, sep=" ")
    Array([1, 2, 3], dtype=int32)
    """
    return array(np.fromstring(string, dtypes.as_dtype(dtype), count, sep=sep))


get_printoptions = np.get_printoptions
printoptions = np.printoptions
set_printoptions = np.set_printoptions


def array_repr(arr: Array, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None) -> str:
    """Return what `repr` returns, with other print options."""
    with _options(max_line_width, precision, suppress_small):
        return repr(arr)


def array_str(a: Array, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None) -> str:
    """Return what `str` returns, with other print options.

    >>> jnp.array_str(jnp.array([1.23456]), precision=2)
    '[1.23]'
    """
    with _options(max_line_width, precision, suppress_small):
        return str(a)


def _options(width: int | None, precision: int | None, suppress: bool | None) -> Any:
    given: dict[str, Any] = {"linewidth": width, "precision": precision, "suppress": suppress}
    return np.printoptions(**{name: value for name, value in given.items() if value is not None})
