"""The primitives as functions with the names of `jax.lax`.

They are strict about dtypes; `volta_fn.numpy` promotes. `lax.pyi` lists all names. A name that ends with ``_p`` is a primitive itself, as
it is in the equations of programs:

>>> import volta_fn as vf
>>> vf.lax.exp_p in [e.primitive for e in vf.make_jaxpr(vf.lax.exp)(1.0).eqns]
True
"""

from typing import Any

from volta_fn import lazy_imports as _lazy_imports
from volta_fn.core.primitive import PRIMITIVES as _PRIMITIVES


def _primitive(name: str) -> Any:
    """Return the primitive of a name that ends with ``_p``; None for other names."""
    if not name.endswith("_p") or name.startswith("_"):
        return None
    for public in _lazy_imports.public_names(__name__):  # whose modules declare the primitives
        __getattr__(public)
    if name[:-2] not in _PRIMITIVES:
        raise AttributeError(f"module {__name__!r} has no primitive {name[:-2]!r}")
    return _PRIMITIVES[name[:-2]]


__getattr__, __dir__ = _lazy_imports.attach(__name__, _primitive)
