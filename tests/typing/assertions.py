"""The types that type checkers must see. Run by nothing: Pyright and mypy check the assertions."""

from typing import Any, assert_type

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, lax, nn, optim, random
from volta_fn.experimental.ode import odeint as odeint  # paths that are aliases, or lie in packages that are loaded late
from volta_fn.stages import Compiled as Compiled
from volta_fn.tree_util import tree_map as tree_map

x = jnp.ones((2, 3))
assert_type(x + 1, vf.Array)
assert_type(2.0 * x, vf.Array)
assert_type(x @ x.T, vf.Array)
assert_type(-x, vf.Array)
assert_type(abs(x), vf.Array)
assert_type(x > 0, vf.Array)
assert_type(x == x, vf.Array)
assert_type(x[0, ...], vf.Array)
assert_type(x.sum(), vf.Array)
assert_type(x.reshape(3, 2).astype("int32"), vf.Array)
assert_type(x.at[0].set(1.0), vf.Array)
assert_type(divmod(x, 2), tuple[vf.Array, vf.Array])
assert_type(round(x, 2), vf.Array)
assert_type(list(x), list[vf.Array])
assert_type(jnp.where(x > 0, x, 0), vf.Array)
assert_type(jnp.where(x > 0), tuple[vf.Array, ...])
assert_type(jnp.linspace(0, 1, 5), vf.Array)
assert_type(jnp.linspace(0, 1, retstep=True), tuple[vf.Array, vf.Array])
assert_type(jnp.unique(x), vf.Array)
assert_type(float(x[0, 0]), float)
np.mean(x)
np.testing.assert_allclose(x, 1)


def loss(w: vf.Array, scale: float, *, power: int = 2) -> vf.Array:
    """Return a number."""
    return scale * (w**power).sum()


def with_parts(w: dict[str, vf.Array], scale: float) -> tuple[vf.Array, list[vf.Array]]:
    """Return a number and more."""
    return scale * w["a"].sum(), [w["a"]]


assert_type(vf.jit(loss)(x, 1.0, power=3), vf.Array)
assert_type(vf.jit(loss, static_argnames="power")(x, 1.0), vf.Array)
assert_type(vf.jit(static_argnames="power")(loss)(x, 1.0), vf.Array)
assert_type(vf.jit(loss).cache_info().programs, int)
assert_type(vf.vmap(loss, in_axes=(0, None))(x, 1.0), vf.Array)
assert_type(vf.grad(loss)(x, 1.0), vf.Array)
assert_type(vf.grad(with_parts, has_aux=True)({"a": x}, 1.0), tuple[dict[str, vf.Array], list[vf.Array]])
assert_type(vf.value_and_grad(loss)(x, 1.0), tuple[vf.Array, vf.Array])
assert_type(vf.value_and_grad(with_parts, has_aux=True)({"a": x}, 1.0), tuple[tuple[vf.Array, list[vf.Array]], dict[str, vf.Array]])
assert_type(vf.jvp(loss, (x, 1.0), (x, 1.0)), tuple[vf.Array, vf.Array])
assert_type(vf.vjp(loss, x, 1.0)[0], vf.Array)
assert_type(vf.checkpoint(loss)(x, 1.0), vf.Array)
assert_type(lax.stop_gradient({"a": x}), dict[str, vf.Array])
assert_type(lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), vf.Array)


class Stepper(nn.Module):
    """Jitted methods are methods."""

    @vf.jit
    def step(self, x: vf.Array) -> vf.Array:
        """Return twice the argument."""
        return 2 * x


assert_type(Stepper().step(x), vf.Array)

key = random.key(0)
first, second = random.split(key)
assert_type(first, random.PRNGKeyArray)
linear = nn.Linear.init(key, 3, 2)
assert_type(linear, nn.Linear)
assert_type(linear(x), vf.Array)
assert_type(linear.replace(bias=None), nn.Linear)
assert_type(nn.Sequential.init(linear, nn.relu), nn.Sequential)
assert_type(nn.BatchNorm1d.init(2), tuple[nn.BatchNorm1d, nn.BatchNormState])
assert_type(nn.MLP.init(key, 3, 2, 8, 1), nn.MLP)
assert_type(vf.grad(lambda m: m(x).sum())(linear), Any)
optimizer = optim.adam(0.1)
updates, state = optimizer.update(linear, optimizer.init(linear), linear)
assert_type(optim.apply_updates(linear, updates), nn.Linear)

pairs = data.ArrayDataset(np.ones((4, 2)), np.ones(4))
for inputs, labels in data.DataLoader(pairs, 2, shuffle=True, key=0):
    assert_type(inputs, vf.Array)
    assert_type(labels, vf.Array)
for batch in data.DataLoader(data.ArrayDataset({"a": np.ones(4)}), 2):
    assert_type(batch, dict[str, vf.Array])

assert_type(vf.doctor().healthy, bool)
assert_type(vf.explain(loss)(x, 1.0).seconds, float | None)
assert_type([step.name for step in vf.explain(vf.jit(loss), run=False)(x, 1.0).steps], list[str])
assert_type([difference.primitive for difference in vf.crosscheck(loss)(x, 1.0).differences], list[str])
assert_type([finding.remedy for finding in vf.lint(loss)(x, 1.0).findings], list[str])
with vf.profiler.trace("traces") as recording, vf.profiler.TraceAnnotation("block"), vf.profiler.StepTraceAnnotation("step", step_num=1):
    assert_type([event.seconds for event in recording.events], list[float])
assert_type(vf.profiler.annotate_function(loss)(x, 1.0), vf.Array)
assert_type(vf.profiler.device_memory_profile(), bytes)
with vf.debug.nans(), vf.named_scope("part"):
    assert_type(vf.named_call(loss)(x, 1.0), vf.Array)
