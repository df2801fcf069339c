"""Suggestions for names of PyTorch, Optax and NumPy that are missing here.

Arrays, modules, optimizers and packages look a missing name up in these tables; otherwise they suggest the closest existing names.
"""

from __future__ import annotations

import enum
import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from volta_fn.errors import ArgumentTypeError
from volta_fn.lazy_imports import deferred, hide_private_names, is_installed, load
from volta_fn.source import signature

F = TypeVar("F", bound=Callable[..., Any])

_GRADIENTS = "gradients come from functions: `loss, grads = vf.value_and_grad(loss_function)(params, batch)`"
_DEVICES = (
    "arrays move with `vf.device_put(x, 'gpu')` or `x.to_device('gpu')`; new ones are on the default device (`vf.set_default_device`)"
)
_STEP = "a step is `updates, state = optimizer.update(grads, state, params)`, then `params = optim.apply_updates(params, updates)`"
_MODE = "a module has no mode of its own: `state`, `key` and `training` are arguments of the call: `model(x, key=key, training=True)`"
_PARAMETERS = "a module is a pytree of its parameters: pass it itself to `vf.grad`, `optimizer.init` and `vf.tree.leaves`"
_LOAD = "`vf.io.load_state_dict(model, vf.io.load_safetensors(path))` is the model with a file's arrays"
_PARALLEL = "vf.shard_map over a mesh of devices or processes (docs/scaling.md)"
_PRETRAINED = "vf.io.load_pretrained(folder), or nn.CausalLM.init(key, config) with random weights"
_LOW = "a loss that casts the model, lambda x: x.astype('bfloat16') (docs/guides/mixed_precision.md)"
_ZERO = "gradients are never accumulated in place, so there is nothing to reset: `vf.grad` returns new ones in every call"

