"""Training steps of feed-forward networks: an MLP, LeNet, ResNet-18, blocks of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.workloads.case import Case, Library, Workload, normal
from benchmarks.workloads.training import adam, cross_entropy, sgd, training

IMAGES = ("NCHW", "OIHW", "NCHW")


def mlp(rng: np.random.Generator, batch: int, widths: tuple[int, ...]) -> Case:
    """Train layers with relu between them, by Adam."""
    params: dict[str, np.ndarray] = {}
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        params |= {f"w{i}": normal(rng, before, after, scale=before**-0.5), f"b{i}": np.zeros(after, np.float32)}
    depth = len(widths) - 1

    def logits(relu: Any, params: Any, x: Any) -> Any:
        for i in range(depth - 1):
            x = relu(x @ params[f"w{i}"] + params[f"b{i}"])
        return x @ params[f"w{depth - 1}"] + params[f"b{depth - 1}"]

    return training(
        params,
        (normal(rng, batch, widths[0]), rng.integers(0, widths[-1], batch, np.int32)),
        lambda lib, params, x, labels: cross_entropy(lib, logits(lib.nn.relu, params, x), labels),
        lambda torch, params, x, labels: torch.nn.functional.cross_entropy(logits(torch.relu, params, x), labels),
        adam,
    )


def _convolve(lib: Library, x: Any, w: Any, stride: int, padding: int) -> Any:
    return lib.lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2, dimension_numbers=IMAGES)


def lenet(rng: np.random.Generator, batch: int) -> Case:
    """Train LeNet-5 (LeCun et al. 1998) with relu and max pooling, by SGD.

    On 28×28 pixels.
    """
    shapes = {"c1": (6, 1, 5, 5), "c2": (16, 6, 5, 5), "f1": (400, 120), "f2": (120, 84), "f3": (84, 10)}
    params: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        outputs, inputs = (shape[0], shape[1:]) if name[0] == "c" else (shape[1], shape[:1])
        params |= {name: normal(rng, *shape, scale=np.prod(inputs) ** -0.5), name + "b": np.zeros(outputs, np.float32)}

    def loss(lib: Library, params: Any, x: Any, labels: Any) -> Any:
        for name, padding in (("c1", 2), ("c2", 0)):
            x = lib.nn.relu(_convolve(lib, x, params[name], 1, padding) + params[name + "b"][:, None, None])
            x = lib.lax.reduce_window(x, -lib.jnp.inf, lib.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        x = x.reshape(x.shape[0], -1)
        x = lib.nn.relu(x @ params["f1"] + params["f1b"])
        x = lib.nn.relu(x @ params["f2"] + params["f2b"])
        return cross_entropy(lib, x @ params["f3"] + params["f3b"], labels)

    def torch_loss(torch: Any, params: Any, x: Any, labels: Any) -> Any:
        nn = torch.nn.functional
        for name, padding in (("c1", 2), ("c2", 0)):
            x = nn.max_pool2d(torch.relu(nn.conv2d(x, params[name], params[name + "b"], padding=padding)), 2)
        x = torch.relu(x.flatten(1) @ params["f1"] + params["f1b"])
        x = torch.relu(x @ params["f2"] + params["f2b"])
        return nn.cross_entropy(x @ params["f3"] + params["f3b"], labels)

    return training(params, (normal(rng, batch, 1, 28, 28), rng.integers(0, 10, batch, np.int32)), loss, torch_loss, sgd)


class _Normalised(NamedTuple):
    """A convolution followed by batch normalisation by the batch's own statistics."""

    outputs: int
    inputs: int
    taps: int
    stride: int = 1


def _normalised_params(rng: np.random.Generator, layers: dict[str, _Normalised]) -> dict[str, np.ndarray]:
    params: dict[str, np.ndarray] = {}
    for name, (outputs, inputs, taps, _) in layers.items():
        params[name] = normal(rng, outputs, inputs, taps, taps, scale=(inputs * taps**2) ** -0.5)
        params |= {name + "scale": np.ones(outputs, np.float32), name + "shift": np.zeros(outputs, np.float32)}
    return params


