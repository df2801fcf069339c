"""Every call of the catalogue keeps the laws."""

from __future__ import annotations

import pytest

from tests.catalogue.calls import CALLS
from tests.catalogue.laws import check_batch, check_derivatives, check_values

pytest.importorskip("jax")


@pytest.mark.parametrize("path", CALLS)
def test_values(path):
    check_values(path, CALLS[path])


@pytest.mark.parametrize("path", [path for path, call in CALLS.items() if call.jit])
def test_batches(path):
    check_batch(path, CALLS[path])


@pytest.mark.wide
@pytest.mark.parametrize("path", [path for path, call in CALLS.items() if call.jit and call.grad])
def test_derivatives(path):
    check_derivatives(path, CALLS[path])
