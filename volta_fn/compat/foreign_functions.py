"""Foreign functions with XLA's C interface, called on the host.

A *target* is a function in machine code, written against the headers of `jaxlib` (`xla/ffi/api/ffi.h`). A program calls it as it calls
Python by `pure_callback`: with row-major buffers of its operands and results in the memory of the host, whichever device runs the rest.

A target gets one argument, a *call frame* (`_CallFrame`), which describes buffers and attributes, and has a table of functions of the
runtime: for errors, for the state of a call and for results that come later. The structures are those of version 0.3 of the interface.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import as_value, aval_of
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ArgumentError, ArgumentTypeError, ExecutionError, UnsupportedError
from volta_fn.primitives.call import io_callback, pure_callback

# The structures of the interface. Each begins with its size and a list of extensions, which is empty here.

_VERSION = (0, 3)
#: Numbers of dtypes, by `XLA_FFI_DataType`.
_DTYPES = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8, "uint64": 9, "float16": 10,
    "float32": 11, "float64": 12, "complex64": 15, "bfloat16": 16, "complex128": 18, "float8_e5m2": 19, "float8_e4m3fn": 20,
    "float8_e4m3b11fnuz": 23, "float8_e5m2fnuz": 24, "float8_e4m3fnuz": 25, "float8_e4m3": 28, "float8_e3m4": 29, "float8_e8m0fnu": 33,
}  # fmt: skip
_BUFFER, _ARRAY, _DICTIONARY, _SCALAR, _STRING = 1, 1, 2, 3, 4
_STAGES = ("instantiate", "prepare", "initialize", "execute")


def _structure(name: str, /, **fields: Any) -> type[Any]:
    """Return a structure, whose fields follow the size and extensions."""
    return type(name, (Structure,), {"_fields_": [("struct_size", c_size_t), ("extension_start", c_void_p), *fields.items()]})


class _Span(Structure):
    _fields_ = (("ptr", c_void_p), ("len", c_size_t))


class _Scalar(Structure):
    _fields_ = (("dtype", c_int32), ("value", c_void_p))


class _Array(Structure):
    _fields_ = (("dtype", c_int32), ("size", c_size_t), ("data", c_void_p))


_Buffer = _structure("_Buffer", dtype=c_int32, data=c_void_p, rank=c_int64, dims=c_void_p)
_Operands = _structure("_Operands", size=c_int64, types=c_void_p, values=c_void_p)
_Attributes = _structure("_Attributes", size=c_int64, types=c_void_p, names=c_void_p, values=c_void_p)
_CallFrame = _structure(
    "_CallFrame", api=c_void_p, ctx=c_void_p, stage=c_int32, args=_Operands, rets=_Operands, attrs=_Attributes, future=c_void_p
)
_Message = _structure("_Message", message=c_void_p, code=c_int32)
_ErrorMessage = _structure("_ErrorMessage", error=c_void_p, message=c_void_p)
_Error = _structure("_Error", error=c_void_p)
_State = _structure("_State", ctx=c_void_p, stage=c_int32, type_id=POINTER(c_int64), state=c_void_p)
_Type = _structure("_Type", name=_Span, type_id=POINTER(c_int64), type_info=c_void_p)
_Task = _structure("_Task", ctx=c_void_p, task=c_void_p, data=c_void_p)
_Threads = _structure("_Threads", ctx=c_void_p, number=POINTER(c_int64))
_Future = _structure("_Future", future=c_void_p)
_FutureError = _structure("_FutureError", future=c_void_p, error=c_void_p)
_TypeInfo = _structure("_TypeInfo", deleter=c_void_p)
_RunId = _structure("_RunId", ctx=c_void_p, run_id=c_int64)
_Ordinal = _structure("_Ordinal", ctx=c_void_p, ordinal=c_int32)

# The runtime's functions. Handles of errors, futures and contexts are numbers, since nobody looks into them.

_handles = itertools.count(1)
_errors: dict[int, ctypes.Array[ctypes.c_char]] = {}
_futures: dict[int, _Result] = {}
#: The type and the address of the state of each stage, by the context of a run.
_states: dict[int, dict[int, tuple[int, int]]] = {}
_type_ids: dict[str, int] = {}
#: The function that deletes the states of a type, by its number; None for none.
_deleters: dict[int, int | None] = {}


class _Result:
    """What a target that goes on after its call will tell."""

    def __init__(self) -> None:
        self.is_available = threading.Event()
        self.error = 0
        #: The call and its frame: a wait that is interrupted ends before the target does, which goes on to use their memory.
        self.call: Any = None
        self.frame: Any = None


def _new_error(message: str) -> int:
    handle = next(_handles)
    _errors[handle] = ctypes.create_string_buffer(message.encode())
    return handle


def _create_error(arguments: Any) -> int:
    return _new_error(ctypes.string_at(arguments.message).decode(errors="replace"))


def _write_message(arguments: Any) -> None:
    arguments.message = ctypes.addressof(_errors[arguments.error])


def _destroy_error(arguments: Any) -> None:
    _errors.pop(arguments.error, None)


def _set_state(arguments: Any) -> int:
    states = _states.get(arguments.ctx)
    if states is None:
        return _new_error("the run has ended")
    if arguments.stage in states:
        return _new_error(f"the stage {_STAGES[arguments.stage]} has set its state already")
    states[arguments.stage] = arguments.type_id[0], arguments.state
    return 0


def _get_state(arguments: Any) -> int:
    states = _states.get(arguments.ctx, {})
    if arguments.stage not in states:
        return _new_error(f"the stage {_STAGES[arguments.stage]} has set no state")
    kind, state = states[arguments.stage]
    if kind != arguments.type_id[0]:
        return _new_error(f"the stage {_STAGES[arguments.stage]} has set a state of another type")
    arguments.state = state
    return 0


def _delete(states: dict[int, tuple[int, int]]) -> None:
    """Delete states by the functions of their types."""
    while states:
        _, (kind, state) = states.popitem()
        if deleter := _deleters.get(kind):
            ctypes.CFUNCTYPE(None, c_void_p)(deleter)(state)


def _register_type(arguments: Any) -> None:
    name = ctypes.string_at(arguments.name.ptr, arguments.name.len).decode()
    arguments.type_id[0] = _type_number(name, arguments.type_info)


def _type_number(name: str, info: int | None) -> int:
    """Return the number of a type of states, and note how they are deleted."""
    number = _type_ids.setdefault(name, len(_type_ids) + 1)
    if info:
        _deleters[number] = _TypeInfo.from_address(info).deleter
    return number


def _run_task(arguments: Any) -> None:
    ctypes.CFUNCTYPE(None, c_void_p)(arguments.task)(arguments.data)


def _write_threads(arguments: Any) -> None:
    arguments.number[0] = 1  # tasks run where they are scheduled


def _create_future(arguments: Any) -> None:
    arguments.future = handle = next(_handles)
    _futures[handle] = _Result()


def _set_available(arguments: Any) -> None:
    _futures[arguments.future].is_available.set()


def _set_future_error(arguments: Any) -> None:
    result = _futures[arguments.future]
    result.error = arguments.error
    result.is_available.set()


def _write_run_id(arguments: Any) -> None:
    arguments.run_id = arguments.ctx


def _write_ordinal(arguments: Any) -> None:
    arguments.ordinal = 0


def _absent(what: str) -> Callable[[Any], int]:
    return lambda arguments: _new_error(f"{what} on the host")


#: The functions in the order of the table, with the structures that they get.
_FUNCTIONS: tuple[tuple[type[Any], Callable[[Any], int | None]], ...] = (
    (_Message, _create_error),
    (_ErrorMessage, _write_message),
    (_Error, _destroy_error),
    (_Error, _absent("targets are registered by register_ffi_target, not")),
    (_Error, _absent("there is no stream")),
    (_Type, _register_type),
    (_Error, _absent("a call has no objects of the user's")),
    (_State, _set_state),
    (_State, _get_state),
    (_Error, _absent("there is no memory of a device")),
    (_Error, _absent("there is no memory of a device")),
    (_Task, _run_task),
    (_Threads, _write_threads),
    (_Future, _create_future),
    (_Future, _set_available),
    (_FutureError, _set_future_error),
    (_RunId, _write_run_id),
    (_Ordinal, _write_ordinal),
)


@functools.cache
def _runtime() -> tuple[Any, list[Any]]:
    """Return the table of functions, and what its pointers need."""

    def entry(structure: type[Any], function: Callable[[Any], int | None]) -> Any:
        return ctypes.CFUNCTYPE(c_void_p, POINTER(structure))(lambda pointer: function(pointer.contents) or None)

    version = _structure("_Version", major=ctypes.c_int, minor=ctypes.c_int)
    table = _structure("_Table", version=version, internal=c_void_p, functions=c_void_p * len(_FUNCTIONS))()
    entries = [entry(*row) for row in _FUNCTIONS]
    table.struct_size = ctypes.sizeof(table)
    table.version = version(ctypes.sizeof(version), None, *_VERSION)
    table.functions = (c_void_p * len(entries))(*[ctypes.cast(f, c_void_p).value for f in entries])
    return table, entries


# Call frames.


class _Frame:
    """A call frame, and all memory that it points to."""

    def __init__(self, context: int, stage: str, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]) -> None:
        self._memory: list[Any] = []
        frame = _CallFrame()
        frame.struct_size = _CallFrame.future.offset  # as the headers define it
        frame.api, frame.ctx, frame.stage = ctypes.addressof(_runtime()[0]), context, _STAGES.index(stage)
        frame.args, frame.rets = self._operands(inputs), self._operands(outputs)
        frame.attrs = self._dictionary(attributes)
        self.frame = frame

    def _keep(self, value: Any) -> int:
        self._memory.append(value)
        return value.ctypes.data if isinstance(value, np.ndarray) else ctypes.addressof(value)

    def _pointers(self, values: Iterable[int]) -> int:
        addresses = list(values)
        return self._keep((c_void_p * len(addresses))(*addresses))

    def _integers(self, values: Sequence[int], kind: type[Any] = c_int32) -> int:
        return self._keep((kind * len(values))(*values))

    def _operands(self, operands: Sequence[tuple[np.ndarray, tuple[int, ...]]]) -> Any:
        """Describe buffers.

        Each is an array in the order of its memory, and the shape by its axes.
        """
        buffers = [
            self._keep(
                _Buffer(
                    ctypes.sizeof(_Buffer), None, dtype_number(data.dtype), self._keep(data), len(shape), self._integers(shape, c_int64)
                )
            )
            for data, shape in operands
        ]
        types = self._integers([_BUFFER] * len(buffers))
        return _Operands(ctypes.sizeof(_Operands), None, len(buffers), types, self._pointers(buffers))

    def _dictionary(self, attributes: Mapping[str, Any]) -> Any:
        names = sorted(attributes)
        kinds, values = zip(*[self._attribute(name, attributes[name]) for name in names], strict=True) if names else ((), ())
        spans = [self._keep(self._span(name.encode())) for name in names]
        return _Attributes(
            ctypes.sizeof(_Attributes), None, len(names), self._integers(kinds), self._pointers(spans), self._pointers(values)
        )

    def _span(self, text: bytes) -> _Span:
        return _Span(self._keep(ctypes.create_string_buffer(text)), len(text))

    def _attribute(self, name: str, value: Any) -> tuple[int, int]:
        """Return an attribute's kind and address."""
        if isinstance(value, Mapping):
            return _DICTIONARY, self._keep(self._dictionary(value))
        if isinstance(value, (str, bytes)):
            return _STRING, self._keep(self._span(value.encode() if isinstance(value, str) else value))
        if isinstance(value, np.ndarray):
            data = np.ascontiguousarray(value)
            return _ARRAY, self._keep(_Array(dtype_number(data.dtype), data.size, self._keep(data)))
        if isinstance(value, (bool, int, float, complex, np.generic)):
            data = np.asarray(value)  # Python's numbers have 64 bits
            return _SCALAR, self._keep(_Scalar(dtype_number(data.dtype), self._keep(data)))
        raise ArgumentTypeError(
            f"ffi_call: the attribute {name} must be a number, a string, an array of NumPy's or a dictionary, got {value!r}"
        )


