"""Foreign functions: LAPACK's as jaxlib has them compiled, handlers that read their call frame, and the headers of the interface."""

from __future__ import annotations

import ctypes
import gc
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxlib.lapack
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import ffi
from volta_fn.compat import foreign_functions as module
from volta_fn.config import enable_x64
from volta_fn.errors import ArgumentError, ArgumentTypeError, CallbackError, UnsupportedError
from volta_fn.extend import core, interpreters

HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(module._CallFrame))
HEADER = Path(ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
COLUMNS = (1, 0)


@pytest.fixture(scope="module", autouse=True)
def lapack() -> None:
    jaxlib.lapack._lapack.initialize()
    for name, capsule, version in jaxlib.lapack.registrations()["cpu"]:
        ffi.register_ffi_target(name, capsule, platform="cpu", api_version=version)


def matrix(dtype: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape) * (dtype.startswith("complex"))
    return (x if dtype.startswith("complex") else x.real).astype(dtype)


def cholesky(name: str, **options: Any) -> Callable[[Any], Any]:
    def call(a: Any) -> Any:
        struct = vf.ShapeDtypeStruct(a.shape, a.dtype)
        results = (struct, vf.ShapeDtypeStruct((), "int32"))
        function = ffi.ffi_call(
            name, results, input_layouts=[COLUMNS], output_layouts=[COLUMNS, ()], input_output_aliases={0: 0}, **options
        )
        return function(a, uplo=np.uint8(ord("L")))

    return call


@pytest.mark.parametrize(("dtype", "letter"), [("float32", "s"), ("float64", "d"), ("complex64", "c"), ("complex128", "z")])
@pytest.mark.parametrize("transform", [lambda f: f, vf.jit])
def test_cholesky_by_lapack(dtype: str, letter: str, transform: Callable[..., Any]) -> None:
    a = matrix(dtype, 5, 5)
    a = a @ a.conj().T + 5 * np.eye(5, dtype=dtype)
    factor, info = transform(cholesky(f"lapack_{letter}potrf_ffi"))(a)
    assert int(info) == 0
    np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(a), rtol=20 * np.finfo(dtype).eps)


@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all"])
def test_a_batch_by_each_method(method: str) -> None:
    a = matrix("float64", 3, 4, 4)
    a = a @ a.swapaxes(1, 2) + 4 * np.eye(4)
    factors, info = vf.jit(vf.vmap(cholesky("lapack_dpotrf_ffi", vmap_method=method)))(a)
    assert not np.any(info)
    np.testing.assert_allclose(np.tril(factors), np.linalg.cholesky(a), rtol=1e-13)


def test_results_of_several_shapes() -> None:
    a = matrix("float64", 3, 4)
    results = [vf.ShapeDtypeStruct(shape, dtype) for shape, dtype in (((3, 4), "float64"), ((3,), "int32"), ((), "int32"))]
    function = ffi.ffi_call("lapack_dgetrf_ffi", results, input_layouts=[COLUMNS], output_layouts=[COLUMNS, (0,), ()])
    factors, pivots, info = function(a)
    lower, upper = np.tril(factors[:, :3], -1) + np.eye(3), np.triu(factors)
    permuted = a.copy()
    for k, pivot in enumerate(np.asarray(pivots) - 1):
        permuted[[k, pivot]] = permuted[[pivot, k]]
    assert int(info) == 0
    np.testing.assert_allclose(lower @ upper, permuted, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("transform", [lambda f: f, vf.jit])
def test_a_call_is_the_lowering_of_a_primitive(transform: Callable[..., Any]) -> None:
    primitive = core.Primitive("factor")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda a: (a, core.ShapedArray((), np.dtype("int32"))))
    columns = (0, 1)  # from the innermost axis on
    rule = ffi.ffi_lowering(
        "lapack_dpotrf_ffi",
        operand_layouts=[columns],
        result_layouts=[columns, ()],
        operand_output_aliases={0: 0},
        backend_config={"uplo": 0},
    )

    def lower(context: Any, a: Any) -> Any:
        assert context.module_context.platforms == (vf.default_backend(),) and not context.is_forward_compat()
        return rule(context.replace(tokens_in=None), a, uplo=np.uint8(ord("L")))

    interpreters.register_lowering(primitive, lower)
    primitive.def_impl(lambda a: interpreters.apply_primitive(primitive, a))
    a = matrix("float64", 4, 4)
    a = a @ a.T + 4 * np.eye(4)
    a[0, 3] = 7.0  # above the diagonal, which is not read
    factor, info = transform(primitive.bind)(a)
    assert int(info) == 0
    np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(np.tril(a) + np.tril(a, -1).T), rtol=1e-13)