ARRAYS: dict[str, str] = {
    "backward": _GRADIENTS,
    "grad": _GRADIENTS,
    "requires_grad_": _GRADIENTS,
    "requires_grad": _GRADIENTS,
    "detach": "`vf.lax.stop_gradient(x)` keeps gradients from passing through a value",
    "to": f"dtypes change with `x.astype('float16')`, and {_DEVICES}",
    "cuda": _DEVICES,
    "cpu": f"{_DEVICES}; `np.asarray(x)` reads it on the host",
    "numpy": "`np.asarray(x)` is the NumPy array",
    "float": "dtypes change with `x.astype('float32')`",
    "half": "dtypes change with `x.astype('float16')`",
    "bfloat16": "dtypes change with `x.astype('bfloat16')`",
    "double": "dtypes change with `x.astype('float64')`",
    "long": "dtypes change with `x.astype('int64')`",
    "int": "dtypes change with `x.astype('int32')`",
    "unsqueeze": "`x[:, None]` or `vf.numpy.expand_dims(x, axis)` adds an axis",
    "permute": "`x.transpose(1, 0, 2)` permutes axes",
    "dim": "the number of dimensions is `x.ndim`",
    "numel": "the number of elements is `x.size`",
    "contiguous": "arrays have no strides, so there is nothing to make contiguous",
    "clone": "arrays are immutable, so none needs a copy; `x.copy()` makes one",
    "masked_fill": "`vf.numpy.where(mask, value, x)` fills by a mask",
    "expand": "`vf.numpy.broadcast_to(x, shape)` expands",
    "clamp": "`x.clip(low, high)` limits the elements",
    "clamp_": "arrays are immutable: write `x = x.clip(low, high)`",
    "fill_": "arrays are immutable: write `x = vf.numpy.full_like(x, value)`",
    "sub_": "arrays are immutable: write `x = x - y`",
    "div_": "arrays are immutable: write `x = x / y`",
    "unsqueeze_": "arrays are immutable: write `x = x[:, None]`",
    "normal_": "arrays are immutable: `vf.random.normal(key, shape)` makes one of random numbers",
    "uniform_": "arrays are immutable: `vf.random.uniform(key, shape)` makes one of random numbers",
    "iloc": "arrays are indexed by themselves: `x[i]`",
    "values": "an array has its values itself; `np.asarray(x)` is the NumPy array",
    "add_": "arrays are immutable: write `x = x + y`",
    "mul_": "arrays are immutable: write `x = x * y`",
    "zero_": "arrays are immutable: write `x = vf.numpy.zeros_like(x)`",
    "fill": "arrays are immutable: write `x = vf.numpy.full_like(x, value)`",
    "append": "arrays are immutable: write `x = vf.numpy.append(x, values)`, or collect a list and `vf.numpy.stack` it",
    "scatter_": "arrays are immutable: write `x = x.at[i].set(v)`",
    "gather": "`vf.numpy.take_along_axis(x, i, axis)` gathers along an axis",
    "index_select": "`vf.numpy.take(x, i, axis)` selects along an axis",
    "norm": "`vf.numpy.linalg.norm(x)` is the norm",
    "t": "the transpose is `x.T`",
    "matmul": "the matrix product is `x @ y`",
    "mm": "the matrix product is `x @ y`",
    "bmm": "the product of stacks of matrices is `x @ y`",
    "topk": "`vf.lax.top_k(x, k)` returns the largest elements and where they are",
    "split": "`vf.numpy.split(x, sections, axis)` splits",
    "chunk": "`vf.numpy.array_split(x, sections, axis)` splits",
    "type": "dtypes change with `x.astype('float32')`, and `x.dtype` is the dtype",
    "data": "`np.asarray(x)` is the NumPy array; a value without gradients is `vf.lax.stop_gradient(x)`",
    "is_cuda": "`x.device` is the device",
    "to_numpy": "`np.asarray(x)` is the NumPy array",
    "eq": "arrays are compared with `x == y`",
    "view_as": "`x.reshape(y.shape)` changes the shape",
    "new_zeros": "`vf.numpy.zeros(shape, x.dtype)` makes zeros",
    **{
        name: f"functions of elements are in a module: `vf.numpy.{name}(x)`" for name in "abs exp log sqrt sin cos tanh square sign".split()
    },
    **{name: f"activations are functions: `vf.nn.{name}(x)`" for name in ("relu", "sigmoid", "softmax", "log_softmax")},
}

MODULES: dict[str, str] = {
    "parameters": _PARAMETERS,
    "named_parameters": f"{_PARAMETERS}; `vf.tree.leaves_with_path(model)` has the names",
    "state_dict": "`vf.io.save_safetensors(path, model)` saves a model",
    "load_state_dict": f"{_LOAD}; PyTorch's state dicts pass through `vf.io.from_torch(model)` before",
    "train": _MODE,
    "eval": _MODE,
    "to": f"`vf.tree.map(lambda x: x.astype(dtype), model)` changes the dtype, `vf.device_put(model, 'gpu')` moves a model: {_DEVICES}",
    "cuda": f"`vf.device_put(model, 'gpu')` moves a model: {_DEVICES}",
    "cpu": f"`vf.device_put(model, 'cpu')` moves a model: {_DEVICES}",
    "zero_grad": _ZERO,
    "forward": "a layer is called: define `__call__`, and write `model(x)`",
    "fit": f"a training loop is written out (docs/learn/training.md): {_STEP}",
    "compile": "`vf.jit(step)` compiles a step of training; loss and optimizer are arguments of your own",
    "predict": "a layer is called: `model(x)`, and `vf.jit(model)(x)` compiled",
    "evaluate": "metrics are functions: `vf.nn.metrics.accuracy(model(x), labels)`",
    "summary": "`vf.nn.summary(model, x)` shows the layers",
    "save": "`vf.io.save_safetensors(path, model)` saves a model",
    "load_weights": _LOAD,
    "get_weights": _PARAMETERS,
    "trainable_variables": _PARAMETERS,
    "requires_grad_": "`vf.optim.partition` or `vf.optim.masked` freezes parameters, and `vf.lax.stop_gradient` values",
    "half": "`vf.tree.map(lambda x: x.astype('float16'), model)` changes the dtype",
    "bfloat16": "`vf.tree.map(lambda x: x.astype('bfloat16'), model)` changes the dtype",
    "astype": "`vf.tree.map(lambda x: x.astype(dtype), model)` changes the dtype",
    "generate": "`vf.nn.generate(model, tokens, max_new_tokens)` continues a prompt",
    "from_pretrained": "`vf.io.load_pretrained(folder)` returns a language model with the weights of a folder or of a GGUF file",
    "save_pretrained": "`vf.io.save_pretrained(folder, model)` writes a folder in Hugging Face's format",
    "modules": "a module is a pytree: `vf.tree.leaves(model, is_leaf=…)` and `model.children()` have its parts",
    "register_buffer": "arrays that no gradient changes are fields, too: wrap them in `vf.lax.stop_gradient`, or pass them as state",
    "apply": "a layer is called: `model(x)`; it holds its own parameters",
}

