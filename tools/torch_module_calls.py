"""PyTorch's modules as calls of volta_fn.nn, with PyTorch's parameters.

A call takes the module's state, arrays by PyTorch's names; the arguments of its constructor by name; whether it trains; and the arguments
of `forward`. `MODULES` has them by the names of PyTorch's database of modules (torch_modules.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tools.torch_network_calls  # noqa: F401  # it adds calls
import volta_fn as vf
import volta_fn.numpy as jnp
from tools.torch_operator_calls import CALLS, Unsupported
from volta_fn import io, lax, nn
from volta_fn.io.state_dict import dotted

State = Mapping[str, Any]
Options = dict[str, Any]
Call = Callable[..., Any]
#: The modules, by name.
MODULES: dict[str, Call] = {}
_KEY = vf.random.key(0)


def module(*names: str) -> Callable[[Call], Call]:
    """Register a function as the call of the modules of those names."""

    def register(call: Call) -> Call:
        MODULES.update(dict.fromkeys((f"nn.{name}" for name in names), call))
        return call

    return register


def load(template: Any, state: State) -> Any:
    """Return a layer with PyTorch's parameters, which may be traced."""
    arrays = io.from_torch(template)(state)
    return vf.tree.map_with_path(lambda path, _: arrays[dotted(path)], template)


def without(options: Options, *names: str, **defaults: Any) -> Options:
    """Return the other options; raise `Unsupported` where those of `defaults` differ."""
    for name, value in defaults.items():
        if name in options and options[name] != value:
            raise Unsupported(f"{name}={options[name]}")
    return {name: value for name, value in options.items() if name not in (*names, *defaults)}


# Modules that are an operator with options: arrays that they hold are options, too.

for _name, _operator in {
    "CELU": "celu",
    "ELU": "elu",
    "GELU": "gelu",
    "GLU": "glu",
    "Hardshrink": "hardshrink",
    "Hardswish": "hardswish",
    "Hardtanh": "hardtanh",
    "LeakyReLU": "leaky_relu",
    "LogSigmoid": "logsigmoid",
    "Mish": "mish",
    "PReLU": "prelu",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "SELU": "selu",
    "SiLU": "silu",
    "Softplus": "softplus",
    "Softshrink": "softshrink",
    "Softsign": "softsign",
    "Tanhshrink": "tanhshrink",
    "Threshold": "threshold",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "CosineEmbeddingLoss": "cosine_embedding_loss",
    "CrossEntropyLoss": "cross_entropy",
    "GaussianNLLLoss": "gaussian_nll_loss",
    "HingeEmbeddingLoss": "hinge_embedding_loss",
    "HuberLoss": "huber_loss",
    "KLDivLoss": "kl_div",
    "L1Loss": "l1_loss",
    "MSELoss": "mse_loss",
    "MarginRankingLoss": "margin_ranking_loss",
    "MultiLabelMarginLoss": "multilabel_margin_loss",
    "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "MultiMarginLoss": "multi_margin_loss",
    "NLLLoss": "nll_loss",
    "PoissonNLLLoss": "poisson_nll_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "SoftMarginLoss": "soft_margin_loss",
}.items():

    @module(_name)
    def operator(state: State, options: Options, training: bool, *inputs: Any, name: str = f"nn.functional.{_operator}") -> Any:
        names = "inplace", "init", "num_parameters", "min_value", "max_value", "device", "dtype"
        return CALLS[name](*inputs, **without(options, *names, size_average=None, reduce=None) | dict(state))


for _name, _function in {"Sigmoid": nn.sigmoid, "Tanh": nn.tanh, "Softmax2d": lambda x: nn.softmax(x, -3)}.items():

    @module(_name)
    def function(state: State, options: Options, training: bool, x: Any, function: Call = _function) -> Any:
        return function(x)


for _name, _function in {"Softmax": nn.softmax, "LogSoftmax": nn.log_softmax, "Softmin": nn.softmin}.items():

    @module(_name)
    def normalized(state: State, options: Options, training: bool, x: Any, function: Call = _function) -> Any:
        if not x.ndim:
            raise Unsupported("a scalar has no axes")
        return function(x, options["dim"])


@module("CTCLoss")
def ctc(state: State, options: Options, training: bool, x: Any, targets: Any, *lengths: Any) -> Any:
    if targets.ndim < x.ndim - 1:
        raise Unsupported("targets one after another")
    return CALLS["nn.functional.ctc_loss"](x, targets, *lengths, **options)


