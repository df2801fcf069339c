from volta_fn.experimental import checkify as checkify
from volta_fn.experimental import jet as jet
from volta_fn.experimental import mesh_utils as mesh_utils
from volta_fn.experimental import multihost_utils as multihost_utils
from volta_fn.experimental import ode as ode
from volta_fn.experimental import pallas as pallas
from volta_fn.experimental import sparse as sparse
from volta_fn.primitives.callbacks import io_callback as io_callback
