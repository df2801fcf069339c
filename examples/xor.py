"""Learn the exclusive or of two bits, save the network, load it, and use it again.

python examples/xor.py
"""

from __future__ import annotations

from collections.abc import Sequence

import common

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import io, nn, optim, random

BITS = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]], "float32")
XOR = jnp.array([0, 1, 1, 0], "float32")


class MLP(nn.Module):
    """Two inputs, some hidden features, and the logit of the answer."""

    hidden: nn.Linear
    out: nn.Linear

    def __call__(self, x: vf.Array) -> vf.Array:
        """Return the logits of the rows of `x`."""
        return self.out(nn.tanh(self.hidden(x)))[:, 0]


def build(key: vf.Array) -> MLP:
    """Create a network with random weights."""
    first, second = random.split(key)
    return MLP(hidden=nn.Linear.init(first, 2, 8), out=nn.Linear.init(second, 8, 1))


@vf.jit
def wrong(model: MLP) -> vf.Array:
    """Return the loss over all four pairs of bits."""
    return nn.losses.binary_cross_entropy_with_logits(model(BITS), XOR)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, save, load, and return loss and accuracy of the loaded network."""
    options = common.arguments(__doc__, argv)
    trained_key, other_key = random.split(random.key(options.seed))
    model, optimizer = build(trained_key), optim.adam(0.05)
    moments = optimizer.init(model)

    @vf.jit
    def step(model: MLP, moments: optim.OptState) -> tuple[MLP, optim.OptState]:
        updates, moments = optimizer.update(vf.grad(wrong)(model), moments, model)
        return optim.apply_updates(model, updates), moments

    for number in range(300):
        if number % 60 == 0:
            print(f"step {number:3}: loss {float(wrong(model)):.4f}")
        model, moments = step(model, moments)

    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "xor.safetensors"
    io.save_safetensors(path, model, {"trained on": "the exclusive or"})
    loaded = io.load_state_dict(build(other_key), io.load_safetensors(path))
    answers = jnp.where(loaded(BITS) > 0, 1, 0)
    for bits, answer in zip(BITS.astype(int), answers.tolist(), strict=True):
        print(f"{bits[0]} xor {bits[1]} = {answer}")
    print(f"as the network in {path} says: {', '.join(io.state_dict(loaded))}")
    return {"loss": float(wrong(loaded)), "accuracy": float(jnp.mean(answers == XOR))}


if __name__ == "__main__":
    main()
