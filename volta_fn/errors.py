"""Every error that the package raises on purpose.

Each is a `VoltaError` and also the built-in exception that users of NumPy and JAX already catch for the same mistake.
A message says what was given, what was expected and what to do; the error adds the user's line, found when it is made.
"""

from __future__ import annotations

from volta_fn.source import SourceLocation, user_location


class VoltaError(Exception):
    """The base of all errors here. `location` is the user's line that led to it, None if there is none.

    >>> error = ShapeError("add: shapes (2,) and (3,) differ")
    >>> isinstance(error, ValueError), error.message
    (True, 'add: shapes (2,) and (3,) differ')
    """

    location: SourceLocation | None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.location = user_location()

    @property
    def message(self) -> str:
        """The message without the location."""
        return str(self.args[0])

    def __str__(self) -> str:
        where = self.location
        return self.message if where is None else f"{self.message}\n  at {where.file}:{where.line} in {where.function}"


class ShapeError(VoltaError, ValueError):
    """The shapes of the arguments do not fit the operation or one another."""


class BroadcastError(ShapeError):
    """Shapes cannot be broadcast together: some axis has two sizes, neither of which is 1."""


class DTypeError(VoltaError, TypeError):
    """A dtype is unknown, not supported by the operation or the device, or does not match the others."""


class ArgumentError(VoltaError, ValueError):
    """An argument has the right type but a value outside what the function accepts."""


class ArgumentTypeError(VoltaError, TypeError):
    """An argument has a type that the function does not accept."""


class OutOfBoundsError(VoltaError, IndexError):
    """A constant index, axis or slice lies outside the array."""


class ImmutableError(VoltaError, TypeError):
    """An attempt to change an array in place. `x.at[index].set(value)` returns a changed copy."""


class DeviceError(VoltaError, RuntimeError):
    """A device does not exist, was lost, or arguments live on different devices."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """A device finished nothing for as long as somebody was ready to wait. It may still: waiting again is no mistake."""


class OutOfMemoryError(VoltaError, MemoryError):
    """A device has no room for a buffer."""


class TreeError(VoltaError, ValueError):
    """Pytrees have different structures where they must agree; the message gives the path of the first difference."""


class TracerError(VoltaError, TypeError):
    """A traced value was used where tracing does not allow it."""


class LeakedTracerError(TracerError):
    """A traced value was used after the traced function that made it had returned."""


class ConcretizationError(TracerError):
    """Python needed the numbers of a traced array, which has none before the program runs."""


class TracerBoolError(ConcretizationError):
    """A traced array decided a Python `if`, `while`, `and`, `or` or `not`."""


class TracerIndexError(ConcretizationError, IndexError):
    """A traced array served as a Python index, as `range`'s argument or as part of a shape."""


class GradientError(VoltaError, TypeError):
    """A derivative was asked of something that has none: integer inputs, outputs that are not scalar or not real."""


class DerivativeError(VoltaError, AssertionError):
    """A derivative differs from finite differences; the message names the place and both numbers."""


class DonatedBufferError(VoltaError, RuntimeError):
    """An array was used after its buffer had been donated to a jitted call."""


class JaxprError(VoltaError, ValueError):
    """A jaxpr breaks the rules of its form: an unbound variable, an equation whose types do not follow from its inputs."""


class CallbackError(VoltaError, RuntimeError):
    """A Python callback raised, or returned something other than what it had promised."""


class UnhashableStaticError(VoltaError, TypeError):
    """A static argument of `jit` cannot be hashed, so it cannot be part of the cache's key."""


class SerializationError(VoltaError, OSError):
    """Something could not be written to a file, or read from it."""


class CorruptFileError(SerializationError, ValueError):
    """A file breaks the rules of its format: it is cut short, damaged, of another kind, or made to do harm."""


class CheckpointError(SerializationError):
    """A checkpoint does not exist, or does not fit the tree that it should restore."""


class StateDictError(VoltaError, ValueError):
    """The names, shapes or dtypes in a state dict do not fit the tree, or the rules of a mapper do not fit the names."""


class DataError(VoltaError, ValueError):
    """Data are empty, missing or do not fit one another or what they should be; the message says which, and where they stand."""


class MissingDependencyError(VoltaError, ImportError):
    """A function needs an optional package that is not installed; the message says how to install it."""


class MemoryGrowthWarning(UserWarning):
    """The memory in use on a GPU grows from call to call of a program, and will be exhausted."""
