"""Optimizers as triples of functions, from JAX's `example_libraries`.

An `Optimizer` has ``init_fun(params) -> state``, ``update_fun(step, gradients, state) -> state`` and ``get_params(state) -> params``. A
step size is a number or a schedule, a function of the number of the step.

>>> import volta_fn as vf
>>> from volta_fn.example_libraries import optimizers
>>> init, update, get_params = optimizers.sgd(0.5)
>>> get_params(update(0, {"w": vf.numpy.ones(2)}, init({"w": vf.numpy.zeros(2)})))
{'w': Array([-0.5, -0.5], dtype=float32)}
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ShapeError, TreeError
from volta_fn.tree import leaves as leaves_of

Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class OptimizerState:
    """The states of all parameters, each a list of arrays, and their structures."""

    packed_state: tuple[tuple[Any, ...], ...]
    tree_def: Any
    subtree_defs: tuple[Any, ...]


tree.register_pytree_node(
    OptimizerState,
    lambda state: ((state.packed_state,), (state.tree_def, state.subtree_defs)),
    lambda static, packed: OptimizerState(packed[0], *static),
)


class Optimizer(NamedTuple):
    """Functions that begin, update and read the state of an optimizer."""

    init_fn: Callable[[Any], OptimizerState]
    update_fn: Callable[[Any, Any, OptimizerState], OptimizerState]
    params_fn: Callable[[OptimizerState], Any]


def optimizer(opt_maker: Callable[..., tuple[Any, Any, Any]]) -> Callable[..., Optimizer]:
    """Make an optimizer of pytrees from one that is written for a single array.

    It decorates a function that returns ``(init, update, get_params)``.
    """

    @functools.wraps(opt_maker)
    def make(*args: Any, **kwargs: Any) -> Optimizer:
        init, update, get_params = opt_maker(*args, **kwargs)

        def tree_init(params: Any) -> OptimizerState:
            leaves, structure = tree.flatten(params)
            return _packed([init(vnp.asarray(leaf)) for leaf in leaves], structure)

        def tree_update(i: Any, gradients: Any, state: OptimizerState) -> OptimizerState:
            leaves, structure = tree.flatten(gradients)
            if structure != state.tree_def:
                raise TreeError(f"the gradients have structure {structure}, but the parameters {state.tree_def}")
            new = _packed([update(i, g, s) for g, s in zip(leaves, _states(state), strict=True)], structure)
            if new.subtree_defs != state.subtree_defs:
                raise TreeError(f"an update changed the structure of a state from {state.subtree_defs} to {new.subtree_defs}")
            return new

        return Optimizer(tree_init, tree_update, lambda state: tree.unflatten(state.tree_def, [get_params(s) for s in _states(state)]))

    return make


def _packed(states: list[Any], structure: Any) -> OptimizerState:
    pairs = [tree.flatten(s) for s in states]
    return OptimizerState(tuple([tuple(leaves) for leaves, _ in pairs]), structure, tuple([s for _, s in pairs]))


def _states(state: OptimizerState) -> list[Any]:
    return [tree.unflatten(s, leaves) for s, leaves in zip(state.subtree_defs, state.packed_state, strict=True)]


@optimizer
def sgd(step_size: Any) -> Any:
    """Make gradient descent."""
    size = make_schedule(step_size)
    return (lambda x0: x0), (lambda i, g, x: x - size(i) * g), (lambda x: x)


@optimizer
def momentum(step_size: Any, mass: Any) -> Any:
    """Make gradient descent along a decaying sum of gradients."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - size(i) * velocity, velocity

    return _with_zeros(1), update, _first


@optimizer
def nesterov(step_size: Any, mass: Any) -> Any:
    """Make momentum with a look ahead (Nesterov, 1983)."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - size(i) * (mass * velocity + g), velocity

    return _with_zeros(1), update, _first


@optimizer
def adagrad(step_size: Any, momentum: Any = 0.9) -> Any:
    """Make Adagrad (Duchi et al., 2011) with momentum."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, squares, mean = state
        squares = squares + g * g
        scaled = g * vnp.where(squares > 0, 1.0 / vnp.sqrt(vnp.where(squares > 0, squares, 1.0)), 0.0)
        mean = (1.0 - momentum) * scaled + momentum * mean
        return x - size(i) * mean, squares, mean

    return _with_zeros(2), update, _first


@optimizer
def rmsprop(step_size: Any, gamma: Any = 0.9, eps: Any = 1e-8) -> Any:
    """Make RMSProp (Hinton, 2012)."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean = state
        mean = gamma * mean + (1.0 - gamma) * g * g
        return x - size(i) * g / vnp.sqrt(mean + eps), mean

    return _with_zeros(1), update, _first


@optimizer
def rmsprop_momentum(step_size: Any, gamma: Any = 0.9, eps: Any = 1e-8, momentum: Any = 0.9) -> Any:
    """Make RMSProp with momentum."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, velocity = state
        mean = gamma * mean + (1.0 - gamma) * g * g
        velocity = momentum * velocity + size(i) * g / vnp.sqrt(mean + eps)
        return x - velocity, mean, velocity

    return _with_zeros(2), update, _first


