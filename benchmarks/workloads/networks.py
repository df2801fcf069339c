"""Steps of training of feed-forward networks: an MLP, LeNet, two blocks of a ResNet-18."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Library, Workload, normal
from benchmarks.workloads.training import adam, cross_entropy, sgd, training

IMAGES = ("NCHW", "OIHW", "NCHW")


def mlp(rng: np.random.Generator, batch: int, widths: tuple[int, ...]) -> Case:
    """Layers with relu between them, Adam."""
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
    """LeNet-5 with relu and maxima (LeCun et al. 1998), on 28×28 pixels, SGD with momentum."""
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


def resnet(rng: np.random.Generator, batch: int, channels: int, side: int) -> Case:
    """Two of ResNet-18's blocks (He et al. 2016), the second with stride 2 and twice the channels, SGD with momentum.

    Batch normalisation is by the batch's own statistics; the loss is the mean square of the difference to a target.
    """
    n, m = channels, 2 * channels
    kernels = {"a1": (n, n, 3), "a2": (n, n, 3), "b1": (m, n, 3), "b2": (m, m, 3), "b3": (m, n, 1)}
    params: dict[str, np.ndarray] = {}
    for name, (outputs, inputs, taps) in kernels.items():
        params[name] = normal(rng, outputs, inputs, taps, taps, scale=(inputs * taps**2) ** -0.5)
        params |= {name + "scale": np.ones(outputs, np.float32), name + "shift": np.zeros(outputs, np.float32)}

    def loss(lib: Library, params: Any, x: Any, y: Any) -> Any:
        def layer(name: str, x: Any, stride: int = 1) -> Any:
            x = _convolve(lib, x, params[name], stride, kernels[name][2] // 2)
            centred = x - lib.jnp.mean(x, (0, 2, 3), keepdims=True)
            variance = lib.jnp.mean(centred**2, (0, 2, 3), keepdims=True)
            scale, shift = params[name + "scale"][:, None, None], params[name + "shift"][:, None, None]
            return centred * lib.lax.rsqrt(variance + 1e-5) * scale + shift

        return lib.jnp.mean((blocks(lib.nn.relu, layer, x) - y) ** 2)

    def torch_loss(torch: Any, params: Any, x: Any, y: Any) -> Any:
        def layer(name: str, x: Any, stride: int = 1) -> Any:
            x = torch.nn.functional.conv2d(x, params[name], stride=stride, padding=kernels[name][2] // 2)
            return torch.nn.functional.batch_norm(x, None, None, params[name + "scale"], params[name + "shift"], training=True)

        return torch.nn.functional.mse_loss(blocks(torch.relu, layer, x), y)

    def blocks(relu: Any, layer: Any, x: Any) -> Any:
        x = relu(layer("a2", relu(layer("a1", x))) + x)
        return relu(layer("b2", relu(layer("b1", x, 2))) + layer("b3", x, 2))

    return training(params, (normal(rng, batch, n, side, side), normal(rng, batch, m, side // 2, side // 2)), loss, torch_loss, sgd)


WORKLOADS = [
    Workload("train/mlp", mlp, {"batch": 128, "widths": (784, 512, 512, 10)}, {"batch": 4, "widths": (7, 6, 5, 3)}),
    Workload("train/lenet", lenet, {"batch": 64}, {"batch": 2}),
    Workload("train/resnet block", resnet, {"batch": 8, "channels": 64, "side": 56}, {"batch": 2, "channels": 3, "side": 8}),
]
