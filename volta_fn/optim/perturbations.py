"""Differentiable approximations of functions, by random perturbations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.arrays.array import Array
from volta_fn.optim.tree_utils import tree_add_scale, tree_random_like, tree_scale, tree_sum
from volta_fn.primitives.call import stop_gradient
from volta_fn.transforms.vmap import vmap

__all__ = ["Gumbel", "Normal", "make_perturbed_fun"]


class Normal:
    """The standard normal distribution."""

    def sample(self, key: Any, sample_shape: tuple[int, ...] = (), dtype: Any = "float32") -> Array:
        """Return random numbers of a shape."""
        return random.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: Any) -> Array:
        """Return the logarithm of the density, but for a constant."""
        return -0.5 * inputs**2


class Gumbel:
    """The standard Gumbel distribution."""

    def sample(self, key: Any, sample_shape: tuple[int, ...] = (), dtype: Any = "float32") -> Array:
        """Return random numbers of a shape."""
        return random.gumbel(key, sample_shape, dtype)

    def log_prob(self, inputs: Any) -> Array:
        """Return the logarithm of the density."""
        return -inputs - vnp.exp(-inputs)


def make_perturbed_fun(
    fun: Callable[[Any], Any], num_samples: int = 1000, sigma: Any = 0.1, noise: Any = None, use_baseline: bool = True
) -> Callable[[Any, Any], Any]:
    """Return the expectation of ``fun(x + sigma * noise)``, estimated from samples.

    It is smooth even if `fun` is piecewise constant, such as an `argmax`: derivatives of the estimate are unbiased estimates of the
    expectation's, to any order (Berthet et al. 2020; Foerster et al. 2018).

    Args:
        fun: from a tree of arrays to a tree of arrays.
        num_samples: how many.
        sigma: the noise's scale.
        noise: a distribution with ``sample(key, sample_shape, dtype)`` and ``log_prob(inputs)``; by default `Gumbel()`.
        use_baseline: whether derivatives subtract ``fun(x)``, which lowers their variance.

    Returns a function of a random key and x.

    >>> smooth = optim.perturbations.make_perturbed_fun(lambda x: jnp.sign(x), 100, sigma=1.0, noise=optim.perturbations.Normal())
    >>> bool(vf.grad(lambda x: smooth(vf.random.key(0), x))(0.0) > 0)
    True
    """
    source = Gumbel() if noise is None else noise

    def perturbed_value(key: Any, x: Any, baseline: Any) -> Any:
        shifted = stop_gradient(tree_add_scale(x, sigma, tree_random_like(key, x, source.sample)))
        density = tree_sum(tree.map(lambda y, centre: source.log_prob((y - centre) / sigma), shifted, x))
        weight = vnp.exp(density - stop_gradient(density))  # 1, with the derivatives of the density
        value = tree_scale(weight, fun(shifted))
        return tree_add_scale(value, 1 - weight, baseline) if use_baseline else value

    def perturbed(key: Any, x: Any) -> Any:
        baseline = fun(stop_gradient(x)) if use_baseline else None
        values = vmap(lambda k: perturbed_value(k, x, baseline))(random.split(key, num_samples))
        return tree.map(lambda v: vnp.mean(v, 0), values)

    return perturbed
