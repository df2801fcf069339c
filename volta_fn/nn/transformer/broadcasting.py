"""Whether one shape broadcasts to another."""

from __future__ import annotations


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of that shape broadcasts to exactly `target`, by NumPy's rule."""
    return len(shape) <= len(target) and all(n in (1, size) for n, size in zip(shape[::-1], target[::-1], strict=False))
