from volta_fn.experimental import checkify as checkify
from volta_fn.experimental import ode as ode
from volta_fn.experimental import sparse as sparse
from volta_fn.primitives.callbacks import io_callback as io_callback
