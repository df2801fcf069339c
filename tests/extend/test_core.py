"""Programs, traces and wrapped functions by JAX's names."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import monitoring
from volta_fn.core import staging
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.extend import core, dtypes, functions, linear_util, primitives
from volta_fn.extend import interpreters as pe

jnp = vf.numpy


def test_an_interpreter_written_for_jax_runs() -> None:
    """Run the interpreter of JAX's tutorial, which inverts a function."""
    inverse = {"exp": jnp.log, "tanh": jnp.arctanh, "log": jnp.exp, "neg": lambda x: -x}
    closed = vf.make_jaxpr(lambda x: jnp.exp(-jnp.log(x)))(2.0)
    env = dict(zip(closed.jaxpr.outvars, [jnp.float32(0.25)], strict=True))
    for eqn in closed.jaxpr.eqns[::-1]:
        (value,) = [env[v] for v in eqn.outvars]
        env[eqn.invars[0]] = inverse[eqn.primitive.name](value)
    assert float(env[closed.jaxpr.invars[0]]) == pytest.approx(4.0, rel=1e-6)


class Traced(core.Tracer):
    """A value of `Logging`, as libraries with an interpreter of their own define them."""

    __slots__ = ("value",)

    def __init__(self, trace, value):
        self._trace = trace
        self.value = value

    @property
    def aval(self):
        return core.get_aval(self.value)


class Logging(core.Trace):
    """Writes down the primitives that it passes on."""

    def __init__(self, parent, names):
        super().__init__()
        self.outer = parent
        self.names = names

    def process_primitive(self, primitive, tracers, params):
        self.names.append(primitive.name)
        values = [t.value if isinstance(t, Traced) and t._trace is self else t for t in tracers]
        with core.set_current_trace(self.outer):
            result = primitive.bind(*values, **primitive.get_bind_params(params))
        return [Traced(self, r) for r in result] if primitive.multiple_results else Traced(self, result)


def logged(function):
    def call(*args):
        names: list[str] = []
        with core.take_current_trace() as parent:
            trace = Logging(parent, names)
            with core.set_current_trace(trace):
                result = function(*[Traced(trace, a) for a in args])
        return trace.full_raise(result).value, names

    return call


def test_libraries_have_traces_of_their_own() -> None:
    x = jnp.arange(1.0, 4.0)
    value, names = logged(lambda x: jnp.sum(jnp.sin(x) * x))(x)
    np.testing.assert_allclose(value, np.sum(np.sin(x) * np.asarray(x)), rtol=1e-6)
    assert names == ["sin", "mul", "reduce_sum"]
    assert logged(lambda x: vf.jit(jnp.cos)(x) * vf.nn.relu(x))(x)[1][-1] == "mul"
    function = lambda x: logged(lambda x: jnp.sum(jnp.sin(x) * x))(x)[0]
    expected = np.cos(x) * np.asarray(x) + np.sin(x)
    np.testing.assert_allclose(vf.grad(function)(x), expected, rtol=1e-6)
    np.testing.assert_allclose(vf.jit(vf.grad(function))(x), expected, rtol=1e-6)
    trace = Logging(None, [])
    assert trace.is_valid()
    trace.invalidate()
    assert not trace.is_valid()


@pytest.mark.parametrize("symbolic_zeros", [False, True])
def test_interpreters_process_functions_with_derivative_rules(symbolic_zeros: bool) -> None:
    calls: list[bool] = []

    class Transforming(Logging):
        """Doubles the results of functions with rules, and their tangents."""

        def process_custom_jvp_call(self, primitive, fun, jvp, tracers, *, symbolic_zeros):
            calls.append(symbolic_zeros)
            double = linear_util.transformation(self.doubled)
            values = [t.value if isinstance(t, Traced) else t for t in tracers]
            params = {"subfuns": (double(fun), double(jvp)), "symbolic_zeros": symbolic_zeros}
            with core.set_current_trace(self.outer):
                return [Traced(self, r) for r in primitive.bind_with_trace(self.outer, values, (), params)]

        def doubled(self, *args):
            outs = yield args, {}
            yield [2.0 * instantiated(out) for out in outs]

    def instantiated(out):
        return jnp.zeros(out.shape, out.dtype) if isinstance(out, vf.custom_derivatives.SymbolicZero) else out

    @vf.custom_jvp
    def product(x, y):
        return x * y, x

    @functools.partial(product.defjvp, symbolic_zeros=symbolic_zeros)
    def _(primals, tangents):
        assert (type(tangents[1]) is vf.custom_derivatives.SymbolicZero) == symbolic_zeros
        (x, y), t = primals, tangents[0]
        return (x * y, x), (10.0 * t * y, t)

    def function(x):
        with core.take_current_trace() as parent:
            trace = Transforming(parent, [])
            with core.set_current_trace(trace):
                result, same = product(Traced(trace, x), Traced(trace, jnp.float32(3.0)))
        return result.value + same.value

    x = jnp.float32(5.0)
    assert float(function(x)) == float(vf.jit(function)(x)) == 40
    assert float(vf.grad(function)(x)) == float(vf.jit(vf.grad(function))(x)) == 62
    assert float(vf.jvp(function, (x,), (x,))[1]) == 310 and set(calls) == {symbolic_zeros}


