from volta_fn.experimental import checkify as checkify
from volta_fn.experimental import ode as ode
