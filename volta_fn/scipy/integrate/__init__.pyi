from volta_fn.numpy.statistics.cumulative import trapezoid as trapezoid