@optimizer
def adam(step_size: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> Any:
    """Make Adam (Kingma and Ba, 2015)."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, square = state
        mean, square = (1 - b1) * g + b1 * mean, (1 - b2) * g * g + b2 * square
        unbiased = mean / (1 - vnp.asarray(b1, mean.dtype) ** (i + 1)), square / (1 - vnp.asarray(b2, mean.dtype) ** (i + 1))
        return x - size(i) * unbiased[0] / (vnp.sqrt(unbiased[1]) + eps), mean, square

    return _with_zeros(2), update, _first


@optimizer
def adamax(step_size: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> Any:
    """Make Adamax, Adam with the infinity norm (Kingma and Ba, 2015)."""
    size = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, largest = state
        mean, largest = (1 - b1) * g + b1 * mean, vnp.maximum(b2 * largest, vnp.abs(g))
        return x - size(i) / (1 - vnp.asarray(b1, mean.dtype) ** (i + 1)) * mean / (largest + eps), mean, largest

    return _with_zeros(2), update, _first


@optimizer
def sm3(step_size: Any, momentum: Any = 0.9) -> Any:
    """Make SM3 (Anil et al., 2019): squares kept per row and column, not per element."""
    size = make_schedule(step_size)

    def init(x0: Any) -> Any:
        return x0, vnp.zeros_like(x0), [vnp.zeros(d, x0.dtype) for d in x0.shape or [()]]

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, squares = state
        axes = range(max(x.ndim, 1))  # a number has one sum, of itself
        wide = [vnp.expand_dims(s, tuple([a for a in axes if a != axis])) for axis, s in enumerate(squares)]
        bound = functools.reduce(vnp.minimum, wide[1:], wide[0]) + g * g
        scaled = g * vnp.where(bound > 0, 1.0 / vnp.sqrt(vnp.where(bound > 0, bound, 1.0)), 0.0)
        mean = (1.0 - momentum) * scaled + momentum * mean
        return x - size(i) * mean, mean, [bound.max(tuple([a for a in axes if a != axis])) for axis in axes]

    return init, update, _first


def _with_zeros(count: int) -> Callable[[Any], Any]:
    """Return the function from an array to it and zeros like it."""
    return lambda x0: (x0, *[vnp.zeros_like(x0) for _ in range(count)])


def _first(state: Any) -> Any:
    return state[0]


def constant(step_size: Any) -> Schedule:
    """Make the schedule of one step size."""
    return lambda i: step_size


def exponential_decay(step_size: Any, decay_steps: Any, decay_rate: Any) -> Schedule:
    """Make the schedule ``step_size * decay_rate ** (i / decay_steps)``."""
    return lambda i: step_size * decay_rate ** (i / decay_steps)


def inverse_time_decay(step_size: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False) -> Schedule:
    """Make the schedule ``step_size / (1 + decay_rate * i / decay_steps)``."""
    if staircase:
        return lambda i: step_size / (1 + decay_rate * vnp.floor(i / decay_steps))
    return lambda i: step_size / (1 + decay_rate * i / decay_steps)


def polynomial_decay(step_size: Any, decay_steps: Any, final_step_size: Any, power: Any = 1.0) -> Schedule:
    """Make the schedule that falls to `final_step_size` in `decay_steps` steps."""

    def schedule(i: Any) -> Any:
        fraction = 1 - vnp.minimum(i, decay_steps) / decay_steps
        return fraction**power * (step_size - final_step_size) + final_step_size

    return schedule


def piecewise_constant(boundaries: Any, values: Any) -> Schedule:
    """Make the schedule of ``values[k]`` after k of the boundaries.

    Raises `ShapeError` unless there is one value more than boundaries.
    """
    limits, sizes = vnp.asarray(boundaries), vnp.asarray(values)
    if limits.ndim != 1 or sizes.ndim != 1 or sizes.size != limits.size + 1:
        raise ShapeError(f"there must be one value more than boundaries, got shapes {sizes.shape} and {limits.shape}")
    return lambda i: sizes[vnp.sum(i > limits)]


def make_schedule(scalar_or_schedule: Any) -> Schedule:
    """Return a schedule, or the schedule of one number."""
    if callable(scalar_or_schedule):
        return scalar_or_schedule
    if vnp.ndim(scalar_or_schedule):
        raise ShapeError(f"a step size is a number or a schedule, got an array of shape {vnp.shape(scalar_or_schedule)}")
    return constant(scalar_or_schedule)


def l2_norm(tree: Any) -> Array:
    """Return the Euclidean norm of all elements of a pytree."""
    return vnp.sqrt(sum(vnp.vdot(x, x) for x in leaves_of(tree)))


def clip_grads(grad_tree: Any, max_norm: Any) -> Any:
    """Scale gradients such that their norm is at most `max_norm`."""
    norm = l2_norm(grad_tree)
    return tree.map(lambda g: vnp.where(norm < max_norm, g, g * (max_norm / norm)), grad_tree)


class JoinPoint:
    """Marks where the state of one parameter begins, in `unpack_optimizer_state`."""

    def __init__(self, subtree: Any) -> None:
        self.subtree = subtree


def unpack_optimizer_state(opt_state: OptimizerState) -> Any:
    """Return the parameters' tree, with a `JoinPoint` of the state for each of them."""
    return tree.unflatten(opt_state.tree_def, [JoinPoint(s) for s in _states(opt_state)])


def pack_optimizer_state(marked_pytree: Any) -> OptimizerState:
    """Undo `unpack_optimizer_state`."""
    sentinels, structure = tree.flatten(marked_pytree)
    if not all(isinstance(s, JoinPoint) for s in sentinels):
        raise TreeError("pack_optimizer_state takes a tree of JoinPoint, which unpack_optimizer_state returns")
    return _packed([s.subtree for s in sentinels], structure)
