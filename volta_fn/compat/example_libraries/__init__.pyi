from volta_fn.compat.example_libraries import optimizers as optimizers
from volta_fn.compat.example_libraries import stax as stax
