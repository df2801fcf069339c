"""Transforms of jitted functions: one program each, with the same results."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import dtypes, tree
from volta_fn.errors import GradientError, ShapeError
from volta_fn.jit.function import PjitFunction

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)


def smooth(x: Any) -> Any:
    return jnp.sin(x) * x


def total(x: Any) -> Any:
    return (jnp.sin(x) * x).sum()


def pulled(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: (lambda pair: (pair[0], pair[1](pair[0])))(vf.vjp(f, x))


#: Each transform, a function to transform, and the argument.
TRANSFORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]] = {
    "vmap": (vf.vmap, total, X),
    "vmap of columns": (lambda f: vf.vmap(f, in_axes=(1,), out_axes=0), total, X),
    "grad": (vf.grad, total, X),
    "value_and_grad": (vf.value_and_grad, total, X),
    "jacfwd": (vf.jacfwd, smooth, X[0]),
    "jacrev": (vf.jacrev, smooth, X[0]),
    "hessian": (vf.hessian, total, X[0]),
    "jvp": (lambda f: lambda x: vf.jvp(f, (x,), (2 * x,)), smooth, X),
    "vjp": (pulled, smooth, X),
    "vmap of grad": (lambda f: vf.vmap(vf.grad(f)), total, X),
    "grad of vmap": (lambda f: vf.grad(lambda x: vf.vmap(f)(x).sum()), total, X),
    "grad of grad": (lambda f: vf.grad(lambda x: vf.grad(f)(x).sum()), total, X),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_results_are_those_of_the_transform_of_the_plain_function(name: str) -> None:
    transform, function, x = TRANSFORMS[name]
    actual, expected = transform(vf.jit(function))(x), transform(function)(x)
    tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6), actual, expected)


def test_the_class_has_the_name_by_which_libraries_know_it() -> None:
    """Chex and Haiku refuse to wrap jitted functions: they look for the name in the text of the class."""
    assert type(vf.jit(abs)).__name__ == type(jax.jit(abs)).__name__
    assert "PjitFunction" in str(type(vf.jit(abs)))


@pytest.mark.parametrize("name", ["vmap", "grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "vmap of grad"])
def test_a_transform_is_one_program_from_its_first_call(name: str) -> None:
    transform, function, x = TRANSFORMS[name]
    transformed = transform(vf.jit(function))
    assert isinstance(transformed, PjitFunction)
    transformed(x)
    assert transformed.cache_info() == (1, 1)
    assert tree.map(lambda s: s.shape, transformed.lower(x).out_info) == tree.map(lambda a: a.shape, transform(function)(x))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_second_transform_traces_nothing(name: str) -> None:
    transform, function, x = TRANSFORMS[name]
    traces: list[None] = []
    jitted = vf.jit(lambda x: (traces.append(None), function(x))[1])
    transform(jitted)(x)
    assert len(traces) == 1
    transform(jitted)(x)
    assert len(traces) == 1


def test_transforms_with_other_settings_are_others() -> None:
    f = vf.jit(lambda x, y: (x * y).sum())
    x, y = X[0], X[1]
    np.testing.assert_array_equal(vf.grad(f)(x, y), y)
    np.testing.assert_array_equal(vf.grad(f, 1)(x, y), x)
    np.testing.assert_array_equal(vf.grad(f, True)(x, y), x)  # True is 1
    assert [g.shape for g in vf.grad(f, (0, 1))(x, y)] == [(4,), (4,)]
    assert vf.vmap(f, in_axes=(0, None))(X, y).shape == (3,)
    assert vf.vmap(f, in_axes=[None, 0])(x, X).shape == (3,)


def test_static_arguments_stay_static() -> None:
    power = vf.jit(lambda x, n: sum(x**k for k in range(n)), static_argnums=1)
    np.testing.assert_allclose(vf.grad(power)(2.0, 4), 1 + 2 * 2 + 3 * 4)
    np.testing.assert_allclose(vf.grad(power)(2.0, n=3), 1 + 2 * 2)
    np.testing.assert_allclose(vf.vmap(power, in_axes=(0, None))(np.float32([1, 2]), 3), [3, 7])


def test_a_transform_donates_nothing() -> None:
    x = jnp.asarray(X)
    f = vf.jit(total, donate_argnums=0)
    vf.grad(f)(x)
    np.testing.assert_array_equal(x, X)
    f(x)
    assert x.is_deleted()


def test_auxiliary_results_integers_and_empty_tangents() -> None:
    f = vf.jit(lambda x: (x.sum(), {"count": jnp.sum(x > 0)}))
    (_, aux), gradient = vf.value_and_grad(f, has_aux=True)(X)
    assert (int(aux["count"]), gradient.shape) == (int((X > 0).sum()), X.shape)
    both = vf.jit(lambda x, n: (x * n, n + 1))
    zero = np.zeros((), dtypes.float0)
    (value, count), (tangent, empty) = vf.jvp(both, (3.0, 2), (1.0, zero))
    assert (float(value), int(count), float(tangent), empty.dtype) == (6, 3, 2, dtypes.float0)
    (_, count), (tangent, empty) = vf.jvp(vf.jit(lambda x: (x * 2, jnp.int32(4))), (3.0,), (1.0,))
    assert (int(count), float(tangent), empty.dtype, empty.shape) == (4, 2, dtypes.float0, ())
    assert vf.grad(vf.jit(lambda n: n * 2.0), allow_int=True)(3).dtype == dtypes.float0


def test_vector_jacobian_products_of_integers_trees_and_under_jit() -> None:
    f = vf.jit(lambda p, n: {"y": p["w"] * n})
    value, pull_back = vf.vjp(f, {"w": 3.0}, 2)
    cotangent, empty = pull_back({"y": 1.0})
    assert (float(value["y"]), float(cotangent["w"]), empty.dtype) == (6, 2, dtypes.float0)
    value, pull_back = vf.vjp(vf.jit(smooth), X)
    again = vf.jit(lambda function, ct: function(ct))(pull_back, X)
    np.testing.assert_array_equal(pull_back(X)[0], again[0])
    np.testing.assert_allclose(vf.vmap(pull_back)(jnp.stack([X, 2 * X]))[0][1], 2 * again[0], rtol=1e-6)
    with pytest.raises(ShapeError, match="cotangent has shape"):
        pull_back(X[0])


def test_errors_are_those_of_the_transform() -> None:
    with pytest.raises(GradientError, match="scalar result"):
        vf.grad(vf.jit(smooth))(X)
    with pytest.raises(GradientError, match="floating dtype"):
        vf.grad(vf.jit(total))(np.arange(3))


def test_programs_of_derivative_rules_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a jitted function called in a lambda is compiled, too."""
    f = vf.jit(total)
    compiled: list[Any] = []
    backend = type(vf.devices()[0].backend)
    real = backend.compile
    monkeypatch.setattr(backend, "compile", lambda self, *args: (compiled.append(args[0]), real(self, *args))[1])
    np.testing.assert_allclose(vf.vmap(lambda x: f(x) + 1)(X), np.sum(np.sin(X) * X, 1) + 1, rtol=1e-6)
    assert len(compiled) == 1
    vf.vmap(lambda x: f(x) + 1)(X)
    assert len(compiled) == 1


