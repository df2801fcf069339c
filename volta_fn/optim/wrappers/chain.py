"""Composition of transformations."""

from __future__ import annotations

from typing import Any

from volta_fn.errors import ArgumentError, TreeError
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, OptState, with_extra_args_support

__all__ = ["chain", "named_chain"]


def chain(*args: GradientTransformation) -> GradientTransformationExtraArgs:
    """Apply transformations one after another; the state is the tuple of their states.

    All of them get the extra arguments of `update`.

    >>> optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(0.1))
    >>> params = vf.numpy.zeros(2)
    >>> updates, state = optimizer.update(vf.numpy.array([3.0, 4.0]), optimizer.init(params), params)
    >>> updates.round(3)
    Array([-0.06, -0.08], dtype=float32)

    Raises `ArgumentTypeError` for an argument that is no transformation, `TreeError` for the state of another chain.
    """
    transforms = [with_extra_args_support(tx) for tx in args]

    def init(params: Any) -> OptState:
        return tuple(tx.init(params) for tx in transforms)

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        if not isinstance(state, (tuple, list)) or len(state) != len(transforms):
            raise TreeError(
                f"chain: the state must be a tuple of {len(transforms)}, one for each transformation, got {type(state).__name__}"
                f"{f' of {len(state)}' if isinstance(state, (tuple, list)) else ''}; pass the one that init or the last update returned"
            )
        states = []
        for tx, inner_state in zip(transforms, state, strict=True):
            updates, inner_state = tx.update(updates, inner_state, params, **extra_args)
            states.append(inner_state)
        return updates, tuple(states)

    return GradientTransformationExtraArgs(init, update)


def named_chain(*args: tuple[str, GradientTransformation]) -> GradientTransformationExtraArgs:
    """Apply named transformations like `chain`; the state is a dict by name.

    >>> optim.named_chain(("clip", optim.clip(1.0)), ("descend", optim.scale(-0.1))).init(None)
    {'clip': EmptyState(), 'descend': EmptyState()}

    Raises `ArgumentError` for names that are not unique.
    """
    names = [name for name, _ in args]
    if len(set(names)) != len(names):
        raise ArgumentError(f"named_chain: names must be unique, got {names}")
    inner = chain(*(tx for _, tx in args))

    def init(params: Any) -> OptState:
        return dict(zip(names, inner.init(params), strict=True))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        if not isinstance(state, dict) or set(state) != set(names):
            raise TreeError(f"named_chain: the state must be a dict with keys {names}; pass the one that init or the last update returned")
        updates, states = inner.update(updates, tuple(state[name] for name in names), params, **extra_args)
        return updates, dict(zip(names, states, strict=True))

    return GradientTransformationExtraArgs(init, update)
