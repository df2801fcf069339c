"""Every loss against Optax: values and gradients, in float32 and float64, with axes, masks and extremes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn, optim
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.optim import losses

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(4, 5)), RNG.normal(size=(4, 5))
P = np.exp(Y) / np.exp(Y).sum(-1, keepdims=True)
ONE_HOT = np.eye(5)[[1, 0, 4, 1]]
SIGNS = np.where(Y > 0, 1.0, -1.0)
NUMBERS = np.array([1, 0, 4, 1], np.int32)
MASK = RNG.uniform(size=(4, 5)) < 0.7
MASK[:, 1] = True
LOG = np.log(P[:, ::-1])

#: name: (loss, its arguments, options). Gradients are with respect to the first argument.
ROWS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "sigmoid_binary_cross_entropy": ("sigmoid_binary_cross_entropy", (20 * X, P), {}),
    "sigmoid_focal_loss": ("sigmoid_focal_loss", (X, P), {"alpha": 0.3, "gamma": 1.5}),
    "sigmoid_focal_loss plain": ("sigmoid_focal_loss", (X, ONE_HOT), {}),
    "hinge_loss": ("hinge_loss", (X, SIGNS), {}),
    "hinge_loss broadcast": ("hinge_loss", (X, SIGNS[0]), {}),
    "perceptron_loss": ("perceptron_loss", (X, SIGNS), {}),
    "sparsemax_loss": ("sparsemax_loss", (2 * X, ONE_HOT), {}),
    "softmax_cross_entropy": ("softmax_cross_entropy", (10 * X, P), {}),
    "softmax_cross_entropy axis": ("softmax_cross_entropy", (X, P), {"axis": 0}),
    "softmax_cross_entropy axes": ("softmax_cross_entropy", (X, P), {"axis": (0, 1)}),
    "softmax_cross_entropy all": ("softmax_cross_entropy", (X, P), {"axis": None}),
    "softmax_cross_entropy classes": ("softmax_cross_entropy", (X, ONE_HOT), {"where": MASK}),
    "softmax_cross_entropy examples": ("softmax_cross_entropy", (X, ONE_HOT), {"where": np.array([True, False, True, True])}),
    "safe_softmax_cross_entropy": ("safe_softmax_cross_entropy", (np.where(MASK, X, -np.inf), np.where(MASK, P, 0)), {}),
    "integer labels": ("softmax_cross_entropy_with_integer_labels", (10 * X, NUMBERS), {}),
    "integer labels axis": ("softmax_cross_entropy_with_integer_labels", (X.T, NUMBERS), {"axis": 0}),
    "integer labels axes": ("softmax_cross_entropy_with_integer_labels", (X.reshape(2, 2, 5), NUMBERS[:2]), {"axis": (0, 2)}),
    "integer labels classes": ("softmax_cross_entropy_with_integer_labels", (X, NUMBERS), {"where": MASK}),
    "multiclass_hinge_loss": ("multiclass_hinge_loss", (X, NUMBERS), {}),
    "multiclass_perceptron_loss": ("multiclass_perceptron_loss", (X, NUMBERS), {}),
    "multiclass_sparsemax_loss": ("multiclass_sparsemax_loss", (X, NUMBERS), {}),
    "poly_loss_cross_entropy": ("poly_loss_cross_entropy", (X, P), {"epsilon": -0.5}),
    "poly_loss_cross_entropy where": ("poly_loss_cross_entropy", (X, ONE_HOT), {"where": MASK}),
    "kl_divergence": ("kl_divergence", (LOG, P), {}),
    "kl_divergence sure": ("kl_divergence", (LOG, ONE_HOT), {"axis": 0}),
    "kl_divergence where": ("kl_divergence", (LOG, P), {"where": MASK, "axis": (0, 1)}),
    "kl_divergence_with_log_targets": ("kl_divergence_with_log_targets", (LOG, np.log(P)), {}),
    "generalized_kl_divergence": ("generalized_kl_divergence", (X, P), {"where": MASK}),
    "convex_kl_divergence": ("convex_kl_divergence", (X, P), {"axis": None}),
    "squared_error": ("squared_error", (X, Y), {}),
    "squared_error of errors": ("squared_error", (X,), {}),
    "l2_loss": ("l2_loss", (X, Y), {}),
    "huber_loss": ("huber_loss", (X, Y), {"delta": 0.5}),
    "huber_loss of errors": ("huber_loss", (X,), {}),
    "log_cosh": ("log_cosh", (5 * X, Y), {}),
    "log_cosh of errors": ("log_cosh", (X,), {}),
    "cosine_similarity": ("cosine_similarity", (X, Y), {}),
    "cosine_similarity epsilon": ("cosine_similarity", (X, Y), {"epsilon": 4.0, "axis": (0, 1)}),
    "cosine_similarity where": ("cosine_similarity", (X, Y), {"axis": 0, "where": MASK}),
    "cosine_distance": ("cosine_distance", (X, Y), {"axis": None}),
    "dice_loss": ("dice_loss", (X.reshape(2, 2, 5), ONE_HOT.reshape(2, 2, 5)), {}),
    "dice_loss tversky": (
        "dice_loss",
        (X.reshape(2, 2, 5), P.reshape(2, 2, 5)),
        {"alpha": 0.3, "beta": 0.9, "smooth": 0.1, "class_weights": np.arange(5.0), "ignore_background": True, "reduction": "sum"},
    ),
    "dice_loss targets without classes": ("dice_loss", (X[..., None], ONE_HOT), {}),
    "multiclass_generalized_dice_loss": ("multiclass_generalized_dice_loss", (X.reshape(2, 2, 5), ONE_HOT.reshape(2, 2, 5)), {}),
    "binary_dice_loss": ("binary_dice_loss", (X, ONE_HOT), {"smooth": 0.5}),
    "ranking_softmax_loss": ("ranking_softmax_loss", (X, P), {}),
    "ranking_softmax_loss where": ("ranking_softmax_loss", (X, P), {"where": MASK, "weights": Y**2, "reduce_fn": None}),
    "ntxent": ("ntxent", (X, np.array([0, 1, 0, 1])), {"temperature": 0.5}),
    "triplet_margin_loss": ("triplet_margin_loss", (X, Y, P), {}),
    "triplet_margin_loss cubes": ("triplet_margin_loss", (np.abs(X) + np.abs(Y) + 1, np.abs(Y), P), {"norm_degree": 3, "axis": 0}),
    "ctc_loss": (
        "ctc_loss",
        (RNG.normal(size=(2, 6, 4)), np.arange(6) >= np.array([[6], [4]]), np.array([[1, 1, 2], [3, 2, 2]]), np.arange(3) >= [[3], [2]]),
        {},
    ),
    "ctc_loss last blank": ("ctc_loss", (X[None], np.zeros((1, 4)), np.array([[1, 2]]), np.zeros((1, 2))), {"blank_id": 4}),
}
SMOOTH = ("smooth_labels", "make_fenchel_young_loss", "ctc_loss_with_forward_probs")


def arrays(values: tuple[Any, ...], dtype: str) -> list[np.ndarray]:
    """Return the values in a dtype; integers and booleans as they are."""
    return [np.asarray(v, dtype) if np.asarray(v).dtype == np.float64 else np.asarray(v) for v in values]


def value_and_gradient(library: Any, numpy: Any, loss: Any, arguments: list[Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the loss, and the gradient of a function of it."""

    def total(x: Any) -> tuple[Any, Any]:
        out = loss(x, *arguments[1:], **options)
        return numpy.sum(numpy.sin(out)), out

    grad, out = library.grad(total, has_aux=True)(arguments[0])
    return out, grad


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:The function convex_kl_divergence")
@pytest.mark.parametrize("name", ROWS)
def test_values_and_gradients_are_optaxs(name):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    loss, values, options = ROWS[name]
    ours, theirs = getattr(losses, loss), getattr(optax.losses, loss)
    with jax.enable_x64(True):
        operands = [jax.numpy.asarray(v) for v in arrays(values, "float64")]
        compiled = jax.jit(lambda x: value_and_gradient(jax, jax.numpy, theirs, [x, *operands[1:]], options))
        value, slope = map(np.asarray, compiled(operands[0]))
    for dtype, rtol in (("float64", 1e-12), ("float32", 2e-6)):
        operands = [vf.numpy.asarray(v) for v in arrays(values, dtype)]
        out, grad = value_and_gradient(vf, vf.numpy, ours, operands, options)
        assert (out.dtype, out.shape) == (dtype, value.shape)
        atol = rtol * max(1.0, np.abs(value).max(initial=0))
        np.testing.assert_allclose(out, value, rtol=rtol, atol=atol)
        np.testing.assert_allclose(grad, slope, rtol=5 * rtol, atol=10 * atol)


