"""Snapshots of kernels as text: the shape of a kernel is what a backend's speed hangs on, so a change of it should be seen."""

from __future__ import annotations

from typing import Any

import volta_fn as vf
from tests.compiler.fusion.test_fuse import W, X, layer_norm
from tests.compiler.ir.oracle import fuse_function
from volta_fn import lax, nn
from volta_fn.compiler.ir.kernel import format_kernel


def printed(function: Any, *args: Any) -> str:
    (kernel,) = fuse_function(function, *args).kernels
    return format_kernel(kernel)


def test_softmax() -> None:
    """Three passes over a row that is read once; the exponential is computed once."""
    assert printed(nn.softmax, X) == (
        """\
for each row i<8>:
  for each j<16>:
    v0:f32 = x0[8,16] at (i, j)
    v1 <- reduce_max:f32 v0
  v2:f32 = max v1 -inf
  v3:bool = is_finite v2
  v4:f32 = select_n v3 0.0 v2
  for each j<16>:
    v5:f32 = sub v0 v4
    v6:f32 = exp v5
    v7 <- reduce_sum:f32 v6
  for each j<16>:
    v8:f32 = div v6 v7
    y0[8,16] at (i, j) = v8"""
    )


def test_layer_norm() -> None:
    """Mean, variance and result of a row in three passes; the weights are read along the row."""
    assert printed(layer_norm, X, W, W) == (
        """\
for each row i<8>:
  for each j<16>:
    v0:f32 = x0[8,16] at (i, j)
    v10:f32 = x1[16] at (j)
    v12:f32 = x2[16] at (j)
    v1 <- reduce_sum:f32 v0
  v2:f32 = div v1 16.0
  for each j<16>:
    v3:f32 = sub v0 v2
    v4:f32 = integer_pow[y=2] v3
    v5 <- reduce_sum:f32 v4
  v6:f32 = div v5 16.0
  v7:f32 = add v6 1e-05
  v8:f32 = sqrt v7
  for each j<16>:
    v9:f32 = div v3 v8
    v11:f32 = mul v9 v10
    v13:f32 = add v11 v12
    y0[8,16] at (i, j) = v13"""
    )


def test_views_are_indices() -> None:
    """A transpose, a reversal and a strided slice are no work; a padded load has a mask."""
    views = lambda x: lax.pad(lax.rev(x.T[::2], (1,)), 1.0, [(0, 0, 0), (1, 0, 0)])
    assert printed(views, X) == (
        """\
for each row i<8> j<9>:
  v0:f32 = x0[8,16] at (-j + 8, 2*i) if 1 <= j < 9 else 1.0
  y0[8,9] at (i, j) = v0"""
    )


def test_a_wide_accumulator_shows() -> None:
    half = vf.ShapeDtypeStruct((4, 3), "float16")
    assert printed(lambda x: lax.reduce_sum(x, (0,)), half) == (
        """\
for each row i<3>:
  for each j<4>:
    v0:f16 = x0[4,3] at (j, i)
    v1:f32 = convert_element_type[new_dtype=float32] v0
    v2 <- reduce_sum:f32 v1
  v3:f16 = convert_element_type[new_dtype=float16] v2
  y0[3] at (i) = v3"""
    )
