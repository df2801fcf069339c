"""Optimizers under their usual names: chains of transformations.

Gradient descent and its variants come first, then what divides by roots of second moments, and the Adam family. L-BFGS and Muon, each with
transformations of its own, end the module.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    identity,
    is_function,
    numbers_of_leaves,
    require_params,
    stateless,
)
from volta_fn.optim.line_search import scale_by_zoom_linesearch
from volta_fn.optim.numerics import (
    add_scaled,
    count_zero,
    decayed,
    global_norm,
    map_leaves,
    map_with_state,
    real_dot,
    safe_increment,
    scaled_by,
    sum_of_squares,
    tree_cast_like,
    widened,
    widest_real,
    zeros_like,
)
from volta_fn.optim.transforms.composition import chain, masked, partition
from volta_fn.optim.transforms.momentum import (
    NS_COEFFS,
    MuonDimensionNumbers,
    Preconditioning,
    add_decayed_weights,
    add_noise,
    ema,
    layout_of,
    orthogonalize_via_newton_schulz,
    scale_by_optimistic_gradient,
    trace,
)
from volta_fn.optim.transforms.scaling import (
    clip_by_block_rms,
    differentially_private_aggregate,
    scale,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_param_block_rms,
    scale_by_polyak,
    scale_by_rprop,
    scale_by_sign,
    scale_by_trust_ratio,
)
from volta_fn.optim.transforms.second_moments import (
    momentum_debiaser,
    scale_by_adadelta,
    scale_by_adam,
    scale_by_adamax,
    scale_by_adan,
    scale_by_amsgrad,
    scale_by_belief,
    scale_by_factored_rms,
    scale_by_novograd,
    scale_by_radam,
    scale_by_rms,
    scale_by_rss,
    scale_by_sm3,
    scale_by_stddev,
    scale_by_yogi,
)

__all__ = [
    "MuonState",
    "ScaleByLBFGSState",
    "adabelief",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamaxw",
    "adamw",
    "adan",
    "amsgrad",
    "dpsgd",
    "fromage",
    "lamb",
    "lars",
    "lbfgs",
    "lion",
    "muon",
    "nadam",
    "nadamw",
    "noisy_sgd",
    "novograd",
    "optimistic_adam_v2",
    "optimistic_gradient_descent",
    "polyak_sgd",
    "radam",
    "rmsprop",
    "rprop",
    "scale_by_lbfgs",
    "scale_by_muon",
    "scale_by_shape",
    "sgd",
    "sign_sgd",
    "signum",
    "sm3",
    "yogi",
]


# Optimizers without second moments: variants of gradient descent.


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


# RMSProp, Adagrad, Adadelta, Adafactor, SM3: roots of squares without correction.


def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: Any = 0.9,
    eps: Any = 1e-8,
    initial_scale: Any = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: Any = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformationExtraArgs:
    """Create RMSProp: gradients divided by roots of moving averages of squares.

    See Tieleman and Hinton (2012). PyTorch's RMSprop has ``eps_in_sqrt=False``, and its momentum comes before the learning rate, which
    is equivalent for a constant learning rate.

    Args:
        learning_rate: a number, a scalar array or a schedule.
        decay: of the averages, which start at `initial_scale`.
        eps: added to the average (`eps_in_sqrt`) or to its root.
        initial_scale: the initial averages.
        eps_in_sqrt: see `eps`.
        centered: whether to divide by the standard deviation instead (Graves, 2013).
        momentum, nesterov: momentum of the steps, as in `sgd`.
        bias_correction: whether averages are corrected for their start.

    >>> optimizer = vf.optim.rmsprop(0.1, bias_correction=True)
    >>> w = vf.numpy.array([1.0, -2.0])
    >>> optimizer.update(w, optimizer.init(w))[0]
    Array([-0.1,  0.1], dtype=float32)
    """
    scaled = (scale_by_stddev if centered else scale_by_rms)(decay, eps, initial_scale, eps_in_sqrt, bias_correction)
    return chain(scaled, scale_by_learning_rate(learning_rate), identity() if momentum is None else trace(momentum, nesterov))


def adagrad(learning_rate: ScalarOrSchedule, initial_accumulator_value: Any = 0.1, eps: Any = 1e-7) -> GradientTransformationExtraArgs:
    """Create Adagrad: division by roots of sums of all squares (Duchi et al., 2011)."""
    return chain(scale_by_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate))


def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: Any = 0.9,
    eps: Any = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Create Adadelta: steps scaled to the size of the previous ones (Zeiler, 2012).

    Without a learning rate updates are not negated. Needs the parameters.
    """
    return chain(add_decayed_weights(weight_decay, weight_decay_mask), scale_by_adadelta(rho, eps), scale_by_learning_rate(learning_rate))


