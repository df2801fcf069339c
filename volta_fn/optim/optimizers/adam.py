"""The Adam family."""

from __future__ import annotations

from typing import Any

from volta_fn.optim.base import GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule
from volta_fn.optim.transforms.momentum import scale_by_optimistic_gradient
from volta_fn.optim.transforms.scale_by_adam import scale_by_adam, scale_by_adamax, scale_by_amsgrad, scale_by_radam
from volta_fn.optim.transforms.scale_by_adam_variants import scale_by_adan, scale_by_belief, scale_by_novograd, scale_by_yogi
from volta_fn.optim.transforms.scaling import scale_by_learning_rate, scale_by_trust_ratio
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.wrappers.chain import chain

__all__ = ["adabelief", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "lamb", "nadam", "nadamw", "novograd"]
__all__ += ["optimistic_adam_v2", "radam", "yogi"]


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
