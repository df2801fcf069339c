"""Primitives of users under every transform, with rules in JAX's form."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import errors
from volta_fn.compat import internals
from volta_fn.core.aval import ShapedArray
from volta_fn.extend import interpreters, primitives
from volta_fn.extend.core import Primitive

jnp = vf.numpy


def multiply_add(name: str) -> Primitive:
    """Return x y + z as a primitive with every rule, as JAX's tutorial defines it."""
    p = Primitive(name)
    p.def_impl(lambda x, y, z: x * y + z)
    p.def_abstract_eval(lambda x, y, z: ShapedArray(x.shape, x.dtype))

    def jvp(primals, tangents):
        x, y, z = primals
        dx, dy, dz = map(interpreters.instantiate_zeros, tangents)
        return p.bind(x, y, z), p.bind(dx, y, p.bind(x, dy, dz))

    def transpose(ct, x, y, z):
        if not interpreters.is_undefined_primal(x):
            return None, p.bind(x, ct, jnp.zeros_like(ct)), ct
        return p.bind(ct, y, jnp.zeros_like(ct)), None, ct

    interpreters.primitive_jvps[p] = jvp
    interpreters.primitive_transposes[p] = transpose
    interpreters.primitive_batchers[p] = lambda args, dims: (
        p.bind(*[interpreters.bdim_at_front(a, d, 3) for a, d in zip(args, dims, strict=True)]),
        0,
    )
    interpreters.register_lowering(p, interpreters.lower_fun(lambda x, y, z: x * y + z, multiple_results=False))
    return p


madd = multiply_add("madd")


def f(x, y):
    return madd.bind(x, y, madd.bind(y, y, x))


def plain(x, y):
    return x * y + (y * y + x)


@pytest.mark.parametrize("transform", [
    lambda f: f, vf.jit, lambda f: vf.grad(f, (0, 1)), lambda f: vf.jit(vf.grad(f, (0, 1))), lambda f: vf.hessian(f),
    lambda f: lambda x, y: vf.jvp(f, (x, y), (1.0, 2.0)), lambda f: vf.jit(lambda x, y: vf.lax.cond(x > 0, f, lambda x, y: x, x, y)),
], ids=["eager", "jit", "grad", "jit of grad", "hessian", "jvp", "in a branch"])  # fmt: skip
def test_the_primitive_is_the_function_that_it_stands_for(transform) -> None:
    actual, wanted = (transform(g)(2.0, 3.0) for g in (f, plain))
    assert [float(x) for x in vf.tree.leaves(actual)] == [float(x) for x in vf.tree.leaves(wanted)]


def test_batching_and_loops() -> None:
    x, y = jnp.arange(3.0), jnp.arange(3.0) + 1
    assert vf.vmap(f)(x, y).tolist() == vf.jit(vf.vmap(f))(x, y).tolist() == plain(x, y).tolist()
    assert vf.vmap(f, in_axes=(0, None))(x, jnp.float32(2.0)).tolist() == plain(x, 2.0).tolist()
    looped = vf.jit(lambda x: vf.lax.fori_loop(0, 4, lambda i, c: madd.bind(c, jnp.float32(2), jnp.float32(1)), x))
    assert float(looped(1.0)) == 31.0


def test_programs_name_the_primitive_and_params_may_be_of_any_kind() -> None:
    p = Primitive("scaled")
    p.def_impl(lambda x, *, by: x * by[0])
    p.def_abstract_eval(lambda x, *, by: x)
    program = vf.make_jaxpr(lambda x: p.bind(x, by=[3.0]))(jnp.ones(2))
    assert [e.primitive for e in program.eqns] == [p] and program.eqns[0].params == {"by": [3.0]}
    assert vf.jit(lambda x: p.bind(x, by=[3.0]))(jnp.ones(2)).tolist() == p.bind(jnp.ones(2), by=[3.0]).tolist() == [3, 3]


def test_several_results_callbacks_and_missing_rules() -> None:
    p = Primitive("split")
    p.multiple_results = True
    p.def_abstract_eval(lambda x: [x, x])
    interpreters.register_lowering(
        p,
        lambda ctx, x: interpreters.emit_python_callback(
            ctx, lambda v: (np.floor(v), v - np.floor(v)), None, [x], ctx.avals_in, ctx.avals_out
        )[0],
    )
    assert [float(v) for v in vf.jit(p.bind)(2.5)] == [2.0, 0.5]
    with pytest.raises(NotImplementedError, match="split has no such rule"):
        p.bind(2.5)
    with pytest.raises(errors.GradientError, match="split has no derivative"):
        vf.grad(lambda x: p.bind(x)[0])(2.5)


def test_the_lowering_rule_may_be_the_function_on_arrays() -> None:
    """`def_impl(partial(apply_primitive, p))` is how libraries that lower to C define their primitives."""
    p = Primitive("minus_and_plus")
    p.multiple_results = True
    p.def_impl(functools.partial(interpreters.apply_primitive, p))
    p.def_abstract_eval(lambda x, *, by: [x, x])
    with pytest.raises(NotImplementedError, match="'minus_and_plus' not found"):
        p.bind(jnp.ones(2), by=1)
    with pytest.raises(NotImplementedError, match="'minus_and_plus' not found"):
        vf.jit(lambda x: p.bind(x, by=1))(jnp.ones(2))
    interpreters.register_lowering(p, interpreters.lower_fun(lambda x, *, by: [x - by, x + by]), platform="cpu")
    for call in (p.bind, functools.partial(internals.apply_primitive, p), vf.jit(p.bind, static_argnames="by")):
        assert [out.tolist() for out in call(np.ones(2, np.float32), by=1)] == [[0, 0], [2, 2]]
    one = Primitive("plus")
    one.def_impl(functools.partial(interpreters.apply_primitive, one))
    one.def_abstract_eval(lambda x: x)
    interpreters.register_lowering(one, interpreters.lower_fun(lambda x: x + 1, multiple_results=False))
    assert float(one.bind(1.0)) == float(vf.jit(one.bind)(1.0)) == 2


