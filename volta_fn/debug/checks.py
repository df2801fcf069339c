"""Blocks in which NaN, infinities and indices out of range raise where they arise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from volta_fn import config
from volta_fn.jit.cache import clear_caches
from volta_fn.settings import current


@contextmanager
def nans(*, infs: bool = False) -> Iterator[None]:
    """Raise `NonFiniteError` for the first NaN in a block, and with `infs` infinity.

    The message has the primitive, the line of the forward computation, the operands' ranges, the iterations of loops, the example that
    `vmap` maps, and what to do. Programs run one equation at a time meanwhile, on their device; other threads' as well.

    >>> import volta_fn as vf
    >>> with vf.debug.nans():
    ...     vf.jit(lambda x: vf.numpy.log(x - 1))(0.5)
    Traceback (most recent call last):
    volta_fn.errors.NonFiniteError: invalid value (nan) encountered in log...
    """
    with ExitStack() as stack:
        stack.enter_context(config.debug_nans(True))
        if infs:
            stack.enter_context(config.debug_infs(True))
        yield


@contextmanager
def indices() -> Iterator[None]:
    """Raise `OutOfBoundsError` for an index out of range in a block, in programs too.

    Programs are traced again in the block, and call back to Python with each index.

    >>> import volta_fn as vf
    >>> with vf.debug.indices():
    ...     vf.jit(lambda x, i: vf.numpy.take(x, i))(vf.numpy.arange(3.0), 5)
    Traceback (most recent call last):
    volta_fn.errors.OutOfBoundsError: ...
    """
    before = current.check_indices
    try:
        current.check_indices = True
        clear_caches()
        yield
    finally:
        current.check_indices = before
        clear_caches()
