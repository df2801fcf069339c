"""Calls of native code: CPU affinity, no interpreter lock, NumPy's error state."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, NamedTuple

import numpy as np

from volta_fn.runtime.llvm.host import host, llvm
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.runtime.result_allocator import out_of_memory

# CPU affinity: workers wake up on another CPU than the thread that wakes them.
#
# Linux may put a thread that wakes up on the CPU of the thread that woke it although another one is idle (of a virtual machine's idle
# CPUs it supposes that the host has taken them away). There one of the two waits for the other: with one worker on two CPUs, two
# threads did the work of one for up to 10 ms, and a 256³ product took 456 µs instead of 308. (With other processes on both CPUs, the least
# times are 131 and 73 µs, and those of 65,536 sines 7.3 and 4.2.) So before workers are woken, they are forbidden the CPU that the waking
# thread is on. System calls are needed only when that is not the CPU of the last time.
#
# Workers' allowed CPUs are otherwise those that they had when they began: CPUs that are taken from the running process, or given to it
# (`taskset -ap`), take effect after the next program. A container's limits hold in any case.
#
# Where the C library lacks these functions (only Linux has them), workers wake up where the system puts them.

_PTR = "ptr"
#: Words of the record: number of workers; the CPU forbidden now, plus 1; the CPUs they began with, as bits; and their threads.
_COUNT, _FORBIDDEN, _CPUS, _THREADS = 0, 1, 8, 24
_CPU_WORDS, _MOST_THREADS = 16, 256
_WORDS = _THREADS + _MOST_THREADS


def write_affinity(module: Module) -> None:
    """Define ``@register_worker()`` and ``@exclude_current_cpu()``.

    Workers call the first when they begin; a thread calls the second before it wakes them.
    """
    module.declare("affinity", f"@affinity = internal global [{_WORDS} x i64] zeroinitializer, align 64")
    register_worker, exclude_current_cpu = Function(module, "register_worker", []), Function(module, "exclude_current_cpu", [])
    if _is_supported():
        module.declare("pthread_self", "declare i64 @pthread_self()")
        module.declare("sched_getcpu", "declare i32 @sched_getcpu()")
        for name in ("getaffinity", "setaffinity"):
            module.declare(name, f"declare i32 @pthread_{name}_np(i64, i64, ptr)")
        _register_worker(register_worker)
        _exclude_current_cpu(exclude_current_cpu)
    register_worker.finish()
    exclude_current_cpu.finish()


def _is_supported() -> bool:
    names = ("sched_getcpu", "pthread_getaffinity_np", "pthread_setaffinity_np")
    return sys.platform == "linux" and not host().is_windows and all(hasattr(ctypes.CDLL(None), name) for name in names)


def reset_affinity(f: Function) -> None:
    """Set the record to its state before there are workers."""
    f.run("llvm.memset.p0.i64", Value(_PTR, "@affinity"), Value("i8", "0"), i64(8 * _WORDS), Value("i1", "false"))


def _word(number: int) -> Value:
    return Value(_PTR, f"getelementptr (i64, ptr @affinity, i64 {number})")


def _register_worker(f: Function) -> None:
    number = f.let("i64", f"atomicrmw add {_word(_COUNT)}, i64 1 seq_cst")

    def store_thread() -> None:
        thread = f.call("pthread_self", "i64")
        f.call("pthread_getaffinity_np", "i32", thread, i64(8 * _CPU_WORDS), _word(_CPUS))  # the same for all of them
        f.store(thread, f.at(_word(_THREADS), "i64", number), 8)

    f.branch(f.compare("icmp slt", number, i64(_MOST_THREADS)), store_thread)
    f.do(f"store atomic i64 0, {_word(_FORBIDDEN)} seq_cst, align 8")


def _exclude_current_cpu(f: Function) -> None:
    here = f.cast("sext", f.call("sched_getcpu", "i32"), "i64")
    last = f.let("i64", f"atomicrmw xchg {_word(_FORBIDDEN)}, {f.binary('add', here, i64(1))} seq_cst")
    moved = f.compare("icmp ne", last, f.binary("add", here, i64(1)))
    is_tracked = f.compare("icmp ult", here, i64(64 * _CPU_WORDS))

    def forbid() -> None:
        others = f.alloca("i64", _CPU_WORDS)

        def word(number: Value, seen: list[Value]) -> list[Value]:
            inside = f.compare("icmp eq", f.binary("lshr", here, i64(6)), number)
            bit = f.select(inside, f.binary("shl", i64(1), f.binary("and", here, i64(63))), i64(0))
            allowed = f.binary("and", f.load("i64", f.at(_word(_CPUS), "i64", number), 8), f.binary("xor", bit, i64(-1)))
            f.store(allowed, f.at(others, "i64", number), 8)
            return [f.binary("or", seen[0], allowed)]

        some = f.loop(i64(0), i64(_CPU_WORDS), 1, [i64(0)], word, nonempty=True)[0]
        f.branch(f.compare("icmp ne", some, i64(0)), lambda: _send(f, others))

    f.branch(f.binary("and", moved, is_tracked), forbid)


def _send(f: Function, cpus: Value) -> None:
    """Restrict workers to some CPUs."""
    count = f.intrinsic("llvm.smin.i64", "i64", f.load("i64", _word(_COUNT), 8), i64(_MOST_THREADS))

    def restrict_worker(number: Value, _: list[Value]) -> None:
        thread = f.load("i64", f.at(_word(_THREADS), "i64", number), 8)

        def set_cpus() -> None:
            f.call("pthread_setaffinity_np", "i32", thread, i64(8 * _CPU_WORDS), cpus)

        f.branch(f.compare("icmp ne", thread, i64(0)), set_cpus)  # a worker that has just begun is not in the list yet

    f.loop(i64(0), count, 1, [], restrict_worker)


# llvmlite's slow functions, called so that several threads compile at once.
#
# llvmlite has one lock around all of its functions, under which threads compile one after another. LLVM asks for less: that modules
# which threads work on at once belong to different contexts. These functions are called in the same library, without the lock. Two
# threads compile the routines of a program in about half the time.
#
# Where llvmlite's library lacks these functions, or they have other parameters, llvmlite's own are called, and threads wait for one
# another.

_POINTER = ctypes.c_void_p
#: Functions of llvmlite's library: name, type of the result, types of the arguments.
_FUNCTIONS = (
    ("ParseAssembly", _POINTER, [_POINTER, ctypes.c_char_p, _POINTER]),
    ("RunNewModulePassManager", None, [_POINTER, _POINTER, _POINTER]),
    ("TargetMachineEmitToMemory", _POINTER, [_POINTER, _POINTER, ctypes.c_int, _POINTER]),
    ("GetBufferStart", _POINTER, [_POINTER]),
    ("GetBufferSize", ctypes.c_size_t, [_POINTER]),
    ("DisposeMemoryBuffer", None, [_POINTER]),
)


@functools.cache
def _library() -> Any:
    """Load llvmlite's library; None unless it declares all functions as here."""
    ffi = llvm().ffi
    try:
        library = ctypes.CDLL(ffi.lib._name)
        for name, result, arguments in _FUNCTIONS:
            declared = getattr(ffi.lib, f"LLVMPY_{name}").argtypes
            if declared is None or len(declared) != len(arguments):
                return None
            function = getattr(library, f"LLVMPY_{name}")
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError, TypeError):
        return None
    return library


