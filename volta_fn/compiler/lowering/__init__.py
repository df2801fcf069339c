"""Lower jaxprs to programs of kernels and equations, with liveness and buffer assignment.

In the order in which to read: `op_kinds` (which equations can be in kernels), `equations` (equations to kernels), `random_bits` and
`onehot_indexing` (equations expanded before fusion), `program` (a program lowered for a target), `emit` (its commands), with values in the
slots of `buffer_assignment`; `output_specs` describes its results. `plan` is the straight-line program that NumPy runs, with the buffers of
`memory_layout`; `peak_memory` says how much memory it takes. `param_keys` compares parameters.
"""
