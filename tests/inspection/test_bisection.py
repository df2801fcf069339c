"""`crosscheck` of compiled programs: a planted fault of each stage of the compiler is found, and named with kernel, equations and lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn
from volta_fn.compiler import pipeline
from volta_fn.compiler.ir.kernel import Apply, Kernel, KernelCall
from volta_fn.compiler.target import ProgramPass
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.inspection.crosscheck import Crosscheck, Miscompilation, differ
from volta_fn.jit.eager import forget_kernels
from volta_fn.settings import current as settings
from volta_fn.targets.cpu.runtime import artifact
from volta_fn.targets.cpu.runtime.compile import CODE_CACHE, CodeCache
from volta_fn.targets.cpu.target import TARGET, CpuTarget

X = jnp.asarray(np.random.default_rng(0).standard_normal((16, 8)), "float32")
Y = jnp.asarray(np.random.default_rng(1).standard_normal((16, 8)), "float32")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Machine code without caches, and without the verifiers, which would find some of the faults first."""
    fresh = CodeCache()
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", True)
    monkeypatch.setattr(artifact, "cache_dir", lambda: None)
    monkeypatch.setattr(CODE_CACHE, "_recent", fresh._recent)
    monkeypatch.setattr(CODE_CACHE, "_shared", fresh._shared)
    monkeypatch.setattr(settings, "verify", False)
    forget_kernels()
    yield
    forget_kernels()


def only(check: Crosscheck) -> Miscompilation:
    """Return the one stage that is to blame, where each equation by itself is right."""
    assert not check and not check.differences, check
    (wrong,) = check.miscompilations
    assert wrong.stage in str(check) and "differs from its equations" in str(check)
    return wrong


def lines_of(wrong: Miscompilation, function: Callable[..., Any]) -> set[int]:
    """Return the lines of a function that are blamed, counted from its own."""
    return {x.lineno - function.__code__.co_firstlineno for x in wrong.locations if x.function == function.__qualname__}


def product_and_sum(e: Any, d: Any) -> Any:
    p = e[:, :, None] * d[:, None, :]
    return p, p.sum(0)


def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[[Kernel], Kernel]) -> None:
    """Let the CPU generate the code of other kernels than it is asked for."""
    original = CpuTarget.kernel_routine
    monkeypatch.setattr(CpuTarget, "kernel_routine", lambda self, kernel, batch=0: original(self, change(kernel), batch))


def test_a_store_that_a_recogniser_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda kernel: replace(kernel, stores=kernel.stores[:1]))
    wrong = only(vf.crosscheck(product_and_sum)(X, Y))
    assert wrong.stage == "the code generation of a kernel" and wrong.result == "f32[8,8]"
    assert wrong.unwritten and "is not written" in str(wrong)
    assert lines_of(wrong, product_and_sum) >= {1, 2}
    assert {e.split()[0] for e in wrong.equations} >= {"mul", "reduce_sum"}
    assert "reduce_sum:f32" in wrong.kernel and wrong.kernel.splitlines()[0] in str(wrong)