def parse(text: str) -> Any:
    """Parse LLVM IR into a module with a context of its own.

    Raises:
        RuntimeError: The text is not LLVM IR.
    """
    binding, library = llvm(), _library()
    context = binding.create_context()
    if library is None:
        return binding.parse_assembly(text, context)
    with binding.ffi.OutputString() as message:
        address = library.LLVMPY_ParseAssembly(context, text.encode(), message)
        if message or not address:
            raise RuntimeError(f"LLVM cannot parse this module: {message}\n{text}")
    return binding.ModuleRef(ctypes.cast(address, binding.ffi.LLVMModuleRef), context)


def run_passes(passes: Any, module: Any, builder: Any) -> None:
    """Run a pass manager over a module."""
    library = _library()
    if library is None:
        passes.run(module, builder)
    else:
        library.LLVMPY_RunNewModulePassManager(passes, module, builder)


def emit(machine: Any, module: Any) -> bytes:
    """Compile a module to an object file.

    Raises:
        RuntimeError: LLVM has no code for something in it.
    """
    library = _library()
    if library is None:
        compiled: bytes = machine.emit_object(module)
        return compiled
    with llvm().ffi.OutputString() as message:
        memory = library.LLVMPY_TargetMachineEmitToMemory(machine, module, 1, message)
        if not memory:
            raise RuntimeError(f"LLVM cannot compile this module: {message}")
    try:
        return ctypes.string_at(library.LLVMPY_GetBufferStart(memory), library.LLVMPY_GetBufferSize(memory))
    finally:
        library.LLVMPY_DisposeMemoryBuffer(memory)


