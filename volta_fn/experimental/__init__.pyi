from volta_fn.experimental import ode as ode
