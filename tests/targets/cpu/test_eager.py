"""Eager calls on large arrays become programs that give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import numpy as np
import pytest
import scipy.special

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import dtypes, lax, nn, tree
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.runtime.threads import Repeated
from volta_fn.targets import cpu_device

RNG = np.random.default_rng(0)
X, Y = (jnp.asarray(RNG.normal(size=6000).astype(np.float32)) for _ in range(2))
M = X.reshape(60, 100)
INDICES = jnp.asarray(RNG.integers(0, 90, 6000).astype(np.int32))


def halve(i: Any, x: Any) -> Any:
    return x * 0.5


#: Functions of two arrays that are one eager kernel, or one marked function.
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "ufunc": lambda x, y: x + y,
    "scalar": lambda x, y: x * 2.5,
    "reduction": lambda x, y: x.sum(),
    "product": lambda x, y: x @ y,
    "cast": lambda x, y: x.astype("int32"),
    "gather": lambda x, y: x[INDICES],
    "concatenation": lambda x, y: jnp.concatenate([x, y]),
    "several results": lambda x, y: lax.top_k(x, 3),
    "loop": lambda x, y: lax.fori_loop(0, 10, halve, x),
    "composite": jnp.hypot,
    "composite with scalars": lambda x, y: jnp.clip(x, -0.5, 0.5),
    "composite of a list": lambda x, y: jnp.stack([x, y], axis=-1),
    "composite with keywords": lambda x, y: jnp.std(x, ddof=1),
    "composite with several results": lambda x, y: jnp.histogram(x, bins=7),
    "composites in a composite": lambda x, y: nn.gelu(x),
    "custom rule": lambda x, y: nn.relu(x),
    "special function": lambda x, y: vf.scipy.special.betaln(abs(x) + 1, abs(y) + 1),
}
OPERANDS = {"float32": (X, Y), "float16": (X.astype("float16"), Y.astype("float16")), "strided": (X[::2], Y[::2])}


@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_keep_types_and_values_and_become_those_of_jit(name: str, operands: str) -> None:
    x, y = OPERANDS[operands]
    x, y = (x, y) if name != "gather" else (x[:100], y)
    first, *results = [FUNCTIONS[name](x, y) for _ in range(4)]
    jitted = vf.jit(FUNCTIONS[name])(x, y)
    assert tree.structure(results[-1]) == tree.structure(first)
    for early, late, expected in zip(*map(tree.leaves, (first, results[-1], jitted)), strict=True):
        assert late.aval == early.aval
        eps = float(vf.numpy.finfo(late.dtype).eps) if late.dtype in dtypes.FLOATS else 0
        # Sums of 6000 numbers, in another order.
        np.testing.assert_allclose(np.asarray(early, float), np.asarray(late, float), rtol=8 * eps, atol=100 * eps)
        if (name, operands) != ("product", "strided"):  # which NumPy computes, without a copy
            np.testing.assert_array_equal(np.asarray(late), np.asarray(expected))


@pytest.mark.parametrize("strided", [False, True])
def test_programs_that_take_long_are_used_too(strided: bool) -> None:
    """Such programs release Python's lock, and have no built-in function of arrays."""
    x = jnp.asarray(RNG.normal(size=200_000).astype(np.complex64))[:: 1 + strided]
    results = [lax.exp(x) for _ in range(6)][2:]  # the third call is the compiled program's first, and a later one finds it by types
    wanted = np.asarray(vf.jit(lax.exp)(x) if not strided else np.exp(np.asarray(x)))
    for actual in results:
        np.testing.assert_array_equal(np.asarray(actual), wanted)
    other_bits = np.asarray(vf.jit(lax.exp)(x)) != np.exp(np.asarray(x))
    assert other_bits.any()  # so that equal bits say who computed them


def test_views_stay_views() -> None:
    for _ in range(4):
        assert np.shares_memory(M.T._buffer, M._buffer)  # type: ignore[attr-defined]  # concrete


