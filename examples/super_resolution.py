"""Double the size of images with a sub-pixel network (ESPCN, Shi et al. 2016).

    python examples/super_resolution.py               # scikit-learn's digits, from 4×4 to 8×8 pixels, some seconds
    python examples/super_resolution.py --data DIR    # MNIST, from 14×14 to 28×28 pixels, a few minutes

The network computes at the small size, and `PixelShuffle` rearranges its channels as pixels of the large one, which are added to a bilinear
interpolation. The peak signal-to-noise ratio (PSNR, in dB) on held-out digits is compared with that of interpolations. Writes
super_resolution.png: from top to bottom the nearest pixels, bicubic interpolation, the network, and the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, nn, optim, random

FACTOR = 2


class Enlarger(nn.Module):
    """Enlarges images (N, 1, H, W) by FACTOR."""

    body: nn.Sequential
    blur: nn.Upsample

    @classmethod
    def init(cls, key: vf.Array, width: int) -> Enlarger:
        """Create a network with `width` channels."""
        first, second, third = random.split(key, 3)
        body = nn.Sequential(
            nn.Conv2d.init(first, 1, width, 5, padding="same"),
            nn.relu,
            nn.Conv2d.init(second, width, width, 3, padding="same"),
            nn.relu,
            nn.Conv2d.init(third, width, FACTOR**2, 3, padding="same"),
            nn.PixelShuffle.init(FACTOR),
        )
        return cls(body, nn.Upsample.init(scale_factor=FACTOR, mode="bilinear"))

    def __call__(self, x: vf.Array) -> vf.Array:
        """Return the larger images."""
        return self.blur(x) + self.body(x)


def shrink(x: vf.Array) -> vf.Array:
    """Shrink images by FACTOR: each pixel is the mean of a square."""
    return nn.AvgPool2d.init(FACTOR)(x)


def bicubic(images: vf.Array) -> np.ndarray:
    """Enlarge images (N, 1, H, W) by FACTOR with Pillow, which comes with Matplotlib."""
    from PIL import Image

    size = (images.shape[3] * FACTOR, images.shape[2] * FACTOR)
    enlarge = lambda pixels: np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
    return np.stack([enlarge(pixels) for pixels in np.asarray(images)[:, 0]])[:, None]


def psnr(images: Any, truth: Any) -> float:
    """Return the peak signal-to-noise ratio in dB of pixels between 0 and 1."""
    return float(-10 * jnp.log10(jnp.mean((jnp.clip(images, 0, 1) - truth) ** 2)))


def loss(model: Enlarger, truth: vf.Array) -> vf.Array:
    """Return the mean squared error of enlarged images."""
    return nn.losses.mse_loss(model(shrink(truth)), truth)


def train(digits: data.Dataset, *, epochs: int, batch: int, key: vf.Array) -> Enlarger:
    """Train with Adam."""
    model_key, loader_key = random.split(key)
    loader = data.DataLoader(digits, batch, shuffle=True, key=loader_key, drop_last=True, workers=1)
    model = Enlarger.init(model_key, width=32)
    optimizer = optim.adam(optim.cosine_onecycle_schedule(epochs * len(loader), 5e-3))
    moments = optimizer.init(model)

    @vf.jit
    def step(model: Enlarger, moments: Any, truth: vf.Array) -> tuple[Enlarger, Any, vf.Array]:
        value, grads = vf.value_and_grad(loss)(model, truth)
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), moments, value

    bar = common.epochs(loader, epochs)
    for number, (truth, _) in enumerate(bar):
        model, moments, value = step(model, moments, truth)
        if number % 10 == 0:
            bar.report(f"loss {float(value):.4f}")
    return model


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, compare, and return the PSNR of each method on 360 held-out images."""
    options = common.arguments(__doc__, argv, epochs={"type": int, "help": "passes over the training images (default 20; 2 of MNIST)"})
    digits, held_out = common.digits(options.data)
    epochs = options.epochs or (2 if options.quick or options.data else 20)
    model = train(digits, epochs=epochs, batch=128 if options.data else 32, key=random.key(options.seed))

    truth, _ = held_out.gather(range(360))
    small = shrink(truth)
    enlarged = {"nearest": nn.Upsample.init(scale_factor=FACTOR)(small), "bicubic": bicubic(small), "network": model(small)}
    path = options.out / "super_resolution.png"
    common.save_images(path, jnp.concatenate([images[:16] for images in [*enlarged.values(), truth]]), 16)
    results = {name: psnr(images, truth) for name, images in enlarged.items()}
    print(model)
    print("PSNR of held-out digits: " + ", ".join(f"{name} {value:.2f} dB" for name, value in results.items()))
    return results


if __name__ == "__main__":
    main()
