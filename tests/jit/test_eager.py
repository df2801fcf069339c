"""Eager evaluation of arrays on several devices."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.core.devices.device import Device
from volta_fn.jit import eager
from volta_fn.targets.numpy.backend import NumpyBackend


@pytest.fixture
def other() -> Device:
    """A device of another backend, to which arrays have to be copied."""
    return Device("cpu", 1, "another", NumpyBackend())


def test_an_array_that_is_used_on_another_device_again_is_copied_once(other: Device) -> None:
    x = vf.numpy.arange(3.0)
    (first,) = eager.on_device([x], other)
    (again,) = eager.on_device([x], other)
    assert first.device is other and again is first
    np.testing.assert_array_equal(first, [0.0, 1.0, 2.0])


def test_arrays_of_equal_values_have_copies_of_their_own(other: Device) -> None:
    x, y = vf.numpy.arange(3.0), vf.numpy.arange(3.0)
    first, second = eager.on_device([x, y], other)
    assert first is not second
    assert vf.numpy.asarray(first).device is other


def test_large_arrays_and_their_copies_are_gone_with_their_last_names(other: Device) -> None:
    x = vf.numpy.zeros(100_000)
    (copy,) = eager.on_device([x], other)
    alive = [weakref.ref(x), weakref.ref(copy)]
    del x, copy
    gc.collect()
    assert [array() for array in alive] == [None, None]
