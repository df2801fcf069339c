"""Each error is what NumPy users catch, carries the user's line and its entry in the index, and survives pickling."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import traceback

import pytest

import volta_fn as vf
from volta_fn import errors
from volta_fn.errors import __main__ as index

CAUGHT_AS = {
    "ShapeError": (ValueError, TypeError),
    "BroadcastError": (errors.ShapeError, ValueError),
    "AxisError": (errors.ShapeError, ValueError, IndexError),
    "DTypeError": (TypeError, ValueError),
    "TypePromotionError": (errors.DTypeError, TypeError),
    "ArgumentError": (ValueError, TypeError),
    "ArgumentTypeError": (TypeError, ValueError),
    "OutOfBoundsError": IndexError,
    "AxisNameError": (errors.ArgumentError, NameError),
    "ImmutableError": TypeError,
    "ExportError": BufferError,
    "IntegerOverflowError": (errors.ArgumentError, OverflowError),
    "ExecutionError": RuntimeError,
    "DeviceError": (errors.ExecutionError, RuntimeError),
    "DeviceTimeoutError": TimeoutError,
    "DistributedError": (errors.ExecutionError, RuntimeError),
    "ProgramMismatchError": (errors.DistributedError, RuntimeError),
    "OutOfMemoryError": MemoryError,
    "TreeError": (ValueError, TypeError),
    "TracerError": TypeError,
    "LeakedTracerError": (errors.TracerError, TypeError),
    "ConcretizationError": (errors.TracerError, TypeError),
    "TracerIndexError": (errors.ConcretizationError, TypeError, IndexError),
    "TracerArrayError": errors.ConcretizationError,
    "TracerMaskError": (errors.ConcretizationError, IndexError),
    "TracerBoolError": (errors.ConcretizationError, TypeError),
    "InconclusiveDimensionOperation": errors.ConcretizationError,
    "GradientError": (TypeError, ValueError),
    "MissingRuleError": (errors.GradientError, NotImplementedError),
    "UnsetRuleError": (errors.ArgumentError, errors.GradientError, AttributeError),
    "CapturedTracerError": (errors.GradientError, errors.LeakedTracerError),
    "DerivativeError": AssertionError,
    "DonatedBufferError": RuntimeError,
    "JaxprError": ValueError,
    "CompilerError": RuntimeError,
    "CallbackError": RuntimeError,
    "CheckError": (RuntimeError, ValueError),  # JAX raises the latter
    "RefError": ValueError,
    "LoweringError": NotImplementedError,
    "UnsupportedError": NotImplementedError,
    "KeyReuseError": RuntimeError,
    "NonFiniteError": FloatingPointError,
    "UnknownSettingError": AttributeError,
    "AlreadyImportedError": ImportError,
    "UnhashableStaticError": (TypeError, ValueError),
    "SerializationError": OSError,
    "CorruptFileError": (errors.SerializationError, OSError, ValueError),
    "CheckpointError": (errors.SerializationError, OSError),
    "StateDictError": ValueError,
    "DataError": ValueError,
    "MissingDependencyError": ImportError,
    "OnnxError": ValueError,
}


def all_errors() -> dict[str, type]:
    return {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, errors.VoltaError)}


def test_every_error_is_listed_here():
    assert set(all_errors()) == {*CAUGHT_AS, "VoltaError"}


@pytest.mark.parametrize(("name", "bases"), CAUGHT_AS.items())
def test_is_also_the_built_in_error(name, bases):
    for base in bases if isinstance(bases, tuple) else (bases,):
        with pytest.raises(base):
            raise getattr(errors, name)("x")
    assert issubclass(getattr(errors, name), errors.VoltaError)


@pytest.mark.parametrize("name", [*CAUGHT_AS, "VoltaError"])
def test_message_location_and_pickle(name):
    line = inspect.currentframe().f_lineno + 1
    error = getattr(errors, name)("dot: shapes (2,) and (3,)")
    assert error.message == "dot: shapes (2,) and (3,)"
    assert str(error) == f"dot: shapes (2,) and (3,)\n  at {__file__}:{line} in test_message_location_and_pickle"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.location, copy.args) == (str(error), error.location, error.args)
    assert copy.__notes__ == error.__notes__ == [f"More: python -m volta_fn.errors {name}"]


def test_without_a_location_only_the_message_shows():
    error = errors.ShapeError("m")
    error.location = None
    assert str(error) == "m"


@pytest.mark.parametrize("name", [*CAUGHT_AS, "VoltaError"])
def test_documented(name):
    assert len(inspect.getdoc(getattr(errors, name)).split()) > 5


def test_subclasses_of_users_lead_to_the_entry_of_their_base():
    class Own(errors.ShapeError):
        pass

    assert Own("m").__notes__ == ["More: python -m volta_fn.errors ShapeError"]


def test_a_traceback_has_the_note_once_at_its_end():
    try:
        vf.vmap(vf.grad(lambda x: x @ vf.numpy.ones(3)))(vf.numpy.ones((2, 2)))
    except errors.ShapeError as error:
        text = "".join(traceback.format_exception(error))
    assert text.endswith("\nMore: python -m volta_fn.errors ShapeError\n") and text.count("More: ") == 1


def test_the_index_is_printed(capsys):
    assert index.main(["TracerMaskError"]) == 0
    cause, example, remedy = capsys.readouterr().out.removeprefix("TracerMaskError\n\n").strip().split("\n\n")
    assert "boolean array" in cause and example == "    vf.jit(lambda x: x[x > 0])(jnp.arange(3.0))" and "jnp.where" in remedy
    assert index.main([]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert {row.partition(":")[0] for row in rows} >= CAUGHT_AS.keys()
    assert "ShapeError: The shapes of the arguments do not fit the operation or one another" in rows
    assert index.main(["ShapeErorr"]) == 2
    assert capsys.readouterr().err == "the index of errors has no 'ShapeErorr'; did you mean ShapeError?\n"
    assert index.main(["Xyzzy"]) == 2
    assert capsys.readouterr().err == "the index of errors has no 'Xyzzy'; python -m volta_fn.errors lists all\n"


def test_the_command_runs_without_a_warning():
    completed = subprocess.run([sys.executable, "-W", "error", "-m", "volta_fn.errors", "CheckError"], capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "") and completed.stdout.startswith("CheckError\n\n")
