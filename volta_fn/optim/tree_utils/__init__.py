"""Arithmetic on trees and look-up in optimizers' states, under Optax's names.

`volta_fn.optim.tree` has the same functions without the prefix ``tree_``.
"""

from volta_fn.optim.tree_utils.arrays import *
from volta_fn.optim.tree_utils.math import *
from volta_fn.optim.tree_utils.states import *