def test_the_first_wrong_kernel_of_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that read its results are right for what they read."""

    def subtracting(kernel: Kernel) -> Kernel:
        several = sum(isinstance(n, Apply) for n in kernel.nodes) > 1
        nodes = [replace(n, op="sub") if isinstance(n, Apply) and n.op == "add" and several else n for n in kernel.nodes]
        return replace(kernel, nodes=tuple(nodes))

    def program(x: Any, y: Any) -> Any:
        s = lax.sort(x * 2)
        t = lax.sort((s + y) * 3)  # the wrong one
        return (lax.cumsum(t) * s).sum(), t

    planted(monkeypatch, subtracting)
    wrong = only(vf.crosscheck(program)(X, Y))
    assert lines_of(wrong, program) == {2} and wrong.stage == "the code generation of a kernel"
    assert [e.split()[0] for e in wrong.equations] == ["add", "mul"]


def test_a_kernel_that_is_wrong_alone_is_found_by_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(
        monkeypatch,
        lambda kernel: replace(
            kernel, nodes=tuple([replace(n, op="sub") if isinstance(n, Apply) and n.op == "add" else n for n in kernel.nodes])
        ),
    )
    result = vf.crosscheck(lambda x, y: lax.sort(x + y) * 2)(X, Y)
    assert [d.primitive for d in result.differences] == ["add"] and not result.miscompilations


def test_wrong_fusion_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(program: Any) -> Any:
        nodes = []
        for node in program.nodes:
            if isinstance(node, KernelCall) and len(node.kernel.stores) == 2:
                first, second = node.kernel.stores
                node = node._replace(kernel=replace(node.kernel, stores=(replace(first, value=second.value), second)))
            nodes.append(node)
        return program._replace(nodes=tuple(nodes))

    def program(x: Any) -> Any:
        y = jnp.exp(x)
        return y, jnp.sin(y)

    original = pipeline._fusion
    run = lambda target: [original(target)[0].__class__("fusion", "Wrong.", lambda c: swapped(original(target)[0].run(c)))]
    monkeypatch.setattr(pipeline, "_fusion", lambda target: [*run(target), *original(target)[1:]])
    wrong = only(vf.crosscheck(program)(X))
    assert wrong.stage == "the fusion to a kernel" and lines_of(wrong, program) >= {1}


@pytest.mark.parametrize("once", [False, True])
def test_a_wrong_pass_is_found(once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the compilation that went wrong: another one may go well, as passes fold constants that were read."""

    def associated(closed: ClosedJaxpr) -> ClosedJaxpr:
        """Take subtraction for commutative, in programs of several equations."""
        eqns = [e.replace(invars=e.invars[::-1]) if e.primitive.name == "sub" and len(closed.eqns) > 1 else e for e in closed.eqns]
        done = all(e is old for e, old in zip(eqns, closed.eqns, strict=True)) or closed in seen or (once and bool(seen))
        seen.add(closed)
        return closed if done else closed.replace(eqns=eqns)

    def program(x: Any, y: Any) -> Any:
        z = jnp.tanh(x) * y
        w = z - y
        return lax.sort(w) * 2

    seen: set[ClosedJaxpr] = set()
    wrong_pass = ProgramPass("commutation", "Swap operands.", associated)
    monkeypatch.setattr(pipeline, "EXPANSIONS", (*pipeline.EXPANSIONS[:1], wrong_pass, *pipeline.EXPANSIONS[1:]))
    wrong = only(vf.crosscheck(program)(X, Y))
    assert wrong.stage == "the pass 'commutation'" and lines_of(wrong, program) == {2}
    assert [e.split()[0] for e in wrong.equations] == ["sub"] and math.isfinite(wrong.excess)


@pytest.mark.parametrize("native", [True, False])
def test_memory_that_is_shared_too_early_is_found(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any, y: Any) -> Any:
        s = lax.sort(x)
        t = lax.cumsum(y)
        u = lax.sort(t * y)
        return s.T @ u, t

    def in_numpy(x: Any, y: Any) -> Any:
        s = lax.sin(x)
        t = lax.cos(y)
        return s.T @ t, lax.exp(s) @ t.T

    x, y = (jnp.tile(v, (64, 8)) for v in (X, Y))
    function = program if native else in_numpy
    backend = vf.devices("cpu")[0].backend
    monkeypatch.setattr(backend, "native", native)
    assert vf.crosscheck(function)(x, y)
    if native:
        monkeypatch.setattr(artifact, "arrange", lambda lifetimes: ([0] * len(lifetimes), max([v.bytes for v in lifetimes], default=0)))
    else:
        monkeypatch.setattr("volta_fn.compiler.plans.arrange", lambda lifetimes: ([0] * len(lifetimes), 1 << 20))
    wrong = only(vf.crosscheck(function)(x, y))
    assert wrong.stage.startswith("the assignment of") and "memory" in wrong.stage
    if native:
        assert lines_of(wrong, program) <= {3, 4} and lines_of(wrong, program)


