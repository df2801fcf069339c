"""Kernels: the violation of each rule is found, in the kernel of a program, with the equations and the user's line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.fusion.test_fuse import SimpleTarget
from tests.compiler.verification.planting import X, with_kernel
from volta_fn.compiler import contractions as contraction
from volta_fn.compiler import pipeline
from volta_fn.compiler import verification as verification
from volta_fn.compiler.ir.index import Range, along
from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, FusedProgram, Kernel, Load, Reduce, Store
from volta_fn.compiler.verification import verify_pass, violation_of

F32 = np.dtype(np.float32)


def padded(x: Any) -> Any:
    return (jnp.pad(jnp.exp(x), 1) * 2.0).sum(1)


def fused(function: Callable[..., Any] = padded) -> FusedProgram:
    return pipeline.fused(vf.make_jaxpr(function)(X), SimpleTarget())


def changed(kernel: Kernel, kind: type, **fields: Any) -> Kernel:
    """Return a kernel with fields of the first node of a kind changed."""
    number = next(n for n, node in enumerate(kernel.nodes) if isinstance(node, kind))
    nodes = [*kernel.nodes]
    nodes[number] = replace(nodes[number], **{k: v(nodes[number]) if callable(v) else v for k, v in fields.items()})
    return replace(kernel, nodes=tuple(nodes))


def shifted(load: Load) -> Any:
    return (load.index[0].plus(1), *load.index[1:])


def widened(load: Load) -> Any:
    return tuple([r._replace(high=r.high + 1) for r in load.mask])


VIOLATIONS: dict[str, tuple[str, Callable[[Kernel], Kernel]]] = {
    "a mask is forgotten": ("may read outside of its buffer", lambda k: changed(k, Load, mask=())),
    "a mask is too wide": ("may read outside", lambda k: changed(k, Load, mask=widened)),
    "an index is shifted": ("may read outside of its buffer", lambda k: changed(k, Load, index=shifted)),
    "an axis does not exist": ("uses an axis that does not exist", lambda k: changed(k, Load, index=lambda n: (along(7), *n.index[1:]))),
    "a buffer does not exist": ("reads a buffer that does not exist", lambda k: changed(k, Load, input=3)),
    "a buffer is seen as larger": ("sees another array", lambda k: changed(k, Load, shape=lambda n: (n.shape[0] + 1, *n.shape[1:]))),
    "a value is used before it is computed": ("reads a later node", lambda k: changed(k, Apply, operands=(len(k.nodes) - 1,))),
    "an operation has another dtype": ("gives float32", lambda k: changed(k, Apply, dtype=np.dtype(np.int32))),
    "a reduction has another dtype": ("reduce_sum of float32 gives", lambda k: changed(k, Reduce, dtype=np.dtype(np.float64))),
    "more axes number rows than there are": ("5 of 2 axes number the rows", lambda k: replace(k, parallel=5)),
    "an output is written in part": ("does not fill its output|writes an element twice", lambda k: replace(k, stores=(
        replace(k.stores[0], shape=(k.stores[0].shape[0] + 1,)),))),
    "a store keeps no node": ("keeps a node that does not exist", lambda k: replace(k, stores=(replace(k.stores[0], value=99),))),
    "a store is per element": ("keeps one of a row's many values", lambda k: replace(k, stores=(replace(k.stores[0], value=0),))),
    "elements are written twice": ("writes an element twice", lambda k: replace(k, stores=(
        replace(k.stores[0], index=(along(0).times(2),)),))),
}  # fmt: skip


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_found(name: str) -> None:
    problem, change = VIOLATIONS[name]
    program = fused()
    assert [violation_of(k) for k in program.kernels] == [None] * len(program.kernels)
    bad = with_kernel(program, lambda call: call._replace(kernel=change(call.kernel)), len(program.kernels) - 1)
    with pytest.raises(
        vf.errors.CompilerError, match=f"(?s)fusion: .*({problem}).*in the kernel of .*reduce_sum at .*test_kernels.py"
    ) as caught:
        verify_pass("fusion", program.closed, bad)
    assert caught.value.location is not None and caught.value.location.function == "padded"


def test_a_store_is_missing() -> None:
    program = fused(lambda x: (jnp.exp(x), jnp.exp(x).sum(1)))
    bad = with_kernel(program, lambda call: call._replace(kernel=replace(call.kernel, stores=call.kernel.stores[:1])))
    with pytest.raises(vf.errors.CompilerError, match="fusion: a kernel's results are .* but it has buffers float32.12."):
        verify_pass("fusion", program.closed, bad)


def copy(mask: tuple[Range, ...], sizes: tuple[int, ...] = (4, 4)) -> Kernel:
    """Return a kernel that stores x[i + j - 3] where a mask lets it."""
    index = (along(0).plus(-3).replaced({0: along(0)}),)
    value = Range(along(0), 0, 1).value
    both = type(value)(((0, 1), (1, 1)), -3)
    load = Load(F32, 0, (4,), (both,), mask, Constant.of(0, F32))
    assert len(index) == 1
    return Kernel(sizes, 2, (Buffer(4, F32),), (load,), (Store(sizes, (along(0), along(1)), 0),))


def test_conditions_on_single_axes_guard_an_index_of_several() -> None:
    """i + j - 3 is in range where i = 3, or where it is itself said to be; not where only i > 0."""
    last = Range(along(0), 3, 4)
    assert violation_of(copy((last,))) is None
    assert "outside" in str(violation_of(copy((Range(along(0), 1, 4),))))
    assert "outside" in str(violation_of(copy(())))
    assert violation_of(copy((Range(along(0), 5, 9),))) is None  # it never reads
    assert violation_of(copy((Range(along(0), 2, 4), Range(along(1), 1, 4)))) is None
    assert violation_of(copy((Range(along(0).times(-1), -3, -2),))) is None


# recognisers


def product(x: Any) -> Any:
    return jnp.tanh(x @ x.T) + 1.0


def a_product() -> Kernel:
    program = pipeline.fused(vf.make_jaxpr(product)(X), SimpleTarget(keeps_as_kernel=lambda kernel: True))
    (kernel,) = program.kernels
    assert contraction.contraction_of(kernel) is not None and violation_of(kernel) is None
    return kernel


@pytest.mark.parametrize("what", ["store", "value", "operands"])
def test_what_a_recogniser_forgets_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = a_product()
    right = contraction.contraction_of(kernel)
    assert right is not None

    class Forgetful(contraction.Contraction):
        def epilogue(self, width: int | None = None) -> Any:
            result, inputs = super().epilogue(width)
            if what == "store":
                return replace(result, stores=()), inputs
            return replace(result, stores=tuple(replace(s, value=0) for s in result.stores)) if what == "value" else result, inputs

    wrong = Forgetful(*right)
    if what == "operands":
        wrong = wrong._replace(rhs=replace(right.rhs, index=right.lhs.index))
    monkeypatch.setattr(verification, "contraction_of", lambda kernel: wrong)
    violation_of.cache_clear()
    try:
        assert "taken for a matrix product" in str(violation_of(kernel))
    finally:
        violation_of.cache_clear()
