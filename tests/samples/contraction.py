"""Samples of `dot_general`: batch axes, several or no contracted axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import ALL, NUMBERS, Arg, Sample
from volta_fn import lax


def _dot(
    label: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], numbers: Any, subscripts: str, dtypes: Any = ("float32", "float64")
) -> Sample:
    return Sample(
        "dot_general",
        lambda x, y: lax.dot_general(x, y, numbers),
        (Arg(shapes[0]), Arg(shapes[1])),
        lambda x, y: np.einsum(subscripts, x, y),
        dtypes=dtypes,
        linear=(0, 1),
        label=label,
    )


def _wide(narrow: str, wide: str) -> Sample:
    return Sample(
        "dot_general",
        lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=wide),
        (Arg((3, 40)), Arg((40, 2))),
        lambda x, y: x.astype(wide) @ y.astype(wide),
        dtypes=(narrow,),
        result_dtype=lambda dtype: wide,
        differentiable=(),
        label=f"{narrow}-in-{wide}",
    )


SAMPLES = [
    _dot("matrices", ((2, 3), (3, 4)), (((1,), (0,)), ((), ())), "ij,jk->ik", ALL),
    _dot("transposed", ((3, 2), (4, 3)), (((0,), (1,)), ((), ())), "ji,kj->ik"),
    _dot("vectors", ((3,), (3,)), (((0,), (0,)), ((), ())), "i,i->"),
    _dot("matrix-vector", ((2, 3), (3,)), (((1,), (0,)), ((), ())), "ij,j->i"),
    _dot("batch", ((2, 3, 4), (4, 3, 2)), (((2,), (0,)), ((0,), (2,))), "bij,jkb->bik", ("float32", "float64", "complex128")),
    _dot("two-pairs-crossed", ((2, 3, 4), (4, 5, 2)), (((0, 2), (2, 0)), ((), ())), "ijk,kli->jl", NUMBERS),
    _dot("two-batches", ((2, 3, 4, 5), (3, 5, 2, 2)), (((3,), (1,)), ((0, 1), (3, 0))), "abij,bjka->abik"),
    _dot("all-batch", ((2, 3), (2, 3)), (((), ()), ((0, 1), (0, 1))), "ab,ab->ab"),
    _dot("outer", ((2, 3), (4,)), (((), ()), ((), ())), "ij,k->ijk"),
    _dot("scalars", ((), ()), (((), ()), ((), ())), ",->"),
    _dot("sum-of-nothing", ((2, 0), (0, 3)), (((1,), (0,)), ((), ())), "ij,jk->ik", ("float32", "float64", "int32", "bool")),
    _dot("empty-batch", ((0, 2, 3), (0, 3, 2)), (((2,), (1,)), ((0,), (0,))), "bij,bjk->bik"),
    _dot("empty-rows", ((0, 3), (3, 2)), (((1,), (0,)), ((), ())), "ij,jk->ik"),
    _wide("int8", "int32"),
    _wide("uint8", "uint64"),
    _wide("bfloat16", "float32"),
    Sample(
        "dot_general",
        lambda x, y: lax.dot_general(x, y.astype("float32"), (((1,), (0,)), ((), ())), preferred_element_type="float64"),
        (Arg((2, 3)), Arg((3, 4))),
        lambda x, y: x @ y.astype(np.float32),
        dtypes=("float64",),
        differentiable=(0,),
        linear=(0,),
        label="two-dtypes",
    ),
]
