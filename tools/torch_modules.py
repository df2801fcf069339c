"""Compare volta_fn.nn with PyTorch's database of modules.

    python tools/torch_modules.py [NAME ...] [--target TARGET] [--dtypes D,D] [--modes M,M] [--samples N] [--seed N] [--part K/N] …

Samples are PyTorch's, or with --reference larger ones (`LARGER`). Parameters and buffers are random; modules that differ in training and
in evaluation are tried in both (`NAME@train`, `NAME@eval`). Derivatives are those by inputs and parameters; the new statistics of batch
norms are values, too. Options, modes, dtypes and outcomes are those of torch_operators.py.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.torch_operators import Operator, Sample, flatten, main, sample_of, stand_in_for_expecttest

#: Constructors whose signature is `*args, **kwargs`, and their defaults.
_RECURRENT = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
#: Samples of sizes that are no multiples of a vector or a tile: the constructor's arguments and the inputs' shapes. A number before a shape
#: says of how many classes the integers are; two classes are the floats -1 and 1.
LARGER: dict[str, list[tuple[dict[str, Any], Sequence[Any]]]] = {
    "Linear": [({"in_features": 37, "out_features": 130}, [(515, 37)]), ({"in_features": 130, "out_features": 3}, [(2, 9, 130)])],
    "Bilinear": [({"in1_features": 7, "in2_features": 9, "out_features": 33}, [(130, 7), (130, 9)])],
    "Embedding": [({"num_embeddings": 50, "embedding_dim": 13, "padding_idx": 3}, [(50, (37, 9))])],
    "Conv1d": [
        (
            {"in_channels": 6, "out_channels": 9, "kernel_size": 3, "padding": 2, "padding_mode": mode, "groups": 3, "stride": 2},
            [(3, 6, 37)],
        )
        for mode in ("zeros", "reflect", "replicate", "circular")
    ],
    "Conv2d": [
        ({"in_channels": 8, "out_channels": 17, "kernel_size": 3, "padding": 1}, [(4, 8, 19, 17)]),
        ({"in_channels": 8, "out_channels": 16, "kernel_size": 3, "padding": 1, "groups": 8, "stride": 2}, [(3, 8, 19, 17)]),
        ({"in_channels": 5, "out_channels": 7, "kernel_size": (1, 1)}, [(3, 5, 13, 11)]),
        (
            {"in_channels": 3, "out_channels": 4, "kernel_size": (5, 2), "dilation": 2, "padding": "same", "padding_mode": "circular"},
            [(2, 3, 19, 17)],
        ),
    ],
    "Conv3d": [({"in_channels": 3, "out_channels": 5, "kernel_size": 3, "padding": 1}, [(2, 3, 5, 9, 7)])],
    "ConvTranspose1d": [({"in_channels": 5, "out_channels": 7, "kernel_size": 4, "stride": 3, "padding": 1}, [(2, 5, 37)])],
    "ConvTranspose2d": [
        (
            {"in_channels": 6, "out_channels": 9, "kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 3},
            [(2, 6, 9, 11)],
        ),
    ],
    "BatchNorm1d": [({"num_features": 37}, [(130, 37)]), ({"num_features": 5, "momentum": None}, [(3, 5, 130)])],
    "BatchNorm2d": [({"num_features": 7}, [(5, 7, 13, 11)])],
    "InstanceNorm2d": [({"num_features": 5, "affine": True}, [(3, 5, 13, 11)])],
    "GroupNorm": [({"num_groups": 4, "num_channels": 12}, [(3, 12, 37)])],
    "LayerNorm": [({"normalized_shape": 130}, [(37, 130)]), ({"normalized_shape": (5, 13)}, [(37, 5, 13)])],
    "RMSNorm": [({"normalized_shape": 515}, [(9, 515)])],
    "LocalResponseNorm": [({"size": 5}, [(3, 37, 13)])],
    "MultiheadAttention": [
        ({"embed_dim": 32, "num_heads": 4, "batch_first": True, "kdim": 13, "vdim": 9}, [(2, 37, 32), (2, 19, 13), (2, 19, 9)])
    ],
    "TransformerEncoderLayer": [
        ({"d_model": 32, "nhead": 4, "dim_feedforward": 66, "dropout": 0.0, "batch_first": True, "norm_first": first}, [(2, 37, 32)])
        for first in (False, True)
    ],
    "TransformerDecoderLayer": [
        ({"d_model": 32, "nhead": 4, "dim_feedforward": 66, "dropout": 0.0, "activation": "gelu"}, [(37, 2, 32), (19, 2, 32)])
    ],
    "RNN": [({"input_size": 13, "hidden_size": 33, "nonlinearity": kind}, [(17, 5, 13)]) for kind in ("tanh", "relu")],
    "LSTM": [({"input_size": 13, "hidden_size": 33, "num_layers": 2, "bidirectional": True}, [(17, 5, 13)])],
    "GRU": [({"input_size": 13, "hidden_size": 33, "num_layers": 2, "bidirectional": True}, [(17, 5, 13)])],
    "RNNCell": [({"input_size": 13, "hidden_size": 33}, [(130, 13), (130, 33)])],
    "GRUCell": [({"input_size": 13, "hidden_size": 33}, [(130, 13), (130, 33)])],
    "CrossEntropyLoss": [
        ({"label_smoothing": 0.1, "ignore_index": 3}, [(515, 37), (37, (515,))]),
        ({"reduction": "none"}, [(3, 5, 13, 11), (5, (3, 13, 11))]),
        ({"reduction": "sum"}, [(37, 515), (515, (37,))]),
    ],
    "LinearCrossEntropyLoss": [
        ({"in_features": 37, "num_classes": 130, "reduction": how}, [(515, 37), (130, (515,))]) for how in ("mean", "sum")
    ],
    "MultiMarginLoss": [({"p": 2}, [(130, 37), (37, (130,))])],
    "CosineEmbeddingLoss": [({"margin": 0.2, "reduction": "sum"}, [(130, 37), (130, 37), (2, (130,))])],
    **{
        name: [({"reduction": how}, [(37, 130), (37, 130)]) for how in ("mean", "sum", "none")]
        for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "KLDivLoss", "BCEWithLogitsLoss", "SoftMarginLoss")
    },
    "MaxPool2d": [
        ({"kernel_size": 3, "stride": 2, "padding": 1, "return_indices": True}, [(2, 5, 37, 35)]),
        ({"kernel_size": 3, "stride": 1, "dilation": 2, "ceil_mode": True}, [(2, 5, 19, 17)]),
    ],
    "AvgPool2d": [({"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False}, [(2, 5, 37, 35)])],
    "AdaptiveAvgPool2d": [({"output_size": (5, 7)}, [(2, 5, 37, 35)])],
    "AdaptiveMaxPool2d": [({"output_size": (5, 7)}, [(2, 5, 37, 35)])],
    "LPPool2d": [({"norm_type": 2, "kernel_size": 3, "stride": 2}, [(2, 5, 37, 35)])],
    "Softmax": [({"dim": dim}, [(130, 515)]) for dim in (0, 1)],
    "LogSoftmax": [({"dim": dim}, [(37, 5, 130)]) for dim in (0, 1, 2)],
    "PReLU": [({"num_parameters": 37}, [(5, 37, 13)])],
    **{name: [({}, [(37, 130)])] for name in ("GELU", "GLU", "Hardswish", "LogSigmoid", "Mish", "SELU", "SiLU", "Softplus", "Tanhshrink")},
}
_DTYPES = {"float32", "float64", "bfloat16", "float16"}


@dataclass
class ModuleSample(Sample):
    """A module of PyTorch, and its parameters, buffers and inputs."""

    module: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    #: Names of the parameters and buffers, which are the first tensors; the buffers come last.
    names: tuple[str, ...] = ()
    parameters: int = 0

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.options.items() if not isinstance(value, Mapping))
        return f"{options}; {Sample(self.arguments[1:], self.keywords, self.tensors)}"


class Module(Operator):
    """A module of PyTorch beside the call of volta_fn that has its meaning."""

    hermitian = elementwise = False

    def __init__(self, info: Any, training: bool | None) -> None:
        from tools.torch_module_calls import MODULES  # noqa: PLC0415

        self.info, self.training, self.call = info, training is not False, MODULES[info.name]
        self.name = info.name if training is None else f"{info.name}@{'train' if training else 'eval'}"

    def dtypes(self, mode: str) -> set[str]:
        return _DTYPES

    def samples(self, dtype: str, most: int, reference: bool, seed: int, derivative: bool = False) -> Iterator[Sample]:
        import torch  # noqa: PLC0415

        torch.manual_seed(seed)
        kind = getattr(torch, dtype)
        if reference:
            sources = [_source(options, inputs, kind) for options, inputs in LARGER.get(self.info.name.removeprefix("nn."), ())]
        else:
            sources = self.info.module_inputs_func(self.info, device="cpu", dtype=kind, requires_grad=False, training=self.training)
        if len(sources) > most:
            chosen = np.random.default_rng(seed).choice(len(sources), most, replace=False)
            sources = [sources[i] for i in sorted(chosen)]
        for source in sources:
            yield self._sample(source.constructor_input, source.forward_input, kind)

    def _sample(self, constructor: Any, forward: Any, kind: Any) -> ModuleSample:
        import torch  # noqa: PLC0415
        from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence  # noqa: PLC0415

        module = self.info.module_cls(*constructor.args, **constructor.kwargs)
        inputs, keywords = list(forward.args), dict(forward.kwargs)
        if inputs and isinstance(inputs[0], PackedSequence):
            inputs[0], lengths = pad_packed_sequence(inputs[0])
            keywords["lengths"] = lengths.tolist()
        if self.info.is_lazy:
            module(*inputs)
        module = module.to(kind).train(self.training)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name == "running_var":
                tensor.data *= torch.rand(tensor.shape).to(kind) + 0.5
            elif name in dict(module.named_parameters()) or name == "running_mean":
                tensor.data += torch.randn(tensor.shape).to(kind) * 0.2
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        state = [t.detach() for t in (*parameters.values(), *buffers.values())]
        plain = sample_of(types.SimpleNamespace(input=state, args=inputs, kwargs=keywords))
        return ModuleSample(
            plain.arguments, plain.keywords, plain.tensors, module, _options(module, constructor), (*parameters, *buffers), len(parameters)
        )

    def differentiable(self, sample: Sample, dtype: str) -> list[int]:
        assert isinstance(sample, ModuleSample)
        buffers = range(sample.parameters, len(sample.names))
        return [i for i in super().differentiable(sample, dtype) if i not in buffers]

    def of_torch(self, sample: Sample, tensors: Sequence[Any], wide_dtype: bool) -> list[Any]:
        from torch.func import functional_call  # noqa: PLC0415
        from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: PLC0415

        assert isinstance(sample, ModuleSample)
        (state, *inputs), keywords = sample.fill(tensors, lambda value: value)
        if "lengths" in keywords:
            inputs[0] = pack_padded_sequence(inputs[0], keywords.pop("lengths"))
        arrays = dict(zip(sample.names, state, strict=True))
        out = functional_call(sample.module, arrays, tuple(inputs), keywords)
        if self.info.name == "nn.MultiheadAttention":
            out = out[0]
        if isinstance(out, tuple) and isinstance(out[0], PackedSequence):
            out = (pad_packed_sequence(out[0])[0], *out[1:])
        statistics = [arrays[name] for name in ("running_mean", "running_var", "num_batches_tracked") if name in arrays and self.training]
        return [*flatten(out), *statistics]

    def of_numpy(self, sample: Sample, tensors: Sequence[Any]) -> np.ndarray | None:
        return None

    def of_volta(self, sample: Sample, arrays: Sequence[Any]) -> list[Any]:
        assert isinstance(sample, ModuleSample)
        (state, *inputs), keywords = sample.fill(arrays, lambda value: value)
        if self.info.name in ("nn.RNN", "nn.LSTM", "nn.GRU"):
            keywords["name"] = self.info.name.removeprefix("nn.")
        return flatten(self.call(dict(zip(sample.names, state, strict=True)), dict(sample.options), self.training, *inputs, **keywords))


def _source(options: dict[str, Any], inputs: Sequence[Any], kind: Any) -> Any:
    """Return a sample in the form of PyTorch's database."""
    import torch  # noqa: PLC0415

    tensors = []
    for one in inputs:
        if isinstance(one[-1], tuple):
            classes = torch.randint(0, one[0], one[1])
            tensors.append(classes if one[0] > 2 else 2 * classes.to(kind) - 1)
        else:
            tensors.append(torch.randn(one).to(kind))
    return types.SimpleNamespace(
        constructor_input=types.SimpleNamespace(args=(), kwargs=dict(options)), forward_input=types.SimpleNamespace(args=tensors, kwargs={})
    )