# Handlers in Python, which read what a handler in C++ would.


def text_of(span: Any) -> str:
    return ctypes.string_at(span.ptr, span.len).decode()


def array_of(address: int) -> np.ndarray:
    buffer = module._Buffer.from_address(address)
    dims = (ctypes.c_int64 * buffer.rank).from_address(buffer.dims)
    return np.ctypeslib.as_array((ctypes.c_float * int(np.prod(dims))).from_address(buffer.data)).reshape(*dims)


def pointers(address: int, size: int) -> list[Any]:
    return list((ctypes.c_void_p * size).from_address(address))


def attributes_of(attributes: Any) -> dict[str, Any]:
    names = [text_of(module._Span.from_address(a)) for a in pointers(attributes.names, attributes.size)]
    kinds = (ctypes.c_int32 * attributes.size).from_address(attributes.types)
    values = pointers(attributes.values, attributes.size)
    return dict(zip(names, map(attribute, kinds, values), strict=True))


def attribute(kind: int, address: int) -> Any:
    numbers = {number: name for name, number in module._DTYPES.items()}
    if kind == 2:
        return attributes_of(module._Attributes.from_address(address))
    if kind == 4:
        return text_of(module._Span.from_address(address))
    if kind == 1:
        array = module._Array.from_address(address)
        dtype = np.dtype(numbers[array.dtype])
        return np.frombuffer(ctypes.string_at(array.data, array.size * dtype.itemsize), dtype).tolist()
    scalar = module._Scalar.from_address(address)
    dtype = np.dtype(numbers[scalar.dtype])
    return dtype.name, np.frombuffer(ctypes.string_at(scalar.value, dtype.itemsize), dtype)[0].item()


def api_function(frame: Any, index: int, structure: type[Any]) -> Callable[[Any], int | None]:
    """Return a function of the runtime's table, whose pointers follow a size, extensions, a version and an internal pointer."""
    table = pointers(frame.api + 8 + 8 + 24 + 8, 18)
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(structure))(table[index])
    return lambda arguments: function(ctypes.byref(arguments))


def failure(frame: Any, message: bytes) -> int | None:
    text = ctypes.create_string_buffer(message)
    return api_function(frame, 0, module._Message)(module._Message(32, None, ctypes.addressof(text), 3))


def registered(name: str, **stages: Callable[[Any], int | None]) -> list[Any]:
    handlers = {stage: HANDLER(lambda pointer, body=body: body(pointer.contents)) for stage, body in stages.items()}
    ffi.register_ffi_target(name, {stage: ffi.pycapsule(handler) for stage, handler in handlers.items()})
    return [*handlers.values()]  # which must live as long as their calls


def double(frame: Any) -> None:
    (x,), (out,) = (pointers(operands.values, operands.size) for operands in (frame.args, frame.rets))
    array_of(out)[...] = 2 * array_of(x)


def test_operands_attributes_and_results() -> None:
    attributes: list[dict[str, Any]] = []

    def execute(frame: Any) -> None:
        attributes.append(attributes_of(frame.attrs))
        double(frame)

    handlers = registered("double", execute=execute)
    x = vnp.arange(6.0).reshape(2, 3)
    call = ffi.ffi_call("double", vf.ShapeDtypeStruct((2, 3), "float32"))
    out = vf.jit(lambda x: call(x + 1, z=2, name="é", flag=True, half=np.float16(0.5), table=np.array([1, 2], "int32"), nested={"b": 1.5}))(
        x
    )
    np.testing.assert_array_equal(out, 2 * (np.arange(6.0).reshape(2, 3) + 1))
    assert attributes == [
        {
            "flag": ("bool", True), "half": ("float16", 0.5), "name": "é", "nested": {"b": ("float64", 1.5)}, "table": [1, 2],
            "z": ("int64", 2),
        }
    ]  # fmt: skip
    assert list(attributes[0]) == sorted(attributes[0])
    del handlers


