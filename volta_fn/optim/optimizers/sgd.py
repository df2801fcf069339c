"""Optimizers without second moments: variants of gradient descent."""

from __future__ import annotations

from typing import Any

from volta_fn.optim.base import GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule, identity
from volta_fn.optim.transforms.momentum import ema, scale_by_optimistic_gradient, trace
from volta_fn.optim.transforms.per_example import differentially_private_aggregate
from volta_fn.optim.transforms.scaling import scale, scale_by_learning_rate, scale_by_polyak, scale_by_trust_ratio
from volta_fn.optim.transforms.signs import scale_by_lion, scale_by_rprop, scale_by_sign
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights, add_noise
from volta_fn.optim.wrappers.chain import chain
from volta_fn.optim.wrappers.masking import masked

__all__ = ["dpsgd", "fromage", "lars", "lion", "noisy_sgd", "optimistic_gradient_descent", "polyak_sgd", "rprop", "sgd", "sign_sgd"]
__all__ += ["signum"]


def sgd(
    learning_rate: ScalarOrSchedule, momentum: Any = None, nesterov: bool = False, accumulator_dtype: Any = None
) -> GradientTransformationExtraArgs:
    """Create gradient descent, with momentum if wanted (Sutskever et al., 2013).

    Args:
        learning_rate: a number, a scalar array or a schedule.
        momentum: the decay of the sum of gradients, None for no momentum.
        nesterov: whether the momentum looks one step ahead.
        accumulator_dtype: the dtype of the sum, by default that of the parameters.

    >>> optimizer = optim.sgd(learning_rate=0.1, momentum=0.9)
    >>> w = vf.numpy.array([1.0, -1.0])
    >>> state = optimizer.init(w)
    >>> for _ in range(2):
    ...     updates, state = optimizer.update(2 * w, state, w)
    ...     w = optim.apply_updates(w, updates)
    >>> w
    Array([ 0.46, -0.46], dtype=float32)
    """
    accumulated = identity() if momentum is None else trace(momentum, nesterov, accumulator_dtype)
    return chain(accumulated, scale_by_learning_rate(learning_rate))


def noisy_sgd(learning_rate: ScalarOrSchedule, eta: Any = 0.01, gamma: Any = 0.55, key: Any = 0) -> GradientTransformationExtraArgs:
    """Create gradient descent with `add_noise` (Neelakantan et al., 2015)."""
    return chain(add_noise(eta, gamma, key), scale_by_learning_rate(learning_rate))


def dpsgd(
    learning_rate: ScalarOrSchedule, l2_norm_clip: Any, noise_multiplier: Any, key: Any, momentum: Any = None, nesterov: bool = False
) -> GradientTransformationExtraArgs:
    """Create gradient descent with `differentially_private_aggregate`."""
    return chain(differentially_private_aggregate(l2_norm_clip, noise_multiplier, key), sgd(learning_rate, momentum, nesterov))


def sign_sgd(learning_rate: ScalarOrSchedule) -> GradientTransformationExtraArgs:
    """Create gradient descent by the signs of gradients (Bernstein et al., 2018)."""
    return chain(scale_by_sign(), scale_by_learning_rate(learning_rate))


def signum(learning_rate: ScalarOrSchedule, beta: Any = 0.9, accumulator_dtype: Any = None) -> GradientTransformationExtraArgs:
    """Create descent by signs of averages of gradients (Bernstein et al., 2018)."""
    return chain(ema(beta, debias=False, accumulator_dtype=accumulator_dtype), scale_by_sign(), scale_by_learning_rate(learning_rate))


def lion(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.99,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-3,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Create Lion: steps by ``sign(b1 * average + (1 - b1) * gradient)``.

    See Chen et al. (2023). The average of gradients decays by `b2`; weight decay is that of `adamw`. Lion needs learning rates three to ten
    times smaller than Adam's, and weight decay larger by as much.

    >>> optimizer = vf.optim.lion(0.5, weight_decay=0.0)
    >>> w = vf.numpy.array([1.0, -2.0])
    >>> optimizer.update(w, optimizer.init(w), w)[0]
    Array([-0.5,  0.5], dtype=float32)
    """
    return chain(scale_by_lion(b1, b2, mu_dtype), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


def rprop(
    learning_rate: Any, eta_minus: Any = 0.5, eta_plus: Any = 1.2, min_step_size: Any = 1e-6, max_step_size: Any = 50.0
) -> GradientTransformationExtraArgs:
    """Create `scale_by_rprop` descent for full batches (Riedmiller and Braun, 1993)."""
    return chain(scale_by_rprop(learning_rate, eta_minus, eta_plus, min_step_size, max_step_size), scale(-1.0))


def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn = True,
    trust_coefficient: Any = 0.001,
    eps: Any = 0.0,
    trust_ratio_mask: MaskOrFn = True,
    momentum: Any = 0.9,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Create LARS: momentum with a learning rate per layer, for large batches.

    See You et al. (2017). The masks select the parameters that decay and those that get their own learning rate. Needs the parameters.
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        masked(scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps), trust_ratio_mask),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
    )


def fromage(learning_rate: ScalarOrSchedule, min_norm: Any = 1e-6) -> GradientTransformationExtraArgs:
    """Create Fromage: steps proportional to norms of leaves (Bernstein et al., 2020)."""

    def shrinkage(rate: Any) -> Any:
        return (1 + rate**2) ** -0.5

    def of_rate(function: Any) -> ScalarOrSchedule:
        return (lambda count: function(learning_rate(count))) if callable(learning_rate) else function(learning_rate)

    return chain(
        scale_by_trust_ratio(min_norm),
        scale_by_learning_rate(of_rate(lambda rate: rate * shrinkage(rate))),
        add_decayed_weights(of_rate(lambda rate: shrinkage(rate) - 1)),
    )


def optimistic_gradient_descent(learning_rate: ScalarOrSchedule, alpha: Any = 1.0, beta: Any = 1.0) -> GradientTransformationExtraArgs:
    """Create gradient descent with extrapolation, for games (Mokhtari et al., 2019)."""
    return chain(scale_by_optimistic_gradient(alpha, beta), scale_by_learning_rate(learning_rate))


def polyak_sgd(
    max_learning_rate: Any = 1.0, scaling: ScalarOrSchedule = 1.0, f_min: Any = 0.0, eps: Any = 0.0, variant: str = "sps"
) -> GradientTransformationExtraArgs:
    """Create gradient descent with Polyak's step size.

    `update` needs the loss as ``value=``. See `scale_by_polyak`.

    >>> optimizer = vf.optim.polyak_sgd()
    >>> w = vf.numpy.array([2.0])
    >>> optimizer.update(2 * w, optimizer.init(w), w, value=4.0)[0]
    Array([-1.], dtype=float32)
    """
    return chain(sgd(scaling), scale_by_polyak(f_min, max_learning_rate, eps, variant))
