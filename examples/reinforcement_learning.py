"""Learn to balance a pole, environment and learning in one compiled program.

    python examples/reinforcement_learning.py

The environment (Barto, Sutton & Anderson 1983) is a pure function, so that episodes are a `scan`, many of them a `vmap`, and the policy
gradient with a learnt baseline one jitted step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn, optim, random

LENGTH, DISCOUNT = 200, 0.99


class Agent(NamedTuple):
    """The networks: logits of the two actions, and the value of a state."""

    policy: nn.MLP
    value: nn.MLP


def move(state: vf.Array, action: vf.Array) -> vf.Array:
    """Return position, velocity, angle and spin a fiftieth of a second later."""
    _, v, angle, spin = state
    force = jnp.where(action == 1, 10.0, -10.0)
    push = (force + 0.05 * spin**2 * jnp.sin(angle)) / 1.1
    turning = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    pushed = push - 0.05 * turning * jnp.cos(angle) / 1.1
    return state + 0.02 * jnp.stack([v, pushed, spin, turning])


def episode(agent: Agent, key: vf.Array) -> tuple[vf.Array, vf.Array, vf.Array]:
    """Return states, actions, and a mask of the steps before the pole fell."""
    start_key, steps_key = random.split(key)

    def step(carry: tuple[vf.Array, vf.Array], key: vf.Array) -> tuple[Any, Any]:
        state, up = carry
        action = random.categorical(key, agent.policy(state))
        new = move(state, action)
        still = up & (jnp.abs(new[0]) < 2.4) & (jnp.abs(new[2]) < 0.21)
        return (jnp.where(still, new, state), still), (state, action, up)

    start = random.uniform(start_key, (4,), minval=-0.05, maxval=0.05)
    return lax.scan(step, (start, jnp.array(True)), random.split(steps_key, LENGTH))[1]


def loss(agent: Agent, states: vf.Array, actions: vf.Array, up: vf.Array) -> vf.Array:
    """Return the policy gradient's loss with a baseline, for episodes (n, LENGTH, …)."""
    back = lambda later, reward: (reward + DISCOUNT * later, reward + DISCOUNT * later)
    returns = vf.vmap(lambda rewards: lax.scan(back, 0.0, rewards, reverse=True)[1])(up.astype("float32"))
    over = lambda f: vf.vmap(vf.vmap(f))(states)
    value, logits = over(agent.value)[..., 0], over(agent.policy)
    chosen = jnp.take_along_axis(nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    advantage = lax.stop_gradient(returns - value)
    advantage = advantage / (jnp.sqrt(jnp.mean(advantage**2, where=up)) + 1e-6)
    return jnp.mean(-chosen * advantage + 0.005 * (returns - value) ** 2, where=up)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, draw, and return the mean lengths of episodes, first and last."""
    options = common.arguments(__doc__, argv)
    policy_key, value_key, key = random.split(random.key(options.seed), 3)
    network = lambda key, outputs: nn.MLP.init(key, in_size=4, out_size=outputs, width_size=32, depth=1, activation=nn.tanh)
    agent = Agent(network(policy_key, 2), network(value_key, 1))
    optimizer = optim.adam(1e-2)

    @vf.jit
    def step(agent: Agent, moments: Any, key: vf.Array) -> tuple[Agent, Any, vf.Array]:
        states, actions, up = vf.vmap(episode, in_axes=(None, 0))(agent, random.split(key, 32))
        updates, moments = optimizer.update(vf.grad(loss)(agent, states, actions, up), moments, agent)
        return optim.apply_updates(agent, updates), moments, jnp.mean(jnp.sum(up, axis=1))

    moments, lengths = optimizer.init(agent), []
    for number in range(30 if options.quick else 150):
        agent, moments, length = step(agent, moments, random.fold_in(key, number))
        lengths.append(float(length))
    with common.plot(options.out / "reinforcement_learning.png") as axes:
        axes.plot(np.asarray(lengths), label=f"mean length of 32 episodes, of at most {LENGTH}")
        axes.set_xlabel("step")
    print(f"the pole stays up for {lengths[0]:.0f} steps at first, {np.mean(lengths[-5:]):.0f} at last")
    return {"first": lengths[0], "last": float(np.mean(lengths[-5:]))}


if __name__ == "__main__":
    main()
