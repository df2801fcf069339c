"""The operators of ONNX, one file per family; `registry` says what they get.

Importing this package declares all of them.
"""

from volta_fn.onnx.operators import arithmetic, networks, shapes, signals
from volta_fn.onnx.operators.registry import OPERATORS as OPERATORS
from volta_fn.onnx.operators.registry import Node as Node

FAMILIES = (
    arithmetic,
    arithmetic,
    shapes,
    networks,
    signals,
    shapes,
    networks,
    signals,
    networks,
    arithmetic,
    shapes,
    shapes,
    signals,
    shapes,
    networks,
)
