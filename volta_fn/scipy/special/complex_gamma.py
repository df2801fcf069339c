"""The gamma function of complex numbers.

Its logarithm is Stirling's series where |Re z| or |Im z| is large, reached by the recurrence from the right half plane, and by the
reflection formula from the left one (Hare, "Computing the principal branch of log-Gamma", 1997).
"""

from __future__ import annotations

import math

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array

#: Bernoulli's numbers B_2k over 2k (2k - 1), k = 1, 2, …
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
#: How far the recurrence goes: at this distance the series has the precision of float64.
_STEPS = 12


def log_gamma_of_complex(z: Array) -> Array:
    """Compute the branch of log Γ(z) that is continuous off the negative axis.

    NaN at the poles.
    """
    left = z.real < 0.5
    right = _of_right_half(vnp.where(left, 1 - z, z))
    # log of sin(πz) jumps by 2πi where the logarithm of Γ does not.
    jumps = vnp.floor(z.real / 2 + 0.25) * vnp.where(vnp.signbit(z.imag), -1.0, 1.0) * (2 * math.pi)
    reflected = math.log(math.pi) - _log_sine(z) - right + lax.complex(vnp.zeros_like(jumps), jumps)
    is_pole = (z.imag == 0) & (z.real <= 0) & (z.real == vnp.floor(z.real))
    return vnp.where(is_pole, complex(np.nan, np.nan), vnp.where(left, reflected, right))


def _of_right_half(z: Array) -> Array:
    shifted = z + _STEPS
    inverse = 1 / shifted
    square = inverse * inverse
    series = vnp.zeros_like(z)
    for coefficient in reversed(_STIRLING):
        series = series * square + coefficient
    stirling = (shifted - 0.5) * vnp.log(shifted) - shifted + 0.5 * math.log(2 * math.pi) + series * inverse
    for step in range(_STEPS):
        stirling = stirling - vnp.log(z + step)
    return stirling


def _log_sine(z: Array) -> Array:
    """Compute log sin(πz), far from the real axis by one exponential."""
    below = vnp.signbit(z.imag)
    up = vnp.where(below, vnp.conj(z), z)
    r = up.real - 2 * vnp.round(up.real / 2)  # the sine has this period
    # Zeros of sine and cosine are exact, so that their signs decide the branch.
    sine = vnp.sin(math.pi * vnp.where(abs(r) > 0.5, vnp.copysign(1.0, r) - r, r))
    cosine = vnp.sin(math.pi * (0.5 - abs(r)))
    far = up.imag > 8
    height = math.pi * vnp.where(far, 1.0, up.imag)
    near = vnp.log(lax.complex(sine * vnp.cosh(height), cosine * vnp.sinh(height)))
    # There cosh and sinh are exp(π Im z) / 2.
    logarithm = vnp.where(far, lax.complex(math.pi * up.imag - math.log(2.0), vnp.arctan2(cosine, sine)), near)
    return vnp.where(below, vnp.conj(logarithm), logarithm)


def gamma_of_complex(z: Array) -> Array:
    """Compute Γ(z); NaN at the poles."""
    return vnp.exp(log_gamma_of_complex(z))
