"""PyTorch's operators of neural networks as calls of volta_fn.nn.

The arguments are PyTorch's, as in torch_operator_calls.py, whose `CALLS` this module adds to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import volta_fn as vf
import volta_fn.numpy as jnp
from tools.torch_operator_calls import CALLS, Unsupported, operator
from volta_fn import nn

_PREFIX = "nn.functional."


def _nn(name: str, call: Callable[..., Any]) -> None:
    CALLS[_PREFIX + name] = call


# Activations.


def _activation(name: str) -> Callable[..., Any]:
    function = getattr(nn, name)

    def call(x: Any, *arguments: Any, inplace: bool = False, **keywords: Any) -> Any:
        return function(x, *arguments, **keywords)

    return call


for _name in "relu relu6 celu elu selu mish silu tanhshrink leaky_relu softshrink hardshrink threshold".split():
    _nn(_name, _activation(_name))
_nn("hardswish", _activation("hard_swish"))
_nn("hardsigmoid", _activation("hard_sigmoid"))
_nn("silu@complex", _activation("silu"))
_nn("logsigmoid", nn.log_sigmoid)
_nn("softsign", nn.soft_sign)
_nn("gelu", lambda x, *, approximate="none": nn.gelu(x, approximate == "tanh"))
_nn("glu", lambda x, dim=-1: nn.glu(x, dim))
_nn("prelu", lambda x, weight: nn.tree_at(lambda p: p.weight, nn.PReLU.init(), weight.reshape(-1))(x))


@operator(_PREFIX + "hardtanh")
def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    return nn.hard_tanh(x) if (min_val, max_val) == (-1.0, 1.0) else jnp.clip(x, min_val, max_val)


@operator(_PREFIX + "softplus")
def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    if threshold != 20.0:
        raise Unsupported("a threshold")
    return nn.softplus(x * beta) / beta


CALLS["softmax"] = lambda x, dim, dtype=None: nn.softmax(x, dim) if x.ndim else jnp.ones_like(x) * x / x
CALLS["log_softmax"] = lambda x, dim, dtype=None: nn.log_softmax(x, dim)
CALLS["softmax@with_dtype"] = lambda x, dim, dtype: nn.softmax(x.astype(dtype), dim)
CALLS["log_softmax@with_dtype"] = lambda x, dim, dtype: nn.log_softmax(x.astype(dtype), dim)
CALLS["masked.softmax"] = lambda x, dim, *, dtype=None, mask=None: nn.softmax(x, dim, where=mask)
CALLS["masked.log_softmax"] = lambda x, dim, *, dtype=None, mask=None: nn.log_softmax(x, dim, where=mask)
_nn("softmin", lambda x, dim, dtype=None: nn.softmin(x, dim))
_nn("softmin@with_dtype", lambda x, dim, dtype: nn.softmin(x.astype(dtype), dim))

# Layers: batches of one where PyTorch takes none.


def _batched(layer: Callable[[Any], Any], x: Any, rank: int) -> Any:
    """Call a layer, with a batch of one if there is no axis of batches."""
    if x.ndim == rank + 2:
        return layer(x)
    return vf.tree.map(lambda out: out[0], layer(x[None]))


def _with_parameters(layer: Any, weight: Any, bias: Any) -> Any:
    """Return a layer with other parameters."""
    layer = nn.tree_at(lambda one: one.weight, layer, weight)
    return layer if bias is None else nn.tree_at(lambda one: one.bias, layer, bias)


def _convolution(rank: int) -> Callable[..., Any]:
    kind = getattr(nn, f"Conv{rank}d")

    def call(x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
        out, inner, *kernel = weight.shape
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias is not None}
        layer = kind.init(vf.random.key(0), inner * groups, out, tuple(kernel), **options)
        return _batched(_with_parameters(layer, weight, bias), x, rank)

    return call


def _transposed_convolution(rank: int) -> Callable[..., Any]:
    kind = getattr(nn, f"ConvTranspose{rank}d")

    def call(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        features, outer, *kernel = weight.shape
        options = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation, "groups": groups}
        layer = kind.init(vf.random.key(0), features, outer * groups, tuple(kernel), bias=bias is not None, **options)
        return _batched(_with_parameters(layer, weight, bias), x, rank)

    return call


def _max_pool(rank: int) -> Callable[..., Any]:
    kind = getattr(nn, f"MaxPool{rank}d")

    def call(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        options = {"padding": padding, "dilation": dilation, "ceil_mode": ceil_mode, "return_indices": return_indices}
        return _batched(kind.init(kernel_size, stride=stride or None, **options), x, rank)

    return call


def _average_pool(rank: int) -> Callable[..., Any]:
    kind = getattr(nn, f"AvgPool{rank}d")

    def call(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Any:
        if divisor_override is not None:
            raise Unsupported("a divisor")
        layer = kind.init(kernel_size, stride=stride or None, padding=padding, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
        return _batched(layer, x, rank)

    return call


def _unpool(rank: int) -> Callable[..., Any]:
    kind = getattr(nn, f"MaxUnpool{rank}d")

    def call(x: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Any:
        layer = kind.init(kernel_size, stride or None, padding)
        if x.ndim == rank + 1:
            return layer(x[None], indices[None], (1, *output_size) if output_size else None)[0]
        return layer(x, indices, output_size)

    return call


for _rank in (1, 2, 3):
    _nn(f"conv{_rank}d", _convolution(_rank))
    _nn(f"conv_transpose{_rank}d", _transposed_convolution(_rank))
    _nn(f"max_pool{_rank}d", _max_pool(_rank))
    _nn(f"avg_pool{_rank}d", _average_pool(_rank))
    _nn(f"max_unpool{_rank}d", _unpool(_rank))
    _nn(f"max_unpool{_rank}d@grad", _unpool(_rank))
    _nn(
        f"adaptive_avg_pool{_rank}d",
        lambda x, size, rank=_rank: _batched(getattr(nn, f"AdaptiveAvgPool{rank}d").init(size), x, rank),
    )
    _nn(
        f"adaptive_max_pool{_rank}d",
        lambda x, size, return_indices=False, rank=_rank: _batched(
            getattr(nn, f"AdaptiveMaxPool{rank}d").init(size, return_indices), x, rank
        ),
    )


@operator(_PREFIX + "batch_norm")
def batch_norm(
    x: Any,
    mean: Any,
    var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if x.ndim < 2 or (weight is None) != (bias is None) or (mean is None and not training) or (mean is None) != (var is None):
        raise Unsupported("these parameters")
    kind = getattr(nn, f"BatchNorm{max(x.ndim - 2, 1)}d")
    layer, state = kind.init(x.shape[1], eps=eps, momentum=momentum, affine=weight is not None, dtype=x.dtype)
    if weight is not None:
        layer = _with_parameters(layer, weight, bias)
    if mean is not None:
        state = nn.BatchNormState(mean, var, state.batches)
    return layer(x, state, training=training)[0]


@operator(_PREFIX + "instance_norm")
def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not use_input_stats or (weight is None) != (bias is None):
        raise Unsupported("running statistics")
    layer = getattr(nn, f"InstanceNorm{x.ndim - 2}d").init(x.shape[1], eps=eps, affine=weight is not None)
    return (layer if weight is None else _with_parameters(layer, weight, bias))(x)


@operator(_PREFIX + "group_norm")
def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if (weight is None) != (bias is None):
        raise Unsupported("one parameter")
    layer = nn.GroupNorm.init(groups, x.shape[1], eps=eps, affine=weight is not None)
    return (layer if weight is None else _with_parameters(layer, weight, bias))(x)


@operator(_PREFIX + "layer_norm")
def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if weight is None and bias is not None:
        raise Unsupported("a bias alone")
    layer = nn.LayerNorm.init(shape, eps=eps, affine=weight is not None, bias=bias is not None)
    return (layer if weight is None else _with_parameters(layer, weight, bias))(x)


@operator(_PREFIX + "rms_norm")
def rms_norm(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    layer = nn.RMSNorm.init(shape, eps=eps, affine=weight is not None)
    return (layer if weight is None else nn.tree_at(lambda one: one.weight, layer, weight))(x)


@operator(_PREFIX + "local_response_norm")
def local_response_norm(x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    return nn.LocalResponseNorm.init(size, alpha, beta, k)(x)


@operator(_PREFIX + "linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if weight.ndim == 1:
        raise Unsupported("a weight without outputs")
    layer = nn.Linear.init(vf.random.key(0), weight.shape[1], weight.shape[0], bias=bias is not None)
    return _with_parameters(layer, weight.T, bias)(x)


@operator(_PREFIX + "bilinear")
def bilinear(x: Any, y: Any, weight: Any, bias: Any = None) -> Any:
    layer = nn.Bilinear.init(vf.random.key(0), weight.shape[1], weight.shape[2], weight.shape[0], bias=bias is not None)
    return _with_parameters(layer, weight, bias)(x, y)


@operator(_PREFIX + "embedding")
def embedding(weight: Any, indices: Any, padding_idx: Any = None, max_norm: Any = None, **options: Any) -> Any:
    if max_norm is not None or any(options.values()):
        raise Unsupported("renormalisation")
    layer = nn.Embedding.init(vf.random.key(0), *weight.shape, padding_idx=padding_idx)
    return nn.tree_at(lambda one: one.weight, layer, weight)(indices)


@operator(*(f"{_PREFIX}pad@{mode}" for mode in ("constant", "reflect", "replicate", "circular", "replicate_negative")))
def pad(x: Any, widths: Any, mode: str = "constant", value: Any = None) -> Any:
    rank = len(widths) // 2
    if rank > 3 or min(widths) < 0:
        raise Unsupported("these widths")
    if mode == "constant":
        if x.ndim not in (rank + 1, rank + 2):
            pairs = [(0, 0)] * (x.ndim - rank) + [(widths[2 * i], widths[2 * i + 1]) for i in reversed(range(rank))]
            return jnp.pad(x, pairs, constant_values=value or 0)
        return _batched(getattr(nn, f"ConstantPad{rank}d").init(tuple(widths), value or 0.0), x, rank)
    kind = {"reflect": "Reflection", "replicate": "Replication", "circular": "Circular"}[mode]
    return _batched(getattr(nn, f"{kind}Pad{rank}d").init(tuple(widths)), x, rank)


@operator(_PREFIX + "unfold")
def unfold(x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    return _batched(nn.Unfold.init(kernel_size, dilation, padding, stride), x, 2)


@operator(_PREFIX + "pixel_shuffle")
def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    shape = x.shape
    out = nn.PixelShuffle.init(upscale_factor)(x.reshape(-1, *shape[-3:]) if x.size else x)
    return out.reshape(*shape[:-3], *out.shape[-3:])


@operator(_PREFIX + "pixel_unshuffle")
def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    shape = x.shape
    out = nn.PixelUnshuffle.init(downscale_factor)(x.reshape(-1, *shape[-3:]) if x.size else x)
    return out.reshape(*shape[:-3], *out.shape[-3:])


_nn("channel_shuffle", lambda x, groups: nn.ChannelShuffle.init(groups)(x))

for _mode in "nearest nearest-exact linear bilinear bicubic trilinear area".split():
    _nn(f"interpolate@{_mode}", nn.interpolate)
_nn("grid_sample", nn.grid_sample)
CALLS["grid_sampler_2d"] = CALLS["grid_sampler_3d"] = lambda x, grid, mode, padding, align: nn.grid_sample(
    x, grid, ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[padding], align
)
_nn("upsample_nearest", lambda x, size=None, scale_factor=None: nn.interpolate(x, size, scale_factor, "nearest"))
_nn("upsample_bilinear", lambda x, size=None, scale_factor=None: nn.interpolate(x, size, scale_factor, "bilinear", True))

# Attention.


@operator(_PREFIX + "scaled_dot_product_attention")
def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **options: Any) -> Any:
    if dropout_p:
        raise Unsupported("dropout")
    return nn.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal, **options)


# Losses and distances.


def _loss(name: str) -> Callable[..., Any]:
    function = getattr(nn, name)

    def call(*arguments: Any, size_average: Any = None, reduce: Any = None, **keywords: Any) -> Any:
        if size_average is not None or reduce is not None:
            raise Unsupported("old options")
        return function(*arguments, **keywords)

    return call


for _name in """
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits cross_entropy nll_loss kl_div
    soft_margin_loss margin_ranking_loss hinge_embedding_loss cosine_embedding_loss multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss poisson_nll_loss triplet_margin_loss
