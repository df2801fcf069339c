"""Running an elementwise operation as machine code over NumPy arrays."""

import ctypes
import functools

import numpy as np

from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu import scalars


def compiled(text: str, symbol: str = "run"):
    """Return the function of a module as a Python function of addresses."""
    (address,) = load_object(compile_object(text), [symbol])
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)


@functools.cache
def loop_over(op, in_dtypes, out_dtype, params, lanes):
    """Return a function that applies the operation to arrays: to whole vectors, and then, masked, to what is left."""
    module = Module()
    f = Function(module, "run", [Value("ptr", "%buffers"), Value("i64", "%n")])
    pointers = [f.load("ptr", f.at(f.parameters[0], "ptr", i64(k)), 8) for k in range(len(in_dtypes) + 1)]

    def turn(index, count=None):
        def place(pointer, dtype):
            return f.at(pointer, f"[{dtype.itemsize} x i8]", index)

        operands = [scalars.load(f, d, place(p, d), lanes, count=count) for p, d in zip(pointers, in_dtypes, strict=False)]
        result = scalars.apply(f, op, operands, out_dtype, dict(params))
        assert result.dtype == out_dtype
        scalars.store(f, result, place(pointers[-1], out_dtype), count=count)
        return []

    whole = f.binary("and", f.parameters[1], i64(-lanes))
    f.loop(i64(0), whole, lanes, [], lambda index, _: turn(index))
    if lanes > 1:
        left = f.binary("sub", f.parameters[1], whole)
        f.branch(f.compare("icmp sgt", left, i64(0)), lambda: turn(whole, left))
    f.finish()
    return compiled(str(module))


def address_list(arrays):
    """Return an array of the addresses of arrays' data."""
    return (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])


def run(op, *arrays, out_dtype, lanes=16, **params):
    """Apply the operation to arrays of one shape."""
    arrays = [np.ascontiguousarray(a) for a in arrays]
    out = np.zeros(arrays[0].shape, out_dtype)
    function = loop_over(op, tuple(a.dtype for a in arrays), out.dtype, tuple(sorted(params.items())), lanes)
    function(address_list([*arrays, out]), out.size)
    return out