def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: Any = 0.8,
    decay_offset: Any = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: Any | None = 1.0,
    momentum: Any = None,
    dtype_momentum: Any = "float32",
    weight_decay_rate: ScalarOrSchedule | None = None,
    eps: Any = 1e-30,
    factored: bool = True,
    weight_decay_mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Create Adafactor, which needs little memory for large matrices.

    See Shazeer and Stern (2018). Steps are relative to the parameters, which are needed.

    Args:
        learning_rate: a number, a scalar array, a schedule or None.
        min_dim_size_to_factor, decay_rate, decay_offset, eps, factored: those of `scale_by_factored_rms`.
        multiply_by_parameter_scale: whether steps are proportional to the root mean squares of parameters.
        clipping_threshold: the greatest root mean square of an update, None for no limit.
        momentum: the decay of a moving average of updates, kept in `dtype_momentum`; None for no average.
        dtype_momentum: see `momentum`.
        weight_decay_rate, weight_decay_mask: weight decay, not scaled by the learning rate.
    """
    steps = [scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps)]
    if clipping_threshold is not None:
        steps.append(clip_by_block_rms(clipping_threshold))
    if learning_rate is not None:
        steps.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        steps.append(scale_by_param_block_rms())
    if momentum is not None:
        steps.append(ema(momentum, debias=False, accumulator_dtype=dtype_momentum))
    if weight_decay_rate is not None:
        steps.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*steps, scale(-1))


def sm3(learning_rate: Any, momentum: Any = 0.9) -> GradientTransformationExtraArgs:
    """Create SM3: Adagrad in the memory of a few vectors (Anil et al., 2019)."""
    return chain(scale_by_sm3(momentum), scale(-learning_rate))


# The Adam family.


def adam(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Create Adam: ``-learning_rate * m / (sqrt(v + eps_root) + eps)``.

    See Kingma and Ba (2015). m and v are moving averages of gradients and of their squares, which decay by `b1` and `b2`, corrected for
    their start at zero.

    Args:
        learning_rate: a number, a scalar array or a schedule.
        b1, b2: decay rates.
        eps, eps_root: bound the denominator; differentiation through the update needs a positive `eps_root`.
        mu_dtype: the dtype of m, by default that of the parameters. v is kept in float32 at least.
        nesterov: whether m looks one step ahead, as in `nadam`.

    >>> optimizer = optim.adam(learning_rate=0.1)
    >>> w = vf.numpy.array([1.0, -1.0])
    >>> @vf.jit
    ... def step(w, state):
    ...     updates, state = optimizer.update(vf.grad(lambda w: vf.numpy.sum(w**2))(w), state, w)
    ...     return optim.apply_updates(w, updates), state
    >>> w, state = step(w, optimizer.init(w))
    >>> w
    Array([ 0.9, -0.9], dtype=float32)
    """
    return chain(scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov), scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskOrFn | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Create `adam` with decoupled weight decay (Loshchilov and Hutter, 2019).

    Parameters shrink by ``learning_rate * weight_decay``; `mask` selects those that do (see `masked`). Needs the parameters.

    >>> no_biases = lambda params: vf.tree.map(lambda p: p.ndim > 1, params)
    >>> optimizer = vf.optim.adamw(vf.optim.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000), weight_decay=0.1, mask=no_biases)
    """
    scaled = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return chain(scaled, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


def nadam(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
) -> GradientTransformationExtraArgs:
    """Create `adam` with Nesterov's momentum (Dozat, 2016)."""
    return adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)


def nadamw(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskOrFn | None = None,
    *,
    nesterov: bool = True,
) -> GradientTransformationExtraArgs:
    """Create `adamw` with Nesterov's momentum (Dozat, 2016)."""
    return adamw(learning_rate, b1, b2, eps, eps_root, mu_dtype, weight_decay, mask, nesterov=nesterov)


def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformationExtraArgs:
    """Create `adam` with the maximum of v so far (Reddi et al., 2018)."""
    scaled = scale_by_amsgrad(b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu)
    return chain(scaled, scale_by_learning_rate(learning_rate))


