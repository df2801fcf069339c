"""`jit`'s primitive: a call of a sub-program.

Transforms apply to the sub-program; `jit` decides how it runs.
"""

from __future__ import annotations

from typing import Any

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Primitive


def _jit_abstract(*avals: ShapedArray, jaxpr: ClosedJaxpr, name: str, donated: tuple[bool, ...]) -> tuple[ShapedArray, ...]:
    return tuple(jaxpr.out_avals)


#: ``jaxpr`` has concrete constants only; ``donated`` marks the operands whose memory the call may reuse (empty: none).
jit_p = Primitive("jit", _jit_abstract, multiple_results=True, holds_programs=True, views=True)
jit_p.call_param = "jaxpr"


def call_params(jaxpr: ClosedJaxpr, name: str) -> dict[str, Any]:
    """Return the parameters of a call that donates nothing."""
    return {"jaxpr": jaxpr, "name": name, "donated": ()}
