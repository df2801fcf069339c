"""jit: caching, static and donated arguments, nesting, `lower`, messages."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, tree
from volta_fn.core.arrays.array import ConcreteArray
from volta_fn.core.trace import Tracer
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcretizationError,
    DeviceError,
    DonatedBufferError,
    LeakedTracerError,
    TracerBoolError,
    TracerError,
    TracerIndexError,
    UnhashableStaticError,
)
from volta_fn.jit import cache
from volta_fn.jit.cache import generate_match as generate


def counted(function: Any) -> tuple[Any, list[Any]]:
    """`function`, and the list that grows by an entry with each trace."""
    traces: list[Any] = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        traces.append(None)
        return function(*args, **kwargs)

    return counting, traces


# Caching.


def test_each_structure_is_learnt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that matchers are generated once, for four structures at most."""
    generated: list[Any] = []
    monkeypatch.setattr(cache, "generate_match", lambda treedef, args: (generated.append(treedef), generate(treedef, args))[1])
    total = vf.jit(lambda leaves: sum(tree.leaves(leaves)))
    trees: list[Any] = [OrderedDict(a=jnp.ones(2), b=jnp.ones(2)), *[[jnp.ones(2)] * count for count in range(2, 8)]]
    for _ in range(4):
        for leaves in trees:
            np.testing.assert_array_equal(total(leaves), [len(leaves)] * 2)
    assert len(generated) == len(set(generated)) == 4


@pytest.mark.wide
def test_one_trace_per_structure_shapes_dtypes_and_weak_type() -> None:
    function, traces = counted(lambda p: vf.tree.map(lambda x: x * 2, p))
    f = vf.jit(function)
    seen = 0
    for value in (
        jnp.ones(2),
        jnp.ones(3),
        jnp.ones(2, "float64"),
        1.0,
        np.float32(1.0),
        1,
        True,
        (jnp.ones(2),),
        [jnp.ones(2)],
        {"a": jnp.ones(2)},
        {"b": jnp.ones(2)},
        None,
        (jnp.ones(2), None),
    ):
        for _ in range(3):
            f(value)
        seen += 1
        assert len(traces) == seen, f"traced again (or not at all) for {value!r}"
    assert f.cache_info() == (seen, seen)
    f.clear_cache()
    assert f.cache_info().programs == 0
    f(1.0)
    assert len(traces) == seen + 1


def test_equal_types_share_a_program_however_they_are_given() -> None:
    function, traces = counted(lambda x, y: x + y)
    f = vf.jit(function)
    for x in (np.ones(2, np.float32), jnp.ones(2), np.arange(2, dtype=np.float32)):
        f(x, 1.0)
    assert len(traces) == 1
    f(x, y=1.0)
    f(y=1.0, x=x)
    f(x=x, y=2.0)
    assert len(traces) == 3  # one for each way of passing


def test_keywords_defaults_and_variadic_arguments() -> None:
    f = vf.jit(lambda x, *rest, scale=2.0, **named: x * scale + sum(rest) + named.get("extra", 0))
    assert float(f(1.0)) == 2.0
    assert float(f(1.0, 10.0, 20.0, scale=3.0, extra=100)) == 133.0


# Static arguments.


@pytest.mark.parametrize(
    "options", [{"static_argnums": 1}, {"static_argnames": "n"}, {"static_argnums": (-2,)}, {"static_argnames": ["n"]}]
)
def test_static_arguments_passed_either_way(options: dict[str, Any]) -> None:
    function, traces = counted(lambda x, n, y: x**n * y)
    named = lambda x, n, y: function(x, n, y)
    f = vf.jit(named, **options)
    assert float(f(2.0, 3, 1.0)) == 8.0
    assert float(f(2.0, n=3, y=1.0)) == 8.0
    assert float(f(2.0, 2, 1.0)) == 4.0
    count = len(traces)
    assert float(f(3.0, 2, 1.0)) == 9.0
    assert len(traces) == count == 3


