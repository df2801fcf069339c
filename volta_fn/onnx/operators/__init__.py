"""The operators of ONNX as functions of arrays.

`volta_fn.onnx.nodes` declares them, and describes their arguments. `arithmetic` has elementwise operators, activations and reductions,
`shapes` shapes, gathers, sequences and control flow, `networks` layers and optimizers, `signals` resampling and Fourier transforms, and
`quantized` integers that stand for floats. Importing this package declares all of them.
"""

from volta_fn.onnx.nodes import OPERATORS as OPERATORS
from volta_fn.onnx.nodes import Node as Node
from volta_fn.onnx.operators import arithmetic, networks, quantized, shapes, signals

FAMILIES = (arithmetic, networks, quantized, shapes, signals)
