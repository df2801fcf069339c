"""Samples of primitives that only move elements."""

from __future__ import annotations

import numpy as np

from tests.samples.sample import ALL, NUMBERS, Arg, Sample
from volta_fn import lax

_CUBE = Arg((2, 3, 4))

SAMPLES = [
    Sample("reshape", lambda x: lax.reshape(x, (4, 6)), (_CUBE,), lambda x: x.reshape(4, 6), dtypes=ALL, linear=(0,)),
    Sample(
        "reshape",
        lambda x: lax.reshape(x, (3, -1), (2, 0, 1)),
        (_CUBE,),
        lambda x: x.transpose(2, 0, 1).reshape(3, 8),
        linear=(0,),
        label="reordered",
    ),
    Sample("reshape", lambda x: lax.reshape(x, ()), (Arg((1, 1)),), lambda x: x.reshape(()), linear=(0,), label="to-0d"),
    Sample("reshape", lambda x: lax.reshape(x, (3, 0, 2)), (Arg((0, 5)),), lambda x: x.reshape(3, 0, 2), linear=(0,), label="empty"),
    Sample("transpose", lambda x: lax.transpose(x, (2, 0, 1)), (_CUBE,), lambda x: x.transpose(2, 0, 1), dtypes=ALL, linear=(0,)),
    Sample("transpose", lambda x: lax.transpose(x, (1, 0)), (Arg((3, 0)),), lambda x: x.T, linear=(0,), label="empty"),
    Sample(
        "broadcast_in_dim",
        lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 2)),
        (Arg((2, 4)),),
        lambda x: np.broadcast_to(x[:, None, :], (2, 3, 4)),
        dtypes=ALL,
        linear=(0,),
    ),
    Sample(
        "broadcast_in_dim",
        lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 1)),
        (Arg((1, 3)),),
        lambda x: np.broadcast_to(x[:, :, None], (2, 3, 4)),
        linear=(0,),
        label="stretch",
    ),
    Sample("broadcast_in_dim", lambda x: lax.broadcast(x, (2, 3)), (Arg(()),), lambda x: np.full((2, 3), x), linear=(0,), label="0d"),
    Sample("broadcast_in_dim", lambda x: lax.broadcast(x, (0,)), (Arg((2,)),), lambda x: np.zeros((0, 2)), linear=(0,), label="empty"),
    Sample(
        "broadcast_in_dim", lambda x: lax.expand_dims(x, (0, 2)), (Arg((2, 3)),), lambda x: x[None, :, None, :], linear=(0,), label="expand"
    ),
    Sample("squeeze", lambda x: lax.squeeze(x, (0, 2)), (Arg((1, 3, 1, 2)),), lambda x: x.squeeze((0, 2)), dtypes=ALL, linear=(0,)),
    Sample("squeeze", lambda x: lax.squeeze(x, (-1,)), (Arg((1,)),), lambda x: x.squeeze(-1), linear=(0,), label="to-0d"),
    Sample("rev", lambda x: lax.rev(x, (0, 2)), (_CUBE,), lambda x: np.flip(x, (0, 2)), dtypes=ALL, linear=(0,)),
    Sample("rev", lambda x: lax.rev(x, (1,)), (Arg((2, 0)),), lambda x: x, linear=(0,), label="empty"),
    Sample("iota", lambda: lax.broadcasted_iota("float32", (2, 3), 1), (), lambda: np.tile(np.arange(3.0), (2, 1)), dtypes=("float32",)),
    Sample(
        "iota",
        lambda x: lax.mul(x, lax.convert_element_type(lax.iota("int32", 3), x.dtype)),
        (Arg((2, 3)),),
        lambda x: (x * np.arange(3)).astype(x.dtype),
        dtypes=NUMBERS,
        linear=(0,),
        label="times",
    ),
    Sample("slice", lambda x: lax.slice(x, (0, 1, 1), (2, 3, 4)), (_CUBE,), lambda x: x[0:2, 1:3, 1:4], dtypes=ALL, linear=(0,)),
    Sample(
        "slice", lambda x: lax.slice(x, (1, 0), (6, 5), (2, 3)), (Arg((7, 5)),), lambda x: x[1:6:2, 0:5:3], linear=(0,), label="strided"
    ),
    Sample("slice", lambda x: lax.slice(x, (1,), (3,), (3,)), (Arg((4,)),), lambda x: x[1:3:3], linear=(0,), label="one-step"),
    Sample("slice", lambda x: lax.slice(x, (2, 0), (2, 3)), (Arg((4, 3)),), lambda x: x[2:2], linear=(0,), label="empty"),
    Sample("slice", lambda x: lax.slice_in_dim(x, -3, None, axis=1), (Arg((2, 5)),), lambda x: x[:, -3:], linear=(0,), label="in-dim"),
    Sample("slice", lambda x: lax.index_in_dim(x, -1, 0, keepdims=False), (Arg((3, 2)),), lambda x: x[-1], linear=(0,), label="index"),
]
