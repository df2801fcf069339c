"""Strings, which are NumPy arrays on the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from volta_fn.errors import OnnxError
from volta_fn.onnx.operators.registry import Node, operator

_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@operator("StringNormalizer")
def string_normalizer(node: Node, texts: np.ndarray) -> np.ndarray:
    """Leave out some words, and change the case of the others."""
    if texts.ndim not in (1, 2) or (texts.ndim == 2 and texts.shape[0] != 1):
        raise OnnxError(f"{node}: strings must have shape (n,) or (1, n), not {texts.shape}")
    folded = str if node.get("is_case_sensitive", 0) else str.lower
    left_out = {folded(word) for word in node.get("stopwords", [])}
    changed = _CASES[node.get("case_change_action", "NONE")]
    kept = [changed(text) for text in texts.reshape(-1).tolist() if folded(text) not in left_out]
    return np.array(kept or [""], dtype=object).reshape(*texts.shape[:-1], -1)
