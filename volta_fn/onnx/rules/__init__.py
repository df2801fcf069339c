"""Rules that write ONNX's nodes for primitives.

`registry` declares them, and describes their arguments. `arithmetic` has elementwise primitives, reductions, products and convolutions,
`structure` shapes, slices, gathers, windows and control flow. Importing this package declares all of them.
"""

from volta_fn.onnx.rules import arithmetic, structure
from volta_fn.onnx.rules.registry import RULES as RULES

FAMILIES = (arithmetic, structure)
