"""The public names, which are JAX's; methods of arrays; files; printing."""

from __future__ import annotations

import inspect
import io

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import sample

#: The public names, loaded.
OURS = {name: getattr(vnp, name) for name in dir(vnp) if not name.startswith("_")}


def test_jaxs_names_are_here():
    jax = pytest.importorskip("jax")
    names = {n for n in dir(jax.numpy) if not n.startswith("_") and not inspect.ismodule(getattr(jax.numpy, n))}
    assert not names - set(dir(vnp))


def test_public_functions_are_documented():
    functions = {n: f for n, f in OURS.items() if inspect.isfunction(f)}
    assert len(functions) > 300
    assert not [n for n, f in functions.items() if not inspect.getdoc(f)]


def test_parameters_are_jaxs():
    """Check that functions take JAX's parameters, by the same names and in order."""
    jax = pytest.importorskip("jax")
    # Sharding, other machines' precisions, names on their way out.
    later = {"out_sharding", "precision", "interpolation", "wrap_negative_indices"}
    differing = {}
    for name, function in OURS.items():
        theirs = getattr(jax.numpy, name, None)
        if not inspect.isfunction(function) or theirs is None or isinstance(theirs, (type, jax.numpy.ufunc)):
            continue
        try:
            wanted = [p for p in inspect.signature(theirs).parameters.values() if p.name not in later]
        except (TypeError, ValueError):
            continue
        ours = inspect.signature(function).parameters
        if any(p.kind is p.VAR_POSITIONAL for p in ours.values()):
            continue
        named = [p.name for p in wanted if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if missing := [n for n in named if n not in ours]:
            differing[name] = missing
    assert not differing


def test_constants():
    assert (vnp.pi, vnp.e, vnp.inf, vnp.euler_gamma, vnp.newaxis) == (np.pi, np.e, np.inf, np.euler_gamma, None)
    assert np.isnan(vnp.nan)
    assert vnp.dtype is np.dtype
    assert vnp.ndarray is vf.Array


def test_kinds_are_numpys():
    for name in ("ComplexWarning", "character", "flexible", "object_"):
        assert getattr(vnp, name) is getattr(np if hasattr(np, name) else np.exceptions, name)
    assert (vnp.csingle, vnp.cdouble, vnp.complex_) == (vnp.complex64, vnp.complex128, vnp.complex64)
    assert not vnp.issubdtype(vnp.float32, vnp.flexible)


def test_what_can_be_iterated_over():
    assert [vnp.iterable(x) for x in (vnp.ones(2), vnp.float32(1.0), [1], 1)] == [True, False, True, False]


METHODS = {
    "all": (), "any": (), "argmax": (), "argmin": (1,), "argsort": (), "astype": ("float16",), "clip": (0, 1), "conj": (), "copy": (),
    "cumprod": (0,), "cumsum": (), "diagonal": (), "dot": (np.ones((4, 2), np.float32),), "flatten": (), "max": (0,), "mean": (), "min": (),
    "nonzero": (), "prod": (), "ravel": (), "repeat": (2,), "reshape": (4, 3), "round": (1,), "squeeze": (), "std": (), "sum": (1,),
    "swapaxes": (0, 1), "take": (np.array([0, 2]),), "trace": (), "transpose": (1, 0), "var": (),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_numpys(name):
    x = sample((3, 4), np.float32, 1)
    got, wanted = getattr(vnp.asarray(x), name)(*METHODS[name]), getattr(x, name)(*METHODS[name])
    for ours, theirs in zip(got if isinstance(got, tuple) else [got], wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5, atol=1e-6)


def test_properties_and_operators():
    x = vnp.asarray(sample((2, 3), np.complex64, 1))
    host = np.asarray(x)
    for name in ("T", "mT", "real", "imag"):
        np.testing.assert_array_equal(np.asarray(getattr(x, name)), getattr(host, name))
    np.testing.assert_allclose(np.asarray(x @ x.T), host @ host.T, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(host @ x.T), host @ host.T, rtol=1e-5)
    assert x.reshape(-1).shape == x.reshape((3, 2)).ravel().shape == (6,)
    assert x.__array_namespace__() is vnp


def test_files():
    x = sample((2, 3), np.float32, 1)
    file = io.BytesIO()
    vnp.save(file, vnp.asarray(x))
    file.seek(0)
    np.testing.assert_array_equal(np.asarray(vnp.load(file)), x)
    file = io.BytesIO()
    vnp.savez(file, vnp.asarray(x), named=vnp.ones(2))
    file.seek(0)
    archive = vnp.load(file)
    np.testing.assert_array_equal(archive["arr_0"], x)
    assert archive["named"].tolist() == [1.0, 1.0]


def test_raw_files(tmp_path):
    path = tmp_path / "numbers"
    np.arange(3, dtype=np.float32).tofile(path)
    assert vnp.fromfile(path).tolist() == [0.0, 1.0, 2.0]
    assert vnp.fromstring("1,2", dtype=int, sep=",").tolist() == [1, 2]


def test_printing():
    x = vnp.array([1.23456789, 2.0])
    assert vnp.array_str(x, precision=2) == "[1.23 2.  ]"
    assert vnp.array_repr(x, precision=2) == "Array([1.23, 2.  ], dtype=float32)"
    with vnp.printoptions(precision=3):
        assert str(x) == "[1.235 2.   ]"
        vnp.set_printoptions(precision=2)
        assert str(x) == "[1.23 2.  ]"
        vnp.set_printoptions(precision=3)
        assert vnp.get_printoptions()["precision"] == 3
