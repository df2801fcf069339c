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


class DonatedBufferError(VoltaError, RuntimeError):
    """An array was used after its buffer had been donated to a jitted call."""


class JaxprError(VoltaError, ValueError):
    """A jaxpr breaks the rules of its form: an unbound variable, an equation whose types do not follow from its inputs."""


class CallbackError(VoltaError, RuntimeError):
    """A Python callback raised, or returned something other than what it had promised."""


class UnhashableStaticError(VoltaError, TypeError):
    """A static argument of `jit` cannot be hashed, so it cannot be part of the cache's key."""
