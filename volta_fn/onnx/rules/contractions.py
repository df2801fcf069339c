"""Matrix products and convolutions."""

from __future__ import annotations

import string

from volta_fn.core.jaxpr import Equation
from volta_fn.errors import OnnxError
from volta_fn.onnx.rules.registry import Writer, aval, ints, result, rule, shaped
from volta_fn.onnx.rules.shapes import spread_out, zero_of
from volta_fn.onnx.tensors import number_of


@rule("dot_general")
def dot_general(w: Writer, eqn: Equation, x: str, y: str) -> str:
    """Sum products: a matrix product, or what an equation says."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    if aval(eqn).dtype != result(eqn).dtype:
        x, y = [w.op("Cast", name, to=number_of(result(eqn).dtype)) for name in (x, y)]
    ranks = aval(eqn).ndim, aval(eqn, 1).ndim
    if ranks == (2, 2) and not left_batch:
        first = x if left == (1,) else w.op("Transpose", x, perm=[1, 0])
        second = y if right == (0,) else w.op("Transpose", y, perm=[1, 0])
        if len(left) == 1:
            return w.op("MatMul", first, second)
    letters = list(string.ascii_letters[: ranks[0]])
    others = list(string.ascii_letters[ranks[0] : sum(ranks)])
    for i, j in zip((*left, *left_batch), (*right, *right_batch), strict=True):
        others[j] = letters[i]
    kept = [letters[i] for i in left_batch]
    kept += [c for i, c in enumerate(letters) if i not in (*left, *left_batch)]
    kept += [c for j, c in enumerate(others) if j not in (*right, *right_batch)]
    return w.op("Einsum", x, y, equation=f"{''.join(letters)},{''.join(others)}->{''.join(kept)}")


@rule("conv_general_dilated")
def convolution(w: Writer, eqn: Equation, x: str, weight: str) -> str:
    """Convolve; what Conv lacks is done before it, by transpositions and padding."""
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
    found = w.op(
        "Conv",
        x,
        weight,
        strides=list(params["window_strides"] or [1] * n),
        dilations=list(params["rhs_dilation"] or [1] * n),
        group=groups,
        kernel_shape=kernel[2:],
        pads=[p[0] for p in pads] + [p[1] for p in pads],
    )
    return w.op("Transpose", found, perm=[dims.out_spec.index(i) for i in range(n + 2)])


def _batches_as_channels(w: Writer, x: str, shape: list[int], count: int, groups: int) -> tuple[str, list[int], int]:
    """Move groups of the batch to groups of channels."""
    if groups != 1:
        raise OnnxError("a convolution cannot have groups of batches and of channels in ONNX")
    batch, channels, *rest = shape
    split = shaped(w, x, [count, batch // count, channels, *rest])
    moved = w.op("Transpose", split, perm=[1, 0, 2, *range(3, 3 + len(rest))])
    found = [batch // count, count * channels, *rest]
    return shaped(w, moved, found), found, count