def test_a_wrong_kernel_in_a_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            carry = lax.sort(carry + row)
            return carry, carry * 3 - row

        return lax.scan(body, x[0], x)

    def without_sub(kernel: Kernel) -> Kernel:
        several = sum(isinstance(n, Apply) for n in kernel.nodes) > 1
        nodes = [replace(n, op="add") if isinstance(n, Apply) and n.op == "sub" and several else n for n in kernel.nodes]
        return replace(kernel, nodes=tuple(nodes))

    planted(monkeypatch, without_sub)
    wrong = only(vf.crosscheck(program)(X))
    assert wrong.stage == "the code generation of a kernel"
    assert {x.function.rpartition(".")[2] for x in wrong.locations} == {"body"} and "sub" in " ".join(wrong.equations)


# no fault


def network(w: Any, x: Any) -> Any:
    q, k, v = jnp.split(nn.standardize(x) @ w, 3, -1)
    return (nn.softmax(q @ k.T / 4.0) @ v + x).sum()


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (vf.grad(network, (0, 1)), (jnp.sin(jnp.arange(192.0).reshape(8, 24)), X)),
    "bfloat16": (
        vf.grad(lambda w, x: network(w.astype("bfloat16"), x.astype("bfloat16")).astype("float32")),
        (jnp.sin(jnp.arange(192.0).reshape(8, 24)), X),
    ),
    "recurrence": (vf.grad(lambda w, x: lax.scan(lambda h, r: (jnp.tanh(h @ w + r), h), x[0], x)[1].sum()), (X[:8], X)),
    "loop": (lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: jnp.exp(c / 9) + c, x * x), (X,)),
    "branches": (lambda x: lax.cond(x.sum() > 0, lambda: lax.sort(x), lambda: x @ x.T @ x), (X,)),
    "random": (lambda x: (nn.gelu(x) + vf.random.normal(vf.random.key(1), x.shape)).argmax(1), (X,)),
    "spectra": (lambda x: jnp.abs(jnp.fft.rfft(x)) + jnp.linalg.svd(x, compute_uv=False)[:5], (X,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_found_in_programs_as_they_are(name: str) -> None:
    function, args = PROGRAMS[name]
    result = vf.crosscheck(function)(*args)
    assert result, result
    assert "jit" in result.compiled


def test_amplified_rounding_is_no_fault() -> None:
    """A thousand steps of a logistic map: the digits of all runs differ, while each kernel is right."""
    chaos = lambda x: lax.fori_loop(0, 60, lambda _, x: 3.9 * x * (1 - x), x)
    result = vf.crosscheck(lambda x: chaos(jnp.abs(jnp.sin(x))))(X)
    assert result and not result.miscompilations


def test_effects_happen_once() -> None:
    calls: list[float] = []

    def program(x: Any) -> Any:
        vf.debug.callback(lambda v: calls.append(float(v)), x.sum())
        return x * 2

    result = vf.crosscheck(program)(X)
    assert result and len(calls) == 1 and "calls Python functions" in result.compiled


def test_runs_are_compared_by_their_largest_elements() -> None:
    one = np.array([1.0, 1e-3, np.nan, np.inf], np.float32)
    assert not differ(one, one) and not differ(one, one + np.float32(1e-6))
    assert differ(one, one * np.array([1, 1.5, 1, 1], np.float32))
    assert differ(one, np.array([1.0, 1e-3, 0, np.inf], np.float32)) and differ(one, -one)
    assert differ(np.arange(3), np.arange(3) + 1) and not differ(np.arange(3), np.arange(3))


def test_the_wrong_element_is_shown() -> None:
    wrong = Miscompilation("a stage", ("mul at f.py:3",), (), "f32[4]", (2,), 1.0, 2.0, 99.0, "a kernel")
    assert str(wrong).startswith("a stage is wrong for mul at f.py:3: element (2,) of the result f32[4] is 1.0, and 2.0 by the equations")
    assert str(wrong).endswith("\n    a kernel")
    assert TARGET.name == "cpu" and "tanh" in PRIMITIVES