def test_rules_of_mlir_are_refused() -> None:
    p = Primitive("of_mlir")
    p.def_abstract_eval(lambda x: x)
    interpreters.register_lowering(p, lambda ctx, x: interpreters.hlo.AddOp(x, x).results)
    with pytest.raises(errors.LoweringError, match="AddOp"):
        vf.jit(p.bind)(1.0)
    with pytest.raises(errors.LoweringError, match="primitive of volta_fn"):
        interpreters.register_lowering(primitives.add_p, lambda ctx, x: x)


def test_private_functions_define_linear_and_elementwise_primitives() -> None:
    cube = Primitive("cube")
    cube.def_impl(lambda x: x**3)
    cube.def_abstract_eval(lambda x: x)
    interpreters.defjvp(cube, lambda t, x: 3 * x**2 * t)
    interpreters.defvectorized(cube)
    assert vf.vmap(vf.grad(cube.bind))(jnp.arange(3.0)).tolist() == [0, 3, 12]
    half = Primitive("half")
    half.def_impl(lambda x: x / 2)
    half.def_abstract_eval(lambda x: x)
    interpreters.deflinear(half, lambda ct: [half.bind(ct)])
    assert float(vf.grad(half.bind)(3.0)) == 0.5 and float(vf.jit(vf.grad(lambda x: half.bind(x) ** 2))(3.0)) == 1.5


def test_primitives_of_the_package_have_jaxs_names_and_can_be_bound() -> None:
    assert isinstance(primitives.add_p, Primitive) and float(primitives.add_p.bind(1.0, 2.0)) == 3.0
    assert primitives.add_p in interpreters.primitive_jvps and primitives.add_p in interpreters.primitive_batchers
    assert primitives.exp_p in [e.primitive for e in vf.make_jaxpr(jnp.exp)(1.0).eqns]
    assert primitives.while_p.name == "while_loop" or primitives.while_p.name == "while"
    assert float(primitives.tanh_p.bind(0.5)) == pytest.approx(np.tanh(0.5), rel=1e-6)
    with pytest.raises(AttributeError):
        _ = primitives.nonsense_p


@pytest.mark.parametrize("name", "axis args dims primals tangents cotangent cotangents primitive prim t out x".split())
def test_parameters_may_have_any_name(name: str) -> None:
    """The names of parameters are a user's own: none is that of an argument on the way to the user's rules."""
    linear, general = Primitive("linear"), Primitive("general")
    for p in (linear, general):
        p.def_impl(lambda x, /, **params: params[name] * x)
        p.def_abstract_eval(lambda x, /, **params: x)
        interpreters.defvectorized(p)
    interpreters.deflinear(linear, lambda g, /, **params: [linear.bind(g, **params)])
    interpreters.defjvp(general, lambda g, x, /, **params: linear.bind(g, **params))
    interpreters.primitive_batchers[linear] = lambda args, dims, /, **params: (linear.bind(*args, **params), dims[0])
    for p in (linear, general):
        f = lambda x, p=p: p.bind(x, **{name: 3.0})
        assert vf.jit(vf.vmap(vf.grad(f)))(jnp.ones(2)).tolist() == [3.0, 3.0]
        assert vf.jvp(f, (1.0,), (2.0,))[1] == 6.0


def test_primitives_hold_attributes_of_libraries() -> None:
    jax_core = pytest.importorskip("jax.extend.core")
    for kind in (Primitive, jax_core.Primitive):
        p = kind("with_attributes")
        p.is_high = lambda *_: True
        p.note = "of a library"
        assert p.is_high() and p.note == "of a library" and not hasattr(kind("another"), "note")
        del p.note
        assert not hasattr(p, "note")


def test_a_transpose_rule_may_call_another_with_operands_of_its_own():
    """As Equinox's primitives do: their rule for stacked operands transposes one row by the rule of the first primitive."""
    double = Primitive("double_row")
    double.def_impl(lambda x: 2 * x)
    double.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
    interpreters.primitive_transposes[double] = lambda ct, x: [2 * ct] if interpreters.is_undefined_primal(x) else [None]
    rows = Primitive("double_rows")
    rows.def_impl(lambda x: 2 * x)
    rows.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))

    def transpose(ct, x):
        row = interpreters.UndefinedPrimal(ShapedArray(x.aval.shape[1:], x.aval.dtype))
        return [vf.vmap(lambda c: interpreters.primitive_transposes[double](c, row)[0])(ct)]

    interpreters.primitive_transposes[rows] = transpose
    x = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(vf.linear_transpose(rows.bind, x)(x)[0], 2 * np.arange(6.0).reshape(3, 2))
    with pytest.raises(errors.GradientError, match="not linear in an array of type f32"):
        jnp.sin(interpreters.UndefinedPrimal(x.aval))
