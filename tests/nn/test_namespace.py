"""The public names of nn: all those of jax.nn but for those listed here, each documented."""

from __future__ import annotations

import inspect

import pytest

from volta_fn import nn

#: JAX's names that are not here: products of matrices of 8-bit floats with a scale for each block, dtypes that no array here has.
MISSING = {"get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"}


def public(module: object) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_") and not inspect.ismodule(getattr(module, name))}


def test_jaxs_names_are_here() -> None:
    jax = pytest.importorskip("jax")
    assert public(jax.nn) - public(nn) <= MISSING
    assert public(jax.nn.initializers) - {"Initializer"} <= public(nn.initializers)


def test_public_names_are_documented() -> None:
    names = public(nn)
    assert len(names) >= 130
    assert not [name for name in names if not inspect.getdoc(getattr(nn, name))]