def test_static_values_of_different_types_differ() -> None:
    f = vf.jit(lambda x, n: f"{type(n).__name__}" and x * n, static_argnums=1)
    assert f(2, 1).dtype == jnp.int32
    assert f(2, 1.0).dtype == jnp.float32
    assert vf.jit(lambda flag, x: x if flag else -x, static_argnums=0)(False, 2.0) == -2.0
    g = vf.jit(lambda x, n: x * n[0][0], static_argnums=1, static_argnames="n")
    for scale in ([2], (2,)), ([2.5], (2.5,)), ([True], (True,)):
        for _ in range(2):
            assert g(jnp.arange(2), (scale[1],)).dtype == g(jnp.arange(2), n=(scale[1],)).dtype == (jnp.arange(2) * scale[0][0]).dtype
    zero: Any
    for zero in (0.0, -0.0, np.float32(0.0), np.float32(-0.0)):
        for h in (vf.jit(lambda x, n: x * n, static_argnums=1), g):
            assert np.signbit(np.asarray(h(jnp.float32(1), ((zero,),) if h is g else zero))) == np.signbit(zero)


def test_decorator_with_options() -> None:
    @vf.jit(static_argnames=("n",), inline=True)
    def f(x: Any, n: int = 3) -> Any:
        return sum(x for _ in range(n))

    assert (float(f(1.0)), float(f(1.0, n=2)), float(f(1.0, 5))) == (3.0, 2.0, 5.0)
    assert f.__name__ == "f"


def test_mistakes_in_options_are_explained() -> None:
    f = vf.jit(lambda x, n: x, static_argnums=1)
    with pytest.raises(UnhashableStaticError, match=r"static argument .* of <lambda> is \[1\] of type list.*tuple"):
        f(1.0, [1])
    with pytest.raises(UnhashableStaticError):
        f(1.0, n={})
    with pytest.raises(ArgumentError, match="static_argnums=2 is out of range.*takes 2"):
        vf.jit(lambda x, n: x, static_argnums=2)
    for option in ("static_argnames", "donate_argnames"):
        with pytest.raises(ArgumentError, match=rf"{option}: <lambda> has no arguments \['m'\]: name some of \['x', 'n'\]"):
            vf.jit(lambda x, *, n: x, **{option: ("n", "m")})
        vf.jit(lambda x, **others: x, **{option: "m"})
    with pytest.raises(ArgumentError, match="both static and donated"):
        vf.jit(lambda x, n: x, static_argnums=1, donate_argnames="n")
    with pytest.raises(ArgumentTypeError, match="jit transforms a function"):
        vf.jit(3)
    with pytest.raises(ArgumentTypeError, match="must return arrays.*'a' of type str"):
        vf.jit(lambda x: (x, "a"))(1.0)
    with pytest.raises(ArgumentTypeError, match="must return arrays.*of type ShapeDtypeStruct"):
        vf.jit(lambda x: (x, vf.ShapeDtypeStruct((), "float32")))(1.0)
    with pytest.raises(ArgumentTypeError, match=r'the argument x is .text.*static_argnames="x"'):
        vf.jit(lambda x: x)("text")


def test_messages_name_arguments_after_static_ones() -> None:
    truncated = vf.jit(lambda n, x, y: int(y) * x, static_argnums=0)
    with pytest.raises(ArgumentTypeError, match=r'the argument y is .text.*static_argnames="y"'):
        truncated(1, 2.0, "text")
    with pytest.raises(ConcretizationError, match="argument y"):
        truncated(1, 2.0, 3.0)
    with pytest.raises(ConcretizationError, match="argument y"):
        truncated(x=2.0, n=1, y=3.0)


# Donation.


def address(x: Any) -> int:
    return np.asarray(x).__array_interface__["data"][0]


def fresh(shape: Any = (1000,)) -> vf.Array:
    """Return an array without other references."""
    return jnp.asarray(np.arange(float(np.prod(shape))).reshape(shape))


@pytest.mark.usefixtures("on_cpu")  # addresses
def test_donation_reuses_the_memory() -> None:
    for options in ({"donate_argnums": 0}, {"donate_argnames": "x"}, {"donate_argnums": (-2,)}):
        f = vf.jit(lambda x, y: x * 2.0 + y, **options)
        x = fresh()
        before = address(x)
        out = f(x, 1.0)
        assert address(out) == before
        assert x.is_deleted()
        np.testing.assert_array_equal(out, np.arange(1000.0) * 2 + 1)
        with pytest.raises(DonatedBufferError, match="was donated to a jitted function"):
            x + 1
        with pytest.raises(DonatedBufferError):
            np.asarray(x)
        with pytest.raises(DonatedBufferError):
            f(x, 1.0)
        assert "deleted" in repr(x)


