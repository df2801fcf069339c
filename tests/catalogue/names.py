"""Which names of JAX there are, and why some are not here."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from typing import Any

#: Namespaces of JAX that are here at the same path.
JAX = ("numpy", "numpy.linalg", "numpy.fft", "random", "nn", "nn.initializers", "lax", "lax.linalg")

_DTYPES = "no array here has this dtype"
_OPTIONS = "an option of XLA's products, which are exact to the dtype here"
_MESHES = "moves values between devices, while an array here lies on one"
_SCALED = "products of the 8-bit formats of certain accelerators, which no array here has"

#: Names that are left out, with the reason.
LEFT_OUT: dict[str, str] = {
    **{f"numpy.{name}": _DTYPES for name in "int1 int2 int4 uint1 uint2 uint4 float4_e2m1fn float6_e2m3fn float6_e3m2fn".split()},
    **{f"numpy.float8_{name}": _DTYPES for name in "e3m4 e4m3 e4m3b11fnuz e4m3fn e4m3fnuz e5m2 e5m2fnuz e8m0fnu".split()},
    **{f"lax.{name}": _OPTIONS for name in "AccuracyMode DotAlgorithm DotAlgorithmPreset Tolerance".split()},
    **{f"lax.{name}": _MESHES for name in "pbroadcast precv psend ragged_all_to_all".split()},
    **{f"nn.{name}": _SCALED for name in "get_scaled_dot_general_config scaled_dot_general scaled_matmul".split()},
    "lax.scaled_dot": _SCALED,
    "lax.rng_uniform": "draws from a hidden state; `random.uniform` takes a key",
    "lax.stage": "an internal of JAX's tracing",
}


def resolve(library: str, path: str) -> Any:
    """Return the object at a dotted path of a library; raise `AttributeError` if there is none."""
    owner = importlib.import_module(library)
    for name in filter(None, path.split(".")):
        owner = getattr(owner, name) if hasattr(owner, name) else _submodule(owner, name)
    return owner


def _submodule(owner: Any, name: str) -> Any:
    if not isinstance(owner, types.ModuleType):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"{owner.__name__}.{name}")
    except ModuleNotFoundError:
        raise AttributeError(name) from None


def exists(library: str, path: str) -> bool:
    """Return True if a library has something at a dotted path."""
    try:
        resolve(library, path)
    except AttributeError:
        return False
    return True


#: Names of JAX that its documentation does not have.
UNDOCUMENTED = set(
    "lax.conv_general_permutations lax.conv_general_shape_tuple lax.conv_shape_tuple lax.conv_transpose_shape_tuple lax.dce_sink "
    "lax.reduce_window_shape_tuple lax.shape_as_value lax.pcast".split()
)


@functools.cache
def public_names(library: str, namespace: str) -> tuple[str, ...]:
    """Return the public names of a namespace: no modules, and none of the objects that JAX calls primitives."""
    module = resolve(library, namespace)
    names = [name for name in dir(module) if not name.startswith("_") and not name.endswith("_p")]
    return tuple([n for n in names if not inspect.ismodule(getattr(module, n)) and f"{namespace}.{n}" not in UNDOCUMENTED])
