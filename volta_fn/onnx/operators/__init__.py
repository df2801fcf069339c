"""The operators of ONNX as functions of arrays.

`registry` declares them, and describes their arguments. `arithmetic` has elementwise operators, activations and reductions, `shapes`
shapes, gathers, sequences and control flow, `networks` layers and optimizers, `signals` resampling and Fourier transforms, and `quantized`
integers that stand for floats. Importing this package declares all of them.
"""

from volta_fn.onnx.operators import arithmetic, networks, quantized, shapes, signals
from volta_fn.onnx.operators.registry import OPERATORS as OPERATORS
from volta_fn.onnx.operators.registry import Node as Node

FAMILIES = (arithmetic, networks, quantized, shapes, signals)
