"""Factorisations, solves and inverses of one matrix and of stacks, and gradients.

They are compared with JAX alone, but for factorisations on a GPU.

Where signs or orders of results are free, what does not depend on them is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Library, Workload, normal

Function = Callable[[Library, Any, Any], Any]


def _triangular(lib: Library, a: Any, b: Any) -> Any:
    return lib.lax.linalg.triangular_solve(a, b, left_side=True, lower=True)


def _qr(lib: Library, a: Any, b: Any) -> Any:
    q, r = lib.jnp.linalg.qr(a)
    return abs(q) + abs(r)


def _svd(lib: Library, a: Any, b: Any) -> Any:
    u, s, vt = lib.jnp.linalg.svd(a, full_matrices=False)
    return s + 0 * (u.sum() + vt.sum())


#: By name functions of (library, well-conditioned positive definite matrices, right-hand sides).
FUNCTIONS: dict[str, Function] = {
    "inv": lambda lib, a, b: lib.jnp.linalg.inv(a),
    "solve": lambda lib, a, b: lib.jnp.linalg.solve(a, b),
    "solve for a vector": lambda lib, a, b: lib.jnp.linalg.solve(a, b[..., :1]),
    "triangular solve": _triangular,
    "det": lambda lib, a, b: lib.jnp.linalg.det(a),
    "slogdet": lambda lib, a, b: lib.jnp.linalg.slogdet(a)[1],
    "cholesky": lambda lib, a, b: lib.jnp.linalg.cholesky(a),
    "qr": _qr,
    "qr of R alone": lambda lib, a, b: abs(lib.jnp.linalg.qr(a, mode="r")),
    "eigh": lambda lib, a, b: lib.jnp.linalg.eigh(a)[0],
    "svd": _svd,
    "eig": lambda lib, a, b: abs(lib.jnp.linalg.eig(a)[0]).sum(-1),
    "eigvals": lambda lib, a, b: abs(lib.jnp.linalg.eigvals(a)).sum(-1),
    "pinv": lambda lib, a, b: lib.jnp.linalg.pinv(a),
}
#: Those whose gradients are measured, too.
DIFFERENTIATED = ("inv", "solve", "triangular solve", "slogdet", "cholesky", "qr", "eigh", "svd", "pinv")

SHAPES = {"32×32": (32, 32), "200×200": (200, 200), "500×500": (500, 500), "64×(32×32)": (64, 32, 32)}


def linear_algebra(rng: np.random.Generator, shape: tuple[int, ...], function: Function, gradient: bool) -> Case:
    """Apply a function to matrices, or differentiate the sum of its result."""
    x = normal(rng, *shape) / np.float32(np.sqrt(shape[-1]))
    matrix = x @ x.swapaxes(-1, -2) / 50 + np.diag(np.geomspace(0.7, 1 / 0.7, shape[-1], dtype=np.float32))  # of a moderate determinant

    def ours(lib: Any) -> Any:
        if not gradient:
            return lambda a, b: function(lib, a, b)
        return lib.jax.grad(lambda a, b: function(lib, a, b).sum())

    return Case((matrix, normal(rng, *shape)), ours, None, tolerance=1e-3)


def _lu(lib: Library, a: Any, b: Any) -> Any:
    return lib.jax.scipy.linalg.lu_factor(a)[0]


def _eigh(lib: Library, a: Any, b: Any) -> Any:
    values, vectors = lib.jnp.linalg.eigh(a)
    return values + 0 * vectors.sum(-2)


def _torch_qr(torch: Any, a: Any) -> Any:
    q, r = torch.linalg.qr(a)
    return abs(q) + abs(r)


def _torch_eigh(torch: Any, a: Any) -> Any:
    values, vectors = torch.linalg.eigh(a)
    return values + 0 * vectors.sum(-2)


def _torch_svd(torch: Any, a: Any) -> Any:
    u, s, vt = torch.linalg.svd(a, full_matrices=False)
    return s + 0 * (u.sum() + vt.sum())


#: Factorisations with all that they give, by name: ours and JAX's, and PyTorch's.
FACTORISATIONS: dict[str, tuple[Function, Callable[[Any, Any], Any]]] = {
    "cholesky": (FUNCTIONS["cholesky"], lambda torch, a: torch.linalg.cholesky(a)),
    "lu": (_lu, lambda torch, a: torch.linalg.lu_factor(a)[0]),
    "qr": (_qr, _torch_qr),
    "eigh": (_eigh, _torch_eigh),
    "svd": (_svd, _torch_svd),
}


def factorisation(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Case:
    """Factor well-conditioned positive definite matrices."""
    case = linear_algebra(rng, shape, FACTORISATIONS[name][0], gradient=False)
    matrix = case.inputs[0]

    def ours(lib: Any) -> Any:
        return lambda a: FACTORISATIONS[name][0](lib, a, None)

    def theirs(torch: Any, a: Any) -> Any:
        return lambda: FACTORISATIONS[name][1](torch, a)

    return Case((matrix,), ours, theirs, tolerance=1e-3)


WORKLOADS = [
    Workload(
        f"linalg/{name}{' gradient' * gradient} {label}",
        linear_algebra,
        {"shape": shape, "function": function, "gradient": gradient},
        {"shape": (2, 3, 3)},
    )
    for name, function in FUNCTIONS.items()
    for gradient in ([False, True] if name in DIFFERENTIATED else [False])
    for label, shape in SHAPES.items()
]
