"""Limits of memory, which compiled programs and kernels must notice."""

from __future__ import annotations

from volta_fn.core.device import Device, limit_memory
from volta_fn.jit.cache import clear_caches
from volta_fn.jit.eager import forget_kernels


def set_memory_limit(most: int | None, device: str | Device | None = None) -> None:
    """Limit the bytes that arrays and programs hold on a device (None: no limit).

    An operation or program whose results and temporary values would exceed it raises `OutOfMemoryError` before it runs; the error names the
    largest array and the user's line. Initially the limits are VOLTA_MEMORY bytes on the CPU and VOLTA_GPU_MEMORY on GPUs. On the CPU,
    arrays are counted that are made while there is a limit, which costs microseconds for each operation; memory of NumPy arrays outside of
    this package is not.

    Raises `ArgumentError` for a limit that is no number of bytes.

    >>> import volta_fn as vf
    >>> vf.set_memory_limit(1_000_000, "cpu")
    >>> try:
    ...     vf.numpy.ones((1000, 1000)) + 1
    ... except vf.errors.OutOfMemoryError as error:
    ...     print(error.message[:78])
    add of f32[1000,1000], f32[], giving f32[1000,1000]: 4,000,000 bytes more than
    >>> vf.set_memory_limit(None, "cpu")
    """
    limit_memory(most, device)
    forget_kernels()
    clear_caches()
