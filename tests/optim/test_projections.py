"""Projections against Optax: trees, gradients, points inside and outside of the sets."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import tree
from volta_fn.dtypes import as_dtype, finfo
from volta_fn.optim import projections

RNG = np.random.default_rng(0)
POINT = {"w": RNG.normal(size=(2, 3)), "b": RNG.normal(size=3)}
NORMAL = {"w": RNG.normal(size=(2, 3)), "b": RNG.normal(size=3)}
NORMALS = RNG.normal(size=3000)

ROWS = {
    "projection_non_negative": [()],
    "projection_hypercube": [(), (0.5,)],
    "projection_simplex": [(), (0.5,), (20.0,)],
    "projection_l1_sphere": [(), (20.0,)],
    "projection_l1_ball": [(), (0.5,), (20.0,)],
    "projection_l2_sphere": [(), (20.0,)],
    "projection_l2_ball": [(), (20.0,)],
    "projection_linf_ball": [(), (0.5,)],
    "projection_vector": [(NORMAL,)],
    "projection_hyperplane": [(NORMAL, 3.0)],
    "projection_halfspace": [(NORMAL, 3.0), (NORMAL, -3.0)],
}
CASES = [(name, arguments) for name, rows in ROWS.items() for arguments in rows]


@pytest.mark.wide
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_agrees_with_optax(name, arguments):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    with jax.enable_x64(True):
        theirs = getattr(optax.projections, name)

        def pulled(x, weights):
            if name == "projection_hypercube":  # Optax's takes no tree with bounds that are numbers
                out, pull = jax.vjp(lambda t: jax.tree.map(lambda leaf: theirs(leaf, *arguments), t), x)
            else:
                out, pull = jax.vjp(lambda t: theirs(t, *arguments), x)
            return out, pull(weights)[0]

        expected = jax.jit(pulled)(POINT, NORMAL)
    ours, pull_back = vf.vjp(lambda x: getattr(projections, name)(x, *arguments), tree.map(vf.numpy.asarray, POINT))
    actual = ours, pull_back(tree.map(vf.numpy.asarray, NORMAL))[0]
    for a, b in zip(tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    again = getattr(projections, name)(ours, *arguments)
    for a, b in zip(tree.leaves(again), tree.leaves(ours), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_every_projection_has_a_row():
    public = {name for name in projections.__all__ if name.startswith("projection")}
    assert public == {*ROWS, "projection_box"}


def test_boxes_of_numbers_and_trees():
    lower = {"w": -0.1, "b": np.array([0.0, -9.0, -9.0])}
    out = projections.projection_box(POINT, lower, 0.25)
    np.testing.assert_array_equal(out["w"], np.clip(POINT["w"], -0.1, 0.25))
    np.testing.assert_array_equal(out["b"], np.clip(POINT["b"], lower["b"], 0.25))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes_are_kept(dtype):
    values = {"w": POINT["w"], "scalar": 2.0, "empty": np.zeros(0)}
    point = {name: vf.numpy.asarray(x, dtype) for name, x in values.items()} | {"none": None}
    for name, rows in ROWS.items():
        operands = [point if value is NORMAL else value for value in rows[0]]
        out = getattr(projections, name)(point, *operands)
        assert tree.structure(out) == tree.structure(point)
        assert {leaf.dtype.name for leaf in tree.leaves(out)} == {dtype}


def test_nan_is_not_hidden_and_jitted_is_the_same():
    point = vf.numpy.array([0.5, np.nan, 2.0])
    assert np.all(np.isnan(projections.projection_simplex(point)))
    for name in ("projection_simplex", "projection_l1_ball", "projection_l2_ball"):
        function = getattr(projections, name)
        good = vf.numpy.array([0.5, -1.0, 2.0])
        np.testing.assert_allclose(vf.jit(function)(good), function(good), rtol=1e-6)
        np.testing.assert_allclose(vf.vmap(function)(vf.numpy.stack([good, good / 10]))[0], function(good), rtol=1e-6)
    assert projections.projection_simplex(vf.numpy.zeros(0)).shape == (0,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_sums_in_half_precision_are_of_float32(name, arguments, dtype):
    x = RNG.normal(size=3000).astype(as_dtype(dtype))
    arguments = [NORMALS.astype(x.dtype) if a is NORMAL else a for a in arguments]
    wide = [a.astype(np.float32) if isinstance(a, np.ndarray) else a for a in arguments]
    expected = getattr(projections, name)(x.astype(np.float32), *wide)
    actual = getattr(projections, name)(x, *arguments)
    assert actual.dtype == x.dtype
    np.testing.assert_allclose(np.asarray(actual, np.float32), expected, rtol=float(finfo(x.dtype).eps), atol=1e-6)
