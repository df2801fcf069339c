"""The operators of ONNX, one file per family; `registry` says what they get.

Importing this package declares all of them.
"""

from volta_fn.onnx.operators import (
    activations,
    arithmetic,
    control_flow,
    convolution,
    images,
    indexing,
    normalization,
    quantization,
    recurrent,
    reductions,
    sequences,
    shapes,
    signal,
    strings,
    training,
)
from volta_fn.onnx.operators.registry import OPERATORS as OPERATORS
from volta_fn.onnx.operators.registry import Node as Node

FAMILIES = (
    activations,
    arithmetic,
    control_flow,
    convolution,
    images,
    indexing,
    normalization,
    quantization,
    recurrent,
    reductions,
    sequences,
    shapes,
    signal,
    strings,
    training,
)