def test_interpreters_read_whether_a_call_is_inlined() -> None:
    options = []

    class Reading(Logging):
        def process_primitive(self, primitive, tracers, params):
            if primitive.name == "jit":
                options.append(params["inline"])
            return super().process_primitive(primitive, tracers, params)

    with core.take_current_trace() as parent:
        trace = Reading(parent, [])
        with core.set_current_trace(trace):
            result = vf.jit(jnp.cos)(Traced(trace, jnp.float32(0.5)))
    np.testing.assert_allclose(result.value, np.cos(0.5), rtol=1e-6)
    assert options == [False]


def test_interpreters_see_roundings_as_one_primitive() -> None:
    round_p, methods = primitives.round_p, []

    class Rounding(Logging):
        def process_primitive(self, primitive, tracers, params):
            if primitive is round_p:
                methods.append(params["rounding_method"])
            return super().process_primitive(primitive, tracers, params)

    x = np.array([-1.5, -0.5, 0.5, 2.5], np.float32)
    with core.take_current_trace() as parent:
        trace = Rounding(parent, [])
        with core.set_current_trace(trace):
            even, away = jnp.rint(Traced(trace, jnp.asarray(x))), vf.lax.round(Traced(trace, jnp.asarray(x)))
    np.testing.assert_array_equal(even.value, np.rint(x))
    np.testing.assert_array_equal(away.value, [-2, -1, 1, 3])
    assert methods == [1, 0]


def test_evaluation_and_rebuilding_of_programs() -> None:
    closed = vf.make_jaxpr(lambda x, y: (x * y, x + jnp.arange(3.0)))(1.0, 2.0)
    first, second = core.eval_jaxpr(closed.jaxpr, closed.literals, 3.0, 4.0)
    assert float(first) == 12 and second.tolist() == core.jaxpr_as_fun(closed)(3.0, 4.0)[1].tolist() == [3, 4, 5]
    outs = [eqn.primitive.bind(2.0, 5.0, **eqn.primitive.get_bind_params(eqn.params)) for eqn in closed.eqns[:1]]
    assert float(outs[0]) == 10
    pruned, used = pe.dce_jaxpr(closed.jaxpr, [False, True])
    assert used == [True, False] and len(pruned.eqns) < len(closed.eqns)


def test_avals() -> None:
    aval = core.ShapedArray([2, 3], jnp.float32)
    assert aval is core.ShapedArray((2, 3), np.dtype("float32")) and aval.to_tangent_aval() is aval
    assert core.mapped_aval(2, 0, aval).shape == (3,) and core.unmapped_aval(4, 1, aval).shape == (2, 4, 3)
    assert core.get_aval(1.5).weak_type and core.valid_jaxtype(1.0) and not core.valid_jaxtype("a")


def test_the_current_trace_is_recognised() -> None:
    outside = core.get_opaque_trace_state()
    seen = []

    def f(x):
        seen.append((core.get_opaque_trace_state(), core.trace_state_clean(), core.unsafe_am_i_under_a_jit_DO_NOT_USE()))
        with core.eval_context():
            seen.append(jnp.arange(2) + 1)
        return x

    vf.jit(f)(1.0)
    assert seen[0][0] != outside == core.get_opaque_trace_state() and seen[0][1:] == (False, True)
    assert core.trace_state_clean() and seen[1].tolist() == [1, 2]


def test_known_values_are_computed_at_once_and_tracers_traced() -> None:
    @vf.jit
    def f(x):
        with staging.ensure_compile_time_eval():
            count, doubled = int(jnp.arange(3).sum()), 2 * x
        return doubled + count

    assert float(f(2.0)) == 7.0


