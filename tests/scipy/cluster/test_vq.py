"""Vector quantisation against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.cluster.vq

import volta_fn as vf
from volta_fn.errors import ShapeError
from volta_fn.scipy.cluster.vq import vq

RNG = np.random.default_rng(0)


@pytest.mark.wide
@pytest.mark.parametrize("shapes", [((7, 3), (4, 3)), ((7, 1), (4, 1)), ((7,), (4,)), ((1, 2), (1, 2)), ((0, 2), (3, 2))])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_codes_and_distances(shapes, dtype):
    obs, codes = (RNG.normal(size=s).astype(dtype) for s in shapes)
    code, distance = vq(obs, codes)
    assert (code.dtype, distance.dtype) == (np.int32, dtype)
    if not obs.size:
        assert code.shape == distance.shape == (0,)
        return
    expected = scipy.cluster.vq.vq(obs.astype(float), codes.astype(float))
    np.testing.assert_array_equal(code, expected[0])
    np.testing.assert_allclose(distance, expected[1], rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(vf.jit(vq)(obs, codes)[0], expected[0])


def test_dtypes_ties_and_nan():
    code, distance = vq(np.array([1, 5], np.int32), np.array([0, 2, 9], np.int32))
    assert (code.tolist(), distance.tolist(), distance.dtype) == ([0, 1], [1, 3], np.float32)
    assert vq(np.ones(2, np.float16), np.ones(1, np.float16))[1].dtype == np.float16
    assert np.isnan(vq(np.array([np.nan], np.float32), np.ones(2, np.float32))[1]).all()


def test_slopes():
    obs, codes = RNG.normal(size=(3, 2)).astype(np.float32), RNG.normal(size=(2, 2)).astype(np.float32)
    slopes = vf.grad(lambda x: vq(x, codes)[1].sum())(obs)
    code, distance = (np.asarray(v) for v in vq(obs, codes))
    np.testing.assert_allclose(slopes, (obs - codes[code]) / distance[:, None], rtol=1e-5)
    assert vf.grad(lambda x: vq(x, codes)[1].sum())(codes).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("shapes", [((3,), (3, 1)), ((3, 2), (3, 1)), ((), ()), ((1, 1, 1), (1, 1, 1)), ((3, 2), (0, 2))])
def test_wrong_shapes_are_named(shapes):
    with pytest.raises(ShapeError, match="vq"):
        vq(*[np.ones(s, np.float32) for s in shapes])