@module("LinearCrossEntropyLoss")
def linear_cross_entropy(state: State, options: Options, training: bool, x: Any, target: Any) -> Any:
    options = without(options, "in_features", "num_classes", "bias", "device", "dtype", "options", out_features=())
    if "weight" in state or target.dtype != "int64":
        raise Unsupported("weights of classes, and targets that are probabilities")
    options = {key: value for key, value in options.items() if value is not None}
    call = CALLS["nn.functional.linear_cross_entropy"]
    return call(x, state["linear.weight"], target, linear_bias=state.get("linear.bias"), **options)


# Layers of the same name and options. Those of images take a batch of one where PyTorch takes none.

_RANKS = {"1d": 1, "2d": 2, "3d": 3}
_CONVOLUTIONS = [f"{kind}{rank}" for kind in ("Conv", "ConvTranspose") for rank in _RANKS]
_PADS = [f"{kind}Pad{rank}" for kind in ("Circular", "Constant", "Reflection", "Replication", "Zero") for rank in _RANKS]
_POOLS = [f"{kind}Pool{rank}" for kind in ("AdaptiveAvg", "AdaptiveMax", "Avg", "LP", "Max") for rank in _RANKS]
_NORMS = ("GroupNorm", "LayerNorm", "RMSNorm", "LocalResponseNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
_KEYED = ("Linear", "Bilinear", "Embedding", "RNNCell", "LSTMCell", "GRUCell", *_CONVOLUTIONS)


def batched(layer: Call, x: Any, name: str) -> Any:
    """Call a layer, with a batch of one if there is no axis of batches."""
    rank = _RANKS.get(name[-2:])
    if rank is None or x.ndim == rank + 2:
        return layer(x)
    return vf.tree.map(lambda out: out[0], layer(x[None]))


def options_here(name: str, options: Options) -> Options:
    """Return the options that `init` has."""
    options = without(options, "device", "dtype", divisor_override=None, max_norm=None, scale_grad_by_freq=False, track_running_stats=False)
    if name == "Embedding":
        options = without(options, "norm_type", "sparse", "_weight", "_freeze")
    if name.startswith("ConvTranspose"):
        options = without(options, padding_mode="zeros")
    if name.startswith("InstanceNorm"):
        options = without(options, "momentum")
    if "elementwise_affine" in options:
        options["affine"] = options.pop("elementwise_affine")
    if name == "LayerNorm":
        options["bias"] &= options["affine"]
    elif "affine" in options:  # both parameters, or neither
        options = without(options, bias=True) if options["affine"] else without(options, "bias")
    return options


for _name in (*_KEYED, *_NORMS, *_POOLS, *_PADS):

    @module(_name)
    def layer(state: State, options: Options, training: bool, *inputs: Any, input: Any = None, name: str = _name) -> Any:
        layer = load(getattr(nn, name).init(*[_KEY] * (name in _KEYED), **options_here(name, options)), state)
        first, *others = inputs or (input,)
        return layer(first, *others) if others else batched(layer, first, name)


for _name in _CONVOLUTIONS:

    @module(f"Lazy{_name}")
    def lazy(state: State, options: Options, training: bool, x: Any, name: str = _name) -> Any:
        return MODULES[f"nn.{name}"](state, options | {"in_channels": x.shape[-1 - _RANKS[name[-2:]]]}, training, x)


@module("FractionalMaxPool2d", "FractionalMaxPool3d")
def fractional_pool(state: State, options: Options, training: bool, x: Any) -> Any:
    samples = state["_random_samples"]
    name = f"FractionalMaxPool{samples.shape[-1]}d"
    samples = samples if x.ndim == samples.shape[-1] + 2 else samples[:1]
    pool = getattr(nn, name).init(**options)
    return batched(lambda x: pool(x, random_samples=samples), x, name)


@module("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
def batch_norm(state: State, options: Options, training: bool, x: Any) -> Any:
    """Return the output and, in training, the statistics without derivatives."""
    tracks = options["track_running_stats"]
    norm, old = getattr(nn, f"BatchNorm{max(x.ndim - 2, 1)}d").init(**options_here("BatchNorm", options | {"track_running_stats": False}))
    parameters = {name: state[name] for name in ("weight", "bias") if name in state}
    if tracks:
        old = nn.BatchNormState(state["running_mean"], state["running_var"], state["num_batches_tracked"])
    out, new = norm.replace(**parameters)(x, old, training=training or not tracks)
    return [out, *map(lax.stop_gradient, (new.mean, new.var, new.batches))] if training and tracks else out


# Recurrent layers.


@module("RNN", "LSTM", "GRU")
def recurrent(state: State, options: Options, training: bool, x: Any, carry: Any = None, *, name: str, lengths: Any = None) -> Any:
    """Return the outputs and the carry; padded sequences have time first."""
    options = without(options, "device", "dtype", proj_size=0)
    if lengths is not None:
        options["batch_first"] = False
    return load(getattr(nn, name).init(_KEY, **options), state)(x, carry, None if lengths is None else jnp.asarray(lengths))


# Attention: PyTorch's masks are True where nothing is seen.


def seen(mask: Any) -> Any:
    """Return a mask that is True where something is seen; one of numbers as it is."""
    return ~mask if mask is not None and mask.dtype == bool else mask


def _swapped(batch_first: bool, *arrays: Any) -> list[Any]:
    """Return arrays with the batch first, if they have one."""
    return [a if batch_first or a is None or a.ndim < 3 else a.swapaxes(0, 1) for a in arrays]


@module("MultiheadAttention")
def attention(
    state: State, options: Options, training: bool, q: Any, k: Any, v: Any, *, key_padding_mask: Any = None, attn_mask: Any = None
) -> Any:
    options = without(options, "device", "dtype", dropout=0.0, add_bias_kv=False, add_zero_attn=False)
    first = options.pop("batch_first")
    q, k, v = _swapped(first, q, k, v)
    out = load(nn.MultiHeadAttention.init(_KEY, **options), state)(q, k, v, mask=seen(attn_mask), key_mask=seen(key_padding_mask))
    return _swapped(first, out)[0]


def _layer_options(options: Options) -> Options:
    """Return the options of a transformer's layer."""
    activation = options["activation"]
    name = activation if isinstance(activation, str) else activation.__name__
    return {
        **{key: options[key] for key in ("d_model", "nhead", "dim_feedforward", "dropout", "norm_first", "bias")},
        "activation": {"relu": nn.relu, "gelu": functools.partial(nn.gelu, approximate=False)}[name],
        "norm": functools.partial(nn.LayerNorm.init, eps=options["layer_norm_eps"], bias=options["bias"]),
    }


@module("TransformerEncoderLayer")
def encoder_layer(state: State, options: Options, training: bool, x: Any, *, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
    layer = load(nn.TransformerEncoderLayer.init(_KEY, **_layer_options(options)), state)
    out = layer(_swapped(options["batch_first"], x)[0], mask=seen(src_mask), key_mask=seen(src_key_padding_mask), training=False)
    return _swapped(options["batch_first"], out)[0]


@module("TransformerDecoderLayer")
def decoder_layer(state: State, options: Options, training: bool, x: Any, memory: Any, **masks: Any) -> Any:
    layer = load(nn.TransformerDecoderLayer.init(_KEY, **_layer_options(options)), state)
    out = layer(*_swapped(options["batch_first"], x, memory), **_decoder_masks(masks))
    return _swapped(options["batch_first"], out)[0]


def _decoder_masks(masks: Mapping[str, Any]) -> dict[str, Any]:
    names = {"mask": "tgt_mask", "key_mask": "tgt_key_padding_mask", "memory_mask": "memory_mask"}
    masks = {ours: seen(masks.get(theirs)) for ours, theirs in (names | {"memory_key_mask": "memory_key_padding_mask"}).items()}
    return masks | {"is_causal": False}


@module("TransformerEncoder")
def encoder(state: State, options: Options, training: bool, x: Any, *, mask: Any = None, src_key_padding_mask: Any = None) -> Any:
    """Run an encoder, whose options have those of its layers under the layers' name."""
    inner = options["encoder_layer"]
    stack = nn.TransformerEncoder.init(_KEY, options["num_layers"], final_norm=options["norm"] is not None, **_layer_options(inner))
    out = load(stack, state)(_swapped(inner["batch_first"], x)[0], mask=seen(mask), key_mask=seen(src_key_padding_mask))
    return _swapped(inner["batch_first"], out)[0]


@module("Transformer")
def transformer(state: State, options: Options, training: bool, x: Any, y: Any, **masks: Any) -> Any:
    def part(prefix: str) -> State:
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

    settings = _layer_options(options) | {"final_norm": True}
    first = load(nn.TransformerEncoder.init(_KEY, options["num_encoder_layers"], **settings), part("encoder."))
    second = load(nn.TransformerDecoder.init(_KEY, options["num_decoder_layers"], **settings), part("decoder."))
    x, y = _swapped(options["batch_first"], x, y)
    memory = first(x, mask=seen(masks.get("src_mask")), key_mask=seen(masks.get("src_key_padding_mask")))
    out = second(y, memory, **_decoder_masks(masks))
    return _swapped(options["batch_first"], out)[0]