def test_wrapped_functions_and_partial_evaluation() -> None:
    def fun(tree, y):
        return {"known": tree["a"] * 2, "unknown": tree["a"] + y}

    args = ({"a": jnp.float32(3)}, jnp.float32(4))
    leaves, structure = vf.tree.flatten(args)
    flat, out_tree = functions.flatten_fun_nokwargs(functions.wrap_init(fun), structure)
    pvals = [pe.PartialVal.known(leaves[0]), pe.PartialVal.unknown(core.get_aval(leaves[1]))]
    jaxpr, output, consts = pe.trace_to_jaxpr_nounits(flat, pvals)
    result = vf.tree.unflatten(out_tree(), output)
    assert float(result["known"].get_known()) == 6 and not result["unknown"].is_known()
    assert float(core.eval_jaxpr(jaxpr, consts, 4.0)[0]) == 7


def test_transformations_of_wrapped_functions() -> None:
    @functions.transformation
    def doubled(*args):
        yield (yield [2 * a for a in args], {}) + 1

    @functions.transformation_with_aux2
    def counted(f, store, label, *args):
        store.store((label, len(args)))
        return f(*args)

    function, aux = counted(doubled(functions.wrap_init(lambda x, y: x * y)), "args")
    with pytest.raises(functions.StoreException):
        aux()
    assert function.call_wrapped(3, 4) == 49 and aux() == ("args", 2)


def test_dtypes() -> None:
    key = vf.random.key(0)
    assert dtypes.issubdtype(key.dtype, dtypes.prng_key) and not dtypes.issubdtype(np.float32, dtypes.prng_key)
    assert dtypes.issubdtype(np.floating, np.inexact) and dtypes.issubdtype("bfloat16", np.floating)
    assert dtypes.scalar_type_of(np.uint8(1)) is int and dtypes.itemsize_bits("int4") == 4


def test_listeners_hear_events() -> None:
    heard: list[tuple] = []
    listener = lambda event, seconds, **metadata: heard.append((event, seconds, metadata))
    monitoring.register_event_duration_secs_listener(listener)
    monitoring.record_event_duration_secs("/compile", 0.5, kind="a")
    monitoring.unregister_event_duration_listener(listener)
    monitoring.record_event_duration_secs("/compile", 1.0)
    assert heard == [("/compile", 0.5, {"kind": "a"})]


def test_a_primitive_runs_under_the_trace_that_it_is_given() -> None:
    names: list[str] = []
    with core.take_current_trace() as parent:
        trace = Logging(parent, names)
    (add,) = [eqn.primitive for eqn in vf.make_jaxpr(jnp.add)(1.0, 2.0).eqns]
    assert float(add.bind_with_trace(trace, [jnp.float32(1), jnp.float32(2)], None, {}).value) == 3.0
    assert names == [add.name]


def test_a_tracer_holds_the_type_that_a_librarys_class_passes_on() -> None:
    class Holder(core.Tracer):
        def __init__(self, trace, value):
            super().__init__(trace, core.get_aval(value))
            self.value = value

    holder = Holder(core.Trace(), jnp.ones((2, 3), "int32"))
    assert holder.shape == (2, 3) and holder.dtype == np.int32 and holder.value.shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("cos", {"accuracy": None}),
        ("convert_element_type", {"new_dtype": np.dtype("int32"), "weak_type": False, "sharding": None}),
        ("reduce_sum", {"axes": (0,), "out_sharding": None}),
        ("reshape", {"new_sizes": (4,), "dimensions": None, "sharding": None}),
        ("broadcast_in_dim", {"shape": (3, 2, 2), "broadcast_dimensions": (1, 2), "sharding": None}),
        ("svd", {"full_matrices": False, "compute_uv": False, "subset_by_index": None, "algorithm": None}),
    ],
)
def test_primitives_take_the_choices_of_jax(name: str, params: dict[str, Any]) -> None:
    x = np.float32([[1, 2], [3, 4]])
    primitives = importlib.import_module("jax.lax.linalg" if name == "svd" else "jax.lax")
    theirs = jax.tree.leaves(getattr(primitives, f"{name}_p").bind(x, **params))
    for apply in (lambda p: p.bind(x, **params), lambda p: vf.jit(lambda x: p.bind(x, **params))(x)):
        for a, b in zip(vf.tree.leaves(apply(PRIMITIVES[name])), theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
