"""Initializers: JAX's numbers for the same key, and the properties that they promise."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn import initializers

SHAPE = (3, 3, 8, 16)
SCALED = "glorot_normal glorot_uniform he_normal he_uniform lecun_normal lecun_uniform".split()
MAKERS = {
    "zeros": lambda m: m.zeros,
    "ones": lambda m: m.ones,
    "constant": lambda m: m.constant(2.5),
    "constant array": lambda m: m.constant(np.arange(16, dtype=np.float32)),
    "uniform": lambda m: m.uniform(3.0),
    "normal": lambda m: m.normal(0.5),
    "truncated_normal": lambda m: m.truncated_normal(0.5, lower=-1.0),
    "orthogonal": lambda m: m.orthogonal(2.0),
    "orthogonal column": lambda m: m.orthogonal(column_axis=0),
    "delta_orthogonal": lambda m: m.delta_orthogonal(),
    "batch": lambda m: m.variance_scaling(1.0, "fan_in", "normal", batch_axis=0),
    "axes": lambda m: m.variance_scaling(1.0, "fan_out", "uniform", in_axis=(0, 1), out_axis=2),
    **{name: lambda m, name=name: getattr(m, name)() for name in SCALED},
    "fan_out": lambda m: m.variance_scaling(2.0, "fan_out", "normal"),
    "fan_geo_avg": lambda m: m.variance_scaling(2.0, "fan_geo_avg", "uniform"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_matches_jax(name):
    jax = pytest.importorskip("jax")
    theirs = np.asarray(MAKERS[name](jax.nn.initializers)(jax.random.key(3), SHAPE))
    ours = MAKERS[name](initializers)(vf.random.key(3), SHAPE)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["truncated_normal", "normal", "uniform"])
def test_complex_numbers_match_jax(kind):
    jax = pytest.importorskip("jax")
    theirs = jax.nn.initializers.variance_scaling(1.0, "fan_in", kind, dtype="complex64")(jax.random.key(3), (40, 50))
    ours = initializers.variance_scaling(1.0, "fan_in", kind, dtype="complex64")(vf.random.key(3), (40, 50))
    assert ours.dtype == np.complex64
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["zeros", "ones", "constant", "uniform", "normal", "truncated_normal", "glorot_uniform", "he_normal"])
def test_the_dtype_asked_for_is_given(name, dtype):
    assert MAKERS[name](initializers)(vf.random.key(0), (4, 5), dtype).dtype == vf.dtypes.as_dtype(dtype)


@pytest.mark.wide
def test_an_initializers_dtype_is_its_default():
    assert initializers.normal(dtype="float64")(vf.random.key(0), (3,)).dtype == np.float64
    assert initializers.normal(dtype="float64")(vf.random.key(0), (3,), "float16").dtype == np.float16


@pytest.mark.parametrize("kind", ["truncated_normal", "normal", "uniform"])
def test_the_variance_is_the_scale_over_the_fan(kind):
    weights = np.asarray(initializers.variance_scaling(2.0, "fan_in", kind)(vf.random.key(0), (200, 400)))
    assert abs(weights.var() * 200 / 2 - 1) < 0.02 and abs(weights.mean()) < 1e-3


@pytest.mark.wide
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 3, 5)])
def test_orthogonal_matrices_are_orthogonal(shape):
    weights = np.asarray(initializers.orthogonal(dtype="float64")(vf.random.key(0), shape)).reshape(-1, shape[-1])
    gram = weights.T @ weights if weights.shape[0] >= weights.shape[1] else weights @ weights.T
    np.testing.assert_allclose(gram, np.eye(min(weights.shape)), atol=1e-12)


OIHW = (24, 16, 3, 5)
#: Ours for the weights of convolutions, and PyTorch's of the same distribution.
LIKE_PYTORCH = {
    "xavier_uniform": ("xavier_uniform_", {}),
    "xavier_normal": ("xavier_normal_", {}),
    "kaiming_uniform": ("kaiming_uniform_", {"nonlinearity": "relu"}),
    "kaiming_normal": ("kaiming_normal_", {"nonlinearity": "relu"}),
    "lecun_uniform": ("kaiming_uniform_", {"nonlinearity": "linear"}),
    "lecun_normal": ("kaiming_normal_", {"nonlinearity": "linear"}),
}


@pytest.mark.parametrize("name", LIKE_PYTORCH)
def test_convolutions_have_the_fans_of_pytorch(name):
    torch = pytest.importorskip("torch")
    their_name, options = LIKE_PYTORCH[name]
    theirs = getattr(torch.nn.init, their_name)(torch.empty(OIHW), generator=torch.Generator().manual_seed(0), **options).numpy()
    ours = np.asarray(getattr(initializers, name)(in_axis=1, out_axis=0)(vf.random.key(0), OIHW))
    assert abs(ours.std() / theirs.std() - 1) < 0.03  # of 5760 numbers
    if "uniform" in name:
        np.testing.assert_allclose([ours.min(), ours.max()], [theirs.min(), theirs.max()], rtol=1e-2)


@pytest.mark.wide
def test_delta_orthogonal_kernels_keep_the_norms_of_images():
    torch = pytest.importorskip("torch")
    kernel = initializers.delta_orthogonal(in_axis=1, out_axis=0, dtype="float64")(vf.random.key(0), (6, 4, 3, 5))
    image = torch.tensor(np.random.default_rng(0).normal(size=(1, 4, 7, 8)))
    out = torch.nn.functional.conv2d(image, torch.tensor(np.asarray(kernel)), padding="same")
    np.testing.assert_allclose(out.norm(dim=1), image.norm(dim=1), rtol=1e-12)


def test_delta_orthogonal_axes_only_move():
    plain = np.asarray(initializers.delta_orthogonal()(vf.random.key(0), (3, 3, 4, 6)))
    moved = np.asarray(initializers.delta_orthogonal(in_axis=1, out_axis=0)(vf.random.key(0), (6, 4, 3, 3)))
    np.testing.assert_array_equal(moved, plain.transpose(3, 2, 0, 1))


def test_names_that_mean_the_same():
    assert initializers.kaiming_normal is initializers.he_normal and initializers.kaiming_uniform is initializers.he_uniform
    assert initializers.xavier_normal is initializers.glorot_normal and initializers.xavier_uniform is initializers.glorot_uniform


def test_empty_shapes():
    assert initializers.glorot_normal()(vf.random.key(0), (0, 5)).shape == (0, 5)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda k: initializers.glorot_normal()(k, (5,)), ShapeError, "inputs and outputs"),
        (lambda k: initializers.orthogonal()(k, (5,)), ShapeError, "two dimensions"),
        (lambda k: initializers.delta_orthogonal()(k, (3, 8, 4)), ShapeError, "out >= in"),
        (lambda k: initializers.delta_orthogonal(in_axis=1, out_axis=0)(k, (4, 8, 3)), ShapeError, "4 outputs and 8 inputs"),
        (lambda k: initializers.delta_orthogonal()(k, (8, 8)), ShapeError, "a window of 1 to 3 dimensions"),
        (lambda k: initializers.variance_scaling(1.0, "fan", "normal"), ArgumentError, "fan_in"),
        (lambda k: initializers.variance_scaling(1.0, "fan_in", "cauchy"), ArgumentError, "uniform"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(vf.random.key(0))
