"""Which frames tracebacks show: all, so that these functions change nothing."""

from volta_fn.compat.refused import api_boundary as api_boundary
from volta_fn.compat.refused import include_frame as include_frame
from volta_fn.compat.refused import register_exclusion as register_exclusion
