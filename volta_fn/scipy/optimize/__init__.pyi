from volta_fn.scipy.optimize.minimization import OptimizeResults as OptimizeResults
from volta_fn.scipy.optimize.minimization import minimize as minimize
