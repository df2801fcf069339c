"""NumPy functions that are the meaning of elementwise primitives which NumPy itself lacks, or defines otherwise.

Each takes and returns arrays of one dtype; operands broadcast. float16 and bfloat16 compute through float32 or float64.

They are in `arithmetic`, `bits`, `error`, `gamma`, `bessel` and `threefry`; `blocks` runs long formulas in the cache.
"""

from typing import TYPE_CHECKING

from volta_fn import on_demand
from volta_fn.primitives.scalar_functions.arithmetic import cbrt as cbrt
from volta_fn.primitives.scalar_functions.arithmetic import div as div
from volta_fn.primitives.scalar_functions.arithmetic import integer_pow as integer_pow
from volta_fn.primitives.scalar_functions.arithmetic import logistic as logistic
from volta_fn.primitives.scalar_functions.arithmetic import nextafter as nextafter
from volta_fn.primitives.scalar_functions.arithmetic import pow as pow
from volta_fn.primitives.scalar_functions.arithmetic import rem as rem
from volta_fn.primitives.scalar_functions.arithmetic import round_half_away as round_half_away
from volta_fn.primitives.scalar_functions.arithmetic import rsqrt as rsqrt
from volta_fn.primitives.scalar_functions.arithmetic import sign as sign
from volta_fn.primitives.scalar_functions.bits import clz as clz
from volta_fn.primitives.scalar_functions.bits import population_count as population_count
from volta_fn.primitives.scalar_functions.bits import shift_left as shift_left
from volta_fn.primitives.scalar_functions.bits import shift_right_arithmetic as shift_right_arithmetic
from volta_fn.primitives.scalar_functions.bits import shift_right_logical as shift_right_logical

if TYPE_CHECKING:
    from volta_fn.primitives.scalar_functions.bessel import bessel_i0e as bessel_i0e
    from volta_fn.primitives.scalar_functions.bessel import bessel_i1e as bessel_i1e
    from volta_fn.primitives.scalar_functions.error import erf as erf
    from volta_fn.primitives.scalar_functions.error import erf_inv as erf_inv
    from volta_fn.primitives.scalar_functions.error import erfc as erfc
    from volta_fn.primitives.scalar_functions.error import gelu as gelu
    from volta_fn.primitives.scalar_functions.error import ndtr as ndtr
    from volta_fn.primitives.scalar_functions.gamma import digamma as digamma
    from volta_fn.primitives.scalar_functions.gamma import lgamma as lgamma
    from volta_fn.primitives.scalar_functions.gamma import polygamma as polygamma
    from volta_fn.primitives.scalar_functions.gamma import zeta as zeta
    from volta_fn.primitives.scalar_functions.threefry import threefry2x32_word as threefry2x32_word
else:
    __getattr__, __dir__ = on_demand.exports(
        __name__,
        "",
        {
            ".bessel": "bessel_i0e bessel_i1e",
            ".error": "erf erf_inv erfc gelu ndtr",
            ".gamma": "digamma lgamma polygamma zeta",
            ".threefry": "threefry2x32_word",
        },
    )