@pytest.mark.usefixtures("on_cpu")  # addresses
def test_donated_trees_and_keywords() -> None:
    f = vf.jit(lambda params, grads: vf.tree.map(lambda p, g: p - 0.5 * g, params, grads), donate_argnums=0)
    params, grads = {"w": fresh(), "b": fresh((3,))}, {"w": fresh(), "b": fresh((3,))}
    addresses = vf.tree.map(address, params)
    out = f(params, grads)
    assert vf.tree.map(address, out) == addresses
    assert not grads["w"].is_deleted()
    x = fresh()
    before = address(x)
    named = vf.jit(lambda y, x: x + y, donate_argnames="x")
    assert address(named(1.0, x=x)) == before


@pytest.mark.wide
def test_memory_that_others_see_is_never_overwritten() -> None:
    f = vf.jit(lambda x: x + 1.0, donate_argnums=0)
    x = fresh()
    view = np.asarray(x)
    copy = view.copy()
    out = f(x)
    np.testing.assert_array_equal(view, copy)
    assert address(out) != view.__array_interface__["data"][0]
    square = fresh((4, 4))
    transposed = square.T
    f(square)
    np.testing.assert_array_equal(transposed, np.arange(16.0).reshape(4, 4).T)
    base = fresh((4, 4))
    out = f(base.T)
    np.testing.assert_array_equal(base, np.arange(16.0).reshape(4, 4))
    both = vf.jit(lambda x, y: (x + 1.0, y * 2.0), donate_argnums=(0, 1))
    same = fresh((5,))
    first, second = both(same, same)
    np.testing.assert_array_equal(first, np.arange(5.0) + 1)
    np.testing.assert_array_equal(second, np.arange(5.0) * 2)
    one = vf.jit(lambda x, y: (x + 1.0) * y, donate_argnums=0)
    same = fresh((5,))
    np.testing.assert_array_equal(one(same, same), (np.arange(5.0) + 1) * np.arange(5.0))
    alias = vf.jit(lambda x: x)(same := fresh((5,)))
    np.testing.assert_array_equal(one(same, alias), (np.arange(5.0) + 1) * np.arange(5.0))
    np.testing.assert_array_equal(alias, np.arange(5.0))


@pytest.mark.usefixtures("on_cpu")  # addresses
def test_donated_memory_is_reused_though_another_array_is_passed_twice() -> None:
    f = vf.jit(lambda x, y, z: x * y + z, donate_argnums=0)
    x, y = fresh(), fresh()
    before = address(x)
    assert address(f(x, y, y)) == before
    with pytest.raises(DonatedBufferError):
        f(x, x, y)


@pytest.mark.wide
def test_donated_arguments_that_are_returned_or_read_later() -> None:
    f = vf.jit(lambda x: (x, x + 1.0, x), donate_argnums=0)
    first, second, third = f(fresh((5,)))
    np.testing.assert_array_equal(first, np.arange(5.0))
    np.testing.assert_array_equal(second, np.arange(5.0) + 1)
    np.testing.assert_array_equal(third, np.arange(5.0))
    g = vf.jit(lambda x: (x + 1.0) * jnp.flip(x), donate_argnums=0)
    np.testing.assert_array_equal(g(fresh((5,))), (np.arange(5.0) + 1) * np.arange(5.0)[::-1])
    h = vf.jit(lambda x: jnp.concatenate([x.T.reshape(-1), (x * 2).reshape(-1)]), donate_argnums=0)
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(h(fresh((2, 3))), np.concatenate([a.T.ravel(), 2 * a.ravel()]))


@pytest.mark.wide
def test_numpy_arguments_and_constants_survive_donation() -> None:
    f = vf.jit(lambda x: x + 1.0, donate_argnums=0)
    x = np.zeros(3)
    f(x)
    f(x)
    np.testing.assert_array_equal(x, np.zeros(3))
    table = fresh((3,))
    g = vf.jit(lambda x: (table + x, table), donate_argnums=0)
    for _ in range(2):
        total, retained = g(fresh((3,)))
        np.testing.assert_array_equal(total, np.arange(3.0) * 2)
        np.testing.assert_array_equal(retained, np.arange(3.0))
    np.testing.assert_array_equal(table, np.arange(3.0))


