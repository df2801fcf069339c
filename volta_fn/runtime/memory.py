"""NumPy's MemoryError as an error of this package."""

from __future__ import annotations

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs
from volta_fn.errors import OutOfMemoryError


def out_of_memory(error: MemoryError) -> OutOfMemoryError:
    """Return an error as an `OutOfMemoryError`, with what NumPy says of the array."""
    if isinstance(error, OutOfMemoryError):
        return error
    reason = str(error) or "an allocation failed"
    return OutOfMemoryError(f"the memory is exhausted: {reason}; use smaller batches, or free arrays that are not needed")


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
