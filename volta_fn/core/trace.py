"""Traces: interpreters of primitives, one of them current in each thread and task.

`bind` hands a primitive to the current trace. The bottom trace evaluates. Each transform pushes a trace of its own, whose values are
*tracers*, and runs its rules with its parent as the current trace, so transforms nest without level numbers. What a trace depends on, other
than its function, is here, too: the named axes in scope, and the current mesh.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Primitive
from volta_fn.errors import AxisNameError, ConcretizationError, LeakedTracerError, TracerArrayError, TracerBoolError, TracerIndexError


class Trace:
    """An interpreter of primitives. `parent` is the one that its rules run under."""

    __slots__ = ("__weakref__", "alive", "name", "parent")

    def __init__(self, parent: Trace | None = None, name: str = "") -> None:
        self.parent = parent
        self.alive = True
        #: The traced function's name, for messages.
        self.name = name

    @property
    def main(self) -> Trace:
        """The trace itself, by JAX's older name for what identifies it."""
        return self

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Apply a primitive: its result, or a tuple of results if it has several."""
        # Interpreters written for JAX define `process_primitive`, which returns a list of several results.
        if (call := SUBFUNCTION_CALLS.get(primitive.name)) is not None and hasattr(self, call.method):
            return tuple(call.process(getattr(self, call.method), primitive, args, params))
        form = _JAX_FORMS.get(primitive.name)
        if form is not None:
            primitive, params = PRIMITIVES[form[0]], {**params, **form[1]}
        result = self.process_primitive(primitive, args, params)
        return tuple(result) if primitive.multiple_results else result

    def process_primitive(self, primitive: Primitive, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        """Apply a primitive, by JAX's name."""
        raise ConcretizationError(f"{type(self).__name__} cannot process {primitive}")

    def full_raise(self, x: Any) -> Any:
        """Return `x`, by JAX's name: values of other traces need no wrapper."""
        return x

    def runs_now(self, args: Sequence[Array]) -> bool:
        """Return True if an operation on these arguments is computed at once."""
        return False

    def is_valid(self) -> bool:
        """Return True until the trace is finished."""
        return self.alive

    def finish(self) -> None:
        """Mark the trace as finished: its tracers are leaks from now on."""
        self.alive = False

    invalidate = finish


class EvalTrace(Trace):
    """The bottom trace, which evaluates primitives by the function that `jit` sets."""

    __slots__ = ()

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Run the primitive now."""
        try:
            return evaluator(primitive, args, params)
        # Of a leaked tracer, which has no `_spec`: looking for one beforehand would slow down each operation. Others are a rule's own.
        except AttributeError:
            for arg in args:
                if isinstance(arg, Tracer):
                    raise_leaked(arg)
            raise


def _no_evaluator(primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
    raise ConcretizationError("primitives cannot be evaluated before volta_fn.jit is loaded: import volta_fn itself")


#: Evaluates a primitive on concrete arrays. `volta_fn.jit.eager` sets it: the only upward dependency of the layers.
evaluator: Callable[[Primitive, Sequence[Any], dict[str, Any]], Any] = _no_evaluator


def set_evaluator(function: Callable[[Primitive, Sequence[Any], dict[str, Any]], Any]) -> None:
    """Set the function that evaluates primitives on concrete arrays."""
    global evaluator
    evaluator = function


EVAL = EvalTrace(None)
_current: ContextVar[Trace] = ContextVar("current_trace", default=EVAL)

current_trace: Callable[[], Trace] = _current.get
#: Make a trace the current one. Who sets it restores the one before in a ``finally``, and sets it in the ``try``: a signal's handler may
#: raise as soon as it is set.
set_trace = _current.set


def bind(primitive: Primitive, /, *args: Array, **params: Any) -> Any:
    """Apply a primitive under the current trace, as rules do."""  # `Primitive.bind` is for programs written for JAX
    return _current.get().process(primitive, args, params)


#: Parameters of JAX's primitives that choose among ways to compute the same: None leaves the choice.
_CHOICES = ("accuracy", "algorithm", "dimensions", "out_sharding", "sharding", "subset_by_index")


class SubfunctionCall(NamedTuple):
    """How interpreters written for JAX process calls of functions with rules.

    Attributes:
        method: the interpreter's method, which gets functions in place of programs and rules. Without it, the call is like any primitive.
        process: calls the method by the primitive, its operands and parameters.
        bind: calls the functions that the method passes on, the parameter `subfuns`.
    """

    method: str
    process: Callable[..., Sequence[Any]]
    bind: Callable[..., Any]


#: Those calls, by the primitive's name.
SUBFUNCTION_CALLS: dict[str, SubfunctionCall] = {}


#: By a primitive's name: the name that interpreters written for JAX read, and the parameters that JAX's primitive has beyond this one's.
_JAX_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "jit": ("jit", {"inline": False}),
    "round": ("round", {"rounding_method": 0}),
    "round_half_even": ("round", {"rounding_method": 1}),
}


def _from_jax(primitive: Primitive, params: dict[str, Any]) -> tuple[Primitive, dict[str, Any]]:
    """Return the primitive and its parameters of what such an interpreter passes on."""
    for name, (form, options) in _JAX_FORMS.items():
        if primitive.name == form and options.items() <= params.items():
            return PRIMITIVES[name], {key: value for key, value in params.items() if key not in options}
    return primitive, params


def _bind_as_jax(primitive: Primitive, /, *args: Any, **params: Any) -> Any:
    """Apply the primitive to arrays or numbers; several results are a list, as in JAX."""
    primitive, params = _from_jax(primitive, {name: value for name, value in params.items() if value is not None or name not in _CHOICES})
    result = _current.get().process(primitive, [as_value(arg) for arg in args], params)
    return list(result) if primitive.multiple_results else result


Primitive.bind = _bind_as_jax  # type: ignore[method-assign,assignment]  # for users' interpreters of programs


def run_under(trace: Trace, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function(*args, **kwargs)` with `trace` as the current one."""
    previous = _current.get()
    try:
        _current.set(trace)
        return function(*args, **kwargs)
    finally:
        _current.set(previous)


