"""Programs with planted violations of the compiler's rules, and what the verifiers say of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.ir.kernel import FusedProgram, KernelCall
from volta_fn.core.jaxpr import ClosedJaxpr, Equation
from volta_fn.errors import CompilerError

X = vf.ShapeDtypeStruct((3, 4), "float32")


def model(x: Any) -> Any:
    y = jnp.tanh(x) * 2.0
    z = lax.sort(y @ y.T)
    return z - y.sum(), y


def traced(function: Callable[..., Any] = model, *args: Any) -> ClosedJaxpr:
    """Return the simplified program of a function."""
    return pipeline.simplify(vf.make_jaxpr(function)(*args or (X,)))


def with_equations(closed: ClosedJaxpr, change: Callable[[list[Equation]], Any]) -> ClosedJaxpr:
    """Return a program with changed equations."""
    eqns = [*closed.eqns]
    change(eqns)
    return closed.replace(eqns=eqns)


def with_kernel(program: FusedProgram, change: Callable[[KernelCall], KernelCall], number: int = 0) -> FusedProgram:
    """Return a fused program with a changed kernel call."""
    calls = [n for n, node in enumerate(program.nodes) if isinstance(node, KernelCall)]
    nodes = [*program.nodes]
    nodes[calls[number]] = change(nodes[calls[number]])  # type: ignore[arg-type]  # it is a call
    return program._replace(nodes=tuple(nodes))


def refused(verify: Callable[[], Any], stage: str, problem: str, equation: str = "", function: str = "model") -> CompilerError:
    """Run what must raise, and check that the message names the stage, the problem, the equation and the line of the function."""
    with pytest.raises(CompilerError, match=f"(?s){stage}.*{problem}.*{equation}") as caught:
        verify()
    error = caught.value
    assert error.stage == stage
    if equation:
        assert re.search(equation, error.equation)
        assert error.location is not None
        assert (error.location.function, error.location.file) == (function, __file__), error.location
        assert f"at {__file__}:{error.location.lineno}" in str(error)
    return error
