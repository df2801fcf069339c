"""Proximal policy optimization of a policy that walks towards the origin."""

from typing import NamedTuple

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn, optim, random


class Agent(nn.Module):
    """A policy over two actions and a value function."""

    policy: nn.MLP
    value: nn.MLP


class Step(NamedTuple):
    """What was seen and done."""

    state: vf.Array
    action: vf.Array
    log_probability: vf.Array
    reward: vf.Array


def rollout(agent: Agent, key: vf.Array, length: int) -> Step:
    """Walk from a random place; each field has a row per step."""

    def act(state: vf.Array, key: vf.Array) -> tuple[vf.Array, Step]:
        logits = nn.log_softmax(agent.policy(state[None]))
        action = random.categorical(key, logits)
        following = state + jnp.where(action == 1, 0.1, -0.1)
        return following, Step(state, action, logits[action], -abs(following))

    start, walk = random.split(key)
    return lax.scan(act, random.uniform(start, (), minval=-1.0), random.split(walk, length))[1]


def loss(agent: Agent, steps: Step, gain: vf.Array) -> tuple[vf.Array, dict[str, vf.Array]]:
    """Return the clipped objective, and how far the policy moved."""
    logits = nn.log_softmax(agent.policy(steps.state[..., None]))
    chosen = jnp.take_along_axis(logits, steps.action[..., None], axis=-1)[..., 0]
    ratio = jnp.exp(chosen - steps.log_probability)
    advantage = gain - lax.stop_gradient(agent.value(steps.state[..., None])[..., 0])
    objective = jnp.minimum(ratio * advantage, ratio.clip(0.8, 1.2) * advantage).mean()
    error = ((agent.value(steps.state[..., None])[..., 0] - gain) ** 2).mean()
    return error - objective, {"ratio": ratio.mean(), "error": error}


def main() -> list[float]:
    """Train; return the mean reward of each round."""
    policy, value = random.split(random.key(0))
    agent = Agent(nn.MLP.init(policy, 1, 2, 16, 1), nn.MLP.init(value, 1, 1, 16, 1))
    optimizer = optim.adam(0.01)
    state = optimizer.init(agent)
    collect = vf.jit(vf.vmap(rollout, in_axes=(None, 0, None)), static_argnums=2)
    gradient = vf.jit(vf.grad(loss, has_aux=True))
    rewards: list[float] = []
    for round_key in random.split(random.key(1), 10):
        steps = collect(agent, random.split(round_key, 32), 10)
        gain = jnp.cumsum(steps.reward[:, ::-1], axis=1)[:, ::-1]
        for _ in range(3):
            grads, report = gradient(agent, steps, gain)
            assert float(report["error"]) >= 0
            updates, state = optimizer.update(grads, state, agent)
            agent = optim.apply_updates(agent, updates)
        rewards.append(float(steps.reward.mean()))
    return rewards
