"""Operations on vectors of numbers in registers.

In the order in which to read: `values` (vectors with operators), and `number` (dtypes in registers and in memory, conversions,
every elementwise primitive by name, for floats by `primitives.formulas`, and their estimated costs).
"""

from volta_fn.targets.cpu.scalars.number import Number as Number
from volta_fn.targets.cpu.scalars.number import apply as apply
from volta_fn.targets.cpu.scalars.number import combine as combine
from volta_fn.targets.cpu.scalars.number import constant as constant
from volta_fn.targets.cpu.scalars.number import cost as cost
from volta_fn.targets.cpu.scalars.number import horizontal as horizontal
from volta_fn.targets.cpu.scalars.number import load as load
from volta_fn.targets.cpu.scalars.number import position as position
from volta_fn.targets.cpu.scalars.number import shuffled as shuffled
from volta_fn.targets.cpu.scalars.number import splat as splat
from volta_fn.targets.cpu.scalars.number import store as store
from volta_fn.targets.cpu.scalars.number import supports as supports