def test_collectives_of_a_mapped_axis() -> None:
    f = vf.jit(lambda x: x / vf.lax.psum(x, "i"))
    np.testing.assert_allclose(vf.vmap(f, axis_name="i")(X[0]), X[0] / X[0].sum(), rtol=1e-5)


def test_jax_agrees() -> None:
    result = vf.hessian(vf.jit(lambda x: jnp.prod(jnp.cos(x))))(X[1])
    np.testing.assert_allclose(result, jax.hessian(jax.jit(lambda x: jax.numpy.prod(jax.numpy.cos(x))))(X[1]), rtol=1e-4, atol=1e-6)


@vf.jit
def doubled(x: Any) -> Any:
    return 2 * x


@vf.tree.register_dataclass
@dataclass
class Scale:
    factor: Any

    @vf.jit
    def apply(self, x: Any) -> Any:
        return self.factor * x


def test_a_jitted_function_is_printed_with_its_programs() -> None:
    f = vf.jit(total)
    f.clear_cache()
    assert repr(f) == "<jit of total: 0 programs>"
    f(X)
    assert repr(f) == "<jit of total: 1 program>"
    f(X[0])
    assert (repr(f), f.__name__, f.__wrapped__) == ("<jit of total: 2 programs>", "total", total)
    f.clear_cache()
    assert repr(f) == "<jit of total: 0 programs>"


def test_a_jitted_function_can_be_a_method_and_be_copied_and_pickled() -> None:
    np.testing.assert_array_equal(Scale(3.0).apply(X), 3 * X)
    assert isinstance(Scale.apply, PjitFunction)
    assert copy.deepcopy(doubled) is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled
