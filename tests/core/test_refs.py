"""Mutable references: programs give JAX's values, and what JAX forbids raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentTypeError, DTypeError, RefError
from volta_fn.extend.core import jaxpr_as_fun

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {}


def program(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Register a program of a namespace like jax and one like jax.numpy."""
    PROGRAMS[function.__name__] = function
    return function


@program
def indices(ja: Any, xp: Any) -> Any:
    ref = ja.new_ref(xp.arange(12.0).reshape(3, 4))
    ref[1] = ref[0]
    ref[2, 3] = ref[1, 2]
    ref[0, :3] = ref[:, 1]
    ref[xp.array([1, 2, 1]), xp.array([0, 0, 1])] = xp.array([7.0, 8.0, 9.0])
    ja.ref.addupdate(ref, 0, xp.ones(4))
    return ref[...], ja.ref.swap(ref, (0, 0), xp.float32(5.0)), ja.ref.get(ref), len(ref)


@program
def closed_over_by_jit(ja: Any, xp: Any) -> Any:
    ref = ja.new_ref(xp.zeros(3))

    @ja.jit
    def count() -> None:
        ref[1] += 1.0

    count()
    before = ref[...]
    count()
    return before, ref[...]


@program
def argument_of_jit(ja: Any, xp: Any) -> Any:
    @ja.jit
    def shift(x: Any, refs: Any, scale: Any) -> Any:
        refs["a"][...] = refs["b"][...] * scale + x
        return refs["a"][...].sum()

    first, second = ({"a": ja.new_ref(xp.zeros(2)), "b": ja.new_ref(xp.full(2, v))} for v in (1.0, 5.0))
    return shift(1.0, first, 2.0), shift(1.0, second, 3.0), first["a"][...], second["a"][...]


@program
def internal(ja: Any, xp: Any) -> Any:
    def double(x: Any) -> Any:
        ref = ja.new_ref(x)
        ref[...] = ref[...] + xp.sin(ref[...])
        return ja.freeze(ref)

    x = xp.float32(0.7)
    return ja.grad(double)(x), ja.grad(ja.jit(double))(x), ja.jvp(double, (x,), (x,)), ja.vmap(double)(xp.arange(3.0))


@program
def scans(ja: Any, xp: Any) -> Any:
    ref = ja.new_ref(xp.zeros(3))
    rows = ja.new_ref(xp.arange(3.0))

    def step(carry: Any, row: Any) -> Any:
        i, cell = row
        ref[i] = carry + cell[...]
        cell[...] = carry * 2
        return carry + ref[i], carry

    run = lambda: ja.lax.scan(step, xp.float32(1.0), (xp.arange(3), rows))
    return run(), ref[...], rows[...], ja.jit(run)(), ref[...], rows[...]


@program
def loops(ja: Any, xp: Any) -> Any:
    ref = ja.new_ref(xp.zeros(4))

    def step(i: Any) -> Any:
        ref[i] = ref[i - 1] + xp.float32(2.0)
        return i + 1

    last = ja.lax.while_loop(lambda i: i < 3, step, 0)
    ja.lax.fori_loop(0, 3, lambda i, _: ref.__setitem__(3, ref[3] + xp.float32(i)), None)
    return last, ref[...]


@program
def conditionals(ja: Any, xp: Any) -> Any:
    ref, other = ja.new_ref(xp.zeros(2)), ja.new_ref(xp.ones(2))

    @ja.jit
    def choose(index: Any) -> Any:
        ja.lax.switch(index, [lambda r: r.__setitem__(0, ref[0] + xp.float32(1.0)), lambda r: None], other)
        return ja.lax.cond(index > 0, lambda: ref.__setitem__(1, other[1]), lambda: None)

    choose(0)
    choose(1)
    return ref[...], other[...]


@program
def mapped(ja: Any, xp: Any) -> Any:
    def distance(x: Any, y: Any, out: Any) -> None:
        out[...] = ((x - y) ** 2).sum()

    points = xp.arange(12.0).reshape(3, 4)
    out = ja.new_ref(xp.zeros((3, 3)))
    ja.vmap(ja.vmap(distance, (0, None, 0)), (None, 0, 0))(points, points, out)
    columns = ja.new_ref(xp.zeros((2, 3)))
    result = ja.jit(ja.vmap(lambda r, x: (r.__setitem__(0, x), r[...].sum())[1], in_axes=(1, 0)))(columns, xp.arange(3.0))
    return out[...], columns[...], result