def _options(module: Any, constructor: Any) -> dict[str, Any]:
    """Return the constructor's arguments by name, without buffers."""
    import torch  # noqa: PLC0415

    if isinstance(module, torch.nn.RNNBase):
        return _RECURRENT | dict(constructor.kwargs)
    bound = inspect.signature(type(module)).bind(*constructor.args, **constructor.kwargs)
    bound.apply_defaults()
    options = bound.arguments
    options |= options.pop("kwargs", {})
    options.pop("args", None)
    buffers = dict(module.named_buffers())
    options = {name: value for name, value in options.items() if name not in buffers}
    for name, value in options.items():
        if isinstance(value, torch.nn.TransformerEncoderLayer):
            attention = value.self_attn
            options[name] = {
                "d_model": attention.embed_dim, "nhead": attention.num_heads, "dim_feedforward": value.linear1.out_features,
                "dropout": value.dropout.p, "activation": value.activation, "layer_norm_eps": value.norm1.eps,
                "batch_first": attention.batch_first, "norm_first": value.norm_first, "bias": value.linear1.bias is not None,
            }  # fmt: skip
    return options


def modules(patterns: Sequence[str]) -> list[Operator]:
    """Return the modules with a call whose names match a pattern."""
    stand_in_for_expecttest()
    from torch.testing._internal.common_modules import module_db  # noqa: PLC0415

    from tools.torch_module_calls import MODULES  # noqa: PLC0415

    pairs = [(info, mode) for info in module_db for mode in ((True, False) if info.train_and_eval_differ else (None,))]
    return [
        Module(info, mode) for info, mode in pairs
        if info.name in MODULES and (not patterns or any(re.fullmatch(p, info.name) for p in patterns))
    ]  # fmt: skip


if __name__ == "__main__":
    main(modules, __doc__)