# A result that is (a view of) an argument, a constant or another result.


@pytest.mark.wide
def test_results_that_share_memory_are_safe_to_donate() -> None:
    twice = vf.jit(lambda x: (x, x))
    first, second = twice(fresh((3,)))
    vf.jit(lambda x: x + 1.0, donate_argnums=0)(first)
    np.testing.assert_array_equal(second, np.arange(3.0))
    x = fresh((3,))
    alias = vf.jit(lambda x: x)(x)
    vf.jit(lambda x: x + 1.0, donate_argnums=0)(alias)
    np.testing.assert_array_equal(x, np.arange(3.0))
    constant = vf.jit(lambda: jnp.asarray(np.arange(3.0)))
    vf.jit(lambda x: x + 1.0, donate_argnums=0)(constant())
    np.testing.assert_array_equal(constant(), np.arange(3.0))


# Nesting.


@pytest.mark.wide
def test_jit_inside_everything() -> None:
    f = vf.jit(lambda x, y: jnp.sin(x) * y)
    x = np.array([0.3, 0.7])
    np.testing.assert_allclose(vf.jit(lambda x: f(f(x, x), x))(x), np.sin(np.sin(x) * x) * x)
    np.testing.assert_allclose(vf.vmap(f, (0, None))(x, 2.0), np.sin(x) * 2)
    np.testing.assert_allclose(vf.vmap(vf.grad(f, 1))(x, x), np.sin(x))
    np.testing.assert_allclose(vf.jit(vf.vmap(vf.jit(vf.grad(f))))(x, x), np.cos(x) * x)
    np.testing.assert_allclose(vf.grad(lambda y: vf.jit(lambda x: f(x, y))(0.5))(2.0), np.sin(0.5), rtol=1e-6)
    np.testing.assert_allclose(lax.scan(lambda c, r: (f(c, r), None), 1.0, x)[0], np.sin(np.sin(1.0) * 0.3) * 0.7, rtol=1e-6)


def test_a_nested_jit_is_traced_once() -> None:
    function, traces = counted(lambda x: jnp.sin(x))
    f = vf.jit(function)
    vf.jit(lambda x: f(x) + f(x) + f(f(x)))(1.0)
    vf.jit(lambda x: f(x))(1.0)
    vf.grad(f)(1.0)
    assert len(traces) <= 2  # the weakly typed input is the only one but for results


@pytest.mark.wide
def test_closing_over_arrays_and_tracers() -> None:
    w = jnp.arange(3.0)
    assert float(vf.jit(lambda x: jnp.sum(w * x))(2.0)) == 6.0
    outer = lambda x: vf.jit(lambda: x * x)() + vf.jit(lambda y: y * x)(3.0)
    assert float(vf.grad(outer)(2.0)) == 7.0
    assert float(vf.jit(outer)(2.0)) == 10.0
    np.testing.assert_array_equal(vf.vmap(outer)(np.array([1.0, 2.0])), [4.0, 10.0])


# What `lower` shows.


def test_lowering() -> None:
    f = vf.jit(lambda p, n: {"y": p["x"] * 2.0 + n}, static_argnums=1)
    lowered = f.lower({"x": vf.ShapeDtypeStruct((3,), "float32")}, 4)
    vf.check_jaxpr(lowered.jaxpr)
    assert (
        lowered.as_text()
        == """\
{ lambda ; a:f32[3]. let
    b:f32[3] = mul a 2.0:f32[]
    c:f32[3] = add b 4.0:f32[]
  in (c,) }"""
    )
    assert lowered.out_info == {"y": vf.ShapeDtypeStruct((3,), "float32")}
    assert [s.eqn.primitive.name for s in lowered.numpy_plan.steps] == ["mul", "add"]
    np.testing.assert_array_equal(lowered.compile()({"x": np.ones(3, np.float32)})["y"], [6.0] * 3)
    assert f.cache_info().programs == 0


