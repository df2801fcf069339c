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


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_jaxs_values(name: str) -> None:
    ours, theirs = PROGRAMS[name](vf, vf.numpy), PROGRAMS[name](jax, jnp)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6), ours, theirs)
    assert [np.asarray(x).dtype for x in jax.tree.leaves(ours)] == [np.asarray(x).dtype for x in jax.tree.leaves(theirs)]


def outer() -> vf.Ref:
    return vf.new_ref(vf.numpy.zeros(3))


REF = outer()
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
    "in checkpoint": (lambda: vf.grad(vf.checkpoint(lambda x: x * REF[0]))(1.0), "a program of its own"),
    "in checkpoint in jit": (lambda: vf.grad(vf.jit(vf.checkpoint(lambda x: x * REF[0])))(1.0), "a program of its own"),
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