OPTIMIZERS: dict[str, str] = {
    "step": _STEP,
    "zero_grad": _ZERO,
    "param_groups": "`optim.partition` gives groups of parameters different optimizers",
}

#: Keyword arguments by their names in other packages.
KEYWORDS: dict[str, str] = {
    "lr": "learning_rate",
    "betas": "b1 and b2",
    "beta1": "b1",
    "beta2": "b2",
    "num_workers": "workers",
    "collate_fn": "collate",
    "prefetch_factor": "prefetch",
    "generator": "key",
    "seed": "key",
    "rng": "key",
    "dim": "axis",
    "keepdim": "keepdims",
    "weight_decay": "optim.adamw, or optim.add_decayed_weights in a chain",
    "sampler": "the dataset, as data.Subset(dataset, indices)",
    "max_length": "max_new_tokens",
    "do_sample": "key, and with it temperature, top_k or top_p",
    "num_beams": "the function nn.beam_search",
    "eos_token_id": "stop_tokens",
    "pad_token_id": "pad_token",
    "r": "rank",
    "lora_alpha": "alpha",
    "target_modules": "where",
    "bits": "scheme, 'int8' or 'int4'",
    "load_in_4bit": "scheme, 'nf4' or 'int4'",
    "load_in_8bit": "scheme, 'int8'",
}