def test_small_arrays_are_numpys() -> None:
    x = jnp.arange(7.0)
    for _ in range(4):
        x = x + x
    kernel = PRIMITIVES["add"].eager_kernels[x._spec, x._spec]  # type: ignore[attr-defined]
    if isinstance(kernel, BuiltinFunctionType):
        assert kernel.__name__ == "kernel of arrays"  # a compiled program is another built-in
    else:
        assert not any(isinstance(cell.cell_contents, Repeated) for cell in kernel.__closure__)


def test_values_that_change_need_no_program_each() -> None:
    for value in np.linspace(0.1, 0.9, 20):
        result = np.asarray(jnp.clip(X, -float(value), float(value)))
        np.testing.assert_array_equal(result, np.clip(np.asarray(X), np.float32(-value), np.float32(value)))


def test_signed_zeros_are_different_constants() -> None:
    for _ in range(4):
        assert not np.signbit(jnp.copysign(X, 0.0)).any()
        assert np.signbit(jnp.copysign(X, -0.0)).all()


def test_transforms_of_repeated_calls() -> None:
    for _ in range(4):
        jnp.hypot(X, Y)
    slope = vf.grad(lambda x: jnp.hypot(x, Y).sum())(X)
    np.testing.assert_allclose(slope, np.asarray(X) / np.hypot(X, Y), rtol=1e-5)
    np.testing.assert_allclose(vf.vmap(jnp.hypot)(M, M), np.hypot(M, M), rtol=1e-6)


def test_deleted_arrays_are_noticed() -> None:
    x = X + 0.0
    for _ in range(4):
        jnp.hypot(x, Y)
    vf.jit(lambda x: x + 1.0, donate_argnums=0)(x)
    with pytest.raises(vf.errors.DonatedBufferError):
        jnp.hypot(x, Y)


def test_bad_arguments_raise_in_every_call() -> None:
    for _ in range(4):
        with pytest.raises(vf.errors.VoltaError, match="hypot"):
            jnp.hypot(X.astype("complex64"), Y)


#: Functions that NumPy computes faster, at least on some processors.
IN_NUMPY: dict[str, Callable[[Any], Any]] = {
    "sort": jnp.sort,
    "partition": lambda x: jnp.partition(x, 10),
    "cbrt": jnp.cbrt,
    "arcsinh": jnp.arcsinh,
    "power": lambda x: jnp.power(x, x),
    "power with a constant": lambda x: jnp.power(x, 0.3),
    "sort of rows": lambda x: jnp.sort(x.reshape(60, 100), axis=0),
}


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("name", IN_NUMPY)
def test_what_numpy_computes_faster_has_the_same_values(name: str, vectors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_device, "_is_vectorised", lambda ufunc, dtype: vectors)
    x = abs(X)[: 5900 + vectors] if "rows" not in name else abs(X)
    first, *results = [np.asarray(IN_NUMPY[name](x)) for _ in range(5)]
    for result in results:
        np.testing.assert_allclose(result, first, rtol=1e-6)


def test_vector_instructions_are_known_by_loops() -> None:
    assert not cpu_device._is_vectorised(np.cbrt, np.dtype(np.float16))
    loops = np.lib.introspect.opt_func_info(func_name="^cbrt$")["cbrt"]
    assert cpu_device._is_vectorised(np.cbrt, np.dtype(np.float32)) == (not loops["ff"]["current"].startswith("baseline"))


def test_sorts_of_zeros_of_both_signs_stay_stable() -> None:
    for zeros in ([0.0, -0.0, 0.0, -0.0], [-0.0, 0.0], [-0.0], [0.0, 0.0]):
        x = jnp.asarray(np.concatenate([[3.0, -1.0], zeros, np.linspace(-2, 2, 600), [np.nan]]).astype(np.float32))
        result = np.asarray(jnp.sort(x))
        assert np.signbit(result[result == 0]).tolist() == [bool(np.signbit(z)) for z in zeros]


@pytest.mark.parametrize("steps", [0, 3, 4, 5, 60])
def test_long_loops_are_compiled_when_they_are_first_met(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan at once, a while loop after as many equations as `_LONG_LOOP`: here, at its fourth iteration."""
    names: list[str] = []
    program_of = cpu_device.CpuBackend._program_of

    def noted(self: Any, eqn: Any, *more: Any) -> Any:
        names.append(eqn.primitive.name)
        return program_of(self, eqn, *more)

    monkeypatch.setattr(cpu_device, "_LONG_LOOP", 16)
    monkeypatch.setattr(cpu_device.CpuBackend, "_program_of", noted)
    offset = jnp.float32(0.25)

    def step(c: Any) -> Any:
        return c[0] + 1, c[1] * 0.5 + offset

    start = (0, jnp.ones(3))
    looped = lax.while_loop(lambda c: c[0] < steps, step, start)
    scanned, rows = lax.scan(lambda c, _: (step(c), c[1]), start, length=steps)
    wanted = [1.0]
    for _ in range(steps):
        wanted.append(wanted[-1] * 0.5 + 0.25)
    for count, value in (looped, scanned):
        assert int(count) == steps
        np.testing.assert_allclose(np.asarray(value), [wanted[-1]] * 3, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(rows), np.repeat(wanted[:-1], 3).reshape(steps, 3), rtol=1e-6)
    assert ("scan" in names) == (steps > 5)
    assert ("while" in names) == (steps > 3)


def test_huge_operations_are_compiled_when_they_are_first_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that NumPy has no fast loop for: products of float16 are among them."""
    names: list[str] = []
    program_of = cpu_device.CpuBackend._program_of

    def noted(self: Any, eqn: Any, *more: Any) -> Any:
        names.append(eqn.primitive.name)
        return program_of(self, eqn, *more)

    monkeypatch.setattr(cpu_device, "_HUGE", 5003)
    monkeypatch.setattr(cpu_device.CpuBackend, "_program_of", noted)
    x = RNG.uniform(-1, 1, 5003).astype(np.float32)
    for function, wanted in ((lax.erf_inv, scipy.special.erfinv(x)), (lax.neg, -x), (lambda v: lax.reshape(v, (1, 5003)), x[None])):
        np.testing.assert_allclose(np.asarray(function(jnp.asarray(x))), wanted, rtol=1e-5)
    half = jnp.asarray(x[:5002].reshape(82, 61), "float16")
    np.testing.assert_allclose(np.asarray(half @ half.T, float), np.asarray(half, float) @ np.asarray(half, float).T, atol=0.05)
    assert names == ["erf_inv", "dot_general"]


@pytest.mark.parametrize("stack", [(), (3,)])
def test_factorisations_of_small_matrices_are_compiled(stack: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """In NumPy's kernels each matrix would take a call of SciPy's wrapper; signs and digits are those of jitted calls."""
    names: set[str] = set()
    program_of = cpu_device.CpuBackend._program_of

    def noted(self: Any, eqn: Any, *more: Any) -> Any:
        names.add(eqn.primitive.name)
        return program_of(self, eqn, *more)

    monkeypatch.setattr(cpu_device.CpuBackend, "_program_of", noted)
    size = 11 if stack else 17  # of no other test, whose kernels would be compiled already
    square = RNG.normal(size=(*stack, size, size)).astype(np.float32)
    definite = square @ square.swapaxes(-1, -2) + np.eye(size, dtype=np.float32)
    functions = {"cholesky": definite, "eigh": definite, "qr": square, "svd": square, "eig": square, "inv": square}
    for name, x in functions.items():
        function = getattr(jnp.linalg, name)
        jitted = tree.leaves(vf.jit(function)(x))
        for _ in range(4):
            for eager, wanted in zip(tree.leaves(function(jnp.asarray(x))), jitted, strict=True):
                np.testing.assert_allclose(np.asarray(eager), np.asarray(wanted), rtol=1e-4, atol=1e-5)
    assert {"cholesky", "eigh", "qr", "svd", "eig", "lu"} <= names