@pytest.mark.wide
def test_a_compiled_function_checks_its_arguments() -> None:
    run = vf.jit(lambda x: x * 2.0).lower(jnp.ones(3)).compile()
    for bad in (jnp.ones(4), jnp.ones(3, "float64"), (jnp.ones(3),)):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            run(bad)
    for transform in (vf.jit, vf.vmap, lambda f: lambda x: vf.jvp(f, (x,), (x,))):
        with pytest.raises(TracerError, match="was lowered and compiled, so no transform can see into it"):
            transform(lambda x: run(x) + 1.0)(jnp.ones((3, 3))[0] if transform is not vf.vmap else jnp.ones((3, 3)))


# Values that a traced function cannot have.


@pytest.mark.parametrize(
    ("use", "error", "remedy"),
    [
        (lambda x: x if x else -x, TracerBoolError, "lax.cond"),
        (lambda x: x and 1, TracerBoolError, "lax.cond"),
        (lambda x: [1, 2][x.astype(int)], TracerIndexError, "static_argnums"),
        (lambda x: range(x.astype(int)), TracerIndexError, "lax.fori_loop"),
        (lambda x: jnp.zeros(x.astype(int)), ConcretizationError, "static_argnums"),
        (lambda x: float(x), ConcretizationError, r"x\.astype\(float\)"),
        (lambda x: int(x), ConcretizationError, r"x\.astype\(int\)"),
        (lambda x: complex(x), ConcretizationError, r"x\.astype\(complex\)"),
        (lambda x: np.asarray(x), ConcretizationError, "pure_callback"),
        (lambda x: np.sin(x), ConcretizationError, "volta_fn.numpy"),
        (lambda x: x.item(), ConcretizationError, "Return the array"),
        (lambda x: x.tolist(), ConcretizationError, "Return the array"),
        (lambda x: f"{x:.3f}", ConcretizationError, "debug.print"),
    ],
)
def test_reading_a_traced_value_names_argument_function_and_remedy(use: Any, error: type[Exception], remedy: str) -> None:
    def traced_function(argument: Any) -> Any:
        return use(argument)

    with pytest.raises(error, match=f"(?s)'traced_function'.*{remedy}") as caught:
        vf.jit(traced_function)(1.5)
    assert "argument argument" in str(caught.value) or "the result of `convert_element_type`" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_leaked_tracers_name_function_creation_and_use() -> None:
    leaks: list[Any] = []

    def careless(x: Any) -> Any:
        leaks.append(jnp.sin(x))
        return x

    created = careless.__code__.co_firstlineno + 1
    vf.jit(careless)(1.0)
    jitted = vf.jit(lambda x: x)
    jitted(jnp.ones(()))
    for use in (
        lambda: leaks[0] + 1,
        lambda: vf.jit(lambda: leaks[0] * 2)(),
        lambda: vf.vmap(lambda x: x + leaks[0])(jnp.ones(2)),
        lambda: jitted(leaks[0]),
        lambda: vf.jit(jnp.add)(1.0, leaks[0]),
    ):
        with pytest.raises(LeakedTracerError, match=rf"(?s)of 'careless'.*result of `sin` at .*test_function.py:{created} ") as caught:
            use()
        assert caught.value.location.lineno == use.__code__.co_firstlineno
        assert f"test_function.py:{use.__code__.co_firstlineno}" in str(caught.value)