def dtype_number(dtype: Any) -> int:
    """Return the number of a dtype in the interface.

    >>> dtype_number(np.dtype("float32"))
    11
    """
    name = np.dtype(dtype).name  # not as arrays have it, which may have no 64 bits: those of attributes do
    if name not in _DTYPES:
        raise ArgumentTypeError(f"ffi_call: functions with XLA's interface take no arrays of {name}")
    return _DTYPES[name]


# Targets.

_targets: dict[tuple[str, str], dict[str, int]] = {}


def _address(name: str, capsule: Any) -> int:
    """Return the pointer in a capsule."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = c_void_p, (ctypes.py_object, ctypes.c_char_p)
    if type(capsule).__name__ != "PyCapsule":
        raise ArgumentTypeError(f"register_ffi_target: {name} must be a PyCapsule, got {type(capsule).__name__}; ffi.pycapsule makes one")
    return int(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)))


def register_ffi_target(name: str, fn: Any, platform: str = "cpu", api_version: int = 1, **kwargs: Any) -> None:
    """Register a function in machine code under a name.

    Args:
        name: the name that `ffi_call` takes.
        fn: a capsule with the function's address, or a dictionary of such by their stages ("instantiate", "prepare", "initialize",
            "execute").
        platform: calls use functions for "cpu"; others are stored.
        api_version: 1; the older interface, 0, is `UnsupportedError` when it is called.
    """
    stages = fn if isinstance(fn, Mapping) else {"execute": fn}
    if unknown := {*stages} - {*_STAGES}:
        raise ArgumentError(f"register_ffi_target: {name} has stages {sorted(unknown)}; there are {', '.join(_STAGES)}")
    _targets[name, platform.lower()] = {stage: _address(name, capsule) for stage, capsule in stages.items()} if api_version == 1 else {}


def register_ffi_type(name: str, type_registration: Mapping[str, Any], platform: str = "cpu") -> None:
    """Give a number to a type of the states that a target's stages hand on.

    `type_registration["type_id"]` is a capsule with the place of the number; "type_info", which may be absent, has that of the deleter of
    such states.
    """
    info = type_registration.get("type_info")
    number = _type_number(name, None if info is None else _address(name, info))
    c_int64.from_address(_address(name, type_registration["type_id"])).value = number


def register_ffi_type_id(name: str, obj: Any, platform: str = "cpu") -> None:
    """Raise `UnsupportedError`: `register_ffi_type` has replaced it."""
    raise UnsupportedError("register_ffi_type_id has been replaced by register_ffi_type(name, {'type_id': …})")


def register_ffi_target_as_batch_partitionable(name: str) -> None:
    """Do nothing: each call runs where its operands are."""


def pycapsule(funcptr: Any) -> Any:
    """Return a capsule with the address of a function of `ctypes`."""
    build = ctypes.pythonapi.PyCapsule_New
    build.restype, build.argtypes = ctypes.py_object, (c_void_p, ctypes.c_char_p, c_void_p)
    return build(ctypes.cast(funcptr, c_void_p), None, None)


def include_dir() -> str:
    """Return the folder of the headers, which are in the package jaxlib."""
    folders = (os.path.join(folder, "jaxlib", "include") for folder in sys.path)
    path = next(filter(os.path.isdir, folders), None)
    if path is None:
        raise UnsupportedError("ffi.include_dir: the headers of XLA's interface are in the package jaxlib, which is not installed")
    return path


# Calls.


class _Call:
    """A call of a target on NumPy's arrays.

    The stage "instantiate" runs once, before the first of the others. Its state lives as long as the call; those of other stages belong to
    one run, of which several threads may have one each.
    """

    def __init__(
        self, name: str, ranks: Sequence[int], results: Sequence[Any], orders: tuple[Any, Any], aliases: Mapping[int, int], attributes: Any
    ) -> None:
        self.__name__ = f"ffi_call({name!r})"
        self.name, self.ranks, self.results, self.aliases, self.attributes = name, ranks, results, aliases, attributes
        self.input_orders, self.output_orders = orders
        self._lock, self._is_instantiated = threading.Lock(), False
        self._states: dict[int, tuple[int, int]] = {}
        weakref.finalize(self, _delete, self._states).atexit = False

    def __call__(self, *args: Any) -> list[np.ndarray]:
        stages = target_of(self.name)
        arrays = [np.asarray(x) for x in args]
        # Under `vmap` operands and results have axes more than the call was written for.
        leading = np.broadcast_shapes(*[x.shape[: x.ndim - rank] for x, rank in zip(arrays, self.ranks, strict=True)])
        inputs = [(_in_order(x, order), x.shape) for x, order in zip(arrays, self.input_orders, strict=True)]
        outputs = []
        for result, order in zip(self.results, self.output_orders, strict=True):
            shape = (*leading, *result.shape)
            outputs.append((np.empty([shape[k] for k in _full_order(order, len(shape))], dtypes.as_dtype(result.dtype)), shape))
        for i, o in self.aliases.items():
            outputs[o][0][...] = inputs[i][0]
            inputs[i] = outputs[o]
        if "instantiate" in stages:
            with self._lock:
                if not self._is_instantiated:
                    self._states.update(self._run({"instantiate": stages["instantiate"]}, (), ()))
                    self._is_instantiated = True
        _delete(self._run({stage: stages[stage] for stage in _STAGES[1:] if stage in stages}, inputs, outputs))
        return [
            data.transpose(np.argsort(_full_order(order, data.ndim))) for (data, _), order in zip(outputs, self.output_orders, strict=True)
        ]

    def _run(self, stages: Mapping[str, int], inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[int, tuple[int, int]]:
        """Call stages of the target in turn, and return the states that they set.

        Raises the error of a stage. After an interrupt the states remain, since the target may go on.
        """
        context = next(_handles)
        _states[context] = dict(self._states)
        try:
            for stage, address in stages.items():
                self._run_stage(context, stage, address, inputs, outputs)
        except Exception:
            _delete(self._states_of_run(context))
            raise
        return self._states_of_run(context)

    def _states_of_run(self, context: int) -> dict[int, tuple[int, int]]:
        return {stage: state for stage, state in _states.pop(context).items() if stage not in self._states}

    def _run_stage(self, context: int, stage: str, address: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Call a stage of the target, and wait for it; raise its error."""
        arguments = _Frame(context, stage, inputs, outputs, self.attributes)
        handle = ctypes.CFUNCTYPE(c_void_p, c_void_p)(address)(ctypes.addressof(arguments.frame)) or 0
        if not handle and (future := arguments.frame.future):
            _futures[future].call, _futures[future].frame = self, arguments
            _futures[future].is_available.wait()
            handle = _futures.pop(future).error
        if handle:
            raise ExecutionError(f"ffi_call: {self.name} failed: {_errors.pop(handle).value.decode(errors='replace')}")


