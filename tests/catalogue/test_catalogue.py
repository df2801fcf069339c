"""Every call of the catalogue keeps the laws."""

from __future__ import annotations

import pytest

import volta_fn as vf
from tests.catalogue.calls import CALLS
from tests.catalogue.laws import check_batch, check_derivatives, check_other_dtypes, check_repeated, check_values
from volta_fn.jit import fused

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


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.filterwarnings("ignore")  # of numbers out of range, and of imaginary parts that are dropped
def test_other_dtypes(path):
    check_other_dtypes(path, CALLS[path])


@pytest.mark.parametrize("path", CALLS)
def test_repeated_calls(path, monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", True)
    monkeypatch.setattr(fused, "_SMALLEST", 0)
    check_repeated(path, CALLS[path])
