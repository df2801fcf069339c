"""Weakly typed values in full: eagerly, in programs, under transforms."""

from __future__ import annotations

import copy
import gc

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import lax

X = np.array([0.1, -0.7, 3.0])
S = 0.1  # not a float32


def _scaled(s, x):
    return (1 - s) * 3 * x / s


@vf.custom_jvp
def _custom_jvp(s, x):
    return _scaled(s, x)


_custom_jvp.defjvp(lambda primals, tangents: (_scaled(*primals), tangents[0] * primals[1] + tangents[1] * primals[0]))


@vf.custom_vjp
def _custom_vjp(s, x):
    return _scaled(s, x)


_custom_vjp.defvjp(lambda s, x: (_scaled(s, x), (s, x)), lambda residuals, ct: ((ct * residuals[1]).sum(), ct * residuals[0]))

#: Functions of a Python number and an array that compute `_scaled`.
PROGRAMS = {
    "eager": lambda s, x: (1 - vnp.asarray(s)) * 3 * x / vnp.asarray(s),
    "device_put": lambda s, x: (1 - vf.device_put(s)) * 3 * x / vf.device_put(s, "cpu"),
    "copy": lambda s, x: _scaled(copy.deepcopy(vnp.array(s)), x),
    "jit": vf.jit(_scaled),
    "jit of a weak array": lambda s, x: vf.jit(_scaled)(vnp.asarray(s), x),
    "nested jit": vf.jit(lambda s, x: vf.jit(_scaled)(s * 1, x)),
    "jit with keywords": lambda s, x: vf.jit(lambda x, s: _scaled(s, x))(x, s=s),
    "lowered": lambda s, x: vf.jit(_scaled).lower(s, x).compile()(s, x),
    "closure": lambda s, x: vf.jit(lambda x: _scaled(s, x))(x),
    "vmap": lambda s, x: vf.vmap(_scaled, (None, 0))(s, x),
    "vmap of jit": lambda s, x: vf.vmap(vf.jit(_scaled), (None, 0))(s, x),
    "jit of vmap": vf.jit(vf.vmap(_scaled, (None, 0))),
    "custom_jvp": _custom_jvp,
    "jit of custom_jvp": vf.jit(_custom_jvp),
    "custom_vjp": _custom_vjp,
    "jit of custom_vjp": vf.jit(_custom_vjp),
    "checkpoint": vf.jit(vf.checkpoint(_scaled)),
    "value of jvp": lambda s, x: vf.jvp(_scaled, (s, x), (1.0, np.ones_like(x)))[0],
    "value of vjp": lambda s, x: vf.vjp(_scaled, s, x)[0],
    "value of jit of vjp": vf.jit(lambda s, x: vf.vjp(_scaled, s, x)[0]),
    "value of vjp of jit": lambda s, x: vf.vjp(vf.jit(_scaled), s, x)[0],
    "value of vjp of custom_jvp": lambda s, x: vf.vjp(_custom_jvp, s, x)[0],
    "cond": lambda s, x: lax.cond(True, _scaled, lambda s, x: x, s, x),
    "jit of cond": vf.jit(lambda s, x: lax.cond(True, _scaled, lambda s, x: x, s, x)),
    "jit of cond's closure": vf.jit(lambda s, x: lax.cond(True, lambda x: _scaled(s, x), lambda x: x, x)),
    "scan's carry": lambda s, x: lax.scan(lambda s, x: (s, _scaled(s, x)), s, x)[1],
    "jit of scan's carry": vf.jit(lambda s, x: lax.scan(lambda s, x: (s, _scaled(s, x)), s, x)[1]),
    "scan's closure": vf.jit(lambda s, x: lax.scan(lambda _, x: (None, _scaled(s, x)), None, x)[1]),
    "while_loop": lambda s, x: lax.while_loop(lambda c: c[2] < 1, lambda c: (c[0], _scaled(*c[:2]), c[2] + 1), (s, x, 0))[1],
    "fori_loop": vf.jit(lambda s, x: lax.fori_loop(0, 1, lambda i, c: (c[0], _scaled(*c)), (s, x))[1]),
    "select": vf.jit(lambda s, x: _scaled(vnp.where(x[0] > 9, 2.0, s), x)),
    "broadcast": vf.jit(lambda s, x: _scaled(vnp.full((3,), s), x)),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_numbers_are_those_of_python(program):
    for s in (S, 1 / 3, np.pi):  # the second call finds the program of the first
        got = PROGRAMS[program](s, vnp.asarray(X))
        assert got.dtype == np.float64
        np.testing.assert_allclose(np.asarray(got), _scaled(s, X), rtol=1e-15)


def test_complex_numbers_and_large_integers():
    product = vf.jit(lambda s, x: s * x)
    z = 0.1 + 0.3j
    np.testing.assert_array_equal(np.asarray(product(z, vnp.asarray(X + 0j))), z * (X + 0j))
    np.testing.assert_array_equal(np.asarray(product(z, vnp.asarray(X))), z * X)
    np.testing.assert_array_equal(np.asarray(vf.jit(lambda n, x: n * 1.0 * x)(2**24 + 1, vnp.asarray(X))), (2**24 + 1) * X)
    assert product(1e300, vnp.asarray(X)).tolist() == (1e300 * X).tolist()
    assert vnp.asarray(1e300).item() == np.inf


@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("function", [_scaled, vf.jit(_scaled), vf.checkpoint(_scaled)], ids=["plain", "jit", "checkpoint"])
def test_gradients_pass_through_the_full_number(wrap, function):
    x = vnp.asarray(X)
    value, (by_s, by_x) = wrap(vf.value_and_grad(lambda s, x: function(s, x).sum(), (0, 1)))(S, x)
    assert by_s.dtype == np.float32
    np.testing.assert_allclose(float(value), _scaled(S, X).sum(), rtol=1e-15)
    np.testing.assert_allclose(float(by_s), -3 * X.sum() / S**2, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(by_x), np.full(3, (1 - S) * 3 / S), rtol=1e-15)


def test_programs_of_32_bits_stay_as_they_are():
    lowered = vf.jit(_scaled).lower(S, X.astype(np.float32))
    assert [v.aval.dtype.name for v in lowered.jaxpr.jaxpr.invars] == ["float32", "float32"]
    assert "f64" not in str(lowered.jaxpr)
    weak = vf.jit(lambda s: s * 2)(S)
    assert (weak.dtype, weak.weak_type) == (np.float32, True)
    assert weak.item() == np.float32(S) * np.float32(2)


def test_results_of_32_bits_keep_their_dtype_in_programs_with_64():
    half, product = vf.jit(lambda s, x: (s / 2, s * x))(S, vnp.asarray(X))
    assert (half.dtype, half.weak_type, half.item()) == (np.float32, True, np.float32(S) / np.float32(2))
    assert product.tolist() == (S * X).tolist()


def test_weak_results_that_are_not_of_numbers_alone_are_float32():
    total = vnp.full((3,), S)[0]
    assert total.weak_type
    assert (total * vnp.asarray(X)).tolist() == (float(total) * X).tolist()


def test_arrays_with_a_number_share_their_kernels():
    spec = vnp.full((2, 7, 3), S)._spec
    gc.collect()
    assert vnp.full((2, 7, 3), 0.7)._spec is spec
    assert vnp.ones((2, 7, 3))._spec is not spec


def test_deleted_numbers_are_not_read():
    number = vnp.asarray(S)
    number.delete()
    with pytest.raises(vf.errors.VoltaError):
        number * vnp.asarray(X)


def test_donated_numbers():
    step = vf.jit(lambda s, x: s * x, donate_argnums=(0, 1))
    assert step(S, vnp.asarray(X)).tolist() == (S * X).tolist()
    number = vnp.asarray(S)
    assert step(number, vnp.asarray(X)).tolist() == (S * X).tolist()
    assert number.is_deleted()
