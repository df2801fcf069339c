"""Kernels that every code generator is tried on, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.fusion.test_fuse import layer_norm, pullback, rms_norm, row_losses
from tests.compiler.ir.oracle import fuse_function
from volta_fn import lax, nn
from volta_fn.compiler.ir.kernel import Kernel, KernelCall


def shaped(*shape: int, dtype: str = "float32") -> Any:
    return vf.ShapeDtypeStruct(shape, dtype)


def kernels_of(function: Callable[..., Any], *args: Any) -> list[Kernel]:
    """Return the kernels of a function's program, which has no other equations."""
    items = fuse_function(function, *args).nodes
    assert all(isinstance(item, KernelCall) for item in items)
    return [item.kernel for item in items if isinstance(item, KernelCall)]


def inputs_of(kernel: Kernel, seed: int = 0) -> list[np.ndarray]:
    """Inputs of a kernel: normal floats, small integers."""
    rng = np.random.default_rng(seed)
    result = []
    for b in kernel.inputs:
        if b.dtype.kind == "b":
            result.append(rng.random(b.size) < 0.5)
        elif b.dtype.kind in "iu":
            result.append(rng.integers(0 if b.dtype.kind == "u" else -9, 10, b.size).astype(b.dtype))
        elif b.dtype.kind == "c":
            result.append((rng.normal(size=b.size) + 1j * rng.normal(size=b.size)).astype(b.dtype))
        else:
            result.append(rng.normal(size=b.size).astype(b.dtype))
    return result


#: Programs that are kernels, and what they take where something is of a given length.
ROWS: list[tuple[str, Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = [
    ("softmax", nn.softmax, lambda n: (shaped(5, n),)),
    ("log-softmax-gradient", pullback(nn.log_softmax), lambda n: (shaped(5, n), shaped(5, n))),
    ("layer-norm", layer_norm, lambda n: (shaped(5, n), shaped(n), shaped(n))),
    (
        "layer-norm-gradient",
        lambda x, w, b, g: vf.vjp(layer_norm, x, w, b)[1](g),
        lambda n: (shaped(5, n), shaped(n), shaped(n), shaped(5, n)),
    ),
    ("rms-norm-gradient", pullback(rms_norm), lambda n: (shaped(5, n), shaped(n), shaped(5, n))),
    ("cross-entropy", row_losses, lambda n: (shaped(5, n), shaped(5, n))),
    ("extremes", lambda x: (x.max(1), x.min(1), lax.argmax(x, 1), lax.argmin(x, 1)), lambda n: (shaped(5, n),)),
    ("columns", lambda x: (x.sum(0), x.max(0), lax.argmax(x, 0)), lambda n: (shaped(7, n),)),
    ("long-columns", lambda x: (x.sum(0), lax.argmin(x, 0)), lambda n: (shaped(n, 7),)),
    ("softmax-of-columns", lambda x: nn.softmax(x, 0), lambda n: (shaped(n, 5),)),
    ("gelu", nn.gelu, lambda n: (shaped(3, n),)),
    ("transpose", lambda x: x.T * 2.0 + 1.0, lambda n: (shaped(17, n),)),
    ("transpose-add", lambda x, y: x.T + y, lambda n: (shaped(40, n), shaped(n, 40))),
    ("reverse", lambda x: x[:, ::-1] * 2.0, lambda n: (shaped(3, n),)),
    ("stride", lambda x: x[:, ::2] * 2.0, lambda n: (shaped(3, n),)),
    ("pad", lambda x: lax.pad(x, np.float32(-1), [(1, 2, 0), (3, 1, 0)]) * 2.0, lambda n: (shaped(3, n),)),
    ("concatenate", lambda x, y: jnp.concatenate([x, y, x], 1), lambda n: (shaped(3, n), shaped(3, 5))),
    ("dilate", lambda x: lax.pad(x, np.float32(0), [(0, 0, 0), (0, 1, 1)]), lambda n: (shaped(3, n),)),
    ("triangle", jnp.tril, lambda n: (shaped(9, n),)),
    ("both-broadcast", lambda x, a, b: x * a + b[:, None], lambda n: (shaped(5, n), shaped(n), shaped(5))),
    ("channels", lambda x: x.mean((0, 2, 3)), lambda n: (shaped(2, 3, 5, n),)),
    ("batch-norm", lambda x: (x - x.mean((0, 2), keepdims=True)) * x.max((0, 2), keepdims=True), lambda n: (shaped(3, 4, n),)),
]
