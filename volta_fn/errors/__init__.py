"""Every error that the package raises on purpose.

Each is a `VoltaError` and also the built-in exception that users of NumPy and JAX already catch for the same mistake.
A message says what was given, what was expected and what to do; the error adds the user's line, found when it is made, and a note that
names its entry in the index of errors: `python -m volta_fn.errors ShapeError` prints cause, example and remedy, as the page of errors does.
"""

from __future__ import annotations

from volta_fn.source import SourceLocation, user_location


class VoltaError(Exception):
    """The base of all errors of this package.

    `location` is the user's line that led to it, or None. A note (PEP 678), which tracebacks show last, says where to read more.

    >>> error = ShapeError("add: shapes (2,) and (3,) differ")
    >>> isinstance(error, ValueError), error.message
    (True, 'add: shapes (2,) and (3,) differ')
    >>> error.__notes__
    ['More: python -m volta_fn.errors ShapeError']
    """

    location: SourceLocation | None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.location = user_location()
        self.add_note(f"More: python -m volta_fn.errors {self._entry()}")

    @classmethod
    def _entry(cls) -> str:
        """Return the name in the index: a user's subclass has that of its base here."""
        return next(base.__name__ for base in cls.__mro__ if base.__module__ == __name__)

    @property
    def message(self) -> str:
        """The message without the location."""
        return str(self.args[0])

    def __str__(self) -> str:
        where = self.location
        return self.message if where is None else f"{self.message}\n  at {where.place} in {where.function}"


class ShapeError(VoltaError, ValueError, TypeError):
    """The shapes of the arguments do not fit the operation or one another.

    NumPy raises ValueError for that, and JAX mostly TypeError: this is both.
    """


class BroadcastError(ShapeError):
    """Shapes cannot be broadcast: some axis has two sizes, neither of which is 1."""


class AxisError(ShapeError, IndexError):
    """An axis lies outside the dimensions of an array."""


class DTypeError(VoltaError, TypeError, ValueError):
    """A dtype is unknown, unsupported here, or does not match the others.

    As of shapes, JAX raises TypeError or ValueError for it: this is both.
    """


class TypePromotionError(DTypeError):
    """Dtypes do not combine: they have no common one, or promotion is strict."""


class ArgumentError(VoltaError, ValueError, TypeError):
    """An argument has the right type but a value outside what the function accepts.

    JAX raises ValueError or TypeError for that, by the function: this is both.
    """


class IntegerOverflowError(ArgumentError, OverflowError):
    """A Python integer does not fit the dtype that it gets."""


class ArgumentTypeError(VoltaError, TypeError, ValueError):
    """An argument has a type that the function does not accept.

    JAX raises TypeError or ValueError for that, by the function: this is both.
    """


class OutOfBoundsError(VoltaError, IndexError):
    """A constant index, axis or slice lies outside the array."""


class AxisNameError(ArgumentError, NameError):
    """A named axis is used outside of the `vmap` that has it."""


class ImmutableError(VoltaError, TypeError):
    """An attempt to change an array in place; `x.at[i].set(v)` returns a copy."""


class ExportError(VoltaError, BufferError):
    """An array cannot be shared with a library, or a program cannot be exported."""


class ExecutionError(VoltaError, RuntimeError):
    """A program could not be run to its end."""


class DeviceError(ExecutionError):
    """A device does not exist, was lost, or arguments live on different devices."""


class DistributedError(ExecutionError):
    """Processes cannot start, or cannot go on together."""


class ProgramMismatchError(DistributedError):
    """Processes compile different programs, whose collectives would wait forever."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """A device finished nothing within the time limit. Waiting again may succeed."""


class OutOfMemoryError(VoltaError, MemoryError):
    """A device has no room for a buffer."""


class TreeError(VoltaError, ValueError, TypeError):
    """Pytrees that must agree differ in structure; the message has the path."""


class TracerError(VoltaError, TypeError):
    """A traced value was used where tracing does not allow it."""


class LeakedTracerError(TracerError):
    """A traced value was used after the traced function that made it had returned."""


class ConcretizationError(TracerError):
    """Python needed the numbers of a traced array, which has none yet."""


class TracerBoolError(ConcretizationError):
    """A traced array decided a Python `if`, `while`, `and`, `or` or `not`."""


class TracerArrayError(ConcretizationError):
    """A traced array was given to NumPy, which needs its numbers."""


class TracerMaskError(ConcretizationError, IndexError):
    """A traced boolean array served as an index, so that a shape depends on it."""


class TracerIndexError(ConcretizationError, IndexError):
    """A traced array served as a Python index, a `range` argument or a dimension."""


class InconclusiveDimensionOperation(ConcretizationError):
    """A symbolic size was used where Python needs a number, or compared in vain."""


class RefError(VoltaError, ValueError):
    """A mutable reference is used where programs allow none, or under two names."""


class GradientError(VoltaError, ValueError, TypeError):
    """A function has no such derivative: integer inputs, results not scalar or real."""


class MissingRuleError(GradientError, NotImplementedError):
    """A primitive has no rule for a transform."""


class UnsetRuleError(ArgumentError, GradientError, AttributeError):
    """A function that is to have a rule of the user's is called before it has one."""


