"""A variational autoencoder (Kingma & Welling 2014) that draws digits.

    python examples/vae.py               # scikit-learn's 8×8 scans, a few seconds
    python examples/vae.py --data DIR    # MNIST: its four IDX files, gzipped or not, in DIR; a few minutes

The encoder maps each image to a normal distribution over a few numbers, from which the decoder reconstructs the image. The loss, in nats,
is an upper bound of -log p(image): the reconstruction error plus the divergence from the standard normal distribution, from which new
images are drawn. Writes vae_reconstructions.png (held-out images above their reconstructions) and vae_samples.png.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, nn, optim, random


class VAE(nn.Module):
    """An encoder to means and log-variances, and a decoder to the pixels' logits."""

    encoder: nn.Sequential
    decoder: nn.Sequential

    @classmethod
    def init(cls, key: vf.Array, pixels: int, hidden: int, latent: int) -> VAE:
        """Create an autoencoder of images with that many pixels."""
        keys = random.split(key, 4)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear.init(keys[0], pixels, hidden), nn.relu, nn.Linear.init(keys[1], hidden, 2 * latent))
        decoder = nn.Sequential(nn.Linear.init(keys[2], latent, hidden), nn.relu, nn.Linear.init(keys[3], hidden, pixels))
        return cls(encoder, decoder)

    def __call__(self, images: vf.Array, *, key: vf.Array) -> tuple[vf.Array, vf.Array, vf.Array]:
        """Return the pixels' logits of a sample, and its means and log-variances."""
        mean, log_var = jnp.split(self.encoder(images), 2, axis=-1)
        z = mean + jnp.exp(log_var / 2) * random.normal(key, mean.shape)
        return self.decoder(z), mean, log_var


def loss(model: VAE, images: vf.Array, key: vf.Array) -> vf.Array:
    """Return the bound in nats per image, the mean over the batch."""
    logits, mean, log_var = model(images, key=key)
    missed = nn.losses.binary_cross_entropy_with_logits(logits, images.reshape(logits.shape), reduction="sum")
    return (missed + nn.losses.kl_divergence_gaussian(mean, log_var)) / len(images)


def train(digits: data.Dataset, *, epochs: int, batch: int, latent: int, key: vf.Array) -> VAE:
    """Train with Adam."""
    model_key, shuffle_key, draw_key = random.split(key, 3)
    loader = data.DataLoader(digits, batch, shuffle=True, key=shuffle_key, drop_last=True, workers=1)
    model = VAE.init(model_key, digits[0][0].size, hidden=256, latent=latent)
    optimizer = optim.adam(optim.cosine_onecycle_schedule(epochs * len(loader), 3e-3))
    moments = optimizer.init(model)

    @vf.jit
    def step(model: VAE, moments: Any, images: vf.Array, key: vf.Array) -> tuple[VAE, Any, vf.Array]:
        value, grads = vf.value_and_grad(loss)(model, images, key)
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), moments, value

    bar = common.epochs(loader, epochs)
    for number, (images, _) in enumerate(bar):
        model, moments, value = step(model, moments, images, random.fold_in(draw_key, number))
        if number % 10 == 0:
            bar.report(f"{float(value):.2f} nats")
    return model


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, draw, and return the bounds for held-out images, also before training."""
    options = common.arguments(__doc__, argv, epochs={"type": int, "help": "passes over the training images (default 60; 8 of MNIST)"})
    digits, held_out = common.digits(options.data)
    epochs = options.epochs or (6 if options.quick else 8 if options.data else 60)
    latent = 16 if options.data else 8
    key, test_key, sample_key = random.split(random.key(options.seed), 3)
    model = train(digits, epochs=epochs, batch=128 if options.data else 32, latent=latent, key=key)

    images, _ = held_out.gather(range(len(held_out)))
    untrained = VAE.init(key, images[0].size, hidden=256, latent=latent)
    bounds = {"nats": float(loss(model, images, test_key)), "untrained": float(loss(untrained, images, test_key))}
    draw = lambda z: nn.sigmoid(model.decoder(z)).reshape(-1, *images.shape[1:])
    mean, _ = jnp.split(model.encoder(images[:16]), 2, axis=-1)
    common.save_images(options.out / "vae_reconstructions.png", jnp.concatenate([images[:16], draw(mean)]), 16)
    common.save_images(options.out / "vae_samples.png", draw(random.normal(sample_key, (64, latent))), 16)
    print(f"held-out images take {bounds['nats']:.2f} nats each, {bounds['untrained']:.2f} before training")
    return bounds


if __name__ == "__main__":
    main()