@program
def plumbed_through_grad(ja: Any, xp: Any) -> Any:
    seen = ja.new_ref(xp.float32(0.0))

    def loss(x: Any, ref: Any) -> Any:
        ref[...] += ja.lax.stop_gradient(x * 3)
        return x * x

    x = xp.float32(2.0)
    return ja.grad(loss)(x, seen), ja.jit(ja.grad(loss))(x, seen), ja.grad(ja.jit(loss))(x, seen), seen[...]


@program
def gradients_stashed(ja: Any, xp: Any) -> Any:
    @ja.custom_vjp
    def stash(ref: Any, x: Any) -> Any:
        return x

    def backward(ref: Any, g: Any) -> Any:
        ref[...] = g
        return None, g

    stash.defvjp(lambda ref, x: (x, ref), backward)
    seen = ja.new_ref(xp.float32(0.0))
    f = lambda x, ref: xp.sin(stash(ref, x))
    first = ja.grad(f)(xp.float32(1.0), seen), seen[...]
    return *first, ja.jit(ja.grad(f))(xp.float32(2.0), seen), seen[...]


def stashing(ja: Any) -> Any:
    """Return a function whose backward rule adds gradients to a reference."""

    @ja.custom_vjp
    def stash(ref: Any, x: Any) -> Any:
        return x

    def backward(ref: Any, g: Any) -> Any:
        ref[...] = 2.0 * ref[...] + g
        return None, g

    stash.defvjp(lambda ref, x: (x, ref), backward)
    return stash


STASH = stashing(vf)


@program
def gradients_stashed_in_programs(ja: Any, xp: Any) -> Any:
    """The references are arguments of jitted functions, or closed over by control flow."""
    stash = stashing(ja)
    results = []

    def twice(x: Any, ref: Any) -> Any:
        return xp.sin(stash(ref, xp.sin(stash(ref, x))))

    def scanned(x: Any, ref: Any) -> Any:
        return ja.lax.scan(lambda c, w: (xp.sin(stash(ref, c * w)), None), x, xp.array([1.0, 0.7]))[0]

    def recomputed(x: Any, ref: Any) -> Any:
        return ja.checkpoint(twice)(x, ref) * x

    for f in (twice, scanned, recomputed):
        for g in (ja.grad(f), ja.grad(ja.jit(f)), ja.jit(ja.grad(f)), ja.jit(ja.grad(ja.jit(f)))):
            for x in (0.5, 0.8):
                ref = ja.new_ref(xp.float32(1.0))
                results.append((g(xp.float32(x), ref), ref[...]))
    return results


@program
def gradients_stashed_by_closures(ja: Any, xp: Any) -> Any:
    stash, ref, other = stashing(ja), ja.new_ref(xp.float32(1.0)), ja.new_ref(xp.float32(0.0))

    @ja.jit
    def loss(x: Any) -> Any:
        other[...] = other[...] + 1.0
        return xp.sin(stash(ref, x)) + stash(other, x * x)

    return [(ja.grad(loss)(xp.float32(x)), ref[...], other[...]) for x in (0.5, 0.7)]


@program
def pulled_back_twice(ja: Any, xp: Any) -> Any:
    stash, ref = stashing(ja), ja.new_ref(xp.float32(0.0))
    value, pull_back = ja.vjp(ja.jit(lambda x: xp.sin(stash(ref, x))), xp.float32(0.3))
    before = ref[...]
    return value, before, pull_back(xp.float32(1.0)), ref[...], pull_back(xp.float32(2.0)), ref[...]


@program
def recomputed(ja: Any, xp: Any) -> Any:
    def count(y: Any, ref: Any) -> Any:
        out = xp.sin(y * ref[...])
        ref[...] += xp.float32(1.0)
        return out

    results = []
    for f in (ja.checkpoint(count), ja.jit(ja.checkpoint(count)), ja.checkpoint(ja.jit(count))):
        ref = ja.new_ref(xp.float32(0.5), kind="no_grad_no_remat")
        closed = ja.checkpoint(lambda y: count(y, ref))  # it is called in this iteration
        results += [ja.grad(f)(xp.float32(0.3), ref), ref[...], ja.grad(closed)(xp.float32(0.3)), ref[...]]
    return results