def test_attributes_have_64_bits_where_arrays_have_32() -> None:
    attributes: list[dict[str, Any]] = []

    def execute(frame: Any) -> None:
        attributes.append(attributes_of(frame.attrs))
        double(frame)

    handlers = registered("double", execute=execute)
    with enable_x64(False):
        call = ffi.ffi_call("double", vf.ShapeDtypeStruct((1,), "float32"))
        assert call(vnp.ones(1), address=2**40, half=0.5, table=np.array([2**40])).tolist() == [2]
    assert attributes == [{"address": ("int64", 2**40), "half": ("float64", 0.5), "table": [2**40]}]
    del handlers


def test_errors_of_a_handler_are_told() -> None:
    handlers = registered("fails", execute=lambda frame: failure(frame, b"no such case"))
    with pytest.raises(CallbackError, match="fails failed: no such case"):
        ffi.ffi_call("fails", vf.ShapeDtypeStruct((), "float32"))(1.0)
    assert not module._errors
    del handlers


@pytest.mark.parametrize("is_error", [False, True])
def test_results_that_come_later(is_error: bool) -> None:
    def execute(frame: Any) -> None:
        create = api_function(frame, 13, module._Future)
        finish = api_function(frame, 15 if is_error else 14, module._FutureError if is_error else module._Future)
        future = module._Future(16, None, 0)
        create(future)
        frame.future = future.future
        error = failure(frame, b"too late") if is_error else 0

        def later() -> None:
            double(frame)
            finish(module._FutureError(32, None, future.future, error) if is_error else future)

        threading.Thread(target=later).start()

    handlers = registered("later", execute=execute)
    call = ffi.ffi_call("later", vf.ShapeDtypeStruct((2,), "float32"))
    if is_error:
        with pytest.raises(CallbackError, match="later failed: too late"):
            call(vnp.ones(2))
    else:
        np.testing.assert_array_equal(call(vnp.ones(2)), [2, 2])
    assert not module._futures
    del handlers


def test_memory_of_an_interrupted_wait_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    def execute(frame: Any) -> None:
        future = module._Future(16, None, 0)
        api_function(frame, 13, module._Future)(future)
        frame.future = future.future
        module._futures[future.future].is_available = Interrupted()
        addresses.extend([array_of(out).ctypes.data for out in pointers(frame.rets.values, frame.rets.size)])

    addresses: list[int] = []
    handlers = registered("interrupted", execute=execute)
    monkeypatch.setattr(module, "_futures", {})
    call = module._Call("interrupted", [1], [vf.ShapeDtypeStruct((2,), "float32")], ([None], [None]), {}, {})
    with pytest.raises(KeyboardInterrupt):
        call(np.ones(2, np.float32))
    (result,) = module._futures.values()
    assert addresses[0] in [x.ctypes.data for x in result.frame._memory if isinstance(x, np.ndarray)]
    del handlers


TYPE = 7_000_001  # a number that no registered type has


def set_state(frame: Any, address: int, kind: int = TYPE) -> int | None:
    return api_function(frame, 7, module._State)(
        module._State(48, None, frame.ctx, frame.stage, ctypes.pointer(ctypes.c_int64(kind)), address)
    )


def get_state(frame: Any, stage: int, kind: int = TYPE) -> tuple[int | None, int | None]:
    """Return the handle of an error, and the state."""
    state = module._State(48, None, frame.ctx, stage, ctypes.pointer(ctypes.c_int64(kind)), 0)
    return api_function(frame, 8, module._State)(state), state.state


def test_state_of_a_call_is_made_once() -> None:
    runs: list[str] = []

    def instantiate(frame: Any) -> int | None:
        runs.append("instantiate")
        assert frame.args.size == 0
        return set_state(frame, 7)

    def execute(frame: Any) -> None:
        runs.append(f"state {get_state(frame, 0)[1]}")
        double(frame)

    handlers = registered("stateful", instantiate=instantiate, execute=execute)
    function = vf.jit(ffi.ffi_call("stateful", vf.ShapeDtypeStruct((2,), "float32"), has_side_effect=True))
    for _ in range(2):
        np.testing.assert_array_equal(function(vnp.ones(2)), [2, 2])
    assert runs == ["instantiate", "state 7", "state 7"]
    del handlers


