"""Fourier transforms as products with small matrices.

For targets that have no routine of their own for them. A row of n = f·g elements is a matrix of f rows and g columns. Its transform is
that of each column, a product with an f×f matrix; a rotation of each element by its own angle; and the transform of each row, the same
again (Cooley and Tukey, 1965). With factors of up to `DIRECT` a million elements need four products. A row of a prime number of elements
beyond that is a convolution, which two transforms of a power of two elements compute (Bluestein, 1970). The error is some 3e-7 of the
largest element in complex64, where a transform in double precision that is rounded at the end has 5e-8.
"""

from __future__ import annotations

import numpy as np

from volta_fn.core.array import Array, from_host
from volta_fn.core.device import find_device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.contraction import dot_general
from volta_fn.primitives.data_movement.joining import concatenate, pad
from volta_fn.primitives.data_movement.movement import moveaxis, reshape, rev
from volta_fn.primitives.data_movement.slicing import slice_in_dim
from volta_fn.primitives.elementwise.arithmetic import mul
from volta_fn.primitives.elementwise.complex_components import complex, conj, real
from volta_fn.primitives.linalg.matrices import swap

#: The most elements that are transformed by one matrix.
DIRECT = 64


def expand_fourier_transforms(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand a program's Fourier transforms to products."""
    if all(eqn.primitive.name != "fft" for eqn in closed.eqns):
        return closed
    eqns = [_as_call(eqn) if eqn.primitive.name == "fft" else eqn for eqn in closed.eqns]
    return closed.replace(eqns=eqns)


def _as_call(eqn: Equation) -> Equation:
    program = trace_to_jaxpr(lambda x: [by_products(x, **eqn.params)], [v.aval for v in eqn.invars], "fft")
    return Equation(jit_p, eqn.invars, eqn.outvars, call_params(program, "fft"), eqn.position)


def by_products(x: Array, *, kind: str, length: int, axis: int) -> Array:
    """Compute what the primitive `fft` computes."""
    row = moveaxis(x, axis, x.ndim - 1)
    last = x.ndim - 1
    if kind == "RFFT":
        spectrum = transform(complex(row, _constant(np.zeros((), row.dtype))), -1)
        return moveaxis(slice_in_dim(spectrum, 0, length // 2 + 1, axis=last), last, axis)
    if kind == "IRFFT":
        mirrored = conj(rev(slice_in_dim(row, 1, (length + 1) // 2, axis=last), (last,)))
        row = concatenate([row, mirrored], last)
    found = transform(row, -1 if kind == "FFT" else 1)
    found = found if kind == "FFT" else mul(found, _constant(np.asarray(1 / length, found.dtype)))
    return moveaxis(real(found) if kind == "IRFFT" else found, last, axis)


def transform(x: Array, sign: int) -> Array:
    """Return Σ_j x[…, j] exp(sign 2πi j k / n) for every k, along the last axis."""
    n = x.shape[-1]
    if n <= DIRECT:
        return _times(x, _twiddles(n, n, n, sign, x.dtype))
    factor = next((f for f in range(DIRECT, 1, -1) if n % f == 0), None)
    if factor is None:
        return _by_convolution(x, sign)
    rest = n // factor
    columns = swap(reshape(x, (*x.shape[:-1], factor, rest)))
    rotated = mul(swap(_times(columns, _twiddles(factor, factor, factor, sign, x.dtype))), _twiddles(factor, rest, n, sign, x.dtype))
    return reshape(swap(transform(rotated, sign)), x.shape)


def _times(x: Array, matrix: Array) -> Array:
    return dot_general(x, matrix, (((x.ndim - 1,), (0,)), ((), ())), precision="highest")


def _constant(values: np.ndarray) -> Array:
    return from_host(values, device=find_device("cpu"))


def _twiddles(rows: int, columns: int, n: int, sign: int, dtype: np.dtype) -> Array:
    """Return exp(sign 2πi j k / n) in row j and column k, of exact angles."""
    steps = np.outer(np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64)) % n
    twiddles = np.exp(2j * np.pi / n * steps)
    quarters, beyond = np.divmod(4 * steps, n)
    exact = beyond == 0
    twiddles[exact] = np.array([1, 1j, -1, -1j])[quarters[exact]]  # where π, which is rounded, would leave traces
    return _constant((twiddles if sign > 0 else twiddles.conj()).astype(dtype))


def _by_convolution(x: Array, sign: int) -> Array:
    """Transform by a convolution.

    With 2jk = j² + k² - (k - j)² the transform is a convolution with exp(-sign πi d² / n), between two rotations by the opposite angles.
    """
    n = x.shape[-1]
    chirp, spectrum = _chirp(n, sign, x.dtype)
    size = spectrum.shape[0]
    zero = _constant(np.zeros((), x.dtype))
    rotated = pad(mul(x, _constant(chirp)), zero, [(0, 0, 0)] * (x.ndim - 1) + [(0, size - n, 0)])
    convolved = transform(mul(transform(rotated, -1), _constant(spectrum)), 1)
    kept = mul(slice_in_dim(convolved, 0, n, axis=x.ndim - 1), _constant(chirp))
    return mul(kept, _constant(np.asarray(1 / size, kept.dtype)))


def _chirp(n: int, sign: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return exp(sign πi j² / n) for every j, and the spectrum of its conjugate.

    The spectrum is over all distances, in a power of two elements.
    """
    chirp = np.exp(sign * 1j * np.pi / n * (np.arange(n, dtype=np.int64) ** 2 % (2 * n)))
    distances = np.zeros(1 << (2 * n - 2).bit_length(), np.complex128)
    distances[:n] = chirp.conj()
    distances[1 - n :] = chirp[:0:-1].conj()
    return chirp.astype(dtype), np.fft.fft(distances).astype(dtype)