# NumPy code without floating-point warnings.
#
# `np.errstate` costs several times as much as a small addition: 4 µs a call, of which 0.6 are left here, or 0.2 in another context.
# NumPy keeps its error state in a context variable, so setting that variable to a state in which warnings are off, and resetting it
# afterwards, does the same. A function that calls no user code may run in another context, where warnings are always off.
#
# Where NumPy keeps its error state elsewhere, `np.errstate` itself is used.


class _WarningFreeContext(NamedTuple):
    """A context in which warnings are off, and NumPy's variable with its value there."""

    context: Context
    variable: ContextVar[Any]
    value: Any


def _find_warning_free_context() -> _WarningFreeContext | None:
    """Find the one variable that `np.seterr` sets in an empty context, or None."""
    context = Context()
    context.run(np.seterr, all="ignore")
    states = list(context.items())
    if len(states) != 1:
        return None
    ((variable, value),) = states
    with np.errstate(all="raise"):
        token = variable.set(value)
        off = set(np.geterr().values()) == {"ignore"}
        variable.reset(token)
    return _WarningFreeContext(context, variable, value) if off else None


_WARNING_FREE = _find_warning_free_context()


def silenced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with floating-point warnings off while it runs.

    NumPy's MemoryError becomes an `OutOfMemoryError`.
    """
    if _WARNING_FREE is None:
        return _with_errstate(function)
    enter, leave, value = _WARNING_FREE.variable.set, _WARNING_FREE.variable.reset, _WARNING_FREE.value

    def call(*args: Any) -> Any:
        token = enter(value)
        try:
            return function(*args)
        except MemoryError as error:
            raise out_of_memory(error) from None
        finally:
            leave(token)

    return call


def _with_errstate(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            try:
                return function(*args)
            except MemoryError as error:
                raise out_of_memory(error) from None

    return call


def silenced_in_context(function: Callable[..., Any], arity: int) -> Callable[..., Any]:
    """Return `function`, of `arity` arrays, run in a context without warnings.

    The function must not read context variables. One thread at a time can be in a context. If another one is, `run` raises RuntimeError at
    once, and a copy of the context serves. A function that raises RuntimeError by itself is called once more, which does no harm: it has no
    effects but its result. NumPy's MemoryError becomes an `OutOfMemoryError`.
    """
    if _WARNING_FREE is None:
        return _with_errstate(function)
    run, copy = _WARNING_FREE.context.run, _WARNING_FREE.context.copy

    def again(error: Exception, *args: Any) -> Any:
        if isinstance(error, MemoryError):
            raise out_of_memory(error) from None
        try:
            return copy().run(function, *args)
        except MemoryError as lack:
            raise out_of_memory(lack) from None

    def unary(x: Any) -> Any:
        try:
            return run(function, x)
        except (RuntimeError, MemoryError) as error:
            return again(error, x)

    def binary(x: Any, y: Any) -> Any:
        try:
            return run(function, x, y)
        except (RuntimeError, MemoryError) as error:
            return again(error, x, y)

    def nary(*args: Any) -> Any:
        try:
            return run(function, *args)
        except (RuntimeError, MemoryError) as error:
            return again(error, *args)

    forms: dict[int, Callable[..., Any]] = {
        1: unary,
        2: binary,
    }  # the fewest arguments have functions of their own, as they are the cheapest calls
    return forms.get(arity, nary)