""".split():
    _nn(_name, _loss(_name))


@operator(_PREFIX + "linear_cross_entropy")
def linear_cross_entropy(x: Any, matrix: Any, labels: Any, *, linear_bias: Any = None, weight: Any = None, **options: Any) -> Any:
    if weight is not None or matrix.ndim != 2:
        raise Unsupported("weights of classes")
    return nn.linear_cross_entropy(x, matrix.T, labels, linear_bias, axis=1, **options)


@operator(_PREFIX + "mse_loss")
def mse_loss(x: Any, y: Any, *, weight: Any = None, reduction: str = "mean") -> Any:
    if weight is not None:
        raise Unsupported("weights")
    return nn.mse_loss(x, y, reduction=reduction)


@operator(_PREFIX + "l1_loss")
def l1_loss(x: Any, y: Any, *, weight: Any = None, reduction: str = "mean") -> Any:
    if weight is not None:
        raise Unsupported("weights")
    return nn.l1_loss(x, y, reduction=reduction)


@operator(_PREFIX + "gaussian_nll_loss")
def gaussian_nll_loss(x: Any, y: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Any:
    return nn.gaussian_nll_loss(x, y, var, full=full, eps=eps, reduction=reduction)


@operator(_PREFIX + "ctc_loss")
def ctc_loss(
    x: Any, targets: Any, lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
) -> Any:
    return nn.ctc_loss(
        x, targets, jnp.asarray(lengths), jnp.asarray(target_lengths), blank, reduction=reduction, zero_infinity=zero_infinity
    )


@operator(_PREFIX + "triplet_margin_with_distance_loss")
def triplet_margin_with_distance_loss(
    a: Any, p: Any, n: Any, *, distance_function: Any = None, margin: float = 1.0, swap: bool = False, reduction: str = "mean"
) -> Any:
    if distance_function is not None and type(distance_function).__name__ != "PairwiseDistance":
        raise Unsupported("another distance")
    return nn.triplet_margin_with_distance_loss(a, p, n, margin=margin, swap=swap, reduction=reduction)


_nn("cosine_similarity", lambda x, y, dim=1, eps=1e-8: nn.cosine_similarity(x, y, axis=dim, eps=eps))
_nn("pairwise_distance", lambda x, y, p=2.0, eps=1e-6, keepdim=False: (
    lambda d: d[..., None] if keepdim else d)(nn.pairwise_distance(x, y, p=p, eps=eps)))  # fmt: skip
_nn("pdist", lambda x, p=2.0: nn.pdist(x, p))
_nn("normalize", lambda x, p=2.0, dim=1, eps=1e-12: nn.normalize(x, p, dim, eps))
_nn("one_hot", lambda x, num_classes=-1: nn.one_hot(x, num_classes if num_classes > 0 else int(jnp.max(x)) + 1, dtype="int64"))
