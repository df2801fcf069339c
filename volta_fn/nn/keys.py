"""Random keys for the parts of a layer."""

from __future__ import annotations

from typing import Any

from volta_fn import random


def split_key(key: Any, num: int) -> list[Any]:
    """`num` keys split from one, for parts that each take a key; None for each if there is none."""
    return [None] * num if key is None else list(random.split(key, num))
