"""Looking into running programs."""

from volta_fn.debug.printing import callback as callback
from volta_fn.debug.printing import print as print
