from volta_fn.numpy.reductions import trapezoid as trapezoid