def _bind_with_trace(primitive: Primitive, trace: Trace, args: Sequence[Any], avals: Any, params: dict[str, Any], /) -> Any:
    """Apply the primitive under a trace; `avals` has no effect."""
    apply = SUBFUNCTION_CALLS[primitive.name].bind if "subfuns" in params else primitive.bind
    return run_under(trace, apply, *args, **params)


Primitive.bind_with_trace = _bind_with_trace  # type: ignore[method-assign]  # as above


class Tracer(Array):
    """A value that stands for an array while a function is traced."""

    __slots__ = ("__weakref__", "_aval", "_trace")
    _trace: Trace

    def __init__(self, trace: Trace, aval: ShapedArray) -> None:
        """Make a value of a trace, as libraries' own classes of tracers do."""
        self._trace = trace
        self._aval = aval

    @property
    def aval(self) -> ShapedArray:
        """Shape, dtype and weak type."""
        return self._aval

    def origin(self) -> str:
        """Describe where this tracer comes from."""
        return f"a value traced by {type(self._trace).__name__}"

    def constrain(self, sharding: Any) -> Tracer:
        """Return the value with its arrays, or its variable, split by a sharding."""
        return self

    def block_until_ready(self) -> Tracer:
        """Return self: there is nothing to wait for while tracing."""
        return self

    def _refuse_value(self, use: str, remedy: str, error: type[ConcretizationError] = ConcretizationError) -> NoReturn:
        """Raise an error: the operation `use` needs the value."""
        where = f" in {self._trace.name!r}" if self._trace.name else ""
        raise error(
            f"{use} needs a concrete value, but this array of type {self.aval} is being traced{where}: {self.origin()}. "
            f"Its value is unknown until the program runs. {remedy}"
        )

    def __bool__(self) -> bool:
        self._refuse_value(
            "a Python `if`, `while`, `and`, `or`, `not` or bool()",
            "Use lax.cond, lax.while_loop or volta_fn.numpy.where for decisions on traced values, "
            "or make the argument static with jit(..., static_argnums=...).",
            TracerBoolError,
        )

    def __index__(self) -> int:
        self._refuse_value(
            "an integer index, range() or shape",
            "Use lax.dynamic_slice, x[i] on arrays or lax.fori_loop, or make the argument static with jit(..., static_argnums=...).",
            TracerIndexError,
        )

    def __int__(self) -> int:
        self._refuse_value("int()", "Use x.astype(int) to stay inside the program.")

    def __float__(self) -> float:
        self._refuse_value("float()", "Use x.astype(float) to stay inside the program, and volta_fn.numpy.sqrt for math.sqrt.")

    def __complex__(self) -> complex:
        self._refuse_value("complex()", "Use x.astype(complex) to stay inside the program.")

    def __dlpack__(self, **options: Any) -> Any:
        self._refuse_value("another library (DLPack)", "Return the array from the traced function, or call the library in pure_callback.")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.__dlpack__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self._refuse_value(
            "conversion to a NumPy array",
            "Use the function of the same name in volta_fn.numpy, or pure_callback to call NumPy code from a traced function.",
            TracerArrayError,
        )

    def item(self, *index: int) -> Any:
        """Raise `ConcretizationError`: a traced array has no value yet."""
        self._refuse_value("item()", "Return the array from the traced function and read it there.")

    def tolist(self) -> Any:
        """Raise `ConcretizationError`: a traced array has no value yet."""
        self._refuse_value("tolist()", "Return the array from the traced function and read it there.")

    def __copy__(self) -> Tracer:
        return self

    def __deepcopy__(self, memo: Any) -> Tracer:
        return self

    def __reduce__(self) -> Any:
        self._refuse_value("pickling", "Return the array from the traced function and pickle it there.")

    def __format__(self, spec: str) -> str:
        if spec:
            self._refuse_value(f"formatting as {spec!r}", "Print it with debug.print, or return it from the traced function.")
        return str(self)

    def __repr__(self) -> str:
        return f"Traced<{self.aval}>"