@program
def constants_for_differentiation(ja: Any, xp: Any) -> Any:
    def last(y: Any, ref: Any) -> Any:
        return ja.lax.scan(lambda c, _: (ref.__setitem__(..., c * y), (c + y * y, None))[1], y, None, length=3)[0]

    results = []
    for g in (ja.grad(last), ja.grad(ja.jit(last)), ja.jit(ja.grad(last))):
        ref = ja.new_ref(xp.float32(0.0), kind="no_grad_no_remat")
        results += [g(xp.float32(0.5), ref), ref[...]]
    return results


@program
def ahead_of_time(ja: Any, xp: Any) -> Any:
    ref, other = ja.new_ref(xp.zeros(3)), ja.new_ref(xp.ones(()))

    def add(r: Any, x: Any) -> Any:
        r[1] += x
        return {"sum": r[...].sum()}

    def double() -> None:
        other[...] *= 2.0

    lowered = ja.jit(add).lower(ref, xp.float32(2.0))
    compiled, doubling = lowered.compile(), ja.jit(double).lower().compile()
    unchanged = ref[...], other[...]
    doubling()
    doubling()
    return unchanged, compiled(ref, xp.float32(3.0)), compiled(ref, xp.float32(4.0)), ref[...], other[...]


@program
def views_as_arguments(ja: Any, xp: Any) -> Any:
    def add(view: Any) -> Any:
        view[...] += xp.float32(3.0)
        return view[...].sum()

    @ja.jit  # JAX's views are arguments in traced functions alone
    def all_of(start: Any) -> Any:
        ref = ja.new_ref(xp.arange(12.0).reshape(3, 4))
        results = [ja.jit(add)(ref.at[1]), ja.checkpoint(add)(ref.at[:, 1:3]), ja.jit(add)(ref.at[start].at[1:3])]
        results.append(ja.lax.cond(start > 0, add, lambda v: v[...].sum(), ref.at[start]))
        return results, ref[...]

    return all_of(xp.int32(1)), all_of(xp.int32(2))


@program
def arguments_of_arrays_types(ja: Any, xp: Any) -> Any:
    double = ja.jit(lambda x: x[...] * 2)
    return ja.jit(lambda x, ref: (double(x), double(ref)))(xp.ones(3), ja.new_ref(xp.arange(3.0)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_jaxs_values(name: str) -> None:
    ours, theirs = PROGRAMS[name](vf, vf.numpy), PROGRAMS[name](jax, jnp)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6), ours, theirs)
    assert [np.asarray(x).dtype for x in jax.tree.leaves(ours)] == [np.asarray(x).dtype for x in jax.tree.leaves(theirs)]


def test_stages_tell_of_the_result_alone() -> None:
    lowered = vf.jit(lambda r, x: {"sum": (r[...] * x, REF[0])[0]}).lower(outer(), 1.0)
    assert lowered.out_info == {"sum": vf.ShapeDtypeStruct((3,), "float32")}
    assert vf.tree.structure({"sum": 0}) == lowered.out_tree == lowered.compile().out_tree
    assert vf.eval_shape(lambda r: r[...], REF) == vf.ShapeDtypeStruct((3,), "float32")


def add_and_scale(ref: Any, x: Any) -> Any:
    ref[...] += x
    return {"first": ref[0] * x}


