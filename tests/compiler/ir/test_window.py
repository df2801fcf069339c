"""Kernels in pieces: together they give what the kernel gives, and each sees no more than it may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.compiler.ir.oracle import fuse_function
from volta_fn import nn
from volta_fn import numpy as jnp
from volta_fn.compiler.ir.axes import largest, windowed
from volta_fn.compiler.ir.kernel import check_kernel, interpret

X = vf.ShapeDtypeStruct((3000, 6), "float32")
LONG = vf.ShapeDtypeStruct((20_001,), "float32")


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x, y: (jnp.where(x > 0, x, y), x + y), (X, X)),
        (lambda x, y: x * 2 + jnp.arange(20_001), (LONG, LONG)),
        (lambda x, y: nn.softmax(x) + y.sum(1, keepdims=True), (X, X)),
        (lambda x, y: x[::-1] + y[:, :1], (X, X)),
        (lambda x, y: (x + y).astype("int8"), (LONG, LONG)),
    ],
)
def test_pieces_are_the_whole(function: Any, args: Any) -> None:
    rng = np.random.default_rng(0)
    for kernel in fuse_function(function, *args).kernels:
        if not kernel.sizes:
            continue
        most = largest(kernel) // 4
        pieces = windowed(kernel, most)
        assert pieces is not None and len(pieces) > 4
        inputs = [rng.normal(size=b.size).astype(b.dtype) for b in kernel.inputs]
        values = [np.empty(b.size, b.dtype) for b in kernel.outputs]
        for piece in pieces:
            check_kernel(piece.kernel)
            assert largest(piece.kernel) <= most
            ins, outs = piece.windows[: len(inputs)], piece.windows[len(inputs) :]
            assert all(w.first % 256 == 0 for w in piece.windows)
            results = interpret(piece.kernel, *[x[w.first : w.first + w.size] for x, w in zip(inputs, ins, strict=True)])
            for array, window, result in zip(values, outs, results, strict=True):
                array[window.first : window.first + window.size] = result.reshape(-1)
        for array, wanted in zip(values, interpret(kernel, *inputs), strict=True):
            np.testing.assert_array_equal(array, wanted.reshape(-1))


def test_what_cannot_be_cut() -> None:
    (kernel,) = fuse_function(lambda x: x.sum(), LONG).kernels
    assert windowed(kernel, 1 << 10) is None
    *_, kernel = fuse_function(lambda x: jnp.pad(x, ((5, 7), (0, 0))), X).kernels
    assert windowed(kernel, 1 << 14) is None
    (kernel,) = fuse_function(lambda x: x.T * 1.0, X).kernels
    assert windowed(kernel, 1 << 10) is None  # each row of the result is spread over all of the operand
