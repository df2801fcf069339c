"""A character-level transformer that learns a proverb by heart."""

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, nn, optim, random

TEXT = "the early bird catches the worm, but the second mouse gets the cheese. " * 4


class Model(nn.Module):
    """Embeddings, causal attention and logits."""

    tokens: nn.Embedding
    places: nn.Embedding
    encoder: nn.TransformerEncoder
    out: nn.Linear

    def __call__(self, text: vf.Array) -> vf.Array:
        """Return the logits of the next characters."""
        x = self.tokens(text) + self.places(jnp.arange(text.shape[-1]))
        return self.out(self.encoder(x, is_causal=True))


def build(key: vf.Array, symbols: int, length: int, width: int) -> Model:
    """Create the model with random weights."""
    tokens, places, encoder, out = random.split(key, 4)
    return Model(
        tokens=nn.Embedding.init(tokens, symbols, width),
        places=nn.Embedding.init(places, length, width),
        encoder=nn.TransformerEncoder.init(encoder, 1, width, 2, 2 * width),
        out=nn.Linear.init(out, width, symbols),
    )


def loss(model: Model, inputs: vf.Array, targets: vf.Array) -> vf.Array:
    """Return the mean cross-entropy."""
    return nn.losses.cross_entropy(model(inputs), targets, axis=-1)


def main() -> tuple[float, float]:
    """Train; return the first loss and the last."""
    windows = data.CharDataset(TEXT, 16, stride=4)
    loader = data.DataLoader(windows, 16, shuffle=True, key=0, drop_last=True)
    model = build(random.key(0), len(windows.vocabulary or ""), 16, 16)
    optimizer = optim.adamw(0.01)
    state = optimizer.init(model)
    step = vf.jit(vf.value_and_grad(loss))
    losses: list[float] = []
    for _ in range(2):
        for inputs, targets in loader:
            value, gradient = step(model, inputs, targets)
            updates, state = optimizer.update(gradient, state, model)
            model = optim.apply_updates(model, updates)
            losses.append(float(value))
    return losses[0], losses[-1]
