"""Hypothesis strategies for index expressions that are valid for a shape."""

import numpy as np
from hypothesis import strategies as st

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def slices(size):
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, bound, bound, st.none() | st.sampled_from([1, 2, 3, -1, -2]))


@st.composite
def basic(draw, shape):
    """Ints, slices, None, Ellipsis."""
    items = [draw(st.integers(-n, n - 1) | slices(n)) if n else draw(slices(n)) for n in shape[: draw(st.integers(0, len(shape)))]]
    return _decorated(draw, items, len(shape))


@st.composite
def advanced(draw, shape):
    """Return the same with arrays of integers that broadcast together, masks, and bare booleans."""
    together = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    items, dim = [], 0
    while dim < draw(st.integers(0, len(shape))):
        size = shape[dim]
        kind = draw(st.sampled_from(["int", "slice", "array", "array", "mask"]))
        step = 1
        if kind == "array" and (size or 0 in together):
            items.append(_places(draw, together, size))
        elif kind == "mask" and together in ((), (1,)):
            step = draw(st.integers(1, min(2, len(shape) - dim)))
            items.append(_mask_of_one(draw, shape[dim : dim + step]))
        else:
            items.append(draw(st.integers(-size, size - 1)) if kind == "int" and size else draw(slices(size)))
        dim += step
    return _decorated(draw, items, len(shape))


def _places(draw, together, size):
    """Return an array of indices whose shape broadcasts to `together`, as NumPy array of some dtype or as a list."""
    shape = tuple(n if draw(st.booleans()) else 1 for n in together)[draw(st.integers(0, len(together))) :]
    if not size:
        shape = together
    values = np.asarray(np.random.default_rng(draw(st.integers(0, 99))).integers(-size, max(size, 1 - size), shape))
    if draw(st.booleans()) and len(shape) == 1:
        return values.tolist()
    return (values % max(size, 1)).astype("uint8") if draw(st.booleans()) else values.astype(draw(st.sampled_from(["int8", "int64"])))


def _mask_of_one(draw, shape):
    """Return a mask with one True element, which goes with indices of shape () or (1,); of any number where there are no others."""
    mask = np.zeros(shape, bool)
    if mask.size:
        mask.flat[draw(st.integers(0, mask.size - 1))] = True
    return mask


def _decorated(draw, items, rank):
    """Add None and Ellipsis to an index; a single item may come without a tuple."""
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)