def _full_order(order: Sequence[int] | None, rank: int) -> list[int]:
    """Return the axes from the outermost one in memory on.

    Leading axes that an order does not tell about come first.
    """
    more = rank - (rank if order is None else len(order))
    return [*range(more), *(more + k for k in (range(rank) if order is None else order))]


def _in_order(x: np.ndarray, order: Sequence[int] | None) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(_full_order(order, x.ndim)))


def target_of(name: str) -> dict[str, int]:
    """Return the addresses of a target's stages on the host."""
    stages = _targets.get((name, "cpu"), _targets.get((name, "host")))
    if stages is None:
        others = sorted(platform for target, platform in _targets if target == name)
        advice = f"it has functions for {', '.join(others)} alone" if others else "register it by ffi.register_ffi_target"
        raise UnsupportedError(f"ffi_call: {name} is not registered for the platform cpu, on which foreign functions run: {advice}")
    if not stages:
        raise UnsupportedError(f"ffi_call: {name} has the interface of version 0; register a function with api_version=1")
    return stages


def ffi_call(
    target_name: str,
    result_shape_dtypes: Any,
    *,
    has_side_effect: bool = False,
    vmap_method: str | None = None,
    input_layouts: Sequence[Any] | None = None,
    output_layouts: Any = None,
    input_output_aliases: Mapping[int, int] | None = None,
    custom_call_api_version: int = 4,
    legacy_backend_config: str | None = None,
) -> Callable[..., Any]:
    """Return a function that calls a target; its keywords are attributes.

    Args:
        target_name: the name of `register_ffi_target`, which may follow later.
        result_shape_dtypes: a description of the result, or a sequence of such.
        has_side_effect: whether the call must run even if its results are unused.
        vmap_method: what `vmap` does, as for `pure_callback`.
        input_layouts: for each operand the axes from the outermost one in memory on, or None for the order of rows.
        output_layouts: the same of the results.
        input_output_aliases: numbers of operands, and those of the results that begin as them and share their buffer.

    Raises:
        UnsupportedError: the program runs, and the target is not registered for "cpu".
        ExecutionError: the target returned an error.
    """
    if custom_call_api_version < 4 or legacy_backend_config is not None:
        raise UnsupportedError("ffi_call: only the interface of custom_call_api_version=4 is there; register a function with api_version=1")
    is_single = hasattr(result_shape_dtypes, "dtype")
    results = [result_shape_dtypes] if is_single else list(result_shape_dtypes)
    output_orders = _orders("output_layouts", [output_layouts] if is_single else output_layouts, len(results))
    aliases = dict(input_output_aliases or {})

    def call(*args: Any, **attributes: Any) -> Any:
        avals = [aval_of(as_value(x)) for x in args]
        input_orders = _orders("input_layouts", input_layouts, len(args))
        for i, o in aliases.items():
            if not (i < len(args) and o < len(results) and tuple(results[o].shape) == avals[i].shape):
                raise ArgumentError(f"ffi_call: input_output_aliases has {i}: {o}, which are not an operand and a result of one shape")
        if current_trace() is EVAL:
            target_of(target_name)
        host = _Call(target_name, [a.ndim for a in avals], results, (input_orders, output_orders), aliases, attributes)
        if has_side_effect:
            outs = io_callback(host, results, *args)
        else:
            outs = pure_callback(host, results, *args, vmap_method=vmap_method)
        return outs[0] if is_single else type(result_shape_dtypes)(outs) if isinstance(result_shape_dtypes, (list, tuple)) else outs

    return call


