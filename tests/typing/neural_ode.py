"""A neural ordinary differential equation, trained through a Runge-Kutta solver."""

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn, optim, random


class Field(nn.Module):
    """The vector field."""

    layers: nn.MLP

    @classmethod
    def create(cls, key: vf.Array) -> "Field":
        """Create it with random weights."""
        return cls(nn.MLP.init(key, 2, 2, 16, 1, nn.tanh))

    def __call__(self, y: vf.Array) -> vf.Array:
        """Return the derivative of the state."""
        return self.layers(y)


def solve(field: Field, start: vf.Array, count: int) -> vf.Array:
    """Return the states after each of `count` steps of 0.1."""

    def step(y: vf.Array, _: None) -> tuple[vf.Array, vf.Array]:
        middle = y + 0.05 * field(y)
        y = y + 0.1 * field(middle)
        return y, y

    return lax.scan(step, start, None, count)[1]


def loss(field: Field, start: vf.Array, path: vf.Array) -> vf.Array:
    """Return the mean square error of the path."""
    return ((solve(field, start, len(path)) - path) ** 2).mean()


@vf.jit
def train(field: Field, state: optim.OptState, start: vf.Array, path: vf.Array) -> tuple[Field, optim.OptState, vf.Array]:
    """Make a step of Adam."""
    value, gradient = vf.value_and_grad(loss)(field, start, path)
    updates, state = optim.adam(0.01).update(gradient, state, field)
    return optim.apply_updates(field, updates), state, value


def main() -> list[float]:
    """Learn a rotation; return the losses."""
    times = jnp.arange(1, 11) * 0.1
    path = jnp.stack([jnp.cos(times), -jnp.sin(times)], axis=1)
    field = Field.create(random.key(0))
    state = optim.adam(0.01).init(field)
    losses: list[float] = []
    for _ in range(20):
        field, state, value = train(field, state, jnp.array([1.0, 0.0]), path)
        losses.append(float(value))
    return losses