def raise_leaked(tracer: Tracer) -> NoReturn:
    """Report a tracer that outlived its trace."""
    function = f" of {tracer._trace.name!r}" if tracer._trace.name else ""
    raise LeakedTracerError(
        f"an array of type {tracer.aval} was used outside the traced call{function} that made it: it is {tracer.origin()}. "
        "It was probably stored in a global, an attribute, a list or a closure while the function was traced. "
        "Return such values from the function instead."
    )


def check_alive(value: Array) -> None:
    """Raise `LeakedTracerError` if `value` is a tracer whose trace is over."""
    if isinstance(value, Tracer) and not value._trace.alive:
        raise_leaked(value)


def is_concrete(x: Any) -> bool:
    """Return True if `x` has numbers now."""
    return type(x) is ConcreteArray or not isinstance(x, Tracer)


def concrete_or_raise(value: Any, use: str, remedy: str = "", error: type[ConcretizationError] = ConcretizationError) -> Any:
    """Return `value` if it is concrete, else raise a `ConcretizationError`."""
    if isinstance(value, Tracer):
        value._refuse_value(use, remedy, error)
    return value


# The depth to which traces may nest, beyond Python's default limit of frames.

#: The frames that a level of nested traces is allowed; it takes about ten.
_FRAMES = 16
#: The most levels that get them: functions that call themselves for ever end in a RecursionError.
_MOST_LEVELS = 300
#: The levels that have them now.
_levels = 0
_lock = threading.Lock()


@contextmanager
def raised_recursion_limit() -> Iterator[None]:
    """Raise Python's recursion limit by the frames that one level of traces takes."""
    global _levels
    with _lock:
        allowed = _levels < _MOST_LEVELS
        if allowed:
            _levels += 1
            sys.setrecursionlimit(sys.getrecursionlimit() + _FRAMES)
    try:
        yield
    finally:
        if allowed:
            with _lock:
                _levels -= 1
                sys.setrecursionlimit(sys.getrecursionlimit() - _FRAMES)


# The search for tracers that outlive their trace, for `checking_leaks`.


def check_leaks(trace: Trace) -> None:
    """Raise `LeakedTracerError` if something refers to a tracer of a finished trace."""
    if not _tracers(trace):
        return
    gc.collect()  # what only a cycle holds is no leak; nothing here may hold the tracers meanwhile
    leaked = _tracers(trace)
    if not leaked:
        return
    first, several = leaked[0], len(leaked) > 1
    holders = [_describe(holder) for holder in gc.get_referrers(first) if holder is not leaked]
    held_by = ", ".join(filter(None, dict.fromkeys(holders))) or "something outside of Python"
    values = f"{len(leaked)} traced values" if several else "a traced value"
    raise LeakedTracerError(
        f"checking_leaks: {values} of {trace.name or 'a function'} outlive{'s' * (not several)} its trace, {'the first ' * several}"
        f"of type {first.aval}: it is {first.origin()}, and is held by {held_by}. "
        "Return such values from the function; do not store them in globals, attributes, lists or closures."
    )


def _tracers(trace: Trace) -> list[Tracer]:
    return [value for value in gc.get_referrers(trace) if isinstance(value, Tracer)]


def _describe(holder: Any) -> str:
    if isinstance(holder, FrameType):
        return "" if holder.f_globals.get("__name__", "").startswith("volta_fn") else f"a variable of {holder.f_code.co_qualname}"
    return f"a {type(holder).__name__}"


# Named axes: those that `vmap` and `shard_map` bind.
#
# The positions along an axis are the examples of a `vmap`, or processes. Collectives refer to an axis of examples by its name, which the
# `vmap` resolves, and to one of processes by its `ProcessAxis`, which stays in the program.


