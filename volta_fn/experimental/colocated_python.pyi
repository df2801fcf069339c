"""Python functions that run where devices are."""

from volta_fn.experimental.multihost import ColocatedFunction as ColocatedFunction
from volta_fn.experimental.multihost import colocated_cpu_devices as colocated_cpu_devices
from volta_fn.experimental.multihost import colocated_python as colocated_python
from volta_fn.experimental.multihost import colocated_python_class as colocated_python_class