def test_an_exception_while_tracing_leaves_no_trace_current() -> None:
    def failing(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        vf.jit(failing)(1.0)
    assert isinstance(jnp.ones(2) + 1, ConcreteArray)
    assert vf.jit(failing).cache_info().programs == 0


def test_results_are_like_eager_ones() -> None:
    x = jnp.arange(3.0)
    value = vf.jit(lambda x: (x.sum(), 2, None, (x,)))(x)
    assert type(value[0]) is ConcreteArray
    assert value[0].shape == ()
    assert value[1].weak_type
    assert value[2] is None
    assert vf.jit(lambda: 1.0)().weak_type
    assert vf.jit(lambda x: x * 2)(1.0).weak_type


@pytest.mark.parametrize("zero", [0.0, 0j])
def test_static_zeros_of_both_signs_have_programs_of_their_own(zero):
    signed = vf.jit(lambda x, z: x * z, static_argnums=1)
    for _ in range(2):
        for sign in (1, -1):
            got = np.asarray(signed(jnp.ones(2), sign * zero if sign > 0 else -zero))
            np.testing.assert_array_equal(np.signbit(got.real), np.signbit((np.ones(2) * (zero if sign > 0 else -zero)).real))
    assert signed.cache_info().programs == 2


def test_names_and_positions_may_differ() -> None:
    seen: list[tuple[bool, bool]] = []
    is_traced = lambda x, y: seen.append((isinstance(x, Tracer), isinstance(y, Tracer))) or 1
    by_position = vf.jit(is_traced, static_argnums=1, static_argnames=())
    by_name = vf.jit(is_traced, static_argnums=(), static_argnames="y")
    by_position(2, "text"), by_position(2, y=3), by_name(2, 3), by_name(2, y="text")
    assert seen == [(True, False), (True, True), (True, True), (True, False)]


def test_names_of_arguments_that_have_none() -> None:
    def f(a: Any, /, b: Any, *args: Any, **kwargs: Any) -> Any:
        return b

    assert vf.jit(f, static_argnames=("b", "other"))(1, b=2, other="text") == 2
    for option in ("static_argnames", "donate_argnames"):
        for name in ("a", "args"):
            with pytest.raises(ArgumentError, match="by position only"):
                vf.jit(f, **{option: name})
    with pytest.raises(ArgumentError, match="donate_argnums instead"):
        vf.jit(_NoSignature(), donate_argnames="x")


class _NoSignature:
    @property
    def __signature__(self) -> Any:
        raise TypeError

    def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("follow_wrapped", [True, False])
def test_the_signature_is_the_functions(follow_wrapped: bool) -> None:
    def power(x: Any, *, exponent: int = 2) -> Any:
        return x**exponent

    for function in (vf.jit(power), vf.jit(vf.jit(power)), vf.jit(power, static_argnames="exponent")):
        assert inspect.signature(function, follow_wrapped=follow_wrapped) == inspect.signature(power)
    assert "options" in inspect.signature(type(vf.jit(power))).parameters


@pytest.mark.parametrize("name", ["device", "backend"])
def test_devices_that_do_not_exist(name: str) -> None:
    with pytest.raises(DeviceError, match="Unknown backend 'cuda'") as listed:
        vf.devices("cuda")
    for decorate in (lambda **options: vf.jit(jnp.sin, **options), vf.jit):
        with pytest.raises(DeviceError) as raised:
            decorate(**{name: "cuda"})
        assert raised.value.message == listed.value.message


def test_devices_that_exist() -> None:
    for options in ({"device": "cpu"}, {"device": "cpu:0"}, {"device": vf.devices("cpu")[0]}, {"backend": "cpu"}):
        assert vf.jit(lambda x: 2 * x, **options)(2.0) == 4.0
        assert vf.jit(**options)(lambda x: 2 * x)(2.0) == 4.0
    with pytest.raises(ArgumentError, match="either a device or a backend"):
        vf.jit(jnp.sin, device="cpu", backend="cpu")


def _shown(x: Any) -> Any:
    vf.debug.print("x = {}", x)
    return x * 2


def _unused_branch(x: Any) -> Any:
    lax.cond(x > 1, _shown, lambda x: x, x)
    return x * 3


def _unused_call(x: Any) -> Any:
    lax.cond(x > 1, lambda: vf.experimental.io_callback(lambda x: print(f"x = {x}") or x, x, x), lambda: x)
    return x * 3


@pytest.mark.parametrize(
    ("function", "lines"),
    [
        (_unused_branch, 1),
        (_unused_call, 1),
        (lambda x: (lax.cond(x > 1, lambda x: vf.debug.print("x = {}", x), lambda x: None, x), x * 3)[1], 1),
        (lambda x: (lax.switch(x.astype(int), [lambda x: x, _shown, lambda x: x], x), x * 3)[1], 1),
        (lambda x: lax.cond(x > 0, _unused_branch, lambda x: x, x), 1),
        (lambda x: lax.scan(lambda c, _: (c, lax.cond(x > 1, _shown, lambda x: x, c)), x, None, length=2)[0] * 3, 2),
        (lambda x: (lax.fori_loop(0, 2, lambda i, c: _shown(x) * c, jnp.zeros((0,))), x * 3)[1], 2),
    ],
)
def test_control_flow_runs_for_its_effects_alone(function: Any, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    program = vf.jit(function)
    for _ in range(2):
        assert program(jnp.array(1.5)) == 4.5
        assert capsys.readouterr().out.splitlines() == ["x = 1.5"] * lines
