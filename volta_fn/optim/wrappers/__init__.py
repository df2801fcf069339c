"""Transformations of other transformations.

`composition` chains them, limits them to some of the parameters, steps or rows of a table, and moves hyper-parameters into the state.
`accumulation` works over several steps or processes: accumulated gradients, averaged parameters, loss scales for float16, measurements,
and states that processes share.
"""