#: Replacements of names of PyTorch, NumPy and Optax, by package.
NAMES: dict[str, dict[str, str]] = {
    "volta_fn": {
        "tensor": "vf.numpy.array", "Tensor": "vf.Array", "no_grad": "nothing of the kind: only vf.grad differentiates",
        "manual_seed": "vf.random.key(seed), passed to whatever draws", "cuda": "vf.devices('gpu')", "save": "vf.io.save_safetensors",
        "load": "vf.io.load_safetensors", "array": "vf.numpy.array", "zeros": "vf.numpy.zeros", "ones": "vf.numpy.ones",
        "compile": "vf.jit", "cat": "vf.numpy.concatenate", "concat": "vf.numpy.concatenate", "from_numpy": "vf.numpy.asarray",
        "rand": "vf.random.uniform(key, shape)", "randn": "vf.random.normal(key, shape)", "device": "vf.devices()",
        "is_tensor": "isinstance(x, vf.Array)", "autograd": "vf.grad, vf.vjp and vf.jvp, which take a function",
        "inference_mode": "nothing of the kind: only vf.grad differentiates", "xla_computation": "vf.jit(f).lower(*args).as_text()",
        "GradientTape": "vf.grad, vf.vjp and vf.jvp, which take a function",
        "tree_map": "vf.tree.map", "tree_multimap": "vf.tree.map",
        "set_grad_enabled": "nothing of the kind: only vf.grad differentiates", "live_arrays": "vf.device_memory_stats()",
        "autocast": _LOW, "amp": _LOW, "set_default_dtype": "the argument dtype, as in nn.Linear.init(key, 3, 2, dtype='bfloat16')",
    },
    "volta_fn.numpy": {
        "tensor": "numpy.array", "cat": "numpy.concatenate", "random": "vf.random, whose functions take a key",
        "softmax": "nn.softmax", "relu": "nn.relu", "mm": "numpy.matmul", "bmm": "numpy.matmul", "inv": "numpy.linalg.inv",
    },
    "volta_fn.random": {
        "seed": "random.key(seed): every function takes a key", "rand": "random.uniform(key, shape)",
        "randn": "random.normal(key, shape)",
        "default_rng": "random.key(seed)", "RandomState": "random.key(seed)", "shuffle": "random.permutation(key, x)",
    },
    "volta_fn.nn": {
        "Parameter": "an annotation in the class body, as `weight: vf.Array`", "ModuleList": "a list or tuple of modules as a field",
        "ParameterList": "a list or tuple of arrays as a field", "ModuleDict": "a dict of modules as a field",
        "CrossEntropyLoss": "nn.losses.cross_entropy(logits, labels)", "MSELoss": "nn.losses.mse_loss(prediction, target)",
        "BCEWithLogitsLoss": "nn.losses.binary_cross_entropy_with_logits(logits, target)",
        "DataParallel": _PARALLEL, "parallel": _PARALLEL, "functional": "nn itself, as nn.relu(x) and nn.cross_entropy(logits, labels)",
        "Llama": _PRETRAINED, "LlamaForCausalLM": _PRETRAINED, "AutoModelForCausalLM": _PRETRAINED, "GPT2LMHeadModel": _PRETRAINED,
        "freeze": "optim.partition, or nn.partition(model, filter) and the gradient by its first part (docs/guides/cookbook.md)",
        "LoraConfig": "nn.lora(model, key, rank)", "get_peft_model": "nn.lora(model, key, rank)",
        "quantize_": "nn.quantize(model, scheme)", "init": "nn.initializers", "Dense": "nn.Linear", "Conv": "nn.Conv2d",
        "ReLU": "nn.relu, a function", "GELU": "nn.gelu, a function", "SiLU": "nn.silu, a function", "Tanh": "nn.tanh, a function",
        "Sigmoid": "nn.sigmoid, a function", "Softmax": "nn.softmax, a function", "LeakyReLU": "nn.leaky_relu, a function",
        "Transformer": "nn.TransformerEncoder and nn.TransformerDecoder",
        "utils": "optim.clip_by_global_norm in a chain to clip, or vf.tree.map over the parameters",
        "compact": "a classmethod `init` that makes the layers, and `__call__`", "static_field": "nn.static()", "field": "nn.static()",
        "max_pool2d": "nn.MaxPool2d.init(2)(x)", "avg_pool2d": "nn.AvgPool2d.init(2)(x)", "max_pool1d": "nn.MaxPool1d.init(2)(x)",
        "adaptive_avg_pool2d": "nn.AdaptiveAvgPool2d.init(1)(x), or x.mean((2, 3))", "linear": "x @ weight + bias, or nn.Linear",
        "dropout": "nn.Dropout.init(0.5)(x, key=key, training=True)", "BCELoss": "nn.losses.binary_cross_entropy(probabilities, target)",
        "KLDivLoss": "nn.losses.kl_div", "conv2d": "nn.Conv2d, or lax.conv_general_dilated",
        "L1Loss": "nn.losses.l1_loss(prediction, target)", "NLLLoss": "nn.losses.nll_loss(log_probabilities, labels)",
    },
    "volta_fn.nn.metrics": {
        "accuracy_score": "vf.nn.metrics.accuracy(predictions, labels)", "precision_score": "vf.nn.metrics.precision(predictions, labels)",
        "recall_score": "vf.nn.metrics.recall(predictions, labels)", "roc_auc_score": "vf.nn.metrics.roc_auc(scores, labels)",
        "average_precision_score": "vf.nn.metrics.average_precision(scores, labels)", "brier_score_loss": "vf.nn.metrics.brier_score",
        "balanced_accuracy_score": "vf.nn.metrics.balanced_accuracy", "cohen_kappa_score": "vf.nn.metrics.cohen_kappa",
        "top_k_accuracy_score": "vf.nn.metrics.top_k_accuracy(scores, labels, k)", "mse": "vf.nn.metrics.mean_squared_error",
        "mae": "vf.nn.metrics.mean_absolute_error", "rmse": "vf.nn.metrics.root_mean_squared_error", "r2": "vf.nn.metrics.r2_score",
        "auc": "vf.nn.metrics.roc_auc(scores, labels)",
        "classification_report": "vf.nn.metrics.classification_scores(confusion_matrix, None)", "iou": "vf.nn.metrics.jaccard_score",
    },
    "volta_fn.optim": {
        "Adam": "optim.adam(learning_rate)", "AdamW": "optim.adamw(learning_rate)", "SGD": "optim.sgd(learning_rate, momentum)",
        "RMSprop": "optim.rmsprop(learning_rate)", "Adagrad": "optim.adagrad(learning_rate)", "LBFGS": "optim.lbfgs()",
        "lr_scheduler": "optim.schedules: a schedule takes the place of learning_rate", "Optimizer": "optim.GradientTransformation",
        "StepLR": "optim.exponential_decay(…, staircase=True) in place of learning_rate",
        "ExponentialLR": "optim.exponential_decay in place of learning_rate",
        "CosineAnnealingLR": "optim.cosine_decay_schedule in place of learning_rate",
        "OneCycleLR": "optim.cosine_onecycle_schedule in place of learning_rate",
        "GradScaler": "optim.apply_if_finite, and a loss times a constant (docs/guides/mixed_precision.md)",
        "ReduceLROnPlateau": "optim.contrib.reduce_on_plateau", "clip_grad_norm_": "optim.chain(optim.clip_by_global_norm(1.0), optimizer)",
    },
    "volta_fn.data": {
        "TensorDataset": "data.ArrayDataset(*arrays)", "Dataloader": "data.DataLoader", "TensorDatasets": "data.ArrayDataset",
        "SubsetRandomSampler": "data.Subset(dataset, indices)", "Sampler": "data.DataLoader(…, shuffle=True, key=key)",
        "Compose": "data.compose(*transforms)", "default_collate": "data.stack",
        "DistributedSampler": "data.DataLoader(…, shard=(vf.process_index(), vf.process_count()))",
        "IterableDataset": "an object with __len__ and __getitem__, for data.DataLoader",
    },
    "volta_fn.io": {
        "save": "io.save_safetensors", "load": "io.load_safetensors", "load_pytorch": "io.from_torch", "dump": "io.save_safetensors",
        "SummaryWriter": "io.TensorBoardLogger",
    },
    "volta_fn.vision.transforms": {
        "ToTensor": "data.to_float, of arrays (batch, channels, rows, columns)", "Compose": "data.compose(*transforms)",
        "Normalize": "data.normalize(mean, std)", "RandomHorizontalFlip": "data.random_horizontal_flip()",
        "RandomCrop": "data.random_crop(padding)",
    },
    "volta_fn.distributed": {
        "init_process_group": "vf.distributed.initialize()", "get_rank": "vf.process_index()", "get_world_size": "vf.process_count()",
        "all_reduce": "vf.lax.psum or vf.lax.pmean in vf.shard_map", "all_gather": "vf.lax.all_gather in vf.shard_map",
        "barrier": "nothing of the kind: collectives wait for each other", "DistributedDataParallel": _PARALLEL,
    },
}  # fmt: skip

