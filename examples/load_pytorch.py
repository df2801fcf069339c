"""Run a ResNet-20 (He et al. 2016) that PyTorch trained on CIFAR-10.

    python examples/load_pytorch.py --data DIR

DIR holds `models/resnet20_cifar10/weights.safetensors`, with PyTorch's names and layouts, in the same folder `reference.npz`
with the logits that PyTorch computed, and the photographs `cifar10/test_batch_first1000.bin` in CIFAR-10's binary format.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, io, nn, random
from volta_fn.errors import DataError

PREPARE = data.compose(data.to_float, data.normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


class Block(nn.Module):
    """Two convolutions with a shortcut, which is subsampled and padded if necessary."""

    conv1: nn.Conv2d
    bn1: nn.BatchNorm2d
    conv2: nn.Conv2d
    bn2: nn.BatchNorm2d

    @classmethod
    def init(cls, key: vf.Array, into: int, out: int) -> tuple[Block, Any]:
        """Create a block from `into` to `out` channels, with stride 2 if they differ."""
        first, second = random.split(key)
        return cls.join(
            conv1=nn.Conv2d.init(first, into, out, 3, stride=1 if into == out else 2, padding=1, bias=False),
            bn1=nn.BatchNorm2d.init(out),
            conv2=nn.Conv2d.init(second, out, out, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d.init(out),
        )

    def __call__(self, x: vf.Array, state: Any, *, training: bool = False) -> tuple[vf.Array, Any]:
        """Return the block's output and the normalisations' new state."""
        y, bn1 = self.bn1(self.conv1(x), state["bn1"], training=training)
        y, bn2 = self.bn2(self.conv2(nn.relu(y)), state["bn2"], training=training)
        if x.shape != y.shape:
            more = (y.shape[1] - x.shape[1]) // 2
            x = jnp.pad(x[:, :, ::2, ::2], ((0, 0), (more, more), (0, 0), (0, 0)))
        return nn.relu(x + y), {"bn1": bn1, "bn2": bn2}


def resnet20(key: vf.Array) -> tuple[nn.Sequential, Any]:
    """Create the network, with PyTorch's names, and the state of its normalisations."""
    keys = iter(random.split(key, 11))
    stage = lambda into, out: nn.Sequential.init(*[Block.init(next(keys), width, out) for width in (into, out, out)])
    return nn.Sequential.init(
        conv1=nn.Conv2d.init(next(keys), 3, 16, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d.init(16),
        act=nn.relu,
        layer1=stage(16, 16),
        layer2=stage(16, 32),
        layer3=stage(32, 64),
        pool=nn.GlobalAvgPool.init(),
        linear=nn.Linear.init(next(keys), 64, 10),
    )


def load(path: Path) -> tuple[nn.Sequential, Any]:
    """Load the network and its state from a safetensors file of PyTorch's.

    There, running statistics are stored like parameters.
    """
    network = resnet20(random.key(0))
    return io.load_state_dict(network, io.from_torch(network)(io.open_safetensors(path)))


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Classify photographs; return accuracy and difference from PyTorch's logits."""
    options = common.arguments(__doc__, argv)
    folder = options.data or Path("../shared/data")
    count = 100 if options.quick else 1000
    try:
        photographs = data.CIFAR10(folder / "cifar10" / "test_batch_first1000.bin")
        model, state = load(folder / "models" / "resnet20_cifar10" / "weights.safetensors")
    except (DataError, OSError) as error:
        raise SystemExit(f"cannot read the data: {error}") from error
    infer = vf.jit(lambda images: model(images, state)[0])
    start = time.perf_counter()
    loader = data.DataLoader(data.Subset(photographs, range(count)), 100)
    logits = jnp.concatenate([infer(PREPARE(images)) for images, _ in loader])
    seconds = time.perf_counter() - start
    expected = np.load(folder / "models" / "resnet20_cifar10" / "reference.npz")["logits"][:count]
    result = {
        "accuracy": float(jnp.mean(jnp.argmax(logits, axis=1) == photographs.labels[:count])),
        "difference": float(jnp.max(jnp.abs(logits - expected))),
    }
    print(model)
    for label, row in zip(photographs.labels[:8].tolist(), nn.softmax(logits[:8]), strict=True):
        guess = int(jnp.argmax(row))
        print(f"{data.CIFAR10.classes[guess]:>10} with probability {float(row[guess]):.1%}: it is {data.CIFAR10.classes[label]}")
    print(f"{result['accuracy']:.2%} of {count:,} photographs classified correctly, {seconds:.1f} s")
    print(f"logits differ from PyTorch's by at most {result['difference']:.1e}, where the largest is {np.abs(expected).max():.1f}")
    return result


if __name__ == "__main__":
    main()
