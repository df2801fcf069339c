"""RMSProp, Adagrad, Adadelta, Adafactor, SM3: roots of squares without correction."""

from __future__ import annotations

from typing import Any

from volta_fn.optim.base import GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule, identity
from volta_fn.optim.transforms.clipping import clip_by_block_rms
from volta_fn.optim.transforms.momentum import ema, trace
from volta_fn.optim.transforms.scale_by_factored_rms import scale_by_factored_rms
from volta_fn.optim.transforms.scale_by_rms import scale_by_adadelta, scale_by_rms, scale_by_rss, scale_by_sm3, scale_by_stddev
from volta_fn.optim.transforms.scaling import scale, scale_by_learning_rate, scale_by_param_block_rms
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.wrappers.chain import chain

__all__ = ["adadelta", "adafactor", "adagrad", "rmsprop", "sm3"]


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
