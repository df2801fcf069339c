from volta_fn.example_libraries import optimizers as optimizers
from volta_fn.example_libraries import stax as stax
