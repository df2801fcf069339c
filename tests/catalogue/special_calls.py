"""Calls of `volta_fn.scipy.special`."""

from __future__ import annotations

import numpy as np
import scipy.special

from tests.catalogue.call import Call, Calls, at, each, numbers
from tests.catalogue.numpy_calls import P, U, X, Y

SHARE = numbers((3, 4), 0.05, 0.95)
ORDERS = np.array([1, 2, 3, 5], np.int32)


def first_kind(z: np.ndarray, v: int) -> np.ndarray:
    """Return the Bessel functions of the orders up to v."""
    return np.stack([scipy.special.jv(order, z) for order in range(v + 1)])


def harmonic(n: np.ndarray, m: np.ndarray, theta: np.ndarray, phi: np.ndarray, n_max: int) -> np.ndarray:
    """Return SciPy's spherical harmonics, which need no largest degree."""
    return scipy.special.sph_harm_y(n, m, theta, phi)


UNARY: Calls = (
    each("dawsn erf erfc erfcx expit i0 i0e i1 i1e log_ndtr ndtr", X)
    | each("entr exp1 expi gamma gammaln digamma factorial fresnel sici spence", P)
    | {"loggamma": Call((P,)), "gammasgn": Call((X,), grad=False), "wofz": Call((X + 1j * Y,))}
    | each("erfinv", U)
    | each("logit ndtri", SHARE)
)

SEVERAL: Calls = (
    each("beta betaln poch rel_entr kl_div boxcox boxcox1p xlogy xlog1py comb", P + 1, P)
    | {"betainc": Call((P, P[::-1], SHARE)), "gammainc": Call((P, P[::-1])), "gammaincc": Call((P, P[::-1]))}
    | {"hyp1f1": Call((P, P[::-1], X)), "hyp2f1": Call((P, P[::-1], P + 1, U), tolerance=1e-4), "owens_t": Call((X, Y))}
    | {"expn": Call((ORDERS, P)), "zeta": Call((P + 1, P))}
    | {"polygamma": Call((ORDERS, P), note="differentiable in x"), "multigammaln": Call((P + 1, 3))}
    | each("logsumexp softmax log_softmax", X, kwargs={"axis": 1})
    | {"bernoulli": Call((8,), jit=False), "bessel_jn": Call((P,), {"v": 3}, theirs=first_kind)}
    | {"sph_harm_y": Call((ORDERS, ORDERS - 1, P[0], P[1]), {"n_max": 5}, alike=True, theirs=harmonic)}
)

CALLS: Calls = at("scipy.special", UNARY, SEVERAL)