def test_make_jaxpr_passes_the_values_of_references() -> None:
    ref, arguments = vf.new_ref(vf.numpy.arange(3.0)), (vf.numpy.arange(3.0), 2.0)
    argument, shapes = vf.make_jaxpr(add_and_scale, return_shape=True)(ref, 2.0)
    assert shapes == {"first": vf.ShapeDtypeStruct((), "float32")}
    for program, values in [
        (argument, arguments),
        (vf.make_jaxpr(add_and_scale, static_argnums=1)(ref, 2.0), arguments[:1]),
        (vf.make_jaxpr(lambda x: add_and_scale(ref, x))(2.0), arguments[::-1]),
        (vf.make_jaxpr(lambda x: vf.jit(add_and_scale)(ref, x))(2.0), arguments[::-1]),
    ]:
        first, last = jaxpr_as_fun(program)(*values)
        assert float(first) == 4.0 and last.tolist() == [2.0, 3.0, 4.0]
    assert ref[...].tolist() == [0.0, 1.0, 2.0]
    two = vf.new_ref(1.0)
    program = vf.make_jaxpr(lambda r: add_and_scale(r, two[...] + ref[1]))(vf.new_ref(vf.numpy.ones(2)))
    assert [a.shape for a in program.in_avals] == [(2,), (), (3,)]
    with pytest.raises(RefError, match="one mutable reference as two arguments"):
        vf.make_jaxpr(lambda a, b: a[0] + b[0])(ref, ref)
    with pytest.raises(RefError, match="returns a mutable reference"):
        vf.make_jaxpr(lambda r: r)(ref)


@pytest.mark.parametrize("ja", [jax, vf])
def test_eval_shape_leaves_references_as_they_are(ja: Any) -> None:
    ref = ja.new_ref(ja.numpy.arange(3.0))
    shape = ja.ShapeDtypeStruct((), "float32")
    assert ja.eval_shape(add_and_scale, ref, 1.0) == {"first": shape}
    assert ja.eval_shape(lambda x: (add_and_scale(ref, x)["first"], x), shape) == (shape, shape)
    assert ref[...].tolist() == [0.0, 1.0, 2.0]


def test_branches_stash_gradients() -> None:
    # JAX 0.10.2 raises a KeyError.
    branches = [lambda ref, y: y * y, lambda ref, y: vf.numpy.sin(STASH(ref, y)), lambda ref, y: STASH(ref, 3 * y)]
    for index in range(3):
        for wrap in (lambda f: f, vf.jit, vf.checkpoint):
            one, other = vf.new_ref(1.0), vf.new_ref(1.0)
            switched = wrap(lambda y, ref: vf.lax.switch(index, branches, ref, y))  # it is called in this iteration
            slope = vf.grad(switched)(0.4, one)
            assert slope == vf.grad(lambda y: branches[index](other, y))(0.4)
            assert one[...] == other[...]


def test_a_rule_keeps_each_reference_that_is_passed() -> None:
    f = vf.jit(lambda ref, x: vf.numpy.sin(STASH(ref, x)))
    refs = [vf.new_ref(0.0) for _ in range(3)]
    for number, ref in enumerate(refs):
        vf.grad(f, argnums=1)(ref, float(number))
    np.testing.assert_allclose([float(r[...]) for r in refs], np.cos([0.0, 1.0, 2.0]), rtol=1e-6)


def test_views_are_no_rows_to_scan() -> None:
    with pytest.raises(TypeError):
        vf.lax.scan(lambda c, r: (c, None), 0, outer().at[1:])
    with pytest.raises(TypeError):
        vf.vmap(lambda r: None)(outer().at[1:])


def outer() -> vf.Ref:
    return vf.new_ref(vf.numpy.zeros(3))


