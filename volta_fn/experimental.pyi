"""What JAX keeps in `jax.experimental`."""

from volta_fn.compat.experimental import checkify as checkify
from volta_fn.compat.experimental import colocated_python as colocated_python
from volta_fn.compat.experimental import io_callback as io_callback
from volta_fn.compat.experimental import jet as jet
from volta_fn.compat.experimental import mesh_utils as mesh_utils
from volta_fn.compat.experimental import multihost_utils as multihost_utils
from volta_fn.compat.experimental import ode as ode
from volta_fn.compat.experimental import pallas as pallas
from volta_fn.compat.experimental import random as random
from volta_fn.compat.experimental import sparse as sparse
from volta_fn.compat.experimental import xla_metadata as xla_metadata
