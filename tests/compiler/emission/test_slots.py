"""Slots of constants: equal small ones share one, large ones share one if their memory is the same."""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.emission import SMALL_CONSTANT, Slots

SMALL = np.arange(SMALL_CONSTANT // 4, dtype=np.int32)
LARGE = np.arange(6 * 50, dtype=np.float32).reshape(6, 50)


def test_equal_small_constants_share_a_slot() -> None:
    slots = Slots()
    slot = slots.constant(SMALL)
    assert slots.constant(SMALL.copy()) is slot
    assert slots.constant(SMALL + 1) is not slot
    assert slots.constant(SMALL.view(np.uint32)) is not slot
    assert slots.constant(np.ones(())) is slots.constant(np.ones(()))


def test_a_large_constant_has_one_slot() -> None:
    slots = Slots()
    slot = slots.constant(LARGE)
    assert slots.constant(LARGE) is slot
    assert slots.constant(LARGE[:]) is slot
    assert slots.constant(LARGE.T) is slots.constant(LARGE.T) is not slot
    assert len(slots.arrays()) == 2
    np.testing.assert_array_equal(slots.constant(LARGE.T).array, LARGE.T)


def test_other_large_constants_have_slots_of_their_own() -> None:
    slots = Slots()
    others = [LARGE.copy(), LARGE.view(np.int32), LARGE.reshape(-1), LARGE[:3], LARGE[::2], LARGE[::-1]]
    assert len({slots.constant(array) for array in [LARGE, *others]}) == 1 + len(others)


def test_memory_of_a_constant_is_not_taken_by_another_array() -> None:
    """Non-contiguous arrays are copied: unless the originals are kept, the next temporary array is at the same address."""
    slots = Slots()
    for value in range(20):
        slots.constant(np.full((50, 6), value, np.float32).T)
    assert [array[0, 0] for array in slots.arrays()] == [*range(20)]
