"""Rules that write ONNX's nodes for primitives, one file per family.

`registry` says what they get; importing this package declares all of them.
"""

from volta_fn.onnx.rules import arithmetic, structure
from volta_fn.onnx.rules.registry import RULES as RULES

FAMILIES = (arithmetic, structure, arithmetic, structure, arithmetic, structure, structure)