def _orders(name: str, layouts: Sequence[Any] | None, number: int) -> list[Any]:
    """Return the order of each array's axes, None where it is that of rows."""
    if layouts is None:
        return [None] * number
    if len(layouts) != number:
        raise ArgumentError(f"ffi_call: {name} has {len(layouts)} entries, for {number} arrays")
    return [getattr(layout, "major_to_minor", layout) for layout in layouts]


def ffi_lowering(
    call_target_name: str,
    *,
    operand_layouts: Sequence[Any] | None = None,
    result_layouts: Sequence[Any] | None = None,
    backend_config: Mapping[str, Any] | None = None,
    skip_ffi_layout_processing: bool = False,
    **lowering_args: Any,
) -> Callable[..., Any]:
    """Return a lowering rule that calls a target.

    Keywords of the rule are attributes.

    Args:
        call_target_name: the name of `register_ffi_target`.
        operand_layouts: for each operand the axes from the innermost one in memory on, or None for the order of rows.
        result_layouts: the same of the results.
        backend_config: further attributes.
        skip_ffi_layout_processing: accepted; it has no effect.
        lowering_args: `operand_output_aliases` and `has_side_effect` as `ffi_call` takes them; others have no effect.

    Raises `UnsupportedError` for functions whose `api_version` is below 4.
    """
    options = {
        "has_side_effect": lowering_args.get("has_side_effect", False),
        "input_layouts": _outermost_first(operand_layouts),
        "output_layouts": _outermost_first(result_layouts),
        "input_output_aliases": lowering_args.get("operand_output_aliases"),
        "custom_call_api_version": lowering_args.get("api_version", 4),
    }

    def rule(context: Any, *operands: Any, **params: Any) -> list[Any]:
        return list(ffi_call(call_target_name, list(context.avals_out), **options)(*operands, **(dict(backend_config or {}) | params)))

    return rule


def _outermost_first(layouts: Sequence[Any] | None) -> list[Any] | None:
    """Return the orders of axes from the outermost one on.

    Layouts tell those themselves.
    """
    if layouts is None:
        return None
    return [layout if layout is None or hasattr(layout, "major_to_minor") else tuple(reversed(layout)) for layout in layouts]
