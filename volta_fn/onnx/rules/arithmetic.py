"""Rules of elementwise primitives, reductions, products and convolutions."""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation, inline_calls
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.errors import OnnxError
from volta_fn.onnx.rules.registry import RULES, Writer, aval, ints, result, rule, scalar, shaped
from volta_fn.onnx.rules.structure import spread_out, zero_of
from volta_fn.onnx.tensors import number_of
from volta_fn.primitives.quantized import BLOCK, TABLES, QuantizedLayout, decode, per_number
from volta_fn.primitives.ragged import masked

# Elementwise primitives.

#: Primitives that an operator computes as it is.
_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max",
    "min": "Min", "mul": "Mul", "name": "Identity", "neg": "Neg", "pow": "Pow", "round_half_even": "Round", "sign": "Sign",
    "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "stop_gradient": "Identity", "sub": "Sub", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
#: Of booleans and of integers.
_LOGIC = {"and": ("And", "BitwiseAnd"), "not": ("Not", "BitwiseNot"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}
_BOOLEAN = {"max": "Or", "min": "And", "mul": "And", "add": "Or"}


def _same(operator: str, w: Writer, eqn: Equation, *names: str) -> str:
    is_bool = aval(eqn).dtype == np.bool_
    return w.op(_BOOLEAN.get(eqn.primitive.name, operator) if is_bool else operator, *names)


RULES.update({name: functools.partial(_same, operator) for name, operator in _SAME.items()})


@rule(*_LOGIC)
def logic(w: Writer, eqn: Equation, *names: str) -> str:
    """Combine booleans or bits."""
    of_bools, of_bits = _LOGIC[eqn.primitive.name]
    return w.op(of_bools if aval(eqn).dtype == np.bool_ else of_bits, *names)


def _one(w: Writer, eqn: Equation) -> str:
    return scalar(w, 1, aval(eqn))


RULES |= {
    "cbrt": lambda w, eqn, x: w.op("Mul", w.op("Sign", x), w.op("Pow", w.op("Abs", x), scalar(w, 1 / 3, aval(eqn)))),
    "clamp": lambda w, eqn, low, x, high: w.op("Min", w.op("Max", x, low), high),
    "cumsum": lambda w, eqn, x: w.op("CumSum", x, ints(w, eqn.params["axis"]), reverse=int(eqn.params["reverse"])),
    "erfc": lambda w, eqn, x: w.op("Sub", _one(w, eqn), w.op("Erf", x)),
    "exp2": lambda w, eqn, x: w.op("Pow", scalar(w, 2, aval(eqn)), x),
    "fma": lambda w, eqn, x, y, z: w.op("Add", w.op("Mul", x, y), z),
    "gelu": lambda w, eqn, x: w.op("Gelu", x, approximate="tanh" if eqn.params.get("approximate") else "none"),
    "integer_pow": lambda w, eqn, x: w.op("Pow", x, scalar(w, eqn.params["y"], aval(eqn))),
    "is_finite": lambda w, eqn, x: w.op("Not", w.op("Or", w.op("IsNaN", x), w.op("IsInf", x))),
    "log2": lambda w, eqn, x: w.op("Div", w.op("Log", x), scalar(w, math.log(2), aval(eqn))),
    "ne": lambda w, eqn, x, y: w.op("Not", w.op("Equal", x, y)),
    "optimization_barrier": lambda w, eqn, *names: list(names),
    "rem": lambda w, eqn, x, y: w.op("Mod", x, y, fmod=1),  # with the dividend's sign
    "round": lambda w, eqn, x: w.op("Mul", w.op("Sign", x), w.op("Floor", w.op("Add", w.op("Abs", x), scalar(w, 0.5, aval(eqn))))),
    "rsqrt": lambda w, eqn, x: w.op("Reciprocal", w.op("Sqrt", x)),
}


@rule("expm1")
def expm1(w: Writer, eqn: Equation, x: str) -> str:
    """Compute exp(x) - 1, near 0 as tanh(x / 2) (exp(x) + 1)."""
    half = w.op("Tanh", w.op("Mul", x, scalar(w, 0.5, aval(eqn))))
    grown = w.op("Exp", x)
    near = w.op("Mul", half, w.op("Add", grown, _one(w, eqn)))
    return w.op("Where", w.op("Less", w.op("Abs", x), _one(w, eqn)), near, w.op("Sub", grown, _one(w, eqn)))


@rule("log1p")
def log1p(w: Writer, eqn: Equation, x: str) -> str:
    """Compute log(1 + x) as x log(u) / (u - 1), which corrects u = 1 + x."""
    one = _one(w, eqn)
    moved = w.op("Add", one, x)
    error = w.op("Sub", moved, one)
    exact = w.op("Equal", error, scalar(w, 0, aval(eqn)))
    far = w.op("IsInf", moved)
    safe = w.op("Where", exact, one, error)
    corrected = w.op("Mul", w.op("Log", moved), w.op("Div", x, safe))
    return w.op("Where", exact, x, w.op("Where", far, moved, corrected))


@rule("logaddexp")
def logaddexp(w: Writer, eqn: Equation, x: str, y: str) -> str:
    """Compute log(exp(x) + exp(y)), where infinities stay."""
    high = w.op("Max", x, y)
    distance = w.op("Neg", w.op("Abs", w.op("Sub", x, y)))
    rest = w.op("Log", w.op("Add", _one(w, eqn), w.op("Exp", distance)))
    same = w.op("Equal", x, y)
    twice = scalar(w, math.log(2), aval(eqn))
    return w.op("Add", high, w.op("Where", same, twice, rest))


@rule("atan2")
def atan2(w: Writer, eqn: Equation, y: str, x: str) -> str:
    """Compute angles, by the quadrant."""
    zero, pi = scalar(w, 0, aval(eqn)), scalar(w, math.pi, aval(eqn))
    angle = w.op("Atan", w.op("Div", y, x))
    turned = w.op("Where", w.op("Less", y, zero), w.op("Sub", angle, pi), w.op("Add", angle, pi))
    by_side = w.op("Where", w.op("Less", x, zero), turned, angle)
    origin = w.op("And", w.op("Equal", x, zero), w.op("Equal", y, zero))
    return w.op("Where", origin, zero, by_side)


@rule("convert_element_type")
def convert(w: Writer, eqn: Equation, x: str) -> str:
    """Convert to another dtype."""
    new_dtype = result(eqn).dtype
    return w.op("Identity", x) if new_dtype == aval(eqn).dtype else w.op("Cast", x, to=number_of(new_dtype))


@rule("select_n")
def select(w: Writer, eqn: Equation, which: str, *cases: str) -> Any:
    """Choose between arrays by element."""
    if aval(eqn, 1).dtype == np.bool_:  # runtimes choose between numbers
        if aval(eqn).dtype != np.bool_:
            raise OnnxError("a choice between more than two arrays of booleans has no operator in ONNX")
        return w.op("Or", w.op("And", which, cases[1]), w.op("And", w.op("Not", which), cases[0]))
    if aval(eqn).dtype == np.bool_:
        return w.op("Where", which, cases[1], cases[0])
    chosen = cases[-1]
    for number in range(len(cases) - 2, -1, -1):
        chosen = w.op("Where", w.op("Equal", which, scalar(w, number, aval(eqn))), cases[number], chosen)
    return chosen


# Reductions, cumulative operations and sorting.

_REDUCED = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd", "reduce_sum": "ReduceSum"}
_INT32, _BOOL = 6, 9


@rule(*_REDUCED)
def reduce(w: Writer, eqn: Equation, x: str) -> str:
    """Reduce along axes."""
    axes = eqn.params["axes"]
    if not axes:
        return w.op("Identity", x)
    if aval(eqn).dtype == np.bool_:
        reduced = w.op(_REDUCED[eqn.primitive.name], w.op("Cast", x, to=_INT32), ints(w, axes), keepdims=0)
        return w.op("Cast", reduced, to=_BOOL)
    return w.op(_REDUCED[eqn.primitive.name], x, ints(w, axes), keepdims=0)


@rule("reduce_and", "reduce_or")
def reduce_logic(w: Writer, eqn: Equation, x: str) -> str:
    """Reduce booleans: whether all, or any, are true."""
    if aval(eqn).dtype != np.bool_:
        raise OnnxError(f"ONNX has no {eqn.primitive.name} of integers")
    if not eqn.params["axes"]:
        return w.op("Identity", x)
    operator = "ReduceMin" if eqn.primitive.name == "reduce_and" else "ReduceMax"
    return w.op("Cast", w.op(operator, w.op("Cast", x, to=_INT32), ints(w, eqn.params["axes"]), keepdims=0), to=_BOOL)


@rule("argmax", "argmin")
def arg_extreme(w: Writer, eqn: Equation, x: str) -> str:
    """Return the position of an extreme along an axis."""
    (axis,) = eqn.params["axes"]
    position = w.op("ArgMax" if eqn.primitive.name == "argmax" else "ArgMin", x, axis=int(axis), keepdims=0)
    return w.op("Cast", position, to=number_of(result(eqn).dtype))


@rule("top_k")
def top_k(w: Writer, eqn: Equation, x: str) -> Sequence[str]:
    """Return the largest elements along the last axis."""
    values, positions = w.ops("TopK", 2, x, ints(w, [eqn.params["k"]]), axis=int(eqn.params["dimension"]))
    return values, w.op("Cast", positions, to=number_of(eqn.outvars[1].aval.dtype))


@rule("sort")
def sort(w: Writer, eqn: Equation, *names: str) -> Sequence[str]:
    """Sort by the first operand; equal ones keep their order."""
    if eqn.params["num_keys"] != 1:
        raise OnnxError("ONNX sorts by one key")
    axis = int(eqn.params["dimension"])
    values, positions = w.ops("TopK", 2, names[0], ints(w, [aval(eqn).shape[axis]]), axis=axis, largest=0)
    return [values, *[w.op("GatherElements", name, positions, axis=axis) for name in names[1:]]]


# Matrix products and convolutions.


def _transposed(w: Writer, x: str, order: list[int]) -> str:
    return x if order == [*range(len(order))] else w.op("Transpose", x, perm=[int(i) for i in order])


@rule("dot_general")
def dot_general(w: Writer, eqn: Equation, x: str, y: str) -> str:
    """Contract: as a matrix product, or by an einsum equation."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    if aval(eqn).dtype != result(eqn).dtype:
        x, y = [w.op("Cast", name, to=number_of(result(eqn).dtype)) for name in (x, y)]
    ranks = aval(eqn).ndim, aval(eqn, 1).ndim
    rows, columns = (
        [i for i in range(rank) if i not in (*summed, *batch)]
        for rank, summed, batch in zip(ranks, (left, right), (left_batch, right_batch), strict=True)
    )
    if len(left) == 1 and len(columns) == 1 and (len(rows) == 1 or not left_batch):
        return w.op("MatMul", _transposed(w, x, [*left_batch, *rows, *left]), _transposed(w, y, [*right_batch, *right, *columns]))
    letters = list(string.ascii_letters[: ranks[0]])
    others = list(string.ascii_letters[ranks[0] : sum(ranks)])
    for i, j in zip((*left, *left_batch), (*right, *right_batch), strict=True):
        others[j] = letters[i]
    outputs = [letters[i] for i in left_batch]
    outputs += [c for i, c in enumerate(letters) if i not in (*left, *left_batch)]
    outputs += [c for j, c in enumerate(others) if j not in (*right, *right_batch)]
    return w.op("Einsum", x, y, equation=f"{''.join(letters)},{''.join(others)}->{''.join(outputs)}")


@rule("quantized_dot")
def quantized_dot(w: Writer, eqn: Equation, x: str, data: str, *by_group: str) -> str:
    """Multiply by the matrix as floats, which nodes look up by its codes."""
    layout, codes = eqn.params["layout"], aval(eqn, 1)
    values = ShapedArray((*codes.shape[:-1], layout.size), np.dtype(np.float32))

    def multiply(x: Any, values: Any, scales: Any, *offsets: Any) -> list[Any]:
        weights = values * per_number(scales, layout, values.dtype)
        weights = weights + per_number(offsets[0], layout, values.dtype) if offsets else weights
        stack, last = tuple(range(x.ndim - 2)), x.ndim - 1
        numbers = (((last,), (last - eqn.params["transposed"],)), (stack, stack))
        return [lax.dot_general(x, weights.astype(x.dtype), numbers)]

    kinds = [aval(eqn), values, *[v.aval for v in eqn.invars[2:]]]
    program = inline_calls(trace_to_jaxpr(multiply, kinds, "quantized_dot"))
    (product,) = w.program(program, [x, _values_of_codes(w, data, codes, layout), *by_group])
    return product


@rule("ragged_dot")
def ragged_dot(w: Writer, eqn: Equation, x: str, y: str, sizes: str) -> str:
    """Multiply rows masked by group with all matrices."""
    program = inline_calls(trace_to_jaxpr(lambda *operands: [masked(*operands, **eqn.params)], [v.aval for v in eqn.invars], "ragged_dot"))
    (product,) = w.program(program, [x, y, sizes])
    return product


def _values_of_codes(w: Writer, data: str, codes: ShapedArray, layout: QuantizedLayout) -> str:
    """Add the nodes of the values of codes, as float32."""
    if layout.scheme == "int8":
        return w.op("Cast", data, to=number_of(np.dtype(np.float32)))
    numbers = w.op("Cast", data, to=number_of(np.dtype(np.int32)))
    if not layout.is_packed:
        return w.op("Gather", w.constant(decode(np.arange(256, dtype=np.uint8), layout._replace(size=256))), numbers)
    blocks = shaped(w, numbers, (*codes.shape[:-1], layout.width * 2 // BLOCK, 1, BLOCK // 2))
    sixteen = w.constant(np.int32(16))
    halves = [w.op(kind, blocks, sixteen) for kind in ("Mod", "Div")]
    rows = shaped(w, w.op("Concat", *halves, axis=codes.ndim), (*codes.shape[:-1], 2 * layout.width))
    rows = w.op("Slice", rows, ints(w, [0]), ints(w, [layout.size]), ints(w, [codes.ndim - 1]))
    return w.op("Gather", w.constant(TABLES[layout.scheme]), rows)


@rule("conv_general_dilated")
def convolution(w: Writer, eqn: Equation, x: str, weight: str) -> str:
    """Convolve, after transpositions and padding that Conv does not support."""
    params = eqn.params
    dims, n = params["dimension_numbers"], aval(eqn).ndim - 2
    x, weight = w.op("Transpose", x, perm=list(dims.lhs_spec)), w.op("Transpose", weight, perm=list(dims.rhs_spec))
    shape = [aval(eqn).shape[i] for i in dims.lhs_spec]
    kernel = [aval(eqn, 1).shape[i] for i in dims.rhs_spec]
    groups = params["feature_group_count"]
    if params["batch_group_count"] != 1:
        x, shape, groups = _batches_as_channels(w, x, shape, params["batch_group_count"], groups)
    for k, stride in enumerate(params["lhs_dilation"] or ()):
        if stride != 1:
            x = spread_out(w, x, shape, 2 + k, stride, zero_of(w, eqn))
            shape[2 + k] = (shape[2 + k] - 1) * stride + 1
    pads = list(params["padding"])
    if any(width < 0 for pair in pads for width in pair):
        x = w.op("Pad", x, ints(w, [0, 0, *[p[0] for p in pads], 0, 0, *[p[1] for p in pads]]))
        pads = [(0, 0)] * n
    if n == 0:
        raise OnnxError("a convolution without spatial axes has no operator in ONNX; use a matrix product")
    y = w.op(
        "Conv",
        x,
        weight,
        strides=list(params["window_strides"] or [1] * n),
        dilations=list(params["rhs_dilation"] or [1] * n),
        group=groups,
        kernel_shape=kernel[2:],
        pads=[p[0] for p in pads] + [p[1] for p in pads],
    )
    return w.op("Transpose", y, perm=[dims.out_spec.index(i) for i in range(n + 2)])


def _batches_as_channels(w: Writer, x: str, shape: list[int], count: int, groups: int) -> tuple[str, list[int], int]:
    """Move groups of the batch to groups of channels."""
    if groups != 1:
        raise OnnxError("a convolution cannot have groups of batches and of channels in ONNX")
    batch, channels, *rest = shape
    split = shaped(w, x, [count, batch // count, channels, *rest])
    moved = w.op("Transpose", split, perm=[1, 0, 2, *range(3, 3 + len(rest))])
    merged = [batch // count, count * channels, *rest]
    return shaped(w, moved, merged), merged, count
