"""Compare volta_fn.optim with PyTorch's database of optimizers.

    python tools/torch_optimizers.py [NAME ...] [--target TARGET] [--dtypes D,D] [--modes eager,jit,vmap] …

Parameters of several shapes take some steps with the same gradients; their values are compared. Options are those of torch_operators.py.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.torch_operator_calls import Unsupported
from tools.torch_operators import DERIVATIVES, Operator, Sample, main, sample_of, stand_in_for_expecttest

Options = dict[str, Any]
STEPS = 8
#: Shapes of parameters, of which vectors and tiles are full and are not.
SHAPES = ((), (5,), (37, 6), (3, 130), (515,))
#: Options of both where PyTorch adds a small number elsewhere.
SMALL: dict[str, Options] = {"RAdam": {"eps": 1e-15}, "Adafactor": {"eps": (1e-15, 1e-3)}, "Adagrad": {"eps": 1e-20}}


def transforms() -> dict[str, Callable[[Options], Any]]:
    """Return functions from PyTorch's options to optimizers, by name."""
    import volta_fn.numpy as jnp  # noqa: PLC0415
    from volta_fn import optim  # noqa: PLC0415

    def refuse(**options: Any) -> None:
        for name, value in options.items():
            if value:
                raise Unsupported(name)

    def betas(o: Options) -> Options:
        refuse(amsgrad=o.get("amsgrad"))
        return {"b1": o["betas"][0], "b2": o["betas"][1], "eps": o["eps"]}

    def adagrad(o: Options) -> Any:
        return optim.adagrad(lambda count: o["lr"] / (1 + count * o["lr_decay"]), o["initial_accumulator_value"], eps=1e-30)

    def sgd(o: Options) -> Any:
        refuse(dampening=o["dampening"])
        return optim.sgd(o["lr"], momentum=o["momentum"] or None, nesterov=o["nesterov"])

    def adafactor(o: Options) -> Any:
        refuse(weight_decay=o["weight_decay"])

        def rate(count: Any) -> Any:
            return jnp.minimum(o["lr"], (count + 1.0) ** -0.5)

        return optim.adafactor(rate, min_dim_size_to_factor=1, decay_rate=-o["beta2_decay"], clipping_threshold=o["d"])

    def radam(o: Options) -> Any:
        if not o["decoupled_weight_decay"]:
            return optim.radam(o["lr"], **betas(o))
        return optim.chain(
            optim.scale_by_radam(**betas(o)), optim.add_decayed_weights(o["weight_decay"]), optim.scale_by_learning_rate(o["lr"])
        )

    def rmsprop(o: Options) -> Any:
        rest = {"eps": o["eps"], "centered": o["centered"], "momentum": o["momentum"] or None}
        return optim.rmsprop(o["lr"], decay=o["alpha"], eps_in_sqrt=False, **rest)

    def rprop(o: Options) -> Any:
        (minus, plus), (least, most) = o["etas"], o["step_sizes"]
        return optim.rprop(o["lr"], minus, plus, least, most)

    return {
        "Adadelta": lambda o: optim.adadelta(o["lr"], o["rho"], o["eps"]),
        "Adafactor": adafactor,
        "Adagrad": adagrad,
        "Adam": lambda o: optim.adam(o["lr"], **betas(o)),
        "AdamW": lambda o: optim.adamw(o["lr"], **betas(o), weight_decay=o["weight_decay"]),
        "Adamax": lambda o: optim.adamax(o["lr"], **betas(o)),
        "RAdam": radam,
        "RMSprop": rmsprop,
        "Rprop": rprop,
        "SGD": sgd,
    }


@dataclass
class OptimizerSample(Sample):
    """Options of an optimizer, parameters and their gradients at every step."""

    options: Options = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.options)


class Optimizer(Operator):
    """An optimizer of PyTorch beside volta_fn's of the same meaning."""

    hermitian = elementwise = False

    def __init__(self, info: Any) -> None:
        self.info, self.name = info, info.optim_cls.__name__

    def dtypes(self, mode: str) -> set[str]:
        return set() if mode in DERIVATIVES else {"float32", "float64", "bfloat16"}

    def samples(self, dtype: str, most: int, reference: bool, seed: int, derivative: bool = False) -> Iterator[Sample]:
        import torch  # noqa: PLC0415

        torch.manual_seed(seed)
        kind = getattr(torch, dtype)
        for one in self.info.optim_inputs_func(device="cpu")[:most]:
            options = {**one.kwargs, **SMALL.get(self.name, {})}
            parameters = [torch.randn(shape).to(kind) for shape in SHAPES]
            gradients = [torch.randn(STEPS, *shape).to(kind) for shape in SHAPES]
            plain = sample_of(types.SimpleNamespace(input=parameters, args=(gradients,), kwargs={}))
            yield OptimizerSample(plain.arguments, plain.keywords, plain.tensors, options)

    def of_torch(self, sample: Sample, tensors: Sequence[Any], wide_dtype: bool) -> list[Any]:
        assert isinstance(sample, OptimizerSample)
        (parameters, gradients), _ = sample.fill(tensors, lambda value: value)
        parameters = [parameter.clone().requires_grad_() for parameter in parameters]
        optimizer = self.info.optim_cls(parameters, **sample.options)
        for step in range(STEPS):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient[step].clone()
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    def of_numpy(self, sample: Sample, tensors: Sequence[Any]) -> np.ndarray | None:
        return None

    def of_volta(self, sample: Sample, arrays: Sequence[Any]) -> list[Any]:
        import torch  # noqa: PLC0415

        from volta_fn import lax, optim  # noqa: PLC0415

        assert isinstance(sample, OptimizerSample)
        (parameters, gradients), _ = sample.fill(arrays, lambda value: value)
        defaults = self.info.optim_cls([torch.zeros(1, requires_grad=True)], **sample.options).defaults
        options = {name: value.item() if isinstance(value, torch.Tensor) else value for name, value in defaults.items()}
        transform = transforms()[self.name](options)
        decoupled = self.name == "AdamW" or options.get("decoupled_weight_decay")
        if options.get("weight_decay") and not decoupled:
            transform = optim.chain(optim.add_decayed_weights(options["weight_decay"]), transform)
        if options["maximize"]:
            transform = optim.chain(optim.scale(-1.0), transform)

        def step(carry: Any, gradient: Any) -> Any:
            parameters, state = carry
            updates, state = transform.update(gradient, state, parameters)
            return (optim.apply_updates(parameters, updates), state), None

        (parameters, _), _ = lax.scan(step, (parameters, transform.init(parameters)), gradients)
        return list(parameters)


def optimizers(patterns: Sequence[str]) -> list[Operator]:
    """Return the optimizers that volta_fn has, too, whose names match a pattern."""
    stand_in_for_expecttest()
    from torch.testing._internal.common_optimizers import optim_db  # noqa: PLC0415

    names = transforms()
    matching = [Optimizer(info) for info in optim_db if info.optim_cls.__name__ in names]
    return [one for one in matching if not patterns or any(re.fullmatch(p, one.name) for p in patterns)]


if __name__ == "__main__":
    main(optimizers, __doc__)
