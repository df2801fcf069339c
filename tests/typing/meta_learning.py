"""Model-agnostic meta-learning of sines with different phases."""

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random


def error(network: nn.MLP, x: vf.Array, y: vf.Array) -> vf.Array:
    """Return the mean square error."""
    return nn.losses.mse_loss(network(x[:, None])[:, 0], y)


def adapted(network: nn.MLP, x: vf.Array, y: vf.Array) -> nn.MLP:
    """Return the network after one step on a task."""
    gradient = vf.grad(error)(network, x, y)

    def descend(parameter: vf.Array, slope: vf.Array) -> vf.Array:
        return parameter - 0.1 * slope

    return vf.tree.map(descend, network, gradient)


def meta_loss(network: nn.MLP, phases: vf.Array, x: vf.Array) -> vf.Array:
    """Return the mean error after adaptation to each task."""

    def of_task(phase: vf.Array) -> vf.Array:
        y = jnp.sin(x + phase)
        return error(adapted(network, x[::2], y[::2]), x[1::2], y[1::2])

    return vf.vmap(of_task)(phases).mean()


def main() -> tuple[float, float]:
    """Train; return the first loss and the last."""
    network = nn.MLP.init(random.key(0), 1, 1, 16, 2, nn.tanh)
    x = jnp.linspace(-3.0, 3.0, 16)
    step = vf.jit(vf.value_and_grad(meta_loss))
    optimizer = optim.adam(0.01)
    state = optimizer.init(network)
    values: list[float] = []
    for key in random.split(random.key(1), 15):
        value, gradient = step(network, random.uniform(key, (4,), maxval=6.28), x)
        updates, state = optimizer.update(gradient, state, network)
        network = optim.apply_updates(network, updates)
        values.append(float(value))
    return values[0], values[-1]