def test_every_loss_has_a_row():
    public = {name for name in dir(losses) if callable(getattr(losses, name)) and not name.startswith("_")}
    assert public <= {loss for loss, _, _ in ROWS.values()} | set(SMOOTH)
    optax = pytest.importorskip("optax")
    assert {name for name in dir(optax.losses) if callable(getattr(optax.losses, name)) and not name.startswith("_")} <= public


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["softmax_cross_entropy", "log_cosh", "ntxent", "sigmoid_focal_loss", "huber_loss", "dice_loss"])
def test_half_precision_is_float32_rounded(name, dtype):
    loss, values, options = ROWS[name]
    half = [vf.numpy.asarray(v, dtype) if v.dtype == np.float32 else v for v in arrays(values, "float32")]
    exact = getattr(losses, loss)(*[v.astype("float32") if v.dtype == half[0].dtype else v for v in half], **options)
    out = getattr(losses, loss)(*half, **options)
    assert out.dtype == vf.dtypes.as_dtype(dtype)
    np.testing.assert_array_equal(out, exact.astype(dtype))


@pytest.mark.wide
def test_forward_probabilities_are_optaxs():
    """Where labels can be reached; elsewhere Optax has sums of its logarithm of 0."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    logits, pads, labels, _ = arrays(ROWS["ctc_loss"][1], "float64")
    arguments = (logits, pads, labels, np.zeros(labels.shape))
    with jax.enable_x64(True):
        theirs = [np.asarray(v) for v in jax.jit(optax.losses.ctc_loss_with_forward_probs)(*arguments)]
    ours = losses.ctc_loss_with_forward_probs(*arguments)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(np.where(b > -1e4, a, 0), np.where(b > -1e4, b, 0), rtol=1e-10, atol=1e-10)
        assert np.all(np.asarray(a)[b <= -1e4] <= -1e4)


def test_labels_that_no_path_spells_cost_the_logarithm_of_zero():
    arguments = np.zeros((1, 2, 3)), np.zeros((1, 2)), np.array([[1, 1]]), np.zeros((1, 2))
    assert float(losses.ctc_loss(*arguments)[0]) == 1e5
    assert float(losses.ctc_loss(*arguments, log_epsilon=-50.0)[0]) == 50.0


def test_smoothed_labels_and_fenchel_young_losses_are_optaxs():
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    for options in ({}, {"axis": 0}, {"axis": None}, {"where": MASK}):
        ours = losses.smooth_labels(ONE_HOT.astype("float32"), 0.1, **options)
        np.testing.assert_allclose(ours, optax.smooth_labels(jax.numpy.asarray(ONE_HOT, "float32"), 0.1, **options), rtol=1e-6)
    loss = losses.make_fenchel_young_loss(nn.logsumexp)
    np.testing.assert_allclose(loss(X, ONE_HOT), losses.softmax_cross_entropy(X, ONE_HOT), rtol=1e-5)


def test_labels_that_are_no_class_give_nan():
    for name in ("softmax_cross_entropy_with_integer_labels", "multiclass_hinge_loss", "multiclass_sparsemax_loss"):
        out = np.asarray(getattr(losses, name)(X[:2].astype("float32"), np.array([5, 1])))
        assert np.isnan(out[0]) and np.isfinite(out[1])


def test_dice_loss_of_probabilities():
    logits, targets = X.reshape(2, 2, 5).astype("float32"), ONE_HOT.reshape(2, 2, 5)
    for options in ({"reduction": "none"}, {"axis": (0,)}):
        np.testing.assert_allclose(
            losses.dice_loss(nn.softmax(logits), targets, apply_softmax=False, **options),
            losses.dice_loss(logits, targets, **options),
            rtol=1e-6,
        )


def test_small_errors_keep_their_digits():
    """A sum with log(2) would round them away."""
    x = np.array([1e-4, 1e-6], "float32")
    np.testing.assert_allclose(losses.log_cosh(x), x.astype("float64") ** 2 / 2, rtol=1e-6)
    np.testing.assert_array_equal(vf.grad(lambda e: vf.numpy.sum(losses.log_cosh(e)))(np.array([1e3, -1e3], "float32")), [1, -1])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: losses.squared_error(X, Y[0]), ShapeError),
        (lambda: losses.perceptron_loss(X, Y[0]), ShapeError),
        (lambda: losses.l2_loss(1j * X), DTypeError),
        (lambda: losses.huber_loss(X, delta=0.0), ArgumentError),
        (lambda: losses.softmax_cross_entropy_with_integer_labels(X, NUMBERS[:2]), ShapeError),
        (lambda: losses.softmax_cross_entropy_with_integer_labels(X, P), DTypeError),
        (lambda: losses.softmax_cross_entropy_with_integer_labels(np.zeros((2, 0)), NUMBERS[:2]), ShapeError),
        (lambda: losses.multiclass_hinge_loss(1.0, 0), ShapeError),
        (lambda: losses.dice_loss(X, X[:2]), ShapeError),
        (lambda: losses.dice_loss(X, ONE_HOT, apply_softmax=False), ArgumentError),
        (lambda: losses.dice_loss(X, ONE_HOT, reduction="median"), ArgumentError),
        (lambda: losses.dice_loss(X, ONE_HOT, class_weights=np.ones(3)), ShapeError),
        (lambda: losses.ntxent(X, NUMBERS[:2]), ShapeError),
        (lambda: losses.ctc_loss(X, X, NUMBERS, NUMBERS), ShapeError),
        (lambda: losses.cosine_similarity(1.0, 2.0), ShapeError),
    ],
)
def test_bad_arguments_are_refused(call, error):
    with pytest.raises(error):
        call()


def test_losses_are_also_at_the_top():
    assert optim.huber_loss is losses.huber_loss and optim.ctc_loss is losses.ctc_loss
    assert vf.numpy.all(losses.ranking_softmax_loss(np.zeros((0, 3)), np.zeros((0, 3))) == 0)
