"""Stages of jitted functions: what they tell is what JAX's tell."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentTypeError, TracerError


def staged(ja: Any, xp: Any) -> Any:
    """Return the traced function of a namespace like jax, and arguments."""
    f = ja.jit(lambda x, n, *, b: {"a": x * n + b, "c": x.sum()}, static_argnums=1, donate_argnums=0)
    return f.trace(xp.ones(3), 2, b=np.float32(1.0))


def test_stages_agree_with_jaxs() -> None:
    ours, theirs = staged(vf, vf.numpy), staged(jax, jnp)
    lowered, compiled = ours.lower(), ours.lower().compile()
    for stage, like in ((ours, theirs), (lowered, theirs.lower()), (compiled, theirs.lower().compile())):
        for actual, wanted in zip(jax.tree.leaves(stage.out_info), jax.tree.leaves(like.out_info), strict=True):
            assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype)
        (args, kwargs), (their_args, their_kwargs) = stage.args_info, like.args_info
        assert (args[0].shape, args[0].donated) == (their_args[0].shape, their_args[0].donated) == ((3,), True)
        assert kwargs["b"].donated is their_kwargs["b"].donated is False
        assert stage.donate_argnums == like.donate_argnums
        assert str(stage.out_tree).partition("(")[2] == str(like.out_tree).partition("(")[2]
    assert ours.fun_name == theirs.fun_name
    assert [e.primitive.name for e in ours.jaxpr.eqns] == [e.primitive.name for e in theirs.jaxpr.eqns]
    assert isinstance(ours, vf.stages.Traced)
    assert isinstance(vf.jit(abs), vf.stages.Wrapped)
    x = vf.numpy.arange(3.0)
    result = compiled(x, b=np.float32(2.0))
    assert result["a"].tolist() == [2.0, 4.0, 6.0]
    assert x.is_deleted()


def test_costs() -> None:
    x, w = np.ones((4, 5), np.float32), np.ones((5, 6), np.float32)
    f = lambda x, w: jnp.tanh(x @ w).sum()
    compiled = jax.jit(f).lower(x, w).compile()
    theirs, their_memory = compiled.cost_analysis(), compiled.memory_analysis()
    ours = vf.jit(lambda x, w: vf.numpy.tanh(x @ w).sum()).lower(x, w)
    # JAX counts tanh, a transcendental function, elsewhere.
    assert ours.cost_analysis()["flops"] == pytest.approx(theirs["flops"] + 24, abs=1)
    loop = vf.jit(lambda x: vf.lax.scan(lambda c, _: (c @ c, None), x, None, length=7)[0]).lower(np.ones((3, 3), np.float32))
    assert loop.cost_analysis()["flops"] == 7 * 2 * 27
    memory = ours.compile().memory_analysis()
    assert (memory.argument_size_in_bytes, memory.output_size_in_bytes) == (4 * 50, 4)
    assert memory.peak_memory_in_bytes >= 4 * 50 + 4
    # XLA's temporary memory is its own.
    names = [name for name in dir(their_memory) if name.endswith("_in_bytes") and not name.startswith(("temp", "peak"))]
    assert {name: getattr(memory, name) for name in names} == {name: getattr(their_memory, name) for name in names}


def test_convolutions_cost_their_products() -> None:
    x, w = np.ones((2, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    flops = [ja.jit(lambda x, w: ja.lax.conv(x, w, (1, 1), "VALID")).lower(x, w).cost_analysis()["flops"] for ja in (vf, jax)]
    assert flops[0] == flops[1] == 2 * (2 * 4 * 6 * 6) * 27


def test_compiled_functions_refuse_other_arguments() -> None:
    compiled = vf.jit(lambda x: x + 1.0).lower(vf.ShapeDtypeStruct((3,), "float32")).compile()
    with pytest.raises(ArgumentTypeError, match=r"of other types: args\[0\] is f32\[3\], got f32\[4\]"):
        compiled(np.ones(4, np.float32))
    with pytest.raises(ArgumentTypeError, match=r"of another structure: at args"):
        compiled(np.ones(3, np.float32), 1.0)
    with pytest.raises(TracerError, match="no transform"):
        vf.grad(lambda x: compiled(x).sum())(np.ones(3, np.float32))


def test_the_arguments_that_a_compiled_function_refuses_are_named() -> None:
    tree = lambda size: {"w": [vf.numpy.ones(size), vf.numpy.ones((2, size))]}
    compiled = vf.jit(lambda params, *, scale: params["w"][0] * scale).lower(tree(3), scale=1.0).compile()
    assert compiled(tree(3), scale=2.0).tolist() == [2.0] * 3
    with pytest.raises(
        ArgumentTypeError, match=r"args\[0\]\['w'\]\[0\] is f32\[3\], got f32\[4\], args\[0\]\['w'\]\[1\] is f32\[2,3\], got"
    ):
        compiled(tree(4), scale=2.0)
    with pytest.raises(ArgumentTypeError, match=r"types: kwargs\['scale'\] is f32\[\], got i32\[2\]"):
        compiled(tree(3), scale=np.arange(2, dtype=np.int32))
    with pytest.raises(ArgumentTypeError, match=r"at args\[0\]\['w'\]"):
        compiled({"w": [vf.numpy.ones(3)]}, scale=2.0)


def test_eval_shape_of_a_jitted_function() -> None:
    assert vf.jit(lambda x: x @ x).eval_shape(vf.ShapeDtypeStruct((2, 2), "float16")) == vf.ShapeDtypeStruct((2, 2), "float16")


def test_a_description_is_an_argument_within_eval_shape_alone() -> None:
    struct = vf.ShapeDtypeStruct((30, 3), "float32")
    product = vf.jit(lambda x, y: x @ y.T)
    assert vf.eval_shape(lambda y: product(struct, y), vf.ShapeDtypeStruct((2, 3), "float32")) == vf.ShapeDtypeStruct((30, 2), "float32")
    inner = vf.jit(lambda y: product(struct, y))  # whose program would be kept for calls with numbers
    for call in (inner, vf.jit(inner), lambda y: vf.eval_shape(inner, y), lambda y: product(struct, y)):
        with pytest.raises(ArgumentTypeError, match="ShapeDtypeStruct, which is no array"):
            call(np.ones((2, 3), np.float32))


def test_descriptions_of_arrays() -> None:
    struct = vf.ShapeDtypeStruct.like(np.ones((2, 3), np.int8))
    assert (struct.shape, struct.dtype, len(struct)) == ((2, 3), np.int8, 2)
    assert struct.update(shape=(4,), weak_type=True) == vf.ShapeDtypeStruct((4,), "int8", weak_type=True)
    with pytest.raises(ArgumentTypeError, match="size"):
        struct.update(size=3)


def test_programs_have_jaxs_attributes() -> None:
    ours = vf.make_jaxpr(lambda x: vf.numpy.sin(x) + np.arange(3.0, dtype=np.float32))(1.0)
    assert [np.asarray(c).tolist() for c in ours.literals] == [[0.0, 1.0, 2.0]]
    assert ours.jaxpr.in_avals == ours.in_avals == [vf.typeof(1.0)]
    assert ours.effects == frozenset()
    assert vf.make_jaxpr(lambda x: vf.debug.print("{}", x))(1.0).effects == {"debug_callback"}
    assert ours.eqns[0].primitive is vf.lax.sin_p
    with pytest.raises(AttributeError, match="no primitive 'nothing'"):
        vf.lax.nothing_p
    program = vf.make_jaxpr(lambda x: vf.lax.psum(x, "i"), axis_env=[("i", 4)])(1.0)
    assert program.eqns[0].primitive is vf.lax.psum_p


def test_every_primitive_that_jax_names_likewise_is_found() -> None:
    theirs = {n for n in dir(jax.lax) if n.endswith("_p")}
    result = {n for n in theirs if hasattr(vf.lax, n)}
    assert len(result) >= 110
    assert {"add_p", "mul_p", "dot_general_p", "scan_p", "while_p", "cond_p", "convert_element_type_p", "gather_p"} <= result


def test_the_default_dialect_may_be_named_none() -> None:
    lowered = vf.jit(lambda x: x * 2.0).lower(1.0)
    assert lowered.as_text(dialect=None) == lowered.as_text() == lowered.as_text("jaxpr")
