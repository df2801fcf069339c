"""NumPy's files, and arrays as text."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.errors import CorruptFileError, OutOfMemoryError
from volta_fn.numpy.creation import array

#: How many times its compressed size, and how many bytes, an array of an archive may have.
_EXPANSION, _ANY_EXPANSION = 64, 1 << 28


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Load an .npy file's array or an .npz archive; arguments as of `numpy.load`.

    Raises `CorruptFileError` for a file that NumPy cannot read, and for pickles, unless the caller passes `allow_pickle`;
    `OutOfMemoryError` for an array without room. The arrays of an archive are read when they are asked for, with the same errors. One that
    claims more than 64 times its compressed size, and more than 256 MiB, is refused: read such an archive, if you trust it, by NumPy.
    """
    try:
        loaded = _loaded(file, *args, **kwargs)
    except MemoryError as error:
        raise OutOfMemoryError(f"numpy.load: there is no room for what {file!r:.200} says that it holds: {error}") from error
    except Exception as error:
        if (isinstance(error, OSError) and error.errno is not None) or isinstance(error, TypeError):  # no file, or a mistake in the call
            raise
        raise CorruptFileError(f"numpy.load cannot read {file!r:.200}: {error}") from error
    if isinstance(loaded, np.lib.npyio.NpzFile):
        return Archive(loaded)
    return array(_with_bfloat16(loaded)) if isinstance(loaded, np.ndarray) else loaded


def _loaded(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `numpy.load`, which leaves the file of a damaged archive open."""
    if hasattr(file, "read"):
        return np.load(file, *args, **kwargs)
    with contextlib.ExitStack() as stack:
        stream: Any = stack.enter_context(open(os.fspath(file), "rb"))
        if stream.read(2) != b"PK":
            return np.load(file, *args, **kwargs)
        stream.seek(0)
        loaded = np.load(stream, *args, **kwargs)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            loaded.fid = stream  # the archive closes it
            stack.pop_all()
        return loaded


def _with_bfloat16(loaded: np.ndarray) -> np.ndarray:
    return loaded.view(dtypes.bfloat16) if loaded.dtype == np.dtype("V2") else loaded  # what NumPy's files make of bfloat16


class Archive(Mapping[str, Any]):
    """The arrays of an .npz archive by name, as `load` returns them.

    Each is read when it is asked for, and is a NumPy array. Close the archive, or use it as a context.
    """

    def __init__(self, archive: Any) -> None:
        self._archive = archive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._archive.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._archive)

    def __len__(self) -> int:
        return len(self._archive)

    def __contains__(self, name: object) -> bool:
        return name in self._archive

    def __repr__(self) -> str:
        return repr(self._archive)

    def __getitem__(self, name: str) -> Any:
        """Return an array.

        Raises `KeyError` if there is none of the name, `CorruptFileError` if it is damaged or claims too much, and `OutOfMemoryError`.
        """
        try:
            if name in self._archive:
                self._check_size(name)
            found = self._archive[name]
        except (KeyError, CorruptFileError):
            raise
        except MemoryError as error:
            raise OutOfMemoryError(f"numpy.load: there is no room for {name!r}: {error}") from error
        except Exception as error:
            raise CorruptFileError(f"numpy.load cannot read {name!r} of an archive: {error}") from error
        return _with_bfloat16(found) if isinstance(found, np.ndarray) else found

    def _check_size(self, name: str) -> None:
        """Compare the sizes that an array's header and the directory claim."""
        directory = self._archive.zip
        info = directory.NameToInfo.get(name) or directory.getinfo(f"{name}.npy")
        most = max(_EXPANSION * info.compress_size, _ANY_EXPANSION)
        if info.file_size > most:
            raise CorruptFileError(
                f"numpy.load: {name!r} of an archive claims {info.file_size} bytes, more than the {most} that it may have"
            )
        with directory.open(info) as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                return
        with directory.open(info) as file:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0}.get(version, np.lib.format.read_array_header_2_0)
            shape, _, dtype = read(file)
            size = math.prod(shape) * dtype.itemsize
            if not dtype.hasobject and file.tell() + size != info.file_size:
                raise CorruptFileError(f"numpy.load: {name!r} of an archive claims {size} bytes of elements, in a file of {info.file_size}")


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