def _normalised(lib: Library, params: Any, name: str, layer: _Normalised, x: Any) -> Any:
    x = _convolve(lib, x, params[name], layer.stride, layer.taps // 2)
    centred = x - lib.jnp.mean(x, (0, 2, 3), keepdims=True)
    variance = lib.jnp.mean(centred**2, (0, 2, 3), keepdims=True)
    scale, shift = params[name + "scale"][:, None, None], params[name + "shift"][:, None, None]
    return centred * lib.lax.rsqrt(variance + 1e-5) * scale + shift


def _torch_normalised(torch: Any, params: Any, name: str, layer: _Normalised, x: Any) -> Any:
    x = torch.nn.functional.conv2d(x, params[name], stride=layer.stride, padding=layer.taps // 2)
    return torch.nn.functional.batch_norm(x, None, None, params[name + "scale"], params[name + "shift"], training=True)


def _block(relu: Any, layer: Callable[[str, Any], Any], name: str, x: Any, projected: bool) -> Any:
    """Apply a block of ResNet-18 (He et al. 2016)."""
    return relu(layer(name + "2", relu(layer(name + "1", x))) + (layer(name + "3", x) if projected else x))


def _block_layers(name: str, inputs: int, outputs: int) -> dict[str, _Normalised]:
    """Return a block's layers; with more outputs, stride 2 and a projection."""
    if inputs == outputs:
        return {name + "1": _Normalised(outputs, inputs, 3), name + "2": _Normalised(outputs, outputs, 3)}
    first, project = _Normalised(outputs, inputs, 3, 2), _Normalised(outputs, inputs, 1, 2)
    return {name + "1": first, name + "2": _Normalised(outputs, outputs, 3), name + "3": project}


def resnet(rng: np.random.Generator, batch: int, channels: int, side: int) -> Case:
    """Train two of ResNet-18's blocks, by SGD with momentum.

    The second has stride 2 and twice the channels. The loss is the mean square of the difference to a target.
    """
    n, m = channels, 2 * channels
    layers = _block_layers("a", n, n) | _block_layers("b", n, m)

    def blocks(relu: Any, layer: Callable[[str, Any], Any], x: Any) -> Any:
        return _block(relu, layer, "b", _block(relu, layer, "a", x, False), True)

    def loss(lib: Library, params: Any, x: Any, y: Any) -> Any:
        layer = lambda name, x: _normalised(lib, params, name, layers[name], x)
        return lib.jnp.mean((blocks(lib.nn.relu, layer, x) - y) ** 2)

    def torch_loss(torch: Any, params: Any, x: Any, y: Any) -> Any:
        layer = lambda name, x: _torch_normalised(torch, params, name, layers[name], x)
        return torch.nn.functional.mse_loss(blocks(torch.relu, layer, x), y)

    data = normal(rng, batch, n, side, side), normal(rng, batch, m, side // 2, side // 2)
    return training(_normalised_params(rng, layers), data, loss, torch_loss, sgd)


def resnet18(rng: np.random.Generator, batch: int, width: int) -> Case:
    """Train ResNet-18 for 32×32 pixels, by SGD with momentum.

    A first layer of 3×3 taps, four stages of two blocks, a mean, ten classes.
    """
    layers, inputs = {"first": _Normalised(width, 3, 3)}, width
    projected: dict[str, bool] = {}
    for stage in range(4):
        for half in "ab":
            result = _block_layers(f"{stage}{half}", inputs, width << stage)
            layers, inputs = layers | result, width << stage
            projected[f"{stage}{half}"] = len(result) == 3
    params = _normalised_params(rng, layers) | {
        "head": normal(rng, 8 * width, 10, scale=(8 * width) ** -0.5),
        "headb": np.zeros(10, np.float32),
    }

    def features(relu: Any, layer: Callable[[str, Any], Any], x: Any) -> Any:
        x = relu(layer("first", x))
        for name, project in projected.items():
            x = _block(relu, layer, name, x, project)
        return x

    def loss(lib: Library, params: Any, x: Any, labels: Any) -> Any:
        x = features(lib.nn.relu, lambda name, x: _normalised(lib, params, name, layers[name], x), x)
        return cross_entropy(lib, lib.jnp.mean(x, (2, 3)) @ params["head"] + params["headb"], labels)

    def torch_loss(torch: Any, params: Any, x: Any, labels: Any) -> Any:
        x = features(torch.relu, lambda name, x: _torch_normalised(torch, params, name, layers[name], x), x)
        return torch.nn.functional.cross_entropy(x.mean((2, 3)) @ params["head"] + params["headb"], labels)

    return training(params, (normal(rng, batch, 3, 32, 32), rng.integers(0, 10, batch, np.int32)), loss, torch_loss, sgd)


WORKLOADS = [
    Workload("train/mlp", mlp, {"batch": 128, "widths": (784, 512, 512, 10)}, {"batch": 4, "widths": (7, 6, 5, 3)}),
    Workload("train/lenet", lenet, {"batch": 64}, {"batch": 2}),
    Workload("train/resnet block", resnet, {"batch": 8, "channels": 64, "side": 56}, {"batch": 2, "channels": 3, "side": 8}),
]