def test_states_are_deleted_with_their_run_or_call() -> None:
    deleted: list[int] = []
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleted.append)
    info = module._TypeInfo(24, None, ctypes.cast(deleter, ctypes.c_void_p).value)
    place = ctypes.c_int64(0)
    capsules = {"type_id": ffi.pycapsule(ctypes.pointer(place)), "type_info": ffi.pycapsule(ctypes.pointer(info))}
    ffi.register_ffi_type("a state that is deleted", capsules)

    def execute(frame: Any) -> None:
        assert [get_state(frame, stage, place.value) for stage in (0, 2)] == [(None, 10), (None, 12)]
        double(frame)

    handlers = registered(
        "deleted",
        instantiate=lambda frame: set_state(frame, 10, place.value),
        initialize=lambda frame: set_state(frame, 12, place.value),
        execute=execute,
    )
    states = dict(module._states)
    for run in range(3):
        np.testing.assert_array_equal(ffi.ffi_call("deleted", vf.ShapeDtypeStruct((2,), "float32"))(vnp.ones(2)), [2, 2])
        gc.collect()
        assert sorted(deleted) == [10] * (run + 1) + [12] * (run + 1)
    assert module._states == states
    del handlers


def test_a_stage_that_fails_after_another_leaves_no_state() -> None:
    handlers = registered("half", initialize=lambda frame: set_state(frame, 12), execute=lambda frame: failure(frame, b"no such case"))
    states = dict(module._states)
    call = ffi.ffi_call("half", vf.ShapeDtypeStruct((2,), "float32"))
    with pytest.raises(CallbackError, match="half failed: no such case"):
        call(vnp.ones(2))
    with pytest.raises(CallbackError, match="the attribute kind must be a number"):
        call(vnp.ones(2), kind=[1])
    assert module._states == states
    del handlers


def test_states_that_are_set_twice_or_of_another_type_are_errors() -> None:
    messages: list[str] = []

    def message_of(handle: int | None) -> None:
        messages.append(module._errors.pop(handle).value.decode())

    def execute(frame: Any) -> None:
        assert not set_state(frame, 1)
        message_of(set_state(frame, 2))
        message_of(get_state(frame, 3, TYPE + 1)[0])
        message_of(get_state(frame, 1)[0])
        double(frame)

    handlers = registered("twice", execute=execute)
    ffi.ffi_call("twice", vf.ShapeDtypeStruct((2,), "float32"))(vnp.ones(2))
    assert messages == [
        "the stage execute has set its state already", "the stage execute has set a state of another type",
        "the stage prepare has set no state",
    ]  # fmt: skip
    del handlers


def test_threads_share_one_state_of_a_call_and_have_those_of_runs_alone() -> None:
    runs: list[str] = []
    met = threading.Barrier(2)

    def instantiate(frame: Any) -> int | None:
        runs.append("instantiate")
        for _ in range(1000):
            time.sleep(0)  # another thread that does not wait for this one comes here too
        return set_state(frame, 7)

    def initialize(frame: Any) -> int | None:
        (x,) = pointers(frame.args.values, frame.args.size)
        handle = set_state(frame, int(array_of(x)[0]))
        met.wait()  # both runs have set theirs
        return handle

    def execute(frame: Any) -> None:
        (out,) = pointers(frame.rets.values, frame.rets.size)
        array_of(out)[...] = get_state(frame, 0)[1], get_state(frame, 2)[1]

    handlers = registered("threads", instantiate=instantiate, initialize=initialize, execute=execute)
    struct = vf.ShapeDtypeStruct((2,), "float32")
    call = module._Call("threads", [1], [struct], ([None], [None]), {}, {})
    results: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda k=k: results.update({k: call(np.full(2, k, "float32"))[0]})) for k in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs == ["instantiate"]
    np.testing.assert_array_equal([results[3], results[4]], [[7, 3], [7, 4]])
    del handlers


