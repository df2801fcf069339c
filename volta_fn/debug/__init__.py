"""Inspect running programs, pytrees and the state of devices.

`printing` prints the values of traced programs, calls functions with them, and stops at breakpoints. `monitor` reports the state and the
work of a device, shows trees of arrays and their shardings, and raises where NaN, infinities or indices out of range arise.
"""

from volta_fn import advice as _advice
from volta_fn import lazy_imports as _lazy_imports
from volta_fn.debug.monitor import Checkpoint as Checkpoint
from volta_fn.debug.monitor import Health as Health
from volta_fn.debug.monitor import Monitor as Monitor
from volta_fn.debug.monitor import MonitorStats as MonitorStats
from volta_fn.debug.monitor import View as View
from volta_fn.debug.monitor import health as health
from volta_fn.debug.monitor import indices as indices
from volta_fn.debug.monitor import inspect_array_sharding as inspect_array_sharding
from volta_fn.debug.monitor import nans as nans
from volta_fn.debug.monitor import view as view
from volta_fn.debug.monitor import visualize_array_sharding as visualize_array_sharding
from volta_fn.debug.monitor import visualize_sharding as visualize_sharding
from volta_fn.debug.printing import DebugEffect as DebugEffect
from volta_fn.debug.printing import OrderedDebugEffect as OrderedDebugEffect
from volta_fn.debug.printing import breakpoint as breakpoint
from volta_fn.debug.printing import callback as callback
from volta_fn.debug.printing import log as log
from volta_fn.debug.printing import print as print

__dir__ = _lazy_imports.directory(__name__, ".py")
__getattr__ = _advice.guard(__name__)