class CapturedTracerError(GradientError, LeakedTracerError):
    """A function with a rule of its own closes over a value that is differentiated."""


class DerivativeError(VoltaError, AssertionError):
    """A derivative differs from finite differences; the message has both numbers."""


class DonatedBufferError(VoltaError, RuntimeError):
    """An array was used after its buffer was donated to a jitted call, or deleted."""


class JaxprError(VoltaError, ValueError):
    """A jaxpr is malformed: an unbound variable, or types that do not agree."""


class CompilerError(VoltaError, RuntimeError):
    """The compiler broke one of its own rules.

    That is a fault of this package, not of the program. `stage` is the pass or the code generator that did,
    `equation` what it compiled, and `location` the user's line of that.

    >>> error = CompilerError.of("fusion", "a kernel reads past the end of its buffer", "add f32[3] f32[3] -> f32[3]")
    >>> error.stage, error.equation
    ('fusion', 'add f32[3] f32[3] -> f32[3]')
    """

    stage: str = ""
    equation: str = ""

    @classmethod
    def of(cls, stage: str, problem: str, equation: str = "", location: SourceLocation | None = None) -> CompilerError:
        """Return the error of a stage, with the equation and its line."""
        error = cls(f"{stage}: {problem}" + (f"\n  in {equation}" if equation else ""))
        error.stage, error.equation, error.location = stage, equation, location
        return error


class CallbackError(ExecutionError):
    """A Python callback raised, or returned something other than what it had promised."""


class CheckError(VoltaError, RuntimeError, ValueError):
    """A check failed: of `experimental.checkify`, or an error of it that was thrown."""


class UnhashableStaticError(VoltaError, TypeError, ValueError):
    """A static argument of `jit` cannot be hashed, so it cannot be a cache key."""


class SerializationError(VoltaError, OSError):
    """Something could not be written to a file, or read from it."""


class CorruptFileError(SerializationError, ValueError):
    """A file violates its format: it is truncated, damaged, malicious or another kind."""


class CheckpointError(SerializationError):
    """A checkpoint does not exist, or does not fit the tree that it should restore."""


class StateDictError(VoltaError, ValueError):
    """A state dict does not fit the tree, or mapping rules do not fit the names."""


class LoweringError(VoltaError, NotImplementedError):
    """A lowering rule asks for what compilers here do not have, such as MLIR."""


class UnsupportedError(VoltaError, NotImplementedError):
    """A function of JAX without a meaning here; the message says what to use instead."""


class KeyReuseError(VoltaError, RuntimeError):
    """A random key was used twice; no function here raises it."""


class NonFiniteError(VoltaError, FloatingPointError):
    """A result is NaN or infinite, and `jax_debug_nans` or `jax_debug_infs` is set.

    `index` is that of its first such element, in a result of `shape`.
    """

    index: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()

    def in_batch(self, size: int) -> None:
        """Add which example of a batch it is, found by the size of the axis."""
        axis = next((a for a, n in enumerate(self.shape) if n == size), None)
        if axis is None:
            return
        first, _, rest = self.message.partition("\n")
        self.args = (f"{first}\n  example {self.index[axis]} of {size} that vmap maps\n{rest}",)
        self.index, self.shape = (tuple([n for a, n in enumerate(some) if a != axis]) for some in (self.index, self.shape))


class UnknownSettingError(VoltaError, AttributeError):
    """There is no setting of that name."""


class AlreadyImportedError(VoltaError, ImportError):
    """The real JAX is loaded, so that `import jax` cannot mean this package."""


class DataError(VoltaError, ValueError):
    """Data are empty, missing or inconsistent; the message says which, and where."""


class OnnxError(VoltaError, ValueError):
    """An ONNX model has what cannot be run here, or a program what ONNX cannot say."""


class MissingDependencyError(VoltaError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class RecompilationWarning(UserWarning):
    """A jitted function was compiled for many kinds of arguments."""


class PromotionWarning(UserWarning):
    """Arrays of 32 bits became float64 because they met float64 data."""


class MemoryGrowthWarning(UserWarning):
    """GPU memory in use grows from call to call of a program; it will run out."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint is damaged, and an older one was restored instead."""
