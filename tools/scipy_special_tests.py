"""A plugin of pytest that runs SciPy's tests of special functions on volta_fn.

    python -m pytest -p tools.scipy_special_tests --pyargs scipy.special.tests.test_data ...

It replaces the functions of scipy.special that volta_fn has by volta_fn's, jitted, in float64 and complex128. The tests in test_data are
tables of exact numbers, Boost's and SciPy's own: those of complex arguments, which volta_fn's functions refuse, fail. Other files also
test limits where JAX means something else, and results in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.scipy import special

#: Functions of whole numbers, random variables and other arguments or results than SciPy's; zeta, whose q SciPy may omit.
_OTHERS = ("bernoulli", "lpmn", "lpmn_values", "bessel_jn", "softplus", "logsumexp", "softmax", "log_softmax", "factorial", "comb")


def _as_in_scipy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of NumPy's arrays."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        arrays = [np.asarray(a) for a in arguments]
        wide = [a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in arrays]
        if function.__name__ in ("polygamma", "expn"):
            wide[0] = arrays[0].astype(np.int32) if np.all(arrays[0] == np.trunc(arrays[0])) else wide[0]
        out = vf.jit(function)(*[jnp.asarray(a) for a in wide], **keywords)
        return vf.tree.map(lambda x: np.asarray(x)[()], out)

    return call


for _name in special.__all__:
    if hasattr(scipy.special, _name) and _name not in _OTHERS:
        setattr(scipy.special, _name, _as_in_scipy(getattr(special, _name)))
scipy.special.psi = scipy.special.digamma
