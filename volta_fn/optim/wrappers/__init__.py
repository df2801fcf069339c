"""Transformations of other transformations.

`composition` chains them, limits them to some of the parameters or steps, and moves hyper-parameters into the state. `accumulation` works
over several steps or processes: accumulated gradients, averaged parameters, loss scales for float16, measurements, and states that
processes share. `rows` updates some rows of a table.
"""
