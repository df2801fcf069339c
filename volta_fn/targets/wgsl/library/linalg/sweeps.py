"""Methods that sweep over a matrix until nothing is left to do.

A driver takes a GPU for hung that is busy with one dispatch for seconds, and a workgroup has a large matrix for itself, so that has a
dispatch for each sweep. Between dispatches each matrix's `scale`, zero of a bad one, and what its last sweep left are in memory: matrices
that are ready have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.targets.wgsl.library.linalg.iteration_budget import Iterations, work
from volta_fn.targets.wgsl.library.linalg.rotations import SWEEPS
from volta_fn.targets.wgsl.library.linalg.shader_templates import written
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars import Shader


class Method(NamedTuple):
    """Statements of a method, written for a shader which has declared what they use.

    Attributes:
        where: they name where a matrix is.
        before: they load it, and name its `scale` and whether it is `bad`.
        sweep: they do a sweep, and name what is `left` to do.
        enough: if so little is left, it was the last sweep.
        after: they write the results.
    """

    where: str
    before: Callable[[Shader], str]
    sweep: Callable[[Shader], str]
    enough: str
    after: Callable[[Shader], str]


def swept(method: Method, new: Callable[[], Shader], batch: int, iterations: Iterations, state: tuple[int, np.dtype]) -> list[Dispatch]:
    """Return the dispatches of a method, with the shaders that `new` makes.

    `state` is the number of the workspace of `state_size`, and its dtype.
    """
    if iterations.are_many:
        return _swept_separately(method, new, batch, iterations, state)
    shader = new()
    before, sweep, after = method.before(shader), method.sweep(shader), method.after(shader)
    loop = f"for (var sweep = 0u; sweep < {SWEEPS}u; sweep++) {{\n{sweep}\nif (max_all(left, local) <= {method.enough}) {{ break; }}\n}}"
    written(shader, "\n".join([method.where, before, loop, after]))
    return [shader.dispatch(batch, work(batch, iterations.of_a_dispatch))]


def state_size(batch: int, iterations: Iterations, real: np.dtype) -> tuple[int, ...]:
    """Return the bytes of the workspace for what is kept between dispatches."""
    return (2 * batch * real.itemsize,) if iterations.are_many else ()


def _swept_separately(
    method: Method, new: Callable[[], Shader], batch: int, iterations: Iterations, state: tuple[int, np.dtype]
) -> list[Dispatch]:
    shaders = [new() for _ in range(3)]
    begin, one, end = shaders
    scale, left = (f"{shaders[0].buffer(*state, written=True).name}[group * 2u + {k}u]" for k in (0, 1))
    for shader in (one, end):
        shader.buffer(*state, written=True)
    kept = f"if (local == 0u) {{ {scale} = select(scale, R(0), bad); {left} = select(R(1), R(0), bad); }}"
    written(begin, "\n".join([method.where, method.before(begin), kept]))
    rest = f"let rest = max_all(left, local);\nif (local == 0u) {{ {left} = rest; }}"
    head = f"if (max_all({left}, local) > {method.enough}) {{"
    written(one, "\n".join([method.where, head, method.sweep(one), rest, "}"]))
    known = f"let scale = {scale};\nlet bad = scale == R(0);"
    written(end, "\n".join([method.where, known, method.after(end)]))
    return [shader.dispatch(batch, work(batch, iterations.of_a_dispatch)) for shader in (begin, *[one] * SWEEPS, end)]
