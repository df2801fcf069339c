"""Random numbers with a state: a key, and a reference that counts its uses."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.arrays.array import Array
from volta_fn.core.refs import Ref, new_ref
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.random.keys import PRNGKeyArray

__all__ = ["StatefulPRNG", "stateful_rng"]

Size = int | Sequence[int] | None


def stateful_rng(seed: Any = None, *, impl: Any = None) -> StatefulPRNG:
    """Create a generator from a seed (by default one of the operating system's).

    Raises `ArgumentTypeError` without a seed while a function is traced or transformed.

    >>> rng = stateful_rng(0)
    >>> rng.uniform(size=2).round(3), rng.uniform(size=2).round(3)
    (Array([0.842, 0.182], dtype=float32), Array([0.007, 0.021], dtype=float32))
    """
    if seed is None:
        if current_trace() is not EVAL:
            raise ArgumentTypeError("stateful_rng: a traced function has one seed for all calls; pass it, or make the generator outside")
        seed = int(np.random.SeedSequence().generate_state(1, np.uint32)[0]) >> 1
    return StatefulPRNG(random.key(seed, impl=impl), new_ref(vnp.asarray(0)))


@tree.register_dataclass
@dataclass(frozen=True)
class StatefulPRNG:
    """A generator of random numbers, made by `stateful_rng`.

    Each use counts the reference up.

    It works where references do, inside `jit` and `scan`, too; for `vmap`, `split` it.
    """

    _base_key: PRNGKeyArray
    _counter: Ref

    def key(self, shape: int | Sequence[int] = ()) -> PRNGKeyArray:
        """Return a new key, or an array of keys.

        Raises `ArgumentError` for a generator that was split: map over it.
        """
        if self._base_key.shape:
            raise ArgumentError(f"this generator was split to shape {self._base_key.shape}: map over it with volta_fn.vmap")
        key = random.fold_in(self._base_key, self._counter[...])
        self._counter[...] += 1
        return random.split(key, _sizes(shape)) if _sizes(shape) else key

    def random(self, size: Size = None, dtype: Any = float) -> Array:
        """Sample uniformly between 0 and 1."""
        return random.uniform(self.key(), _sizes(size), dtype)

    def uniform(self, low: Any = 0, high: Any = 1, size: Size = None, *, dtype: Any = float) -> Array:
        """Sample uniformly between `low` and `high`."""
        return random.uniform(self.key(), _sizes(size, low, high), dtype, low, high)

    def normal(self, loc: Any = 0, scale: Any = 1, size: Size = None, *, dtype: Any = float) -> Array:
        """Sample normal numbers of mean `loc` and standard deviation `scale`."""
        return (vnp.asarray(loc) + vnp.asarray(scale) * random.normal(self.key(), _sizes(size, loc, scale), dtype)).astype(dtype)

    def integers(self, low: Any, high: Any = None, size: Size = None, *, dtype: Any = int) -> Array:
        """Sample integers from `low` up to `high`, which is excluded.

        Without `high`, they lie between 0 and `low`.
        """
        if high is None:
            low, high = 0, low
        return random.randint(self.key(), _sizes(size, low, high), low, high, dtype)

    def split(self, num: int | Sequence[int]) -> StatefulPRNG:
        """Return independent generators as one with leading dimensions, to map over."""
        return StatefulPRNG(random.split(self.key(), num), new_ref(vnp.zeros(num, "int32")))

    def spawn(self, n_children: int) -> list[StatefulPRNG]:
        """Return independent generators: those that `split` returns as one.

        >>> [round(float(child.uniform()), 3) for child in stateful_rng(0).spawn(2)]
        [0.072, 0.016]
        """
        return [StatefulPRNG(key, new_ref(vnp.asarray(0))) for key in random.split(self.key(), n_children)]


def _sizes(size: Size, *parameters: Any) -> tuple[int, ...]:
    if size is None:
        return np.broadcast_shapes(*map(np.shape, parameters))
    return (operator.index(size),) if isinstance(size, (int, np.integer)) else tuple(map(operator.index, size))
