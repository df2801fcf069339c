"""The geometric distribution of the number of trials up to the first success.

k = 1, 2, … has probability p (1 - p)^(k-1), for `k` less `loc`, where 0 < `p` <= 1. All arguments broadcast; integers become floats.

>>> vf.scipy.stats.geom.pmf(vf.numpy.array([0, 1, 2]), 0.5)
Array([0.  , 0.5 , 0.25], dtype=float32)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.exponential import xlog1py
from volta_fn.scipy.stats.declarations import Discrete


def _parameters(k: Any, p: Any, loc: Any = 0) -> None:
    """Take an integer and a probability."""


_geom = Discrete(_parameters, support=lambda p: (1.0, np.inf), valid=lambda p: (p > 0) & (p <= 1))

logpmf = _geom.logpmf(lambda k, p: xlog1py(k - 1.0, -p) + vnp.log(p))
pmf = _geom.pmf(lambda k, p: special.beta_density(vnp.ones_like(k), k, p) * p / k)