REF = outer()
FIRST = vf.custom_jvp(lambda a, b: a)
FIRST.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
FORBIDDEN: dict[str, tuple[Callable[[], Any], str]] = {
    "passed twice": (lambda: vf.jit(lambda a, b: None)(REF, REF), "as two arguments"),
    "passed and closed over": (lambda: vf.jit(lambda a: REF[...])(REF), "from the closure"),
    "scanned and closed over": (lambda: vf.lax.scan(lambda c, r: (c, REF[0]), 0, REF), "from the closure"),
    "returned from jit": (lambda: vf.jit(lambda a: a)(REF), "returns a mutable reference"),
    "returned from scan": (lambda: vf.lax.scan(lambda c, r: (c, r), 0, REF), "returns a mutable reference"),
    "frozen in another scope": (lambda: vf.jit(lambda: vf.freeze(REF))(), "only in the traced function"),
    "of a reference": (lambda: vf.new_ref(REF), "cannot hold a reference"),
    "differentiated": (lambda: vf.grad(lambda x: REF.__setitem__(0, x))(1.0), "being differentiated"),
    "differentiated forwards": (lambda: vf.jvp(lambda x: REF.__setitem__(0, x), (1.0,), (1.0,)), "being differentiated"),
    "mapped": (lambda: vf.vmap(lambda x: REF.__setitem__(0, x))(vf.numpy.ones(2)), "mapped by vmap"),
    "mapped in jit": (lambda: vf.vmap(vf.jit(lambda x: REF.__setitem__(0, x)))(vf.numpy.ones(2)), "mapped by vmap"),
    "written in checkpoint": (lambda: vf.grad(vf.checkpoint(lambda x: REF.__setitem__(0, x)))(1.0), "being differentiated"),
    "returned from checkpoint": (lambda: vf.checkpoint(lambda r: r)(REF), "returns a mutable reference"),
    "returned from a custom function": (lambda: FIRST(REF, 1.0), "returns a mutable reference"),
    "passed to a custom function twice": (lambda: FIRST(REF, REF), "as two arguments"),
    "as a NumPy array": (lambda: np.asarray(REF), "no array"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_uses_raise_and_change_nothing(name: str) -> None:
    call, message = FORBIDDEN[name]
    with pytest.raises(RefError, match=message):
        call()
    assert REF[...].tolist() == [0.0, 0.0, 0.0]


def test_no_arithmetic() -> None:
    with pytest.raises(ArgumentTypeError, match="Ref"):
        vf.numpy.sin(REF)
    with pytest.raises(TypeError):
        REF + 1  # type: ignore[operator]


def test_a_reference_keeps_its_type() -> None:
    ref = vf.new_ref(vf.numpy.arange(3))
    ref[...] = 7
    assert (ref.shape, ref.dtype.name, ref.ndim, ref.size, list(map(int, ref))) == ((3,), "int32", 1, 3, [7, 7, 7])
    with pytest.raises(DTypeError, match="convert it"):
        ref[0] = 1.5
    with pytest.raises(ValueError, match="shape"):
        ref[...] = vf.numpy.zeros(4, int)


def test_a_frozen_reference_is_gone() -> None:
    ref = outer()
    vf.freeze(ref)
    assert repr(ref) == "Ref(<frozen>)"
    with pytest.raises(RefError, match="frozen"):
        ref[0]


def test_a_reference_does_not_leave_its_trace() -> None:
    leaked: list[vf.Ref] = []
    vf.jit(lambda x: leaked.append(vf.new_ref(x)))(1.0)
    with pytest.raises(RefError, match="outside of the traced function"):
        leaked[0][...]


def test_programs_are_kept() -> None:
    traces = []

    @vf.jit
    def add(ref: Any, x: Any) -> None:
        traces.append(1)
        ref[...] += x

    for _ in range(3):
        add(outer(), 1.0)
    assert len(traces) == 1


def test_an_error_in_a_function_leaves_references_as_they_were() -> None:
    ref = outer()

    @vf.jit
    def fails() -> None:
        ref[0] = 1.0
        raise KeyError("stop")

    with pytest.raises(KeyError):
        fails()
    assert ref[...].tolist() == [0.0, 0.0, 0.0]
    ref[0] = 2.0
    assert ref[0] == 2.0


def test_static_arguments_go_with_references() -> None:
    ref = vf.new_ref(2.0)
    vf.jit(lambda n, r, *, k: r.__setitem__(..., r[...] * n + k), static_argnums=0)(3, ref, k=1.0)
    assert ref[...] == 7.0


def test_empty_references_are_written_and_given_up() -> None:
    @vf.jit
    def f(x: Any) -> Any:
        ref = vf.empty_ref(vf.ShapeDtypeStruct((2,), "float32"))
        ref[0] = 2.0 * x
        ref.addupdate(x, 1)
        ref.addupdate(1.0)
        result = ref[...]
        vf.free_ref(ref)
        return result

    np.testing.assert_array_equal(f(3.0), [7.0, 4.0])
    np.testing.assert_array_equal(vf.jacrev(f)(3.0), [2.0, 1.0])
    ref = vf.empty_ref(vf.ShapeDtypeStruct((), "int32"))
    vf.free_ref(ref)
    for use in (lambda: ref[...], lambda: vf.free_ref(ref), lambda: ref.addupdate(1)):
        with pytest.raises(RefError):
            use()
