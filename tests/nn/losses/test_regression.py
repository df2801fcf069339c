"""Squared, absolute and Huber's errors and likelihoods against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.losses.oracle import check
from volta_fn import nn
from volta_fn.errors import ArgumentError

torch = pytest.importorskip("torch")
F = torch.nn.functional
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(2, 5, 7)) * 2
VARIANCE = rng.uniform(0.1, 2, size=(5, 7))
COUNTS = rng.integers(0, 5, size=(5, 7)).astype(float)

CASES = {
    "mse": (nn.mse_loss, F.mse_loss, {}, (X, Y)),
    "mae": (nn.mae_loss, F.l1_loss, {}, (X, Y)),
    "huber": (nn.huber_loss, F.huber_loss, {"delta": 0.7}, (X, Y)),
    "smooth l1": (nn.smooth_l1_loss, F.smooth_l1_loss, {"beta": 0.3}, (X, Y)),
    "smooth l1 of no beta": (nn.smooth_l1_loss, F.smooth_l1_loss, {"beta": 0.0}, (X, Y)),
    "gaussian": (nn.gaussian_nll_loss, F.gaussian_nll_loss, {"eps": 0.5}, (X, Y, VARIANCE)),
    "full gaussian": (nn.gaussian_nll_loss, F.gaussian_nll_loss, {"full": True}, (X, Y, VARIANCE[:, :1])),
    "poisson": (nn.poisson_nll_loss, F.poisson_nll_loss, {"full": True}, (X, COUNTS)),
    "poisson of rates": (nn.poisson_nll_loss, F.poisson_nll_loss, {"log_input": False}, (VARIANCE, COUNTS)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", CASES)
def test_matches_pytorch(name, reduction, dtype):
    ours, theirs, options, arrays = CASES[name]
    options = {**options, "reduction": reduction}
    wrt = range(1 if "poisson" in name else len(arrays))
    check(lambda *a: ours(*a, **options), lambda *a: theirs(*a, **options), arrays, dtype, wrt)


def test_l1_loss_is_another_name_of_mae_loss():
    assert nn.l1_loss is nn.mae_loss


@pytest.mark.parametrize("error, value, slope", [(np.inf, np.inf, 1.0), (-np.inf, np.inf, -1.0), (1e30, 1e30, 1.0), (0.0, 0.0, 0.0)])
def test_huber_of_huge_errors_has_the_linear_slope(error, value, slope):
    assert nn.huber_loss(error, 0.0) == np.float32(value)
    assert vf.grad(nn.huber_loss)(error, 0.0) == slope


def test_huber_is_curved_at_zero_and_straight_far_away():
    curvature = vf.grad(vf.grad(nn.huber_loss))
    assert curvature(0.0, 0.0) == 1 and curvature(5.0, 0.0) == 0


def test_variances_below_the_least_count_as_the_least_and_still_learn():
    value, slope = vf.value_and_grad(nn.gaussian_nll_loss, 2)(1.0, 0.0, 0.0, eps=0.5)
    np.testing.assert_allclose([value, slope], [0.5 * (np.log(0.5) + 2), 0.5 * (2 - 4)], rtol=1e-6)
    assert np.isnan(nn.gaussian_nll_loss(1.0, 0.0, -1.0))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: nn.huber_loss(1.0, 2.0, delta=0.0), "delta is a positive number"),
        (lambda: nn.huber_loss(1.0, 2.0, delta=np.nan), "delta is a positive number"),
        (lambda: nn.smooth_l1_loss(1.0, 2.0, beta=-1.0), "beta is 0 or a positive"),
    ],
)
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.parametrize("shape, of_variances", [((4, 3), (4,)), ((4, 4), (4,)), ((2, 3, 3), (2, 3)), ((3, 3), (3, 1)), ((4,), (4,))])
def test_gaussian_variances_of_rows(shape: tuple[int, ...], of_variances: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, *shape)).astype(np.float32)
    variances = random.uniform(0.5, 2, of_variances).astype(np.float32)
    expected = F.gaussian_nll_loss(*map(torch.tensor, (x, y, variances)), reduction="none")
    np.testing.assert_allclose(nn.gaussian_nll_loss(x, y, variances, reduction="none"), expected, rtol=1e-5, atol=1e-6)
