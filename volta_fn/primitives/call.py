"""Calls of programs, among them `jit`'s."""

from __future__ import annotations

from typing import Any

from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Primitive


def call_primitive(name: str, parameter: str = "jaxpr", **rules: Any) -> Primitive:
    """Declare the call of a program, which the parameter of that name holds.

    Its results are those of the program, and compilers inline it. `rules` are the call's own, as `Primitive` takes them.
    """
    return Primitive(
        name,
        lambda *avals, **params: tuple(params[parameter].out_avals),
        multiple_results=True,
        holds_programs=True,
        call_param=parameter,
        views=True,
        **rules,
    )


#: ``jaxpr`` has concrete constants only; ``donated`` marks the operands whose memory the call may reuse (empty: none).
jit_p = call_primitive("jit")


def call_params(jaxpr: ClosedJaxpr, name: str) -> dict[str, Any]:
    """Return the parameters of a call that donates nothing."""
    return {"jaxpr": jaxpr, "name": name, "donated": ()}