class ProcessGrid(NamedTuple):
    """Processes at the positions of named axes, row-major, or devices of one."""

    names: tuple[Any, ...]
    shape: tuple[int, ...]
    #: The ranks of the processes, or the numbers of the devices.
    ranks: tuple[int, ...]
    #: The devices of one process, each with a memory of its own; none if the positions are processes.
    devices: tuple[Any, ...] = ()

    @functools.cache  # noqa: B019  # grids are few, and compared by value
    def group(self, names: tuple[Any, ...], rank: int) -> tuple[int, ...]:
        """Return the processes that differ from `rank` along the named axes only."""
        grid = np.asarray(self.ranks).reshape(self.shape)
        position = np.argwhere(grid == rank)[0]
        members = grid[tuple([slice(None) if name in names else position[i] for i, name in enumerate(self.names)])]
        order = [name for name in self.names if name in names]
        return tuple(np.transpose(members, [order.index(name) for name in names]).ravel().tolist())


class ProcessAxis:
    """A named axis whose positions are processes, or devices of one."""

    def __init__(self, name: Any, grid: ProcessGrid) -> None:
        self.name, self.grid = name, grid

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessAxis) and (other.name, other.grid) == (self.name, self.grid)

    def __hash__(self) -> int:
        return hash((self.name, self.grid))

    @property
    def size(self) -> int:
        """The number of processes along it."""
        return self.grid.shape[self.grid.names.index(self.name)]

    def __repr__(self) -> str:
        return f"{self.name}:{self.size}"


class StepAxis:
    """A named axis whose positions are the steps of a kernel's grid."""

    def __init__(self, name: Any, size: int, index: Any) -> None:
        self.name, self.size = name, size
        #: The step's index along it, an array.
        self.index = index

    def __repr__(self) -> str:
        return f"{self.name}:{self.size}"


#: The bound names with their sizes, outermost first.
_axes: ContextVar[tuple[tuple[Any, int | ProcessAxis | StepAxis], ...]] = ContextVar("named_axes", default=())


def axis_environment() -> tuple[tuple[Any, int | ProcessAxis | StepAxis], ...]:
    """Return the bound names, outermost first; programs depend on them."""
    return _axes.get()


@contextlib.contextmanager
def bound_axis(name: Any, size: int | ProcessAxis | StepAxis) -> Iterator[None]:
    """Bind a name (None binds nothing) to a size, or an axis of processes or steps."""
    if name is None:
        yield
        return
    previous = _axes.get()
    try:
        _axes.set((*previous, (name, size)))
        yield
    finally:
        _axes.set(previous)


def bound_axes(axis_name: Any, *, with_steps: bool = False) -> tuple[Any, ...]:
    """Return what names are bound to.

    That is themselves by `vmap`, or a `ProcessAxis`, or a `StepAxis` if these are asked for.

    Raises `AxisNameError` for a name that is not bound, and for one of steps, which exchange nothing.
    """
    axes = tuple([_binding(name)[0] for name in _names(axis_name)])
    if not with_steps and (steps := [axis for axis in axes if isinstance(axis, StepAxis)]):
        raise AxisNameError(f"the steps along the axis {steps[0].name!r} run one after another and exchange nothing: write to a reference")
    return axes


def axis_size(axis_name: Any) -> int:
    """Return the number of positions; raise `AxisNameError` for an unbound name."""
    size = 1
    for name in _names(axis_name):
        size *= _binding(name)[1]
    return size


def _names(axis_name: Any) -> Sequence[Any]:
    """Return one or several names as a sequence."""
    return axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)


def _binding(name: Any) -> tuple[Any, int]:
    """Return what a name is bound to, and the number of positions."""
    if isinstance(name, ProcessAxis | StepAxis):
        return name, name.size
    for bound, size in reversed(_axes.get()):
        if bound == name:
            return (size, size.size) if isinstance(size, ProcessAxis | StepAxis) else (name, size)
    bound_names = [n for n, _ in _axes.get()]
    raise AxisNameError(f"no axis named {name!r} is in scope (bound here: {bound_names}); give one with vmap(f, axis_name={name!r})")


# The mesh that `set_mesh` sets.

current_mesh: ContextVar[Any] = ContextVar("mesh", default=None)


class _MeshReads(threading.local):
    """The number of times that this thread has read the current mesh.

    A program whose trace did is for that mesh alone.
    """

    count = 0


mesh_reads = _MeshReads()


def read_mesh() -> Any:
    """Return the current mesh, and count the read."""
    mesh_reads.count += 1
    return current_mesh.get()
