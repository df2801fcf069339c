"""NumPy's MemoryError as an error of this package."""

from __future__ import annotations

from volta_fn.errors import OutOfMemoryError


def out_of_memory(error: MemoryError) -> OutOfMemoryError:
    """Return an error as an `OutOfMemoryError`, with what NumPy says of the array."""
    if isinstance(error, OutOfMemoryError):
        return error
    reason = str(error) or "an allocation failed"
    return OutOfMemoryError(f"the memory is exhausted: {reason}; use smaller batches, or free arrays that are not needed")
