from volta_fn.numpy.statistics.reductions import trapezoid as trapezoid