#: The packages in which a missing name is searched.
PACKAGES = (
    "volta_fn", "volta_fn.numpy", "volta_fn.nn", "volta_fn.lax", "volta_fn.random", "volta_fn.optim", "volta_fn.data", "volta_fn.io",
    "volta_fn.tree", "volta_fn.debug", "volta_fn.scipy.special", "volta_fn.numpy.linalg", "volta_fn.numpy.fft", "volta_fn.scipy.linalg",
    "volta_fn.nn.initializers", "volta_fn.nn.metrics", "volta_fn.image", "volta_fn.ops", "volta_fn.test_util", "volta_fn.flatten_util",
    "volta_fn.tree_util", "volta_fn.dtypes", "volta_fn.errors", "volta_fn.experimental.checkify", "volta_fn.experimental.ode",
    "volta_fn.jax",
)  # fmt: skip


#: The longest text of a default that is shown in full.
_LONGEST = 40


def closest(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three existing names that look like `name`."""
    by_lower = {other.lower(): other for other in names if not other.startswith("_")}
    matches: list[str] = deferred("difflib").get_close_matches(name.lower(), by_lower, 3, 0.7)
    return [by_lower[match] for match in matches]


def correction(message: str, name: str, names: Iterable[str], remedy: str = "") -> str:
    """Return a message with names that look like an unknown one, or the remedy."""
    similar = closest(name, names)
    advice = f"did you mean {' or '.join(similar)}?" if similar else remedy
    return f"{message}; {advice}" if advice else message


class UnknownName(AttributeError):
    """An unknown name, whose message is computed when it is read."""

    def __init__(self, message: Callable[[], str]) -> None:
        super().__init__()
        self._message = message

    def __str__(self) -> str:
        return self._message()


# Tracebacks show it by this name.
UnknownName.__module__, UnknownName.__name__, UnknownName.__qualname__ = "builtins", "AttributeError", "AttributeError"


def unknown_attribute(owner: str, name: str, replacements: Mapping[str, str], names: Iterable[str] = ()) -> NoReturn:
    """Raise `AttributeError` for an unknown name, with a suggestion."""
    raise UnknownName(lambda: _answer(owner, name, replacements, names))


def _answer(owner: str, name: str, replacements: Mapping[str, str], names: Iterable[str]) -> str:
    message = f"{owner} has no attribute {name!r}"
    if name in replacements:
        return f"{message}: {replacements[name]}"
    return correction(message, name, names)


def unknown_name(package: str, name: str, names: Callable[[], Iterable[str]]) -> NoReturn:
    """Raise `AttributeError` for a public name that a package does not have."""
    raise UnknownName(lambda: _answer_of_module(package, name, names))


def _answer_of_module(package: str, name: str, names: Callable[[], Iterable[str]]) -> str:
    owner, all_names = f"module {package!r}", list(names())
    if name in NAMES.get(package, {}):
        return _answer(owner, name, {name: f"use {NAMES[package][name]}"}, ())
    if hasattr(sys.modules[package], "__path__") and is_installed(f"{package}.{name}"):
        return _answer(owner, name, {name: f"it is a module, so load it first: import {package}.{name}"}, ())
    if paths := elsewhere(name):
        return _answer(owner, name, {name: f"it is {' or '.join(paths[:2])}"}, ())
    answer = _answer(owner, name, NAMES["volta_fn"], all_names)
    return answer if closest(name, all_names) or name in NAMES["volta_fn"] else f"{answer}; dir({package}) has its names"


def elsewhere(name: str) -> list[str]:
    """Return the public paths of a name, the most likely first.

    >>> elsewhere("relu")
    ['volta_fn.nn.relu']
    """
    paths = [f"{package}.{name}" for package in PACKAGES if name in dir(load(package))]
    return [path for path in paths if not path.startswith("volta_fn.jax.")] or paths


def note_of_call(message: str) -> str | None:
    """Return a note for Python's error of a call of this package, or None.

    >>> note_of_call("sum() got an unexpected keyword argument 'dim'")
    'volta_fn.numpy.sum has the argument axis instead of dim'
    """
    if re.search(r"update\(\) missing 1 required positional argument: 'state'", message):
        return _STEP
    unexpected = re.match(r"(?:\w+\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'", message)
    if unexpected is None:
        return None
    function, keyword = unexpected.groups()
    for path in elsewhere(function):
        package, _, name = path.rpartition(".")
        try:
            names = list(signature(getattr(load(package), name)).parameters)
        except (TypeError, ValueError):  # no function, or one without a signature
            continue
        instead = [KEYWORDS[keyword]] if KEYWORDS.get(keyword) in names else closest(keyword, names)
        if instead and keyword not in names:
            return f"{path} has the argument {' or '.join(instead)} instead of {keyword}"
    return None


def guard(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are all imported."""
    hide_private_names(package)
    return lambda name: unknown_name(package, name, lambda: vars(sys.modules[package]))


def habit(owner: str, name: str, answer: str) -> property:
    """Return a property that raises `AttributeError` with an answer."""

    def read(self: Any) -> NoReturn:
        raise AttributeError(f"{owner} has no attribute {name!r}: {answer}")

    return property(read)


class MissingOfClass:
    """An attribute that a class lacks: `AttributeError` with an answer."""

    def __init__(self, name: str, answers: Mapping[str, str]) -> None:
        self._name, self._answers = name, answers

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        unknown_attribute(owner.__name__, self._name, self._answers)


def explained(function: F) -> F:
    """Add the right arguments to the errors of calls with wrong arguments (decorator)."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # it was raised by the call itself
                text = str(error)
                if args and isinstance(args[0], type):  # a class method says by which class it was inherited
                    text = text.replace(function.__qualname__, f"{args[0].__name__}.{function.__name__}", 1)
                raise ArgumentTypeError(f"{text}{_remedy(function, text, args)}") from None
            raise

    return call  # type: ignore[return-value]


def _remedy(function: Callable[..., Any], message: str, args: tuple[Any, ...]) -> str:
    every = signature(function).parameters.values()
    parameters = [p for p in every if p.name not in ("self", "cls") and p.kind is not p.VAR_KEYWORD]
    names = [p.name for p in parameters]
    texts = [p.name if p.default is p.empty else f"{p.name}={_short(p.default)}" for p in parameters]
    star = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if star is not None:
        texts.insert(star, "*")
    usage = f". Its arguments are {', '.join(texts)}"
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", message)
    if unexpected:
        name = unexpected[1]
        instead = KEYWORDS.get(name) or " or ".join(closest(name, names))
        return f": here it is {instead}{usage}" if instead else usage
    if names[:1] == ["key"] and "missing" in message and not any(hasattr(a, "dtype") for a in args):
        return f". The first argument is a random key, vf.random.key(0){usage}"
    return usage


def _short(default: Any) -> str:
    """Return the source text of a default: functions and classes by name.

    >>> _short(0.5), _short(closest), _short(dict), _short((Mapping, [1]))
    ('0.5', 'closest', 'dict', '(Mapping, [1])')
    """
    name = getattr(default, "__qualname__", None) or getattr(default, "__name__", None)
    if isinstance(name, str):
        return name.rpartition("<locals>.")[2]
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if type(default) in (tuple, list):
        inner = ", ".join(map(_short, default))
        return f"[{inner}]" if isinstance(default, list) else f"({inner}{',' * (len(default) == 1)})"
    text = repr(default)
    if len(text) <= _LONGEST and "<" not in text and "\n" not in text:
        return text
    return "…" if type(default).__module__ == "builtins" or type(default).__name__.startswith("_") else f"{type(default).__name__}(…)"