def test_what_cannot_be_called_is_told() -> None:
    struct = vf.ShapeDtypeStruct((), "float32")
    with pytest.raises(UnsupportedError, match="nothing is not registered for the platform cpu"):
        ffi.ffi_call("nothing", struct)(1.0)
    with pytest.raises(CallbackError, match="nothing is not registered for the platform cpu"):
        vf.jit(ffi.ffi_call("nothing", struct))(1.0)
    ffi.register_ffi_target("elsewhere", ffi.pycapsule(HANDLER(double)), platform="CUDA")
    with pytest.raises(UnsupportedError, match="functions for cuda alone"):
        ffi.ffi_call("elsewhere", struct)(1.0)
    ffi.register_ffi_target("old", ffi.pycapsule(HANDLER(double)), api_version=0)
    with pytest.raises(UnsupportedError, match="interface of version 0"):
        ffi.ffi_call("old", struct)(1.0)
    with pytest.raises(UnsupportedError, match="custom_call_api_version=4"):
        ffi.ffi_call("old", struct, custom_call_api_version=1)
    with pytest.raises(ArgumentTypeError, match="must be a PyCapsule, got int"):
        ffi.register_ffi_target("number", 1)
    with pytest.raises(ArgumentError, match="has stages \\['run'\\]"):
        ffi.register_ffi_target("stages", {"run": ffi.pycapsule(HANDLER(double))})
    with pytest.raises(ArgumentError, match="input_layouts has 2 entries, for 1 arrays"):
        ffi.ffi_call("double", struct, input_layouts=[None, None])(1.0)
    with pytest.raises(ArgumentError, match="operand and a result of one shape"):
        ffi.ffi_call("double", struct, input_output_aliases={0: 0})(vnp.ones(2))


# The headers, which are the interface's definition.


def fields(structure: str) -> list[str]:
    body = re.sub(r"//.*", "", re.search(rf"struct {structure} {{(.*?)\n}}", HEADER, re.DOTALL)[1])
    return [re.split(r"[\s*]+", row.strip())[-1] for row in body.split(";") if row.strip()]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("XLA_FFI_Buffer", "_Buffer"),
        ("XLA_FFI_Args", "_Operands"),
        ("XLA_FFI_Rets", "_Operands"),
        ("XLA_FFI_Attrs", "_Attributes"),
        ("XLA_FFI_CallFrame", "_CallFrame"),
        ("XLA_FFI_Error_Create_Args", "_Message"),
        ("XLA_FFI_Error_GetMessage_Args", "_ErrorMessage"),
        ("XLA_FFI_Error_Destroy_Args", "_Error"),
        ("XLA_FFI_Type_Register_Args", "_Type"),
        ("XLA_FFI_TypeInfo", "_TypeInfo"),
        ("XLA_FFI_State_Set_Args", "_State"),
        ("XLA_FFI_State_Get_Args", "_State"),
        ("XLA_FFI_ThreadPool_Schedule_Args", "_Task"),
        ("XLA_FFI_ThreadPool_NumThreads_Args", "_Threads"),
        ("XLA_FFI_Future_Create_Args", "_Future"),
        ("XLA_FFI_Future_SetError_Args", "_FutureError"),
        ("XLA_FFI_RunId_Get_Args", "_RunId"),
        ("XLA_FFI_DeviceOrdinal_Get_Args", "_Ordinal"),
    ],
)
def test_structures_have_the_fields_of_the_headers(name: str, ours: str) -> None:
    assert len(fields(name)) == len(getattr(module, ours)._fields_)


def test_the_table_and_the_numbers_are_those_of_the_headers() -> None:
    functions = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\);", HEADER)
    assert len(functions) == len(module._FUNCTIONS)
    assert [functions[k] for k in (0, 5, 7, 8, 11, 13, 14, 15, 17)] == [
        "Error_Create", "Type_Register", "State_Set", "State_Get", "ThreadPool_Schedule", "Future_Create", "Future_SetAvailable",
        "Future_SetError", "DeviceOrdinal_Get",
    ]  # fmt: skip
    numbers = {name.lower(): int(number) for name, number in re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", HEADER)}
    kinds = {"bool": "pred", "bfloat16": "bf16"}
    for name, number in module._DTYPES.items():
        short = kinds.get(name) or re.sub(
            r"^(uint|int|float|complex)", lambda m: {"uint": "u", "int": "s", "float": "f", "complex": "c"}[m[0]], name
        )
        assert numbers[short.replace("_", "")] == number, name
    assert re.findall(r"XLA_FFI_API_M\w+ (\d+)", HEADER) == [str(v) for v in module._VERSION]
