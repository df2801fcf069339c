"""A variational autoencoder of small binary pictures."""

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random


class Autoencoder(nn.Module):
    """An encoder to a mean and a log variance, and a decoder to logits."""

    encoder: nn.Sequential
    decoder: nn.Sequential

    def loss(self, key: vf.Array, pictures: vf.Array) -> vf.Array:
        """Return the negative evidence lower bound."""
        mean, log_variance = jnp.split(self.encoder(pictures), 2, axis=-1)
        code = mean + jnp.exp(0.5 * log_variance) * random.normal(key, mean.shape)
        error = nn.losses.binary_cross_entropy_with_logits(self.decoder(code), pictures)
        divergence = -0.5 * (1 + log_variance - mean**2 - jnp.exp(log_variance)).mean()
        return error + 0.1 * divergence


def build(key: vf.Array) -> Autoencoder:
    """Create the model with random weights."""
    a, b, c, d = random.split(key, 4)
    return Autoencoder(
        encoder=nn.Sequential.init(nn.Linear.init(a, 16, 16), nn.relu, nn.Linear.init(b, 16, 4)),
        decoder=nn.Sequential.init(nn.Linear.init(c, 2, 16), nn.relu, nn.Linear.init(d, 16, 16)),
    )


@vf.jit
def step(model: Autoencoder, state: optim.OptState, key: vf.Array, batch: vf.Array) -> tuple[Autoencoder, optim.OptState, vf.Array]:
    """Make a step of training."""
    value, gradient = vf.value_and_grad(Autoencoder.loss)(model, key, batch)
    updates, state = optim.adam(0.01).update(gradient, state, model)
    return optim.apply_updates(model, updates), state, value


def main() -> tuple[vf.Array, vf.Array]:
    """Train on random pictures; return the first loss and the last."""
    pictures = random.bernoulli(random.key(0), 0.5, (32, 16)).astype("float32")
    model = build(random.key(1))
    state = optim.adam(0.01).init(model)
    values: list[vf.Array] = []
    for key in random.split(random.key(2), 20):
        model, state, value = step(model, state, key, pictures)
        values.append(value)
    return values[0], values[-1]
