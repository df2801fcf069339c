"""The memory of the CPU's arrays: what is allocated, and errors beyond the limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import KeyedWeakref
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs
from volta_fn.errors import OutOfMemoryError

# NumPy's MemoryError as an error of this package.


def out_of_memory(error: MemoryError) -> OutOfMemoryError:
    """Return an error as an `OutOfMemoryError`, with what NumPy says of the array."""
    if isinstance(error, OutOfMemoryError):
        return error
    reason = str(error) or "an allocation failed"
    return OutOfMemoryError(f"the memory is exhausted: {reason}; use smaller batches, or free arrays that are not needed")


# Count the memory of the CPU's arrays, and refuse what is beyond a limit.
#
# VOLTA_MEMORY or `set_memory_limit` sets the limit. Only then are arrays counted: an operation first reserves the bytes of its results
# and of the values between, and its results are counted until nothing refers to their memory. Memory that other libraries own is not.


class Accountant:
    """The bytes of arrays in use, and the most that may be."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.in_use = 0
        self.peak = 0
        #: The arrays that own memory, by identity, and those collected since the last call: a callback may run at any moment.
        self._owners: dict[int, KeyedWeakref[np.ndarray]] = {}
        self._collected: deque[KeyedWeakref[np.ndarray]] = deque()
        self._lock = Lock()

    def _collect(self) -> None:
        while self._collected:
            identity, size = self._collected.popleft().key
            self.in_use -= size
            owner = self._owners.get(identity)
            if owner is not None and owner() is None:
                del self._owners[identity]

    def reserve(self, size: int, describe: Callable[[], str]) -> None:
        """Raise `OutOfMemoryError` if so many bytes more would be beyond the limit."""
        if self.limit is None:
            return
        with self._lock:
            self._collect()
            in_use = self.in_use
        if in_use + size > self.limit:
            raise OutOfMemoryError(
                f"{describe()}: {size:,} bytes more than the {in_use:,} of arrays in use would be beyond the limit of {self.limit:,} bytes "
                "(VOLTA_MEMORY, set_memory_limit). Delete arrays, donate arguments (jit's donate_argnums), use smaller batches, or raise "
                "the limit"
            )

    def count(self, arrays: Sequence[Any]) -> None:
        """Count the memory of arrays, until nothing refers to it."""
        with self._lock:
            self._collect()
            for array in arrays:
                if isinstance(array, np.ndarray):
                    self._count(_owner(array))
            self.peak = max(self.peak, self.in_use)

    def _count(self, owner: np.ndarray) -> None:
        identity = id(owner)
        reference = self._owners.get(identity)
        if reference is None or reference() is not owner:
            self.in_use += owner.nbytes
            reference = self._owners[identity] = KeyedWeakref(owner, self._collected.append)
            reference.key = (identity, owner.nbytes)


def _owner(array: np.ndarray) -> np.ndarray:
    """Return the array whose memory an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def limited(
    accountant: Accountant, run: Callable[..., Any], size: int, describe: Callable[[], str], *, several: bool, views: bool = False
) -> Callable[..., Any]:
    """Return a function of buffers that reserves memory first and counts its results.

    A function that mostly returns `views`, which need no memory, reserves it afterwards if its result is not a view.
    """

    def call(*args: Any) -> Any:
        if not views:
            accountant.reserve(size, describe)
        result = run(*args)
        if views and not any(_owner(result) is _owner(arg) for arg in args):
            accountant.reserve(result.nbytes, describe)
        accountant.count(result if several else (result,))
        return result

    return call


def explained(error: MemoryError, closed: ClosedJaxpr) -> OutOfMemoryError:
    """Return the error of a program with its largest array and the user's line."""
    largest = largest_value(closed)
    message = out_of_memory(error).message
    return OutOfMemoryError(message if largest is None else f"{message}. The largest array that the program computes is {largest}")


def largest_value(closed: ClosedJaxpr) -> str | None:
    """Return a description of the largest array of a program, with the user's line."""
    values: list[tuple[int, ShapedArray, Equation]] = []
    pending = [closed]
    while pending:
        for eqn in pending.pop().eqns:
            values += [(v.aval.nbytes, v.aval, eqn) for v in eqn.outvars]
            pending += sub_jaxprs(eqn.params)
    if not values:
        return None
    _, aval, eqn = max(values, key=lambda entry: entry[0])
    return f"{aval}, of {eqn.primitive}" + ("" if eqn.source is None else f" at {eqn.source}")
