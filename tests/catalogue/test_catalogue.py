"""Every call of the catalogue keeps the laws."""

from __future__ import annotations

import pytest

import volta_fn as vf
from tests.catalogue.calls import CALLS
from tests.catalogue.laws import (
    check_batch,
    check_derivatives,
    check_on_another_device,
    check_other_dtypes,
    check_repeated,
    check_storage_dtypes,
    check_values,
    dtypes_of,
    ours,
    traced,
)
from volta_fn import tree
from volta_fn.config import enable_x64
from volta_fn.core.devices import device as devices
from volta_fn.jit import fused
from volta_fn.settings import current as settings

pytest.importorskip("jax")


@pytest.mark.parametrize("path", CALLS)
def test_values(path):
    check_values(path, CALLS[path])


@pytest.mark.parametrize("path", [path for path, call in CALLS.items() if call.jit])
def test_batches(path):
    check_batch(path, CALLS[path])


@pytest.mark.parametrize("path", CALLS)
def test_on_another_device(path, monkeypatch):
    """Arrays that a function makes are on the default device, and go where its arguments are."""
    monkeypatch.setitem(devices._devices_by_platform, "cpu", vf.devices("cpu"))
    vf.set_cpu_devices(2)
    check_on_another_device(path, CALLS[path], vf.devices("cpu")[1])


@pytest.mark.wide
@pytest.mark.parametrize("path", [path for path, call in CALLS.items() if call.jit and call.grad])
def test_derivatives(path):
    check_derivatives(path, CALLS[path])


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.filterwarnings("ignore")  # of numbers out of range, and of imaginary parts that are dropped
def test_other_dtypes(path):
    check_other_dtypes(path, CALLS[path])


#: Calls whose results in dtypes of storage are not those of the same numbers in wider ones, and why.
OTHER_WHERE_STORED = {
    "numpy.insert": "the number that is inserted saturates",
    "numpy.put_along_axis": "the number that is put saturates",
    "lax.bitcast_convert_type": "reads other bits",
    "lax.reduce_window": "the function is NumPy's, which rounds each sum",
    "optim.transforms.per_example_global_norm_clip": "the sum of clipped gradients has their dtype",
    "optim.transforms.per_example_layer_norm_clip": "the sum of clipped gradients has their dtype",
}


@pytest.mark.parametrize("path", [path for path in CALLS if path not in OTHER_WHERE_STORED])
@pytest.mark.filterwarnings("ignore")
def test_storage_dtypes(path):
    check_storage_dtypes(path, CALLS[path])


@pytest.fixture
def permissive(monkeypatch):
    """JAX's mode for a test; programs of that mode, and results that are kept, are forgotten."""
    with monkeypatch.context() as patch:
        patch.setattr(settings, "permissive", True)
        yield
    vf.clear_caches()


@pytest.mark.parametrize("path", [path for path, call in CALLS.items() if call.jit])
@pytest.mark.filterwarnings("ignore")
def test_programs_for_jax_trace_what_they_trace_here(path, request):
    """Arrays that they make while tracing are traced, too, so that their values decide nothing."""
    run, arrays = traced(ours(path, CALLS[path]), CALLS[path])
    expected = [result.shape for result in tree.leaves(vf.eval_shape(run, *arrays))]
    request.getfixturevalue("permissive")
    assert [result.shape for result in tree.leaves(vf.eval_shape(run, *arrays))] == expected


#: Functions whose dtypes are not JAX's where 64 bits are set, and why.
OTHER_DTYPES = {
    "numpy.cumulative_prod": "NumPy's is as wide as that of cumulative_sum, and so is JAX's there",
    "numpy.histogram2d": "counts are floating-point numbers, as NumPy's are",
    "numpy.histogramdd": "counts are floating-point numbers, as NumPy's are",
    "numpy.tri": "has the default dtype, as zeros has",
    "scipy.linalg.pascal": "has the default dtype, as zeros has",
    "scipy.special.owens_t": "has the arguments' dtype, as JAX's documentation says",
    "scipy.special.sph_harm_y": "has the angles' precision",
}


@pytest.mark.parametrize("path", [path for path in CALLS if path.split(".")[0] in ("numpy", "scipy")])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("permissive")
def test_dtypes_of_integers_are_jaxs_where_64_bits_are_set(path):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True), enable_x64():
        try:
            expected = dtypes_of("jax", path, CALLS[path], "int32")
        except (TypeError, ValueError, AttributeError, NotImplementedError):
            pytest.skip("not in JAX, or refused there")
        assert (dtypes_of("volta_fn", path, CALLS[path], "int32") == expected) is (path not in OTHER_DTYPES)


@pytest.mark.parametrize("path", CALLS)
def test_repeated_calls(path, monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", True)
    monkeypatch.setattr(fused, "_SMALLEST", 0)
    check_repeated(path, CALLS[path])