def adamax(learning_rate: ScalarOrSchedule, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> GradientTransformationExtraArgs:
    """Create `adam` with decaying maxima instead of roots of v (Kingma and Ba, 2015)."""
    return chain(scale_by_adamax(b1, b2, eps), scale_by_learning_rate(learning_rate))


def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Create `adamax` with decoupled weight decay; see `adamw`."""
    return chain(scale_by_adamax(b1, b2, eps), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


def radam(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    threshold: Any = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Create `adam` rectified for the uncertainty of v (Liu et al., 2020).

    While v effectively averages fewer than `threshold` gradients, this is plain momentum.
    """
    return chain(scale_by_radam(b1, b2, eps, eps_root, threshold, nesterov=nesterov), scale_by_learning_rate(learning_rate))


def lamb(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-6,
    eps_root: Any = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Create LAMB: `adamw` with per-layer learning rates (You et al., 2020)."""
    scaled = scale_by_adam(b1, b2, eps, eps_root)
    return chain(scaled, add_decayed_weights(weight_decay, mask), scale_by_trust_ratio(), scale_by_learning_rate(learning_rate))


def adabelief(
    learning_rate: ScalarOrSchedule, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-16, eps_root: Any = 1e-16, *, nesterov: bool = False
) -> GradientTransformationExtraArgs:
    """Create `adam` with the variance of gradients instead of v (Zhuang et al., 2020)."""
    return chain(scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov), scale_by_learning_rate(learning_rate))


def yogi(learning_rate: ScalarOrSchedule, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-3) -> GradientTransformationExtraArgs:
    """Create `adam` whose v changes by bounded amounts (Zaheer et al., 2018)."""
    return chain(scale_by_yogi(b1, b2, eps), scale_by_learning_rate(learning_rate))


def adan(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.98,
    b2: Any = 0.92,
    b3: Any = 0.99,
    eps: Any = 1e-8,
    eps_root: Any = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformationExtraArgs:
    """Create Adan: momentum from differences of gradients (Xie et al., 2022)."""
    return chain(scale_by_adan(b1, b2, b3, eps, eps_root), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


def novograd(
    learning_rate: ScalarOrSchedule, b1: Any = 0.9, b2: Any = 0.25, eps: Any = 1e-6, eps_root: Any = 0.0, weight_decay: Any = 0.0
) -> GradientTransformationExtraArgs:
    """Create NovoGrad: momentum of normalised leaves (Ginsburg et al., 2019)."""
    return chain(scale_by_novograd(b1, b2, eps, eps_root, weight_decay), scale_by_learning_rate(learning_rate))


def optimistic_adam_v2(
    learning_rate: ScalarOrSchedule,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    nesterov: bool = True,
) -> GradientTransformationExtraArgs:
    """Create optimistic Adam, for games (Daskalakis et al., 2018)."""
    scaled = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return chain(scaled, scale_by_optimistic_gradient(alpha, beta), scale_by_learning_rate(learning_rate))


# L-BFGS (Liu and Nocedal, 1989).
#
# Steps are scaled by an estimate of the inverse Hessian from the last few steps.


class ScaleByLBFGSState(NamedTuple):
    """The step counter (int32), last parameters and gradients, stacked differences.

    The newest difference is last. `weights_memory` holds one over the inner products of the differences of parameters and of gradients.
    """

    count: Counter
    params: Params
    updates: Updates
    diff_params_memory: Any
    diff_updates_memory: Any
    weights_memory: Array


def scale_by_lbfgs(memory_size: int = 10, scale_init_precond: bool = True) -> GradientTransformation:
    """Multiply gradients by L-BFGS's estimate of the inverse Hessian.

    Needs the parameters.

    Args:
        memory_size: the number of steps remembered.
        scale_init_precond: whether the estimate starts from the multiple of the identity that fits the last step, instead of the
            identity. Before there is a last step, the multiple makes the norm of the first step at most 1.

    Raises `ArgumentError` for a memory of less than one step.
    """
    if memory_size < 1:
        raise ArgumentError(f"scale_by_lbfgs: memory_size must be at least 1, got {memory_size}")

    def init(params: Any) -> ScaleByLBFGSState:
        wide = tree.map(lambda p: widened(as_value(p)), params)
        stack = tree.map(lambda p: vnp.zeros((memory_size, *p.shape), p.dtype), wide)
        weights = vnp.zeros(memory_size, widest_real(params))
        return ScaleByLBFGSState(count_zero(), zeros_like(params), zeros_like(params), stack, stack, weights)

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = tree_cast_like(require_params("scale_by_lbfgs", params), state.params)
        updates = tree_cast_like(updates, state.updates)
        started = state.count > 0
        steps, changes = (_differences(new, old, started) for new, old in ((params, state.params), (updates, state.updates)))
        product = real_dot(changes, steps)
        weight = vnp.where(product == 0, 0, 1 / vnp.where(product == 0, 1, product))
        old = (state.diff_params_memory, state.diff_updates_memory, state.weights_memory)
        memory = tree.map(_remember, old, (steps, changes, weight))
        initial = _initial_scale(updates, changes, product, started) if scale_init_precond else vnp.ones_like(product)
        new_updates = tree_cast_like(_two_loops(updates, memory, initial), updates)
        return new_updates, ScaleByLBFGSState(safe_increment(state.count), params, updates, *memory)

    return GradientTransformationExtraArgs(init, update)


def _differences(new: Any, old: Any, started: Array) -> Any:
    """Return new minus old, in float32 at least; zeros before the first step."""
    return tree.map(lambda a, b: vnp.where(started, widened(as_value(a)) - widened(b), 0), new, old)


def _remember(stack: Array, newest: Array) -> Array:
    return vnp.concatenate([stack[1:], newest[None].astype(stack.dtype)])


def _initial_scale(updates: Updates, changes: Updates, product: Array, started: Array) -> Array:
    squares = sum_of_squares(changes)
    fitting = vnp.where(squares > 0, product / vnp.where(squares > 0, squares, 1), 1)
    return vnp.where(started, fitting, vnp.minimum(1, 1 / global_norm(updates)))


def _two_loops(vector: Any, memory: tuple[Any, Any, Array], initial: Array) -> Any:
    """Multiply a vector by the estimated inverse Hessian."""
    vector = tree.map(lambda v: widened(as_value(v)), vector)

    def backward(v: Any, remembered: Any) -> tuple[Any, Array]:
        step, change, weight = remembered
        alpha = weight * real_dot(step, v)
        return add_scaled(v, -alpha, change), alpha

    def forward(v: Any, remembered: Any) -> tuple[Any, None]:
        step, change, weight, alpha = remembered
        return add_scaled(v, alpha - weight * real_dot(change, v), step), None

    vector, alphas = lax.scan(backward, vector, memory, reverse=True)
    return lax.scan(forward, scaled_by(initial, vector), (*memory, alphas))[0]


_ZOOM = scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")


def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = _ZOOM,
) -> GradientTransformationExtraArgs:
    """Create L-BFGS with a line search, for losses without noise.

    With a line search `update` needs ``value=``, ``grad=`` and ``value_fn=`` (see `scale_by_zoom_linesearch`, the default, and
    `scale_by_backtracking_linesearch`); `value_and_grad_from_state` avoids computing loss and gradient twice.

    Args:
        learning_rate: multiplies the updates before the line search; 1 if None.
        memory_size, scale_init_precond: those of `scale_by_lbfgs`.
        linesearch: a transformation, None for no line search.

    >>> rosenbrock = lambda w: (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
    >>> optimizer = optim.lbfgs()
    >>> @vf.jit
    ... def step(w, state):
    ...     value, grad = optim.value_and_grad_from_state(rosenbrock)(w, state=state)
    ...     updates, state = optimizer.update(grad, state, w, value=value, grad=grad, value_fn=rosenbrock)
    ...     return optim.apply_updates(w, updates), state
    >>> w = vf.numpy.array([-1.2, 1.0])
    >>> state = optimizer.init(w)
    >>> for _ in range(40):
    ...     w, state = step(w, state)
    >>> w.round(2)
    Array([1., 1.], dtype=float32)
    """
    descend = scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate)
    return chain(scale_by_lbfgs(memory_size, scale_init_precond), descend, identity() if linesearch is None else linesearch)


# Muon (Jordan et al., 2024) for matrices, AdamW for other parameters.


class MuonState(NamedTuple):
    """The number of steps (int32) and moving averages of gradients."""

    count: Counter
    mu: Updates


def _dimension_numbers(choice: Any, updates: Updates) -> list[Any]:
    """Return the dimension numbers of each leaf of the updates, or None."""
    numbers = choice(updates) if is_function(choice) else choice
    return [None] * len(tree.leaves(updates)) if numbers is None else numbers_of_leaves(numbers, updates, MuonDimensionNumbers, "muon")


def scale_by_muon(
    ns_coeffs: Any = NS_COEFFS["standard"],
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: float = 1e-8,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: Any = None,
) -> GradientTransformation:
    """Replace updates of matrices by orthogonalised momentum, as `muon` does.

    `weight_dimension_numbers` says which axes of other weights make matrices. With `adaptive` the result is scaled by its inner product
    with the momentum.
    """

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        count = safe_increment(state.count)
        corrected = momentum_debiaser(beta, count, nesterov)
        numbers = iter(_dimension_numbers(weight_dimension_numbers, updates))

        def rule(g: Array, m: Array) -> tuple[Array, Array]:
            m = decayed(beta, g, m)
            m_hat = corrected(m, g)
            step = orthogonalize_via_newton_schulz(m_hat, ns_coeffs, ns_steps, preconditioning, eps, next(numbers))
            return (vnp.sum(vnp.conj(m_hat) * step) * step if adaptive else step), m

        updates, mu = map_with_state(rule, updates, state.mu)
        return updates, MuonState(count, mu)

    return GradientTransformationExtraArgs(lambda params: MuonState(count_zero(), zeros_like(params, mu_dtype)), update)


def scale_by_shape(weight_dimension_numbers: Any = None, consistent_rms: Any = None) -> GradientTransformation:
    """Multiply matrices by ``sqrt(max(1, outputs / inputs))``.

    If `consistent_rms` is given, the factor is ``sqrt(max(inputs, outputs)) * consistent_rms``.
    """

    def scaled(u: Array, numbers: MuonDimensionNumbers) -> Array:
        _, inputs, outputs = layout_of(u, numbers).stack
        if consistent_rms is None:
            return math.sqrt(max(1, outputs / max(inputs, 1))) * u
        return math.sqrt(max(inputs, outputs)) * consistent_rms * u

    def apply(updates: Any, params: Any) -> Any:
        numbers = iter(_dimension_numbers(weight_dimension_numbers, updates))
        return map_leaves(lambda u: scaled(u, next(numbers) or MuonDimensionNumbers()), updates)

    return stateless(apply)


def muon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: Any = NS_COEFFS["standard"],
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn | None = None,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    adam_b1: Any = 0.9,
    adam_b2: Any = 0.999,
    adam_eps_root: Any = 0.0,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: Any = None,
    consistent_rms: Any = None,
) -> GradientTransformation:
    """Create Muon for matrices, with AdamW for the other parameters.

    AdamW uses Nesterov's momentum if `nesterov`.

    Args:
        learning_rate, weight_decay, weight_decay_mask: as in `adamw`, for matrices; `adam_learning_rate` (by default the same) and
            `adam_weight_decay` for the others, with `adam_b1`, `adam_b2`, `adam_eps_root`.
        ns_coeffs: the coefficients of `orthogonalize_via_newton_schulz`, or "standard" or "dion".
        ns_steps, preconditioning, eps: those of `orthogonalize_via_newton_schulz`.
        beta, nesterov, adaptive, mu_dtype: those of `scale_by_muon`.
        muon_weight_dimension_numbers: a tree of `MuonDimensionNumbers`, with None for the parameters of AdamW, or a function from
            parameters to such a tree. By default arrays of two axes are the matrices.
        consistent_rms: that of `scale_by_shape`.

    >>> params = {"w": vf.numpy.eye(2), "b": vf.numpy.zeros(2)}
    >>> optimizer = optim.muon(learning_rate=0.02)
    >>> updates, state = optimizer.update(vf.tree.map(vf.numpy.ones_like, params), optimizer.init(params), params)
    >>> sorted(updates)
    ['b', 'w']

    Raises `ArgumentError` for an unknown name of coefficients.
    """
    if isinstance(ns_coeffs, str) and ns_coeffs not in NS_COEFFS:
        raise ArgumentError(f"muon: ns_coeffs must be one of {list(NS_COEFFS)} or numbers, got {ns_coeffs!r}")
    matrices = chain(
        scale_by_muon(
            NS_COEFFS[ns_coeffs] if isinstance(ns_coeffs, str) else ns_coeffs,
            ns_steps,
            beta,
            eps,
            mu_dtype,
            nesterov=nesterov,
            adaptive=adaptive,
            preconditioning=preconditioning,
            weight_dimension_numbers=muon_weight_dimension_numbers,
        ),
        scale_by_shape(muon_weight_dimension_numbers, consistent_rms),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    adam_rate = learning_rate if adam_learning_rate is None else adam_learning_rate
    others = adamw(adam_rate, adam_b1, adam_b2, eps, adam_eps_root, mu_dtype, adam_weight_decay, nesterov=nesterov)

    def labels(params: Params) -> Any:
        if muon_weight_dimension_numbers is None:
            use_muon = [as_value(p).ndim == 2 for p in tree.leaves(params)]
        else:
            use_muon = [numbers is not None for numbers in _dimension_numbers(muon_weight_dimension_numbers, params)]
        return tree.structure(params).unflatten(["muon" if use else "adam" for use in use_muon])

    return partition({"muon": matrices, "adam": others}, labels)
